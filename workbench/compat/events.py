"""The events of the public SDK, with its positional constructors, its newer ones and the older ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Added", "ContextInfo", "ForwardPass", "ModEvent", "Prefilled", "Sampled"]


class ModEvent:
    """What all events have: the request and the step, both as the engine counts them."""

    __slots__ = ("request_id", "step", "tokens_so_far_len")

    def __init__(self, request_id: str, step: int, tokens_so_far_len: int | None = None) -> None:
        self.request_id = request_id
        self.step = step
        self.tokens_so_far_len = tokens_so_far_len
        """Visible generated tokens, or None where whoever made the event did not say."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.request_id!r} at step {self.step}>"


class ContextInfo(Mapping[str, Any]):
    """The request's tokens, by attribute (``info.tokens[:info._prompt_len]``) or by key."""

    def __init__(self, tokens: Sequence[int], prompt_len: int) -> None:
        self.tokens = np.asarray(tokens, dtype=np.int64)
        self._prompt_len = prompt_len

    def __getitem__(self, key: str) -> Any:
        return vars(self)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))


class Prefilled(ModEvent):
    """Once per request, before the model sees a token.

    ``Prefilled(request_id, step, max_steps, context_info=None)``, or the older
    ``Prefilled(request_id, step, tokens_so_far_len, max_steps, context_info=None)``: two numbers after the step tell
    which.
    """

    __slots__ = ("context_info", "max_steps")

    def __init__(
        self,
        request_id: str,
        step: int,
        *counts: Any,
        max_steps: int | None = None,
        context_info: Any = None,
        tokens_so_far_len: int | None = None,
    ) -> None:
        numbers = [value for value in counts if isinstance(value, int)]
        infos = [value for value in counts if not isinstance(value, int) and value is not None]
        if max_steps is not None:
            numbers.append(max_steps)
        if len(numbers) == 2 and tokens_so_far_len is None:
            tokens_so_far_len = numbers.pop(0)
        if len(numbers) != 1 or len(infos) > 1:
            raise TypeError("Prefilled takes (request_id, step, max_steps, context_info=None)")
        super().__init__(request_id, step, tokens_so_far_len)
        self.max_steps = int(numbers[0])
        self.context_info = context_info if context_info is not None else (infos[0] if infos else {})


class ForwardPass(ModEvent):
    """The next token will be drawn from ``logits``: a ``workbench.compat.Tensor`` of shape ``(1, vocab)``."""

    __slots__ = ("logits",)

    def __init__(self, request_id: str, step: int, logits: Any, tokens_so_far_len: int | None = None) -> None:
        super().__init__(request_id, step, tokens_so_far_len)
        self.logits = logits

    def top_k_logprob(self, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Log-probabilities and ids of the ``k`` likeliest tokens, best first, both of shape ``(1, k)``."""
        row = np.asarray(self.logits.to_numpy(), dtype=np.float64).reshape(-1)
        best = np.argsort(-row, kind="stable")[:k]
        highest = row.max()
        logprobs = row - highest - np.log(np.exp(row - highest).sum())
        return logprobs[best][None], best[None]


class Sampled(ModEvent):
    """A token was drawn and is not committed yet."""

    __slots__ = ("sampled_token",)

    def __init__(self, request_id: str, step: int, sampled_token: int, tokens_so_far_len: int | None = None) -> None:
        super().__init__(request_id, step, tokens_so_far_len)
        self.sampled_token = int(sampled_token)


class Added(ModEvent):
    """Tokens were committed.

    ``Added(request_id, step, added_tokens, forced)``, or the older
    ``Added(request_id, step, tokens, tokens_so_far_len, forced)``. ``tokens`` is another name of ``added_tokens``.
    """

    __slots__ = ("added_tokens", "forced")

    def __init__(
        self,
        request_id: str,
        step: int,
        added_tokens: Iterable[int] | None = None,
        *rest: Any,
        forced: bool | None = None,
        tokens: Iterable[int] | None = None,
        tokens_so_far_len: int | None = None,
    ) -> None:
        given = added_tokens if added_tokens is not None else tokens
        left = [*rest, *(() if forced is None else (forced,))]
        if len(left) == 2 and tokens_so_far_len is None:
            tokens_so_far_len = int(left.pop(0))
        if given is None or len(left) != 1:
            raise TypeError("Added takes (request_id, step, added_tokens, forced)")
        super().__init__(request_id, step, tokens_so_far_len)
        self.added_tokens = [int(token) for token in given]
        self.forced = bool(left[0])

    @property
    def tokens(self) -> list[int]:
        return self.added_tokens
