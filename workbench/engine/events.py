"""What a mod is told: six kinds of event, each about one request at one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..models import Message, Tokenizer

if TYPE_CHECKING:
    from .request import Request
    from .sampling import SamplingParams

__all__ = ["Added", "Event", "Finished", "ForwardPass", "Prefilled", "Removed", "RequestView", "Sampled", "Scored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What the model thinks of a continuation, at temperature 1 and under the edits that are active."""

    logprobs: Tensor
    """``[n]`` float32: log-probability (nats) of each of its tokens."""
    after: Tensor = field(repr=False)
    """``[vocab]`` float32: log-probabilities of the token after it."""


Scorer: TypeAlias = "Callable[[Request, Sequence[Sequence[int]]], list[Scored]]"


class RequestView:
    """A look at a request as it stands right now (not as it stood when an event was made)."""

    __slots__ = ("_n_ctx", "_request", "_scorer", "_tokenizer")

    def __init__(self, request: Request, tokenizer: Tokenizer, scorer: Scorer, n_ctx: int) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._scorer = scorer
        self._n_ctx = n_ctx

    @property
    def max_new_tokens(self) -> int:
        return self._request.max_new_tokens

    @property
    def room(self) -> int:
        """How many more tokens fit under ``max_new_tokens``; what a mod adds beyond is cut."""
        return self._request.room

    @property
    def context_left(self) -> int:
        """How many more tokens the model's context holds, scratch included."""
        return self._n_ctx - len(self._request.tokens)

    @property
    def scratch(self) -> bool:
        """Whether a mod is thinking aloud: tokens stand in the text that it promised to take back."""
        return self._request.scratch_from is not None

    @property
    def sampling(self) -> SamplingParams:
        """How tokens are drawn."""
        return self._request.sampling

    @property
    def temperature(self) -> float:
        """The temperature that tokens are drawn at."""
        return self._request.sampling.temperature

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and visible generated tokens."""
        return tuple(self._request.tokens)

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        return tuple(self._request.tokens[: self._request.prompt_length])

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The chat messages that the prompt was made of, or nothing for a raw prompt."""
        return self._request.conversation

    @property
    def asked(self) -> str:
        """What was asked: the last user message of a chat, else the prompt's text without special tokens."""
        for message in reversed(self._request.conversation):
            if message.get("role") == "user" and isinstance(message.get("content"), str):
                return str(message["content"])
        return self._tokenizer.decode(self.prompt_tokens, skip_special=True)

    @property
    def generated(self) -> tuple[int, ...]:
        """Visible generated tokens."""
        return tuple(self._request.generated)

    @property
    def text(self) -> str:
        """The generated text so far, special tokens left out."""
        return self._tokenizer.decode(self._request.generated, skip_special=True)

    def score(self, tails: Sequence[Sequence[int]]) -> list[Scored]:
        """How likely each continuation is from here, all in one pass that leaves no mark on the request.

        The tails share the cache; the pass costs their tokens (counted as work). Possible on ForwardPass and
        Sampled, when the cache holds everything.

        :raises InvalidActionError: on another event, or an empty tail.
        """
        return self._scorer(self._request, tails)

    def uniform(self) -> float:
        """A random number in [0, 1) from the request's own stream, so that what hangs on it can be replayed."""
        return self._request.stream.uniform()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Common to all events.

    ``request_id`` is unique in this process, so a dict keyed by it never mixes two runs; the part before ``@`` is
    the request's name in the trace. ``step`` counts forward passes of the request: 0 before the first, never
    reused. ``position`` is an index in the full sequence, prompt included. ``state`` is a scratch dict of this mod
    for this request, gone when the request ends. ``request`` shows the tokens as they stand.
    """

    request_id: str
    step: int
    position: int
    request: RequestView
    state: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled(Event):
    """Once per request, before the model sees a token. ``position`` is 0."""

    tokens: tuple[int, ...]
    """Token ids of the prompt, as they will be fed (earlier mods' changes included)."""
    max_new_tokens: int
    conversation: tuple[Message, ...] = ()
    """The chat messages the prompt was made of, or nothing for a raw prompt."""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass(Event):
    """A pass ended at ``position``; the next token will be drawn from ``logits``.

    ``logits`` and ``raw_logits`` are ``[vocab]`` float32: as earlier mods left them, and as the model gave
    them. Both are copies: to change the distribution, return ``actions.adjust_logits(...)``.
    ``activations`` maps captured hooks to their value at this position (``[d_model]`` for the residual),
    ``span_activations`` to their values at all ``n_new`` positions that the pass fed.
    """

    logits: Tensor = field(repr=False)
    raw_logits: Tensor = field(repr=False)
    span_logits: Tensor = field(repr=False)
    """``[n, vocab]``: the model's logits at the last ``n`` fed positions, as far back as a forced batch needed them
    for its log-probabilities; the last row is ``raw_logits``. Not a copy: read only."""
    span_activations: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def activations(self) -> dict[str, Tensor]:
        return {hook: value[-1] for hook, value in self.span_activations.items()}

    def top_k_logprob(self, k: int = 5) -> list[tuple[int, float]]:
        """The ``k`` likeliest tokens under ``logits`` with their log-probabilities (nats), best first."""
        logprobs = torch.log_softmax(self.logits, dim=-1)
        values, tokens = logprobs.topk(min(k, len(logprobs)))
        return list(zip(tokens.tolist(), values.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Event):
    """A token was drawn for ``position`` and is not committed yet."""

    token: int
    logprob: float
    """Under the distribution it was drawn from (0.0 at temperature 0: it could be no other)."""
    raw_logprob: float
    """Under the model's own distribution at temperature 1."""

    @property
    def sampled_token(self) -> int:
        return self.token


@dataclass(frozen=True, slots=True, kw_only=True)
class Added(Event):
    """Tokens were committed from ``position`` on, by whomever: one event per batch."""

    tokens: tuple[int, ...]
    forced: bool
    origin: str
    """``sampled``, ``forced``, or ``reinjected`` (given along with a backtrack)."""
    text: str
    mine: bool = False
    """Whether an action of the mod that hears this put them there."""

    @property
    def added_tokens(self) -> tuple[int, ...]:
        return self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed(Event):
    """The tokens from ``position`` on were taken back. Every mod hears of it; none can answer."""

    tokens: tuple[int, ...]

    @property
    def n(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The request ended. None can answer; ``state`` is freed afterwards."""

    reason: str
    """eos, max_tokens, stop, force_output, tool_calls, error, budget or interrupted."""


def tool_call_pairs(conversation: Sequence[Message]) -> list[tuple[Mapping[str, Any], Message | None]]:
    """Pair every tool call that an assistant message made with the tool message that answers it.

    Calls are matched by ``tool_call_id`` where both sides have one, else in order. An unanswered call is
    paired with None.
    """
    calls: list[tuple[Mapping[str, Any], Message | None]] = []
    for message in conversation:
        if message.get("role") == "assistant":
            made = message.get("tool_calls") or ()
            calls.extend((call, None) for call in ([made] if isinstance(made, Mapping) else made))
        elif message.get("role") == "tool":
            _answer(calls, message)
    return calls


def _answer(calls: list[tuple[Mapping[str, Any], Message | None]], reply: Message) -> None:
    wanted = reply.get("tool_call_id")
    for index, (call, answer) in enumerate(calls):
        if answer is None and (wanted is None or call.get("id") in (None, wanted)):
            calls[index] = (call, reply)
            return
