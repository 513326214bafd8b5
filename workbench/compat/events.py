"""The events of the public SDK, with its positional constructors, its newer ones and the older ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .checks import token_ids
from .tensor import top_logprobs

__all__ = ["Added", "ContextInfo", "ForwardPass", "ModEvent", "Prefilled", "Sampled", "event_given"]


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


def event_given(event: Any) -> ModEvent:
    """``event``, which is one.

    :raises TypeError: it is not.
    """
    if not isinstance(event, ModEvent):
        raise TypeError(f"an event is a Prefilled, ForwardPass, Sampled or Added, got {event!r}")
    return event


class ModelEvent(ModEvent):
    """What the SDK's later versions tell of the model as well.

    Here ``input_ids`` is the context so far; the others are None in a Session, which captures on its own.
    """

    __slots__ = ("attention_patterns", "hidden_states", "input_ids", "layer")

    def __init__(
        self,
        request_id: str,
        step: int,
        tokens_so_far_len: int | None = None,
        hidden_states: Any = None,
        attention_patterns: Any = None,
        layer: int | None = None,
        input_ids: Iterable[int] | None = None,
    ) -> None:
        super().__init__(request_id, step, tokens_so_far_len)
        self.hidden_states = hidden_states
        self.attention_patterns = attention_patterns
        self.layer = layer
        self.input_ids = None if input_ids is None else list(input_ids)


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


class Prefilled(ModelEvent):
    """Once per request, before the model sees a token.

    ``Prefilled(request_id, step, max_steps, context_info=None)``, or the older
    ``Prefilled(request_id, step, tokens_so_far_len, max_steps, context_info=None)``: two numbers after the step tell
    which. ``hidden_states``, ``attention_patterns``, ``layer`` and ``input_ids`` may be given by name.

    :raises TypeError: the values after the step are neither.
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
        **seen: Any,
    ) -> None:
        numbers = [value for value in counts if isinstance(value, int)]
        infos = [value for value in counts if not isinstance(value, int) and value is not None]
        if max_steps is not None:
            numbers.append(max_steps)
        if len(numbers) == 2 and tokens_so_far_len is None:
            tokens_so_far_len = numbers.pop(0)
        if len(numbers) != 1 or len(infos) > 1:
            raise TypeError(
                "Prefilled takes (request_id, step, max_steps, context_info=None), max_steps a whole number; got "
                f"{counts!r} and max_steps={max_steps!r}"
            )
        super().__init__(request_id, step, tokens_so_far_len, **seen)
        self.max_steps = int(numbers[0])
        self.context_info = context_info if context_info is not None else (infos[0] if infos else {})


class ForwardPass(ModelEvent):
    """The next token will be drawn from ``logits``: a ``workbench.compat.Tensor`` of shape ``(1, vocab)``.

    ``ForwardPass(request_id, step, logits)``, and by position or by name what ``ModelEvent`` has.
    """

    __slots__ = ("logits",)

    def __init__(
        self, request_id: str, step: int, logits: Any, *seen: Any, tokens_so_far_len: int | None = None, **named: Any
    ) -> None:
        super().__init__(request_id, step, tokens_so_far_len, *seen, **named)
        self.logits = logits

    def top_k_logprob(self, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Log-probabilities and ids of the ``k`` likeliest tokens, best first, both of shape ``(1, k)``."""
        return top_logprobs(self.logits, k)


class Sampled(ModEvent):
    """A token was drawn and is not committed yet."""

    __slots__ = ("sampled_token",)

    def __init__(self, request_id: str, step: int, sampled_token: int, tokens_so_far_len: int | None = None) -> None:
        super().__init__(request_id, step, tokens_so_far_len)
        (self.sampled_token,) = token_ids([sampled_token], "Sampled")


class Added(ModEvent):
    """Tokens were committed.

    ``Added(request_id, step, added_tokens, forced)``, or the older
    ``Added(request_id, step, tokens, tokens_so_far_len, forced)``. ``tokens`` is another name of ``added_tokens``.

    :raises TypeError: there are too few or too many values.
    :raises CompatError: the tokens are no list of token ids.
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
            raise TypeError(
                f"Added takes (request_id, step, added_tokens, forced); got added_tokens={given!r} and {left!r}"
            )
        super().__init__(request_id, step, tokens_so_far_len)
        self.added_tokens = token_ids(given, "Added")
        self.forced = bool(left[0])

    @property
    def tokens(self) -> list[int]:
        return self.added_tokens
