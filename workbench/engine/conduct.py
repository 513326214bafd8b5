"""Carrying out what mods decide: committing tokens, taking them back, finishing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..models import HookedModel
from ..trace import WARNING
from .actions import Backtrack, EmitError, ForceOutput, ForceTokens, ToolCalls
from .dispatch import Decision, Dispatch
from .emit import Emitter
from .events import Added, Finished, Removed, RequestView, Scorer
from .interrupts import StopFlag
from .request import Request

__all__ = ["Conductor"]


class Conductor:
    """Changes requests as decided, and tells the mods of every change."""

    def __init__(self, model: HookedModel, emit: Emitter, on_mod_error: str, stop: StopFlag, scorer: Scorer) -> None:
        self.model = model
        self.scorer = scorer
        self.emit = emit
        self.dispatch = Dispatch(model, emit, on_mod_error, stop)
        self.ask = self.dispatch.ask
        self.warn = self.dispatch.warn

    def view(self, request: Request) -> RequestView:
        return RequestView(request, self.model.tokenizer, self.scorer, self.model.n_ctx)

    def settle(self, request: Request, decision: Decision, score: Callable[[int], float] | None = None) -> None:
        """Carry out a structural action, and those that the resulting Added events are answered with.

        ``score`` gives the raw log-probability of a token at the present end of the sequence.
        """
        while decision.structural is not None and request.alive:
            request.author = decision.owner
            decision = self._carry_out(request, decision, score)
            score = None

    def _carry_out(self, request: Request, decision: Decision, score: Callable[[int], float] | None) -> Decision:
        by = decision.by
        match decision.structural:
            case ForceTokens(tokens=tokens, scratch=scratch):
                return self.commit(request, tokens, "forced", by, score, scratch=scratch)
            case Backtrack(n=n, tokens=tokens, scratch=scratch):
                self._remove(request, n, by)
                known = score if n == 0 else None
                return self.commit(request, tokens, "reinjected", by, known, scratch=scratch)
            case ForceOutput(tokens=tokens):
                self._remove(request, request.generated_count, by)
                request.max_new_tokens = max(request.max_new_tokens, len(tokens))
                self.commit(request, tokens, "forced", by, None, closing=True)
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
        *,
        closing: bool = False,
        scratch: bool = False,
    ) -> Decision:
        """Append tokens and tell the mods; what does not fit under ``max_new_tokens`` is cut, and noted."""
        provisional = scratch or request.scratch_from is not None
        limit = "the context" if provisional else "max_new_tokens"
        room = self.model.n_ctx - len(request.tokens) if provisional else request.room
        fitting = tokens[: max(room, 0)]
        if scratch and fitting and request.scratch_from is None:
            request.scratch_from, request.scratch_owner = len(request.tokens), request.author
        if len(fitting) < len(tokens):
            note = f"{len(tokens) - len(fitting)} of {len(tokens)} tokens cut by {limit}"
            self.emit(request, WARNING, len(request.tokens), mod=by, data={"message": note})
        if not fitting:
            return Decision()
        if origin == "sampled":
            request.author = None
        position = len(request.tokens)
        first = None if score is None else score(fitting[0])
        request.append(fitting, first)
        texts = [self.emit.text_of(token) for token in fitting]
        self.emit(
            request, "added", position, tokens=fitting, mod=by, origin=origin, raw_logprob=first,
            data={"texts": texts},
        )  # fmt: skip
        spent = not closing and request.committed > request.max_forward_tokens
        decision = self.ask(
            request,
            Added(
                request_id=request.key, step=request.step, position=position, request=self.view(request),
                tokens=fitting, forced=origin != "sampled", origin=origin,
                text=self.model.tokenizer.decode(fitting),
            ),
            closing=closing or spent,
        )  # fmt: skip
        if spent:
            self.finish(request, "budget")
        return decision

    def _remove(self, request: Request, n: int, by: str | None, *, closing: bool = False, tell: bool = True) -> None:
        if n == 0:
            return
        removed = request.take_back(n)
        position = len(request.tokens)
        self.emit(request, "removed", position, tokens=removed, mod=by)
        if not tell:
            return
        self.ask(
            request,
            Removed(
                request_id=request.key, step=request.step, position=position,
                request=self.view(request), tokens=removed,
            ),
            closing=closing,
        )  # fmt: skip

    def finish(self, request: Request, reason: str, *, tell: bool = True) -> None:
        """End the request: last record, last event, scratch space freed, silent edits reported."""
        if not request.alive:
            return
        request.reason = reason
        if request.scratch_from is not None:
            self._remove(request, len(request.tokens) - request.scratch_from, None, closing=True, tell=tell)
        data: dict[str, Any] = {"reason": reason}
        if request.tool_calls is not None:
            data["tool_calls"] = request.tool_calls
        if request.error is not None:
            data["error"] = request.error
        self.emit(request, "finished", len(request.tokens), data=data)
        try:
            if tell:
                self._tell_finished(request, reason)
        finally:
            for bound in request.mods:
                bound.state.clear()

    def _tell_finished(self, request: Request, reason: str) -> None:
        self.ask(
            request,
            Finished(
                request_id=request.key, step=request.step, position=len(request.tokens),
                request=self.view(request), reason=reason,
            ),
        )  # fmt: skip
        for edit in request.edits_made:
            if edit.used and not edit.changed and not edit.failed:
                self.warn(request, f"edit {edit.label} of mod {edit.owner.mod.name!r} at {edit.hook} changed nothing")
