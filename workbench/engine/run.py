"""The loop: feed what the caches lack, tell the mods, commit what they or the sampler decide."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidActionError, ModelError, ModError
from ..models import Cache, Forward, HookedModel, RowSummary, summarize_row
from .conduct import Conductor
from .dispatch import Decision
from .emit import Emitter
from .events import ForwardPass, Prefilled, Sampled, Scored
from .interrupts import StopFlag
from .request import Request, edits_for
from .sampling import TOP_K, draw_token
from .scoring import score

__all__ = ["Run"]


class Run:
    """Several requests over one model and one cache, a pass at a time."""

    def __init__(
        self,
        model: HookedModel,
        requests: Sequence[Request],
        cache: Cache,
        emit: Emitter,
        *,
        on_mod_error: str = "raise",
        activation_budget: int,
        stop: StopFlag,
    ) -> None:
        self.model = model
        self.requests = list(requests)
        self.cache = cache
        self.emit = emit
        self.conductor = Conductor(model, emit, on_mod_error, stop, self._score)
        self.stop = stop
        self._budget = activation_budget
        self._next_row = 0
        self._here: dict[int, Tensor] = {}
        """By row, the logits of the next token from the pass just made."""

    def __iter__(self) -> Iterator[None]:
        """Run to the end, yielding after the prefill and after every pass."""
        try:
            for request in self.requests:
                self._prefill(request)
            yield
            while living := [request for request in self.requests if request.alive]:
                if self.stop():
                    self.end("interrupted")
                    return
                self._pass(living)
                yield
        except KeyboardInterrupt:
            self.end("interrupted", tell=False)
            raise
        except BaseException:
            self.end("error", tell=False)
            raise

    def end(self, reason: str, *, tell: bool = True) -> None:
        """Finish whatever is still alive."""
        for request in self.requests:
            if request.alive:
                self.conductor.finish(request, reason, tell=tell)

    # Prefill -----------------------------------------------------------------------------------------------

    def _prefill(self, request: Request) -> None:
        event = Prefilled(
            request_id=request.key,
            step=0,
            position=0,
            request=self.conductor.view(request),
            tokens=tuple(request.tokens),
            max_new_tokens=request.max_new_tokens,
            conversation=request.conversation,
            text=self.model.tokenizer.decode(request.tokens),
        )
        self.emit(request, "prefilled", 0, tokens=request.tokens, data={"max_new_tokens": request.max_new_tokens})
        decision = self.conductor.ask(request, event)
        if decision.prefill is not None:
            request.replace_prompt(decision.prefill.tokens)
            room = self.model.n_ctx - request.prompt_length
            request.max_new_tokens = min(decision.prefill.max_steps or request.max_new_tokens, room)
        self.conductor.settle(request, decision)
        self._end_if_done(request)

    # One pass ----------------------------------------------------------------------------------------------

    def _pass(self, living: Sequence[Request]) -> None:
        began = time.perf_counter_ns()
        starts, spans, forward = self._feed(living)
        took = time.perf_counter_ns() - began
        for request in living:
            request.fed_until_end(starts[request.row], spans[request.row], cached=self.model.cache_works)
            request.step += 1
        for request in living:
            self._advance(request, starts[request.row], spans[request.row], forward, took)

    def _feed(self, living: Sequence[Request]) -> tuple[dict[int, int], dict[int, Any], Forward]:
        """One forward pass over all that the caches lack; tried again without an edit that fails, if so asked.

        Returns, by row, the first fed position and the spans of edits, and what the pass gave.
        """
        starts = {request.row: request.plan(self.cache) for request in living}
        tokens: list[list[int]] = [[] for _ in self.cache.lengths]
        keep = [0] * len(tokens)
        for request in living:
            tokens[request.row] = request.tokens[starts[request.row] :]
            keep[request.row] = request.keep_logits(starts[request.row])
        spans = {request.row: request.edit_spans(starts[request.row]) for request in living}
        try:
            forward = self.model.forward(
                tokens,
                self.cache,
                capture=tuple(dict.fromkeys(hook for request in living for hook in request.capture)),
                edits=[e for r in living for e in edits_for(r, starts[r.row], spans[r.row])],
                keep=keep,
            )
        except (ModError, InvalidActionError) as error:
            if not self.conductor.dispatch.without_failed_edits(living, error):
                raise
            return self._feed(living)
        return starts, spans, forward

    def _advance(self, request: Request, start: int, spans: Sequence[Any], forward: Forward, took: int) -> None:
        """One request after a pass: score, tell, draw, commit."""
        kept = forward.logits[request.row]
        raw = kept[-1]
        held = {hook: forward.activations[hook][request.row] for hook in request.capture}
        if not forward.owned or len(self.requests) > 1:
            held = _ordinary(held)
        seen = summarize_row(raw, TOP_K)
        if not math.isfinite(seen.log_total):
            raise ModelError(
                f"{self.model.name} gave NaN logits at position {len(request.tokens) - 1} of request "
                f"{request.request_id} (step {request.step}): its numbers overflowed. Use dtype=torch.float32, or "
                "steer less strongly."
            )
        self._here[request.row] = raw
        self._note_pass(request, start, spans, kept, seen, held, took, forward.note)
        with torch.inference_mode(False):
            # Each mod gets copies, in which torch counts writes; of a tensor from inference mode it miscounts.
            shown = raw.clone() if raw.is_inference() else raw
        decision = self.conductor.ask(
            request,
            ForwardPass(
                request_id=request.key,
                step=request.step,
                position=len(request.tokens) - 1,
                request=self.conductor.view(request),
                logits=shown,
                raw_logits=shown,
                span_logits=kept,
                span_activations=held,
            ),
        )

        def known(token: int) -> float:
            return float(raw[token]) - seen.log_total

        if decision.structural is not None:
            self.conductor.settle(request, decision, known)
        else:
            self._draw(request, raw, seen, decision, known)
        request.taken = request.stream.taken
        self._end_if_done(request)

    def _draw(
        self, request: Request, raw: Tensor, seen: RowSummary, asked: Decision, known: Callable[[int], float]
    ) -> None:
        """Draw a token, let the mods see it, commit it or what they put in its place."""
        data = {}
        with torch.inference_mode():
            if asked.logits is None:
                drawn = draw_token(raw, request.sampling, asked.token_temp, request.stream, seen)
            else:
                drawn = draw_token(asked.logits, request.sampling, asked.token_temp, request.stream, None)
                data["removed_mass"] = _removed_mass(raw, asked.logits)
        token, raw_logprob, position = drawn.token, known(drawn.token), len(request.tokens)
        self.emit(
            request, "sampled", position, tokens=[token], logprob=drawn.logprob, raw_logprob=raw_logprob,
            entropy=drawn.entropy, top=drawn.top, data=data,
        )  # fmt: skip
        decision = self.conductor.ask(
            request,
            Sampled(
                request_id=request.key, step=request.step, position=position,
                request=self.conductor.view(request), token=token, logprob=drawn.logprob, raw_logprob=raw_logprob,
            ),
        )  # fmt: skip
        if decision.structural is None:
            decision = self.conductor.commit(request, (token,), "sampled", None, known)
            known_next = None
        else:
            known_next = known
        self.conductor.settle(request, decision, known_next)

    def _note_pass(
        self,
        request: Request,
        start: int,
        spans: Sequence[Any],
        kept: Tensor,
        seen: RowSummary,
        held: Mapping[str, Tensor],
        took: int,
        way: str,
    ) -> None:
        fed = len(request.tokens) - start
        data: dict[str, Any] = {"fed_start": start, "fed": fed}
        if way:
            data["way"] = way
        scored = request.score(start, kept)
        if scored:
            data["scored"] = {str(position): value for position, value in scored.items()}
        edits = [(begin, end, [e.label for e in active]) for begin, end, active in spans if active]
        if edits:
            data["edits"] = edits
        held = self._within_budget(request, held)
        if held:
            data["row"] = self._next_row
            self._next_row += fed
            held = {hook: value.cpu() for hook, value in held.items()}
        self.emit(
            request, "forward_pass", len(request.tokens) - 1, entropy=seen.entropy,
            top=seen.top, duration_ns=took, data=data, activations=held or None,
        )  # fmt: skip

    def _within_budget(self, request: Request, held: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        size = sum(value.numel() * value.element_size() for value in held.values())
        if not size or self._budget < 0:
            return {}
        self._budget -= size
        if self._budget < 0:
            self.conductor.warn(
                request,
                "the activation budget is used up (tokens taken back count too): later activations are not "
                "kept in the trace. Capture fewer hooks or pass a larger activation_budget.",
            )
            return {}
        return held

    def _score(self, request: Request, tails: Sequence[Sequence[int]]) -> list[Scored]:
        return score(self.model, self.cache, request, self._here.get(request.row), tails)

    # Ending ------------------------------------------------------------------------------------------------

    def _end_if_done(self, request: Request) -> None:
        """End a request whose tokens, text or work say so."""
        if not request.alive:
            return
        scratch = request.scratch_from is not None  # which can't end the output, unless nothing more fits
        if not scratch and request.generated_count and request.tokens[-1] in self.model.tokenizer.eos_token_ids:
            self.conductor.finish(request, "eos")
        elif len(request.tokens) >= self.model.n_ctx or (not scratch and request.room <= 0):
            self.conductor.finish(request, "max_tokens")
        elif not scratch and self._stopped(request):
            self.conductor.finish(request, "stop")
        elif request.fed >= request.max_forward_tokens:
            self.conductor.finish(request, "budget")

    def _stopped(self, request: Request) -> bool:
        if not request.sampling.stop:
            return False
        # It may have begun before what is new, by up to 4 tokens a character: a token may be a single byte.
        reach = 4 * max(map(len, request.sampling.stop)) + 8
        tail = self.model.tokenizer.decode(request.generated[max(request.stop_checked - reach, 0) :])
        request.stop_checked = request.generated_count
        return any(stop in tail for stop in request.sampling.stop)


def _removed_mass(raw: Tensor, logits: Tensor) -> float:
    """Probability under the model of the tokens that edited logits make impossible (``-inf``, or ``-1e9`` and such)."""
    raw_logprobs = torch.log_softmax(raw, dim=-1)
    return float(raw_logprobs[torch.log_softmax(logits, dim=-1).exp() == 0].exp().sum())


def _ordinary(held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that may be differentiated, written to and kept without holding the whole batch's activations."""
    with torch.inference_mode(False):
        return {hook: value.clone() for hook, value in held.items()}
