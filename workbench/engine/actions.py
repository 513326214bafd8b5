"""What a mod can answer, and on which event."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .events import Added, Event, ForwardPass, Prefilled, RequestView, Sampled

__all__ = [
    "Action",
    "ActionBuilder",
    "AdjustLogits",
    "AdjustPrefill",
    "Backtrack",
    "ClearEdits",
    "EditActivation",
    "EmitError",
    "ForceOutput",
    "ForceTokens",
    "Noop",
    "Note",
    "Steer",
    "ToolCalls",
]

GENERATING = (ForwardPass, Sampled, Added)
ANY = (Prefilled, *GENERATING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One answer. ``name`` is the builder method that makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noop(Action):
    """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustPrefill(Action):
    """Replace the prompt before the first pass, and the output limit if given."""

    tokens: tuple[int, ...]
    max_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustLogits(Action):
    """Draw this step's token from other logits; ``token_temp`` replaces the temperature for it."""

    logits: Any = field(repr=False)
    token_temp: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceTokens(Action):
    """Commit these tokens: instead of drawing, instead of the drawn one, or after the added ones."""

    tokens: tuple[int, ...]
    scratch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtrack(Action):
    """Take back the last ``n`` committed generated tokens, then commit ``tokens``."""

    n: int
    tokens: tuple[int, ...] = ()
    scratch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceOutput(Action):
    """Make the output exactly these tokens and finish."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalls(Action):
    """Finish with a structured payload."""

    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitError(Action):
    """Finish with an error message."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer(Action):
    """Add ``scale * vector`` to a hook at every position that the following passes feed."""

    hook: str
    vector: Any = field(repr=False)
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EditActivation(Action):
    """Replace a hook's value by ``fn(value)`` at every position that the following passes feed."""

    hook: str
    fn: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearEdits(Action):
    """Stop what this mod steers and edits, from the next pass on; other mods' edits stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Action):
    """Put something into the trace: what a mod did that the tokens do not show."""

    data: Mapping[str, Any]


Structural: TypeAlias = ForceTokens | Backtrack | ForceOutput | ToolCalls | EmitError
"""Actions of which one wins per event."""
STRUCTURAL = (ForceTokens, Backtrack, ForceOutput, ToolCalls, EmitError)

ALLOWED: Mapping[type[Action], tuple[type[Event], ...]] = {
    AdjustPrefill: (Prefilled,),
    AdjustLogits: (ForwardPass,),
    ForceTokens: GENERATING,
    Backtrack: GENERATING,
    ForceOutput: ANY,
    ToolCalls: ANY,
    EmitError: ANY,
    Steer: ANY,
    EditActivation: ANY,
    ClearEdits: ANY,
    Note: ANY,
}
"""Events on which each action may be answered; ``Noop`` always may."""

NAMES: Mapping[type[Action], str] = {
    Noop: "noop",
    AdjustPrefill: "adjust_prefill",
    AdjustLogits: "adjust_logits",
    ForceTokens: "force_tokens",
    Backtrack: "backtrack",
    ForceOutput: "force_output",
    ToolCalls: "tool_calls",
    EmitError: "emit_error",
    Steer: "steer",
    EditActivation: "edit",
    ClearEdits: "clear_edits",
    Note: "note",
}
"""The builder method of each action, used in traces and messages."""


def told(action: Action) -> tuple[tuple[int, ...], Mapping[str, Any]]:
    """Tokens and arguments of an action, as the trace keeps them."""
    match action:
        case ForceOutput(tokens=tokens):
            return tokens, {}
        case ForceTokens(tokens=tokens, scratch=scratch):
            return tokens, {"scratch": True} if scratch else {}
        case Backtrack(n=n, tokens=tokens, scratch=scratch):
            return tokens, {"n": n, "scratch": True} if scratch else {"n": n}
        case AdjustPrefill(tokens=tokens, max_steps=max_steps):
            return tokens, {} if max_steps is None else {"max_steps": max_steps}
        case AdjustLogits(token_temp=temperature):
            return (), {} if temperature is None else {"token_temp": temperature}
        case Steer(hook=hook, vector=vector, scale=scale):
            return (), {"hook": hook, "scale": float(scale), "norm": float(vector.norm())}
        case EditActivation(hook=hook):
            return (), {"hook": hook}
        case ToolCalls(payload=payload):
            return (), {"payload": payload}
        case Note(data=data):
            return (), data
        case EmitError(message=message):
            return (), {"message": message}
        case _:
            return (), {}


def allowed_names(event: Event) -> list[str]:
    """Builder methods that may answer this event."""
    return ["noop", *(NAMES[kind] for kind, events in ALLOWED.items() if isinstance(event, events))]


class ActionBuilder:
    """Makes actions. One is handed to every handler; nothing happens until the handler returns one.

    ``request`` is the request that is to be acted upon, as ``event.request``: for functions that are handed the
    builder alone.
    """

    __slots__ = ("request",)

    def __init__(self, request: RequestView) -> None:
        self.request = request

    def noop(self) -> Noop:
        return Noop()

    def adjust_prefill(self, tokens: Sequence[int], max_steps: int | None = None) -> AdjustPrefill:
        """Prefilled: replace the prompt's token ids, and ``max_new_tokens`` by ``max_steps`` if given."""
        return AdjustPrefill(tokens=_ids(tokens), max_steps=max_steps)

    def adjust_logits(self, logits: Any, token_temp: float | None = None) -> AdjustLogits:
        """ForwardPass: tensor, array or list, ``[vocab]`` or ``[1, vocab]``; ``token_temp=0`` means argmax."""
        return AdjustLogits(logits=logits, token_temp=token_temp)

    adjusted_logits = adjust_logits

    def force_tokens(self, tokens: Sequence[int], *, scratch: bool = False) -> ForceTokens:
        """Commit these token ids next (see :class:`ForceTokens` for each event).

        ``scratch`` says that they will be taken back: they and all that follows them do not count against
        ``max_new_tokens``, can't end the output, and are taken back if the request ends before.
        """
        return ForceTokens(tokens=_ids(tokens), scratch=scratch)

    def backtrack(self, n: int, tokens: Sequence[int] | None = None, *, scratch: bool = False) -> Backtrack:
        """Take back the last ``n`` committed generated tokens, then commit ``tokens``.

        On Sampled the drawn token is dropped first and does not count; on Added the just-added ones count.
        ``scratch`` as in :meth:`force_tokens`.
        """
        return Backtrack(
            n=int(n) if _is_whole(n) else n, tokens=_ids(() if tokens is None else tokens), scratch=scratch
        )

    def force_output(self, tokens: Sequence[int]) -> ForceOutput:
        """Make the whole output exactly these token ids and finish."""
        return ForceOutput(tokens=_ids(tokens))

    def tool_calls(self, payload: Any) -> ToolCalls:
        """Finish with a payload (JSON-able) instead of text."""
        return ToolCalls(payload=payload)

    def emit_error(self, message: str) -> EmitError:
        """Finish with this error."""
        return EmitError(message=message)

    def steer(self, hook: str, vector: Any, scale: float = 1.0) -> Steer:
        """Add ``scale * vector`` (``[d_model]``) at ``hook`` on the following passes of this request."""
        return Steer(hook=hook, vector=vector, scale=scale)

    def edit(self, hook: str, fn: Callable[[Tensor], Tensor]) -> EditActivation:
        """Replace ``hook`` by ``fn(value)``, ``[positions, ...]`` to the same shape, position by position."""
        return EditActivation(hook=hook, fn=fn)

    def clear_edits(self) -> ClearEdits:
        """End this mod's steering and editing of this request from the next pass on."""
        return ClearEdits()

    def note(self, **data: Any) -> Note:
        """Put ``data`` (JSON-able) into the trace; may accompany one other action."""
        return Note(data=data)


def _ids(tokens: Any) -> tuple[int, ...]:
    """Token ids as plain integers; other things are kept as given and refused with a message later."""
    if isinstance(tokens, (torch.Tensor, np.ndarray)):
        tokens = tokens.flatten().tolist()
    return tuple(int(t) if _is_whole(t) else t for t in tokens)


def _is_whole(value: Any) -> bool:
    try:
        return not isinstance(value, (bool, str)) and math.isfinite(value) and int(value) == value
    except (TypeError, ValueError):
        return False
