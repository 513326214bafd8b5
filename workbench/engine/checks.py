"""Is an answer allowed? Checked as a whole before any of it is carried out, so a refusal changes nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidActionError, did_you_mean
from .actions import (
    ALLOWED,
    NAMES,
    Action,
    AdjustLogits,
    AdjustPrefill,
    Backtrack,
    ClearEdits,
    EditActivation,
    EmitError,
    ForceOutput,
    ForceTokens,
    Noop,
    Note,
    Steer,
    ToolCalls,
    allowed_names,
)
from .events import Event

__all__ = ["Limits", "checked"]

ASIDE = (Steer, EditActivation, ClearEdits, Note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an answer is checked against, at the moment it is given."""

    vocab_size: int
    n_ctx: int
    d_model: int
    edit_names: tuple[str, ...]
    generated: int
    """How many generated tokens are committed: the most that a backtrack can take."""


def checked(answer: Any, event: Event, mod_name: str, limits: Limits) -> list[Action]:
    """The actions of an answer, with tensors made of what was given; noops left out.

    :raises InvalidActionError: with mod, event, step, what is wrong and what is allowed.
    """
    try:
        actions = _listed(answer)
        for action in actions:
            if not isinstance(event, ALLOWED[type(action)]):
                raise _Wrong(f"{NAMES[type(action)]}() can't answer this event")
        if sum(not isinstance(action, ASIDE) for action in actions) > 1:
            raise _Wrong("more than one action besides steer, edit, clear_edits and note was given")
        return [_checked_one(action, limits) for action in actions]
    except _Wrong as wrong:
        raise InvalidActionError(
            f"mod {mod_name!r} on {type(event).__name__} at step {event.step} (request {event.request_id}): "
            f"{wrong}. Allowed here: {', '.join(allowed_names(event)) or 'nothing'}."
        ) from None


class _Wrong(Exception):
    """What is wrong with an answer; turned into an InvalidActionError that also says where."""


def _listed(answer: Any) -> list[Action]:
    if answer is None:
        return []
    items = list(answer) if isinstance(answer, (list, tuple)) else [answer]
    for item in items:
        if not isinstance(item, Action):
            raise _Wrong(
                f"it answered with {type(item).__name__} {str(item)[:40]!r}: return None, what a method of "
                "`actions` gives, or a list of those"
            )
    return [item for item in items if not isinstance(item, Noop)]


def _checked_one(action: Action, limits: Limits) -> Action:
    match action:
        case ForceTokens(tokens=tokens):
            _check_ids(tokens, limits, "force_tokens", empty_ok=False)
        case ForceOutput(tokens=tokens):
            _check_ids(tokens, limits, "force_output")
        case Backtrack(n=n, tokens=tokens):
            _check_backtrack(n, limits)
            _check_ids(tokens, limits, "backtrack")
        case AdjustPrefill(tokens=tokens, max_steps=max_steps):
            _check_ids(tokens, limits, "adjust_prefill", empty_ok=False)
            if len(tokens) >= limits.n_ctx:
                raise _Wrong(f"adjust_prefill() gives {len(tokens)} tokens; the context holds {limits.n_ctx}")
            if max_steps is not None and not (isinstance(max_steps, int) and max_steps > 0):
                raise _Wrong(f"adjust_prefill(max_steps={max_steps!r}) must be a whole number above 0")
        case AdjustLogits(logits=logits, token_temp=temperature):
            if temperature is not None and not (
                isinstance(temperature, (int, float)) and temperature >= 0 and math.isfinite(temperature)
            ):
                raise _Wrong(f"adjust_logits(token_temp={temperature!r}) must be 0 or above")
            return replace(action, logits=_check_logits(logits, limits.vocab_size))
        case ToolCalls(payload=payload):
            try:
                json.dumps(payload, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise _Wrong(f"tool_calls() needs a JSON-able payload: {error}") from None
        case Note(data=data):
            try:
                json.dumps(dict(data), allow_nan=False)
            except (TypeError, ValueError) as error:
                raise _Wrong(f"note() needs JSON-able data: {error}") from None
        case EmitError(message=message):
            if not isinstance(message, str) or not message:
                raise _Wrong(f"emit_error() needs a message, got {message!r}")
        case Steer():
            return replace(action, vector=_check_steer(action, limits))
        case EditActivation(hook=hook, fn=fn):
            _check_hook(hook, limits)
            if not callable(fn):
                raise _Wrong(f"edit({hook!r}, …) needs a function of a tensor, got {fn!r}")
        case _:
            pass
    return action


def _check_ids(tokens: Sequence[Any], limits: Limits, method: str, *, empty_ok: bool = True) -> None:
    if not tokens and not empty_ok:
        raise _Wrong(f"{method}() got no tokens")
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool):
            raise _Wrong(f"{method}() needs token ids (whole numbers), got {token!r}; encode text first")
        if not 0 <= token < limits.vocab_size:
            raise _Wrong(f"{method}(): token id {token} is outside the vocabulary 0..{limits.vocab_size - 1}")


def _check_backtrack(n: Any, limits: Limits) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise _Wrong(f"backtrack({n!r}) must be a whole number of tokens, 0 or more")
    if n > limits.generated:
        raise _Wrong(
            f"backtrack({n}) reaches past the first generated token: {limits.generated} are committed, "
            "and the prompt can't be taken back"
        )


def _check_logits(logits: Any, vocab_size: int) -> Tensor:
    try:
        given = logits if isinstance(logits, Tensor) else torch.as_tensor(logits)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _Wrong(f"adjust_logits() needs a tensor, array or list of numbers: {error}") from None
    given = given.detach().float()
    flat = given[0] if given.ndim == 2 and given.shape[0] == 1 else given
    if flat.shape != (vocab_size,):
        raise _Wrong(f"adjust_logits() got shape {tuple(given.shape)}; it must be ({vocab_size},) or (1, {vocab_size})")
    highest = float(flat.max())  # NaN if any is NaN
    if math.isnan(highest):
        raise _Wrong("adjust_logits() got NaN")
    if highest == math.inf:
        raise _Wrong("adjust_logits() got +inf: to force a token use force_tokens, to ban others give -inf")
    if highest == -math.inf:
        raise _Wrong("adjust_logits() bans every token (all are -inf)")
    return flat


def _check_steer(action: Steer, limits: Limits) -> Tensor:
    _check_hook(action.hook, limits)
    try:
        vector = torch.as_tensor(action.vector).detach().float()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _Wrong(f"steer() needs a vector of numbers: {error}") from None
    if ".hook_resid" in action.hook and vector.shape != (limits.d_model,):
        raise _Wrong(f"steer({action.hook!r}) needs a vector of shape ({limits.d_model},), got {tuple(vector.shape)}")
    if not bool(torch.isfinite(vector).all()) or not math.isfinite(action.scale):
        raise _Wrong(f"steer({action.hook!r}) got a vector or scale that is not finite")
    return vector


def _check_hook(hook: str, limits: Limits) -> None:
    if hook not in limits.edit_names:
        raise _Wrong(
            f"no hook {hook!r} can be edited in this model and backend "
            f"({len(limits.edit_names)} can: model.edit_names).{did_you_mean(hook, limits.edit_names)}"
        )
