"""The actions of the public SDK, the builder that makes those an event allows, and the check of an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InvalidActionError
from .checks import token_ids
from .events import Added, ForwardPass, ModEvent, Prefilled, Sampled, event_given
from .tensor import top_logprobs

__all__ = [
    "ActionBuilder",
    "AdjustedLogits",
    "AdjustedPrefill",
    "Backtrack",
    "EmitError",
    "ForceOutput",
    "ForceTokens",
    "ModAction",
    "Noop",
    "ToolCalls",
    "for_event",
    "validate_action",
]


def _ids(tokens: Iterable[int], what: str) -> list[int]:
    return token_ids(tokens, what, InvalidActionError)


class ModAction:
    """One answer of a mod.

    :raises InvalidActionError: by those with tokens or a number, if it was given something else.
    """


@dataclass
class Noop(ModAction):
    """Nothing."""


@dataclass
class AdjustedPrefill(ModAction):
    """Replace the prompt, and the output limit unless that is None or 0."""

    tokens: list[int]
    max_steps: int | None = None

    def __post_init__(self) -> None:
        self.tokens = _ids(self.tokens, "AdjustedPrefill")


@dataclass
class ForceTokens(ModAction):
    """Commit these tokens; in answer to ``Added`` they come after what was added."""

    tokens: list[int]
    scratch: bool = field(default=False, kw_only=True, repr=False, compare=False)
    """Whether they will be taken back: our own self-prompts say so, and the engine then does not count them."""

    def __post_init__(self) -> None:
        self.tokens = _ids(self.tokens, "ForceTokens")


@dataclass
class AdjustedLogits(ModAction):
    """Draw this step's token from other logits; ``token_temp=0`` takes the likeliest."""

    logits: Any = field(repr=False)
    token_temp: float | None = None

    def top_k_logprob(self, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Log-probabilities and ids of the ``k`` likeliest tokens, best first, both of shape ``(1, k)``."""
        return top_logprobs(self.logits, k)


@dataclass
class ForceOutput(ModAction):
    """Make the output exactly these tokens and finish."""

    tokens: list[int]

    def __post_init__(self) -> None:
        self.tokens = _ids(self.tokens, "ForceOutput")


@dataclass
class ToolCalls(ModAction):
    """Finish with a payload instead of text."""

    tool_calls: Any


@dataclass
class Backtrack(ModAction):
    """Take back ``n`` generated tokens, then commit ``tokens``."""

    n: int
    tokens: list[int] | None = None

    def __post_init__(self) -> None:
        try:
            self.n = int(self.n)
        except (TypeError, ValueError):
            raise InvalidActionError(f"Backtrack takes the number of tokens to take back, got {self.n!r}") from None
        self.tokens = None if self.tokens is None else _ids(self.tokens, "Backtrack")


@dataclass
class EmitError(ModAction):
    """Finish with an error message."""

    err_str: str


GENERATING = (ForwardPass, Sampled, Added)
ANY = (Prefilled, *GENERATING)
ALLOWED: dict[type[ModAction], tuple[type[ModEvent], ...]] = {
    Noop: ANY,
    AdjustedPrefill: (Prefilled,),
    AdjustedLogits: (ForwardPass,),
    ForceTokens: GENERATING,
    Backtrack: GENERATING,
    ForceOutput: ANY,
    ToolCalls: ANY,
    EmitError: ANY,
}
METHODS = {
    Noop: "noop",
    AdjustedPrefill: "adjust_prefill",
    AdjustedLogits: "adjust_logits",
    ForceTokens: "force_tokens",
    Backtrack: "backtrack",
    ForceOutput: "force_output",
    ToolCalls: "tool_calls",
    EmitError: "emit_error",
}


def validate_action(event: ModEvent, action: ModAction | None) -> ModAction:
    """The action, or a ``Noop`` for None.

    :raises InvalidActionError: it is no action, or none that this event allows.
    :raises TypeError: ``event`` is none.
    """
    event_given(event)
    if action is None:
        return Noop()
    if not isinstance(action, ModAction):
        raise InvalidActionError(
            f"a mod answered {type(event).__name__} with {type(action).__name__} {str(action)[:40]!r}: return None or "
            "one action, as the methods of `actions` give them"
        )
    kinds = [kind for kind in ALLOWED if isinstance(action, kind)]
    if kinds and not isinstance(event, ALLOWED[kinds[0]]):
        allowed = ", ".join(METHODS[kind] for kind, events in ALLOWED.items() if isinstance(event, events))
        raise InvalidActionError(
            f"{METHODS[kinds[0]]}() can't answer {type(event).__name__} (request {event.request_id}, step "
            f"{event.step}). Allowed here: {allowed or 'nothing'}."
        )
    return action


def for_event(event: ModEvent) -> ActionBuilder:
    """The builder of the actions that ``event`` allows."""
    return ActionBuilder(event)


class ActionBuilder:
    """Makes the actions that its event allows.

    :raises InvalidActionError: by every method whose action the event does not allow.
    """

    __slots__ = ("event",)

    def __init__(self, event: ModEvent) -> None:
        self.event = event_given(event)

    def _allowed(self, action: ModAction) -> Any:
        return validate_action(self.event, action)

    def noop(self) -> Noop:
        return Noop()

    def adjust_prefill(self, tokens: Iterable[int], max_steps: int | None = None) -> AdjustedPrefill:
        made: AdjustedPrefill = self._allowed(AdjustedPrefill(_ids(tokens, "adjust_prefill()"), max_steps))
        return made

    def force_tokens(self, tokens: Iterable[int]) -> ForceTokens:
        made: ForceTokens = self._allowed(ForceTokens(_ids(tokens, "force_tokens()")))
        return made

    def adjust_logits(self, logits: Any = None, token_temp: float | None = None) -> AdjustedLogits:
        """Other logits, or without any the event's own: with a temperature for this one token, say."""
        given = self.event.logits if logits is None and isinstance(self.event, ForwardPass) else logits
        made: AdjustedLogits = self._allowed(AdjustedLogits(given, token_temp))
        return made

    adjusted_logits = adjust_logits

    def force_output(self, tokens: Iterable[int]) -> ForceOutput:
        made: ForceOutput = self._allowed(ForceOutput(_ids(tokens, "force_output()")))
        return made

    def tool_calls(self, payload: Any) -> ToolCalls:
        made: ToolCalls = self._allowed(ToolCalls(payload))
        return made

    def backtrack(
        self, steps: int | None = None, tokens: Iterable[int] | None = None, *, n: int | None = None
    ) -> Backtrack:
        """Take back ``steps`` tokens (``n`` is another name), then commit ``tokens``."""
        count = n if steps is None else steps
        if count is None:
            raise TypeError("backtrack() needs the number of tokens to take back")
        made: Backtrack = self._allowed(Backtrack(count, None if tokens is None else _ids(tokens, "backtrack()")))
        return made

    def emit_error(self, err_str: str) -> EmitError:
        made: EmitError = self._allowed(EmitError(err_str))
        return made
