"""One flow in one request: a small state machine that advances as events come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..engine import Action, ActionBuilder, Added, Event, ForwardPass
from ..errors import FlowError
from ..models import Tokenizer
from .constraint import Constraint, Matcher
from .deciding import decide_whole
from .question import Decide, EraseMode, FlowDefinition, FlowQuestion, FlowState, Target, Visit, question_of
from .routes import FlowRoute, RouteKind
from .routing import called, described, next_target, resolved
from .span import Phase, Span

__all__ = ["Runtime"]

MOST_ANSWER_TOKENS = 1024
"""Longest answer found token by token."""


@dataclass(slots=True, kw_only=True)
class Runtime:
    """The state of a flow in one request."""

    definition: FlowDefinition
    state: FlowState
    max_visits: int
    phase: Phase = Phase.WAITING
    question: FlowQuestion | None = None
    span: Span | None = None
    """Where the present question stands in the text."""
    before: Span | None = None
    """Where the one before stood, until it is sure that it was taken back."""
    expected: int | None = None
    """How many generated tokens there are if our last action was carried out."""
    matcher: Matcher | None = None
    answer: str = ""
    probs: dict[str, float] = field(default_factory=dict)
    pending: Callable[[ActionBuilder, Tokenizer, Event], Any] | None = None
    visits: dict[str, int] = field(default_factory=dict)
    noted: int = 0
    """How many visits of the history the trace has heard of."""

    # Events ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        """The answer to one event: an action, a list of them, or None."""
        answer = None
        if isinstance(event, ForwardPass):
            answer = self._on_pass(event, actions, tokenizer)
        elif isinstance(event, Added):
            answer = self._on_added(event, actions, tokenizer)
        new, self.noted = self.state.history[self.noted :], len(self.state.history)
        if not new:
            return answer
        notes = [actions.note(flow=self.definition.name, **visit.as_data()) for visit in new]
        return [*notes, *([answer] if isinstance(answer, Action) else answer or [])]

    def _on_pass(self, event: ForwardPass, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        if self._overruled(event):
            given_way = self._give_way(event, actions)
            if given_way is not None:
                return given_way
        match self.phase:
            case Phase.WAITING if not event.request.scratch:  # another flow's question is no place for ours
                entry = self.definition.root.entry
                if entry is None or called(entry, "when", self.definition.root, self.state, event):
                    return self._go(self.definition.root, event, actions, tokenizer)
            case Phase.PROMPTED | Phase.ANSWERING:
                return self._answer(event, actions, tokenizer)
            case Phase.PENDING if self.pending is not None:
                act, self.pending, self.phase = self.pending, None, Phase.DONE
                self.expected = self.span = self.before = None
                return act(actions, tokenizer, event)
            case _:
                self.expected = self.span = self.before = None
        return None

    def _on_added(self, event: Added, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        if self.phase is Phase.ANSWERED and not self._overruled(event):
            return self._complete(event, actions, tokenizer)
        if self.phase is Phase.ANSWERING and event.origin != "sampled":
            self.expected = -1  # another mod forced its tokens into our answer
        elif self.phase is Phase.ANSWERING and self.matcher is not None:
            self.matcher.advance_all(event.tokens)
            self._present_span().answer = self.matcher.tokens
            self.expected = len(event.request.generated)
            if self.matcher.finished:
                return self._complete(event, actions, tokenizer)
        return None

    def _overruled(self, event: Event) -> bool:
        """Whether another mod's action took the place of ours."""
        return self.expected is not None and len(event.request.generated) != self.expected

    def _give_way(self, event: Event, actions: ActionBuilder) -> Any:
        """Another mod's action took the place of ours: take back what is ours, leave what it put there.

        None where nothing of ours stands in the text and the flow can go on.
        """
        generated = event.request.generated
        name = self.question.name if self.question else None
        self.expected = None
        for span in (self.span, self.before):
            if span is None or not span.stands_in(generated):
                continue
            self.phase, self.pending, self.matcher = Phase.DONE, None, None
            note = actions.note(flow=self.definition.name, question=name, overruled=True, abandoned=True)
            self.span = self.before = None
            if span.erase is EraseMode.NONE:
                return note
            kept = span.answered_in(generated)
            theirs = generated[span.prompted + len(kept) :]
            kept = kept if span.erase is EraseMode.PROMPT else ()
            return [note, actions.backtrack(len(generated) - span.begun, (*kept, *theirs))]
        if self.phase in (Phase.DONE, Phase.PENDING):
            return None
        # Our question never got in: try again later, unless it was not the first.
        self.phase = Phase.DONE if self.state.history else Phase.WAITING
        return actions.note(flow=self.definition.name, question=name, overruled=True)

    # Asking ------------------------------------------------------------------------------------------------

    def _go(
        self,
        target: Target,
        event: Event,
        actions: ActionBuilder,
        tokenizer: Tokenizer,
        n: int = 0,
        keep: tuple[int, ...] = (),
    ) -> Any:
        """Follow a target: ``n`` tokens are taken back first and ``keep`` put back in their place."""
        target = resolved(target, self.definition, self.state)
        question = question_of(target)
        if question is not None:
            return self._ask(question, event, actions, tokenizer, n, keep)
        self.question = None
        if isinstance(target, str):
            return self._say(target, event, actions, tokenizer, n, keep)
        if isinstance(target, FlowRoute) and target.kind is RouteKind.OUTPUT:
            self.phase = Phase.DONE
            return actions.force_output(tokenizer.encode(target.text or ""))
        if isinstance(target, FlowRoute) and target.kind is RouteKind.TOOL:
            payload = target.payload(self.state) if callable(target.payload) else target.payload
            return self._later(lambda a, t, e: a.tool_calls(payload), event, actions, tokenizer, n, keep)
        if callable(target):
            action = target
            return self._later(lambda a, t, e: action(self.state, a, t), event, actions, tokenizer, n, keep)
        self.phase, self.expected = Phase.DONE, len(event.request.generated) - n + len(keep)
        return actions.backtrack(n, keep) if n else None

    def _ask(
        self,
        question: FlowQuestion,
        event: Event,
        actions: ActionBuilder,
        tokenizer: Tokenizer,
        n: int,
        keep: tuple[int, ...],
    ) -> Any:
        visited = self._count(question)
        if question.retries is not None and visited > question.retries[0]:
            return self._go(question.retries[1], event, actions, tokenizer, n, keep)
        if question.auto_answer is not None:
            given = called(question.auto_answer, "with_auto_answer", question, self.state, self.state)
            if given is not None:
                following = self._record(question, str(given), {}, (), spent=0, auto=True)
                return self._go(following, event, actions, tokenizer, n, keep)
        if (
            keep and question.scratch
        ):  # what stays must not be taken for scratch: put it back first, ask at the next pass
            return self._later(lambda a, t, e: self._begin(question, e, a, t, 0), event, actions, tokenizer, n, keep)
        return self._begin(question, event, actions, tokenizer, n, keep)

    def _begin(
        self,
        question: FlowQuestion,
        event: Event,
        actions: ActionBuilder,
        tokenizer: Tokenizer,
        n: int,
        keep: tuple[int, ...] = (),
    ) -> Any:
        prompt = tuple(tokenizer.encode(question.prompt))
        self.question, self.phase, self.matcher = question, Phase.PROMPTED, None
        self.before = self.span if n else None
        begun = len(event.request.generated) - n + len(keep)
        self.span = Span(begun=begun, asked=prompt, erase=question.erase_mode)
        self.expected = self.span.prompted
        tokens = (*keep, *prompt)
        if n:
            return actions.backtrack(n, tokens, scratch=question.scratch)
        return actions.force_tokens(tokens, scratch=question.scratch)

    def _count(self, question: FlowQuestion) -> int:
        self.visits[question.name] = self.visits.get(question.name, 0) + 1
        if sum(self.visits.values()) > self.max_visits:
            raise FlowError(
                f"flow {self.definition.name!r} asked {self.max_visits} questions in one request, the last one "
                f"{question.name!r}: it goes round in a circle. Use retry(), or a larger max_visits."
            )
        return self.visits[question.name]

    # Answering ---------------------------------------------------------------------------------------------

    def _answer(self, event: ForwardPass, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        question = self._present()
        choices = question.strategy.finite()
        if choices is not None and question.decide is Decide.WHOLE:
            decided = decide_whole(event, choices, tokenizer)
            self.answer, self.probs, self.phase = decided.answer, decided.probs, Phase.ANSWERED
            self._present_span().answer = decided.tokens
            self.expected = self._present_span().prompted + len(decided.tokens)
            return actions.force_tokens(decided.tokens, scratch=question.scratch)
        return self._answer_tokenwise(event, actions, tokenizer)

    def _answer_tokenwise(self, event: ForwardPass, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        question = self._present()
        if self.matcher is None:
            constraint = Constraint(question.strategy, tokenizer, len(event.logits), leading_space=True)
            self.matcher, self.phase, self.probs = constraint.start(), Phase.ANSWERING, {}
        mask = self.matcher.mask().to(event.logits.device)
        if self.matcher.complete and self._ends(event, mask):
            return self._complete(event, actions, tokenizer)
        if len(event.request.generated) - self._present_span().prompted >= MOST_ANSWER_TOKENS:
            raise FlowError(f"question {question.name!r}: the answer passed {MOST_ANSWER_TOKENS} tokens without an end")
        self.expected = None  # one sampled token will follow
        return actions.adjust_logits(event.logits.masked_fill(~mask, -torch.inf))

    @staticmethod
    def _ends(event: ForwardPass, mask: torch.Tensor) -> bool:
        """Whether the model would rather not go on: the end of an answer weighed against its continuations."""
        if not bool(mask.any()):
            return True
        if event.request.temperature == 0:
            return not bool(mask[event.raw_logits.argmax()])
        going_on = float(event.raw_logits.softmax(-1)[mask].sum())
        return event.request.uniform() >= going_on

    def _present(self) -> FlowQuestion:
        if self.question is None:
            raise AssertionError("a flow answers only while it asks")
        return self.question

    def _present_span(self) -> Span:
        if self.span is None:
            raise AssertionError("a flow answers only while its question stands in the text")
        return self.span

    # Completing --------------------------------------------------------------------------------------------

    def _complete(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        """Record the answer, route on, and take back what the question's erase mode says."""
        question = self._present()
        generated = event.request.generated
        span = self._present_span()
        tokens = generated[span.prompted :]
        answer = self.answer if self.phase is Phase.ANSWERED else question.strategy.answer_of(tokenizer.decode(tokens))
        spent = len(generated) - span.begun
        following = self._record(question, answer, self.probs, tokens, spent=spent)
        self.matcher, self.expected = None, None
        erased = spent if question.scratch else 0
        keep = tokens if question.erase_mode is EraseMode.PROMPT else ()
        return self._go(following, event, actions, tokenizer, erased, keep)

    def _record(
        self,
        question: FlowQuestion,
        answer: str,
        probs: dict[str, float],
        tokens: tuple[int, ...],
        *,
        spent: int,
        auto: bool = False,
    ) -> Target:
        """Put an answer on record; gives where it leads."""
        choices = question.strategy.finite()
        visit = Visit(
            question=question.name, answer=answer, probs=probs, tokens=tokens, spent=spent, auto=auto,
            erased=question.erase_mode is EraseMode.ALL, choices=None if choices is None else len(choices),
        )  # fmt: skip
        self.state.answers[question.name] = answer
        if probs:
            self.state.answer_probs[question.name] = probs
        self.state.history.append(visit)
        for assign in question.assigns:
            called(assign, "assign", question, self.state, self.state, answer)
        target = next_target(question, answer, self.state)
        self.state.history[-1] = replace(visit, route=described(target))
        return target

    # Ends --------------------------------------------------------------------------------------------------

    def _say(
        self, text: str, event: Event, actions: ActionBuilder, tokenizer: Tokenizer, n: int, keep: tuple[int, ...]
    ) -> Any:
        tokens = (*keep, *tokenizer.encode(text))
        self.phase, self.expected = Phase.DONE, len(event.request.generated) - n + len(tokens)
        if n:
            return actions.backtrack(n, tokens)
        return actions.force_tokens(tokens) if tokens else None

    def _later(
        self,
        act: Callable[[ActionBuilder, Tokenizer, Event], Any],
        event: Event,
        actions: ActionBuilder,
        tokenizer: Tokenizer,
        n: int,
        keep: tuple[int, ...],
    ) -> Any:
        """Take back first, act at the next pass: an action of the user's must find the text as if nothing was asked."""
        if not n and isinstance(event, ForwardPass):
            self.phase = Phase.DONE
            return act(actions, tokenizer, event)
        self.pending, self.phase = act, Phase.PENDING
        self.expected = len(event.request.generated) - n + len(keep)
        return actions.backtrack(n, keep) if n else None
