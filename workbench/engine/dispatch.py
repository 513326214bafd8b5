"""Telling mods what happened and combining what they answer."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    Note,
    Steer,
    Structural,
    ToolCalls,
    told,
)
from .checks import Limits, checked
from .edits import make_edit
from .emit import Emitter
from .events import Added, Event, ForwardPass, Prefilled, Sampled
from .interrupts import StopFlag
from .request import BoundMod, Request

__all__ = ["Decision", "Dispatch"]

MANY_EDITS = 8
"""Edits of one mod at one hook from which on it is asked whether it means to pile them up."""


@dataclass(slots=True)
class Decision:
    """What the mods made of one event."""

    structural: Structural | None = None
    by: str | None = None
    """The mod whose structural action won."""
    owner: BoundMod | None = None
    """The same, in this request."""
    logits: Tensor | None = None
    """Logits as edited, or None if nobody did."""
    token_temp: float | None = None
    prefill: AdjustPrefill | None = None


AT_ONCE = (Steer, EditActivation, ClearEdits, Note)
"""Actions that take effect as they are taken; the others wait until every mod was heard."""


class Dispatch:
    """Runs the mods of requests over one model; ``on_mod_error`` is ``raise`` or ``disable``."""

    def __init__(self, model: HookedModel, emit: Emitter, on_mod_error: str, stop: StopFlag) -> None:
        self.model = model
        self.emit = emit
        self.on_mod_error = on_mod_error
        self.stop = stop

    def ask(self, request: Request, event: Event, *, closing: bool = False) -> Decision:
        """Tell every mod in order and combine their answers; the first structural action wins.

        When the request is ``closing`` its end is decided: structural answers are shadowed.
        """
        decision = Decision()
        taken: list[tuple[BoundMod, Action, str, int]] = []
        heard = False
        try:
            for bound in request.mods:
                if bound.disabled:
                    continue
                started = time.perf_counter_ns()
                actions = self._answer(request, bound, event, decision)
                took = time.perf_counter_ns() - started
                for action in actions:
                    late = closing and isinstance(action, STRUCTURAL)
                    status = "shadowed" if late else self._take(request, bound, action, decision)
                    taken.append((bound, action, status, took))
            heard = True
        finally:  # also where a later mod raised: what earlier ones did is on record, though it never was carried out
            for bound, action, status, took in taken:
                moot = isinstance(action, AdjustLogits) and decision.structural is not None
                moot = moot or not (heard or isinstance(action, AT_ONCE))
                self._note_action(request, event, bound, action, "shadowed" if moot else status, took)
        if not closing and decision.structural is None and isinstance(event, (ForwardPass, Sampled, Added)):
            self._pay_scratch(request, decision)
        return decision

    @staticmethod
    def _pay_scratch(request: Request, decision: Decision) -> None:
        """Take back what a mod promised to take back and, being disabled since, no longer can."""
        owner = request.scratch_owner
        if request.scratch_from is not None and owner is not None and owner.disabled:
            decision.structural = Backtrack(n=len(request.tokens) - request.scratch_from)
            decision.by, decision.owner = owner.mod.name, owner

    def _answer(self, request: Request, bound: BoundMod, event: Event, so_far: Decision) -> list[Action]:
        """One mod's checked answer. A mod that raises changes nothing."""
        own = self._own_copy(request, bound, event, so_far)
        name = bound.mod.name
        try:
            with self.stop.interruptible():
                answer = bound.mod.handle(own, ActionBuilder(own.request), self.model.tokenizer)
            actions = checked(answer, own, name, self._limits(request))
        except InvalidActionError as error:
            self._failed(request, bound, event, error)
        except Exception as error:  # noqa: BLE001  # why: whatever user code raises is reported with mod, event and step
            wrapped = ModError(
                f"mod {name!r} raised {type(error).__name__} on {type(event).__name__} at step {event.step} "
                f"(request {request.key}): {error}"
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
            # Copies, so that writing into them can't reach the run; outside inference mode, so that torch
            # counts such writes and we can tell the author about them.
            with torch.inference_mode(False):
                return replace(event, state=bound.state, logits=logits.clone(), raw_logits=event.raw_logits.clone())
        if isinstance(event, Prefilled) and so_far.prefill is not None:
            changed = so_far.prefill
            return replace(
                event,
                state=bound.state,
                tokens=changed.tokens,
                text=self.model.tokenizer.decode(changed.tokens),
                max_new_tokens=changed.max_steps or event.max_new_tokens,
            )
        if isinstance(event, Added):
            return replace(event, state=bound.state, mine=request.author is bound)
        return replace(event, state=bound.state)

    def _failed(self, request: Request, bound: BoundMod, event: Event, error: Exception) -> None:
        self.emit(
            request, ACTION, event.position, mod=bound.mod.name, action="raised", status="refused",
            data={"event": type(event).__name__, "error": str(error)},
        )  # fmt: skip
        if self.on_mod_error == "raise":
            raise error
        self._disable(request, bound)

    @staticmethod
    def _disable(request: Request, bound: BoundMod) -> None:
        """Go on without a mod: it is asked no more, and what it steers ends with it."""
        bound.disabled = True
        request.active = tuple(edit for edit in request.active if edit.owner is not bound)

    def without_failed_edits(self, requests: Sequence[Request], error: Exception) -> bool:
        """After a pass that an edit broke: disable its mod and drop the edit, if failures are to be survived."""
        if self.on_mod_error == "raise":
            return False
        dropped = False
        for request in requests:
            for edit in request.drop_failed_edits():
                dropped = True
                self.emit(
                    request, ACTION, len(request.tokens), mod=edit.owner.mod.name, action="raised", status="refused",
                    data={"event": "edit", "error": str(error)},
                )  # fmt: skip
                self._disable(request, edit.owner)
        return dropped

    def _warn_of_lost_change(
        self, request: Request, own: Event, so_far: Decision, actions: list[Action], name: str
    ) -> None:
        if (
            isinstance(own, ForwardPass)
            and own.logits._version
            and not any(isinstance(action, AdjustLogits) for action in actions)
        ):
            self.warn_once(request, f"mod {name!r} wrote into event.logits without returning adjust_logits(): ignored")

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
                self._start_edit(request, bound, action)
            case Note():
                pass
            case ClearEdits():
                request.active = tuple(edit for edit in request.active if edit.owner is not bound)
            case AdjustLogits():
                decision.logits = action.logits.to(self.model.device)
                decision.token_temp = decision.token_temp if action.token_temp is None else action.token_temp
            case AdjustPrefill():
                kept = decision.prefill.max_steps if decision.prefill and action.max_steps is None else action.max_steps
                decision.prefill = replace(action, max_steps=kept)
            case ForceTokens() | Backtrack() | ForceOutput() | ToolCalls() | EmitError():
                if decision.structural is not None:
                    return "shadowed"
                decision.structural, decision.by, decision.owner = action, bound.mod.name, bound
            case _:
                raise AssertionError(action)
        return "applied"

    def _start_edit(self, request: Request, bound: BoundMod, action: Steer | EditActivation) -> None:
        edit = make_edit(action, f"e{len(request.edits_made)}", bound, self.model.device)
        request.edits_made.append(edit)
        request.active = (*request.active, edit)
        if sum(other.owner is bound and other.hook == edit.hook for other in request.active) == MANY_EDITS:
            self.warn_once(
                request,
                f"mod {bound.mod.name!r} has {MANY_EDITS} edits active at once at {edit.hook}: they add up. To replace "
                "one, return [actions.clear_edits(), actions.steer(...)]",
            )

    def _note_action(
        self, request: Request, event: Event, bound: BoundMod, action: Action, status: str, took: int
    ) -> None:
        tokens, data = told(action)
        self.emit(
            request, ACTION, event.position, tokens=tokens, mod=bound.mod.name, action=NAMES[type(action)],
            status=status, duration_ns=took, data={"event": type(event).__name__, **data},
        )  # fmt: skip

    def warn_once(self, request: Request, message: str) -> None:
        """Say something that may come up at every step, but only once per request."""
        if message not in request.warned:
            request.warned.add(message)
            self.warn(request, message)

    def warn(self, request: Request, message: str) -> None:
        """Say something in the trace and as a Python warning."""
        self.emit(request, WARNING, len(request.tokens), data={"message": message})
        warnings.warn(f"request {request.request_id}: {message}", stacklevel=2)
