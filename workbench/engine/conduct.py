"""Telling mods what happened, and carrying out what they answer."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidActionError, ModError
from ..models import HookedModel
from ..trace import ACTION, WARNING
from .actions import (
    NAMES,
    STRUCTURAL,
    Action,
    ActionBuilder,
    AdjustLogits,
    AdjustPrefill,
    Backtrack,
    ClearEdits,
    EditActivation,
    EmitError,
    ForceOutput,
    ForceTokens,
    Steer,
    ToolCalls,
)
from .checks import Limits, checked
from .emit import Emitter
from .events import Added, Event, Finished, ForwardPass, Prefilled, Removed, RequestView, Sampled
from .request import ActiveEdit, BoundMod, Request

__all__ = ["Conductor", "Decision"]

Structural = (ForceTokens, Backtrack, ForceOutput, ToolCalls, EmitError)


@dataclass(slots=True)
class Decision:
    """What the mods made of one event."""

    structural: STRUCTURAL | None = None
    by: str | None = None
    """The mod whose structural action won."""
    logits: Tensor | None = None
    """Logits as edited, or None if nobody did."""
    token_temp: float | None = None
    prefill: AdjustPrefill | None = None


class Conductor:
    """Runs the mods of requests over one model; ``on_mod_error`` is ``raise`` or ``disable``."""

    def __init__(self, model: HookedModel, emit: Emitter, on_mod_error: str) -> None:
        self.model = model
        self.emit = emit
        self.on_mod_error = on_mod_error

    # Telling ---------------------------------------------------------------------------------------------

    def ask(self, request: Request, event: Event) -> Decision:
        """Tell every mod in order and combine their answers; the first structural action wins."""
        decision = Decision()
        taken: list[tuple[BoundMod, Action, str, int]] = []
        for bound in request.mods:
            if bound.disabled:
                continue
            started = time.perf_counter_ns()
            actions = self._answer(request, bound, event, decision)
            took = time.perf_counter_ns() - started
            for action in actions:
                status = self._take(request, bound, action, decision)
                taken.append((bound, action, status, took))
        for bound, action, status, took in taken:
            moot = isinstance(action, AdjustLogits) and decision.structural is not None
            self._note_action(request, event, bound, action, "shadowed" if moot else status, took)
        return decision

    def _answer(self, request: Request, bound: BoundMod, event: Event, so_far: Decision) -> list[Action]:
        """One mod's checked answer. A mod that raises changes nothing."""
        own = self._own_copy(request, bound, event, so_far)
        name = bound.mod.name
        try:
            answer = bound.mod.handle(own, ActionBuilder(), self.model.tokenizer)
            actions = checked(answer, own, name, self._limits(request))
        except InvalidActionError as error:
            self._failed(request, bound, event, error)
        except Exception as error:  # why: whatever user code raises is reported with mod, event and step
            wrapped = ModError(
                f"mod {name!r} raised {type(error).__name__} on {type(event).__name__} at step {event.step} "
                f"(request {request.request_id}): {error}"
            )
            wrapped.__cause__ = error
            self._failed(request, bound, event, wrapped)
        else:
            self._warn_of_lost_change(request, own, so_far, actions, name)
            return actions
        return []

    def _own_copy(self, request: Request, bound: BoundMod, event: Event, so_far: Decision) -> Event:
        if isinstance(event, ForwardPass):
            logits = event.raw_logits if so_far.logits is None else so_far.logits
            # A copy, so that writing into it can't reach the run; outside inference mode, so that torch
            # counts such writes and we can tell the author about them.
            with torch.inference_mode(False):
                return replace(event, state=bound.state, logits=logits.clone())
        if isinstance(event, Prefilled) and so_far.prefill is not None:
            changed = so_far.prefill
            return replace(
                event,
                state=bound.state,
                tokens=changed.tokens,
                text=self.model.tokenizer.decode(changed.tokens),
                max_new_tokens=changed.max_steps or event.max_new_tokens,
            )
        return replace(event, state=bound.state)

    def _failed(self, request: Request, bound: BoundMod, event: Event, error: Exception) -> None:
        self.emit(
            request, ACTION, event.position, mod=bound.mod.name, action="raised", status="refused",
            data={"event": type(event).__name__, "error": str(error)},
        )  # fmt: skip
        if self.on_mod_error == "raise":
            raise error
        bound.disabled = True

    def _warn_of_lost_change(
        self, request: Request, own: Event, so_far: Decision, actions: list[Action], name: str
    ) -> None:
        if isinstance(own, ForwardPass) and own.logits._version and not any(
            isinstance(action, AdjustLogits) for action in actions
        ):
            self.warn(request, f"mod {name!r} wrote into event.logits without returning adjust_logits(): ignored")

    def _limits(self, request: Request) -> Limits:
        model = self.model
        return Limits(
            vocab_size=model.vocab_size, n_ctx=model.n_ctx, d_model=model.d_model,
            edit_names=model.edit_names, generated=request.generated_count,
        )  # fmt: skip

    def _take(self, request: Request, bound: BoundMod, action: Action, decision: Decision) -> str:
        """Fold one action into the decision; returns its status."""
        match action:
            case Steer() | EditActivation():
                request.active = (*request.active, self._new_edit(request, bound.mod.name, action))
            case ClearEdits():
                request.active = ()
            case AdjustLogits():
                decision.logits, decision.token_temp = action.logits, action.token_temp
            case AdjustPrefill():
                decision.prefill = action
            case ForceTokens() | Backtrack() | ForceOutput() | ToolCalls() | EmitError():
                if decision.structural is not None:
                    return "shadowed"
                decision.structural, decision.by = action, bound.mod.name
            case _:
                raise AssertionError(action)
        return "applied"

    def _new_edit(self, request: Request, mod_name: str, action: Steer | EditActivation) -> ActiveEdit:
        edit = ActiveEdit(f"e{len(request.edits_made)}", action.hook, None, mod_name)
        fn = _adder(action, self.model.device) if isinstance(action, Steer) else action.fn
        edit.fn = _guarded(fn, edit)
        request.edits_made.append(edit)
        return edit

    def _note_action(
        self, request: Request, event: Event, bound: BoundMod, action: Action, status: str, took: int
    ) -> None:
        tokens, data = _told(action)
        self.emit(
            request, ACTION, event.position, tokens=tokens, mod=bound.mod.name, action=NAMES[type(action)],
            status=status, duration_ns=took, data={"event": type(event).__name__, **data},
        )  # fmt: skip

    def warn(self, request: Request, message: str) -> None:
        """Say something once in the trace and as a Python warning."""
        self.emit(request, WARNING, len(request.tokens), data={"message": message})
        warnings.warn(f"request {request.request_id}: {message}", stacklevel=2)

    # Carrying out ----------------------------------------------------------------------------------------

    def view(self, request: Request) -> RequestView:
        return RequestView(request.tokens, request.prompt_length, self.model.tokenizer)

    def settle(
        self, request: Request, decision: Decision, score: Callable[[int], float] | None = None
    ) -> None:
        """Carry out a structural action, and those that the resulting Added events are answered with.

        ``score`` gives the raw log-probability of a token at the present end of the sequence.
        """
        while decision.structural is not None and request.alive:
            decision = self._carry_out(request, decision, score)
            score = None

    def _carry_out(
        self, request: Request, decision: Decision, score: Callable[[int], float] | None
    ) -> Decision:
        by = decision.by
        match decision.structural:
            case ForceTokens(tokens=tokens):
                return self.commit(request, tokens, "forced", by, score)
            case Backtrack(n=n, tokens=tokens):
                self._remove(request, n, by)
                return self.commit(request, tokens, "reinjected", by, score if n == 0 else None)
            case ForceOutput(tokens=tokens):
                self._remove(request, request.generated_count, by)
                request.max_new_tokens = max(request.max_new_tokens, len(tokens))
                self.commit(request, tokens, "forced", by, None)
                self.finish(request, "force_output")
            case ToolCalls(payload=payload):
                request.tool_calls = payload
                self.finish(request, "tool_calls")
            case EmitError(message=message):
                request.error = message
                self.finish(request, "error")
            case _:
                raise AssertionError(decision.structural)
        return Decision()

    def commit(
        self,
        request: Request,
        tokens: tuple[int, ...],
        origin: str,
        by: str | None,
        score: Callable[[int], float] | None = None,
    ) -> Decision:
        """Append tokens and tell the mods; what does not fit under ``max_new_tokens`` is cut, and noted."""
        room = request.max_new_tokens - request.generated_count
        fitting = tokens[:room]
        if len(fitting) < len(tokens):
            note = f"{len(tokens) - len(fitting)} of {len(tokens)} tokens cut by max_new_tokens"
            self.emit(request, WARNING, len(request.tokens), mod=by, data={"message": note})
        if not fitting:
            return Decision()
        position = len(request.tokens)
        first = None if score is None else score(fitting[0])
        request.append(fitting, first)
        texts = [self.emit.text_of(token) for token in fitting]
        self.emit(
            request, "added", position, tokens=fitting, mod=by, origin=origin, raw_logprob=first,
            data={"texts": texts},
        )  # fmt: skip
        if request.committed > request.max_forward_tokens:
            self.finish(request, "budget")
            return Decision()
        return self.ask(
            request,
            Added(
                request_id=request.request_id, step=request.step, position=position, request=self.view(request),
                tokens=fitting, forced=origin != "sampled", origin=origin,
                text=self.model.tokenizer.decode(fitting),
            ),
        )  # fmt: skip

    def _remove(self, request: Request, n: int, by: str | None) -> None:
        if n == 0:
            return
        removed = request.take_back(n)
        position = len(request.tokens)
        self.emit(request, "removed", position, tokens=removed, mod=by)
        self.ask(
            request,
            Removed(
                request_id=request.request_id, step=request.step, position=position,
                request=self.view(request), tokens=removed,
            ),
        )  # fmt: skip

    def finish(self, request: Request, reason: str, *, tell: bool = True) -> None:
        """End the request: last record, last event, scratch space freed, silent edits reported."""
        request.reason = reason
        data: dict[str, Any] = {"reason": reason}
        if request.tool_calls is not None:
            data["tool_calls"] = request.tool_calls
        if request.error is not None:
            data["error"] = request.error
        for edit in request.edits_made:
            if not edit.changed:
                self.warn(request, f"edit {edit.label} of mod {edit.mod_name!r} at {edit.hook} changed nothing")
        self.emit(request, "finished", len(request.tokens), data=data)
        if tell:
            self.ask(
                request,
                Finished(
                    request_id=request.request_id, step=request.step, position=len(request.tokens),
                    request=self.view(request), reason=reason,
                ),
            )  # fmt: skip
        for bound in request.mods:
            bound.state.clear()


def _told(action: Action) -> tuple[tuple[int, ...], Mapping[str, Any]]:
    """Tokens and arguments of an action, as the trace keeps them."""
    match action:
        case ForceTokens(tokens=tokens) | ForceOutput(tokens=tokens):
            return tokens, {}
        case Backtrack(n=n, tokens=tokens):
            return tokens, {"n": n}
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
        case EmitError(message=message):
            return (), {"message": message}
        case _:
            return (), {}


def _adder(action: Steer, device: torch.device) -> Callable[[Tensor], Tensor]:
    shift = action.vector.to(device) * action.scale
    return lambda value: value + shift.to(value.dtype)


def _guarded(fn: Callable[[Tensor], Tensor], edit: ActiveEdit) -> Callable[[Tensor], Tensor]:
    """The edit, checked for shape and finiteness, its errors naming the mod; notes whether it ever acts."""

    def guarded(value: Tensor) -> Tensor:
        try:
            result = fn(value)
        except Exception as error:  # why: user code inside a forward pass; name it and stop the pass
            raise ModError(f"edit {edit.label} of mod {edit.mod_name!r} at {edit.hook} raised {error!r}") from error
        if not isinstance(result, Tensor) or result.shape != value.shape:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InvalidActionError(
                f"edit {edit.label} of mod {edit.mod_name!r} at {edit.hook} returned {got}; "
                f"it must be a tensor of the shape it was given, {tuple(value.shape)}"
            )
        if not edit.changed:
            edit.changed = not torch.equal(result, value)
        return result

    return guarded
