"""One flow in one request: a small state machine that advances as events come in.

Longer than 300 lines because asking, answering and routing change one state, and giving way to other mods cuts
through all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..engine import Action, ActionBuilder, Added, Event, ForceTokens, ForwardPass
from ..errors import FlowError
from ..models import Tokenizer
from .constraint import Constraint, Matcher
from .deciding import decide_whole
from .question import Decide, EraseMode, FlowDefinition, FlowQuestion, Target, question_of
from .routes import FlowRoute, RouteKind
from .routing import TARGETS, called, described, next_target, resolved
from .span import Move, Phase, Span
from .state import FlowState, Visit
from .turn import Turn

__all__ = ["Runtime"]

MOST_ANSWER_TOKENS = 1024
"""Longest answer found token by token."""
OPEN_ANSWER_ROOM = 16
"""Tokens that the context must hold behind the prompt of a question whose answers can't be listed."""
MOST_OVERRULED = 16
"""How often in a row a flow gives way to other mods before it gives up."""


@dataclass(slots=True, kw_only=True)
class Runtime:
    """The state of a flow in one request."""

    definition: FlowDefinition
    state: FlowState
    max_visits: int
    phase: Phase = Phase.WAITING
    within: FlowDefinition | None = None
    """The flow that was entered last, whose summary a route asks for."""
    question: FlowQuestion | None = None
    span: Span | None = None
    """Our question, while it stands in the text."""
    move: Move | None = None
    overruled: int = 0
    matcher: Matcher | None = None
    answer: str = ""
    probs: dict[str, float] = field(default_factory=dict)
    pending: Callable[[Turn], Any] | None = None
    """What to do at the next pass."""
    visits: dict[str, int] = field(default_factory=dict)
    noted: int = 0
    """How many visits of the history the trace has heard of."""

    # Events ------------------------------------------------------------------------------------------------

    def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        """The answer to one event: an action, a list of them, or None."""
        answer = None
        if isinstance(event, (ForwardPass, Added)):
            answer = self._answer_to(Turn(event, actions, tokenizer))
        new, self.noted = self.state.history[self.noted :], len(self.state.history)
        if not new:
            return answer
        notes = [actions.note(flow=self.definition.name, **visit.as_data()) for visit in new]
        return [*notes, *([answer] if isinstance(answer, Action) else answer or [])]

    def _answer_to(self, turn: Turn) -> Any:
        event = turn.event
        if self.move is not None:
            move, self.move = self.move, None
            if not move.carried_out(event):
                return self._give_way(move, turn)
            self.span, self.overruled = move.span, 0
        if self.phase.asking and not self._undisturbed(event):
            return self._abandon(turn)
        if isinstance(event, Added):
            return self._on_added(event, turn)
        return self._on_pass(event, turn)

    def _on_pass(self, event: ForwardPass, turn: Turn) -> Any:
        match self.phase:
            case Phase.WAITING if not event.request.scratch:  # another flow's question is no place for ours
                entry = self.definition.root.entry
                if entry is None or called(entry, "when", self.definition.root.name, self.state, event):
                    return self._go(self.definition.root, turn)
            case Phase.PENDING if self.pending is not None and not event.request.scratch:
                act, self.pending, self.phase = self.pending, None, Phase.DONE
                return act(turn)
            case Phase.PROMPTED | Phase.ANSWERING:
                return self._answer(event, turn)
            case Phase.ANSWERED:
                return self._complete(turn)
        return None

    def _on_added(self, event: Added, turn: Turn) -> Any:
        if self.phase is Phase.ANSWERED:
            return self._complete(turn)
        if self.phase is Phase.ANSWERING and self.matcher is not None and event.origin == "sampled":
            self.matcher.advance_all(event.tokens)
            self._present_span().answer = self.matcher.tokens
            if self.matcher.finished:
                return self._complete(turn)
        return None

    # Other mods --------------------------------------------------------------------------------------------

    def _undisturbed(self, event: Event) -> bool:
        """Whether the text is what we and the model made of it since our question was put there."""
        generated = event.request.generated
        drawn = isinstance(event, Added) and self.phase is Phase.ANSWERING and event.origin == "sampled"
        before = generated[: len(generated) - len(event.tokens)] if drawn and isinstance(event, Added) else generated
        return before == self._present_span().text

    def _give_way(self, move: Move, turn: Turn) -> Any:
        """Another mod's action took the place of ours: make room for its text, and try again at the next pass."""
        self.matcher, self.overruled = None, self.overruled + 1
        if move.counted is not None:
            self.visits[move.counted] -= 1
        begun = bool(self.state.history) or self.span is not None
        answer_lost = move.span is not None and move.counted is None
        given_up = begun and (answer_lost or self.overruled > MOST_OVERRULED)
        name = move.counted or (self.question.name if self.question else None)
        note = turn.actions.note(flow=self.definition.name, question=name, overruled=True, abandoned=given_up)
        wanted = None if given_up else move.wanted
        if begun:
            self.phase, self.pending = Phase.PENDING, lambda later: self._go(wanted, later)
        else:
            self.phase = Phase.WAITING
        return [note, *self._taken_back(turn, wanted)]

    def _abandon(self, turn: Turn) -> Any:
        """Another mod changed the text under our question: take back what is left of it, and leave it at that."""
        name = self.question.name if self.question else None
        note = turn.actions.note(flow=self.definition.name, question=name, overruled=True, abandoned=True)
        self.phase, self.pending, self.matcher = Phase.DONE, None, None
        return [note, *self._taken_back(turn, None)]

    def _taken_back(self, turn: Turn, wanted: Target) -> list[Action]:
        """What takes our question out of the text, if any of it is there, and leaves what others put behind it."""
        span, self.span = self.span, None
        generated = turn.event.request.generated
        standing = 0 if span is None else span.standing(generated)
        if span is None or not standing or span.erase is EraseMode.NONE:
            return []
        whole = standing == len(span.asked) + len(span.answer)
        kept = span.answer if whole and span.erase is EraseMode.PROMPT else ()
        tokens = (*kept, *generated[span.begun + standing :])
        self.span = span  # until it is known to be gone
        self.move = Move(tokens=tokens, text=(*span.base, *tokens), span=None, wanted=wanted)
        return [turn.actions.backtrack(len(generated) - span.begun, tokens)]

    # Asking ------------------------------------------------------------------------------------------------

    def _go(self, target: Target, turn: Turn) -> Any:
        """Follow a target, past what needs no question."""
        for _ in range(self.max_visits + 1):
            if isinstance(target, FlowDefinition):
                self.within = target
            target = resolved(target, self.within or self.definition, self.state)
            question = question_of(target)
            if question is None:
                return self._leave(target, turn)
            self._count(question)
            asked, following = self._skipped(question)
            if asked:
                return self._ask(question, turn)
            target = following
        raise AssertionError("_count stops a circle before")

    def _count(self, question: FlowQuestion) -> None:
        self.visits[question.name] = self.visits.get(question.name, 0) + 1
        if sum(self.visits.values()) > self.max_visits:
            raise FlowError(
                f"flow {self.definition.name!r} asked {self.max_visits} questions in one request, the last one "
                f"{question.name!r}: it goes round in a circle. Use retry(), or a larger max_visits."
            )

    def _skipped(self, question: FlowQuestion) -> tuple[bool, Target]:
        """Whether the model is to be asked; if not, where the flow goes on."""
        if question.retries is not None and self.visits[question.name] > question.retries[0]:
            return False, question.retries[1]
        if question.auto_answer is None:
            return True, None
        given = called(question.auto_answer, "with_auto_answer", question.name, self.state, self.state)
        if given is None:
            return True, None
        answer = question.checked_answer(given)
        return False, self._record(question, answer, {}, (), spent=0, auto=True)

    def _ask(self, question: FlowQuestion, turn: Turn) -> Any:
        if turn.keep and question.scratch:
            # What stays must not be taken for scratch: put it back first, ask at the next pass.
            return self._later(lambda later: self._put(question, later), question, turn, counted=question.name)
        return self._put(question, turn)

    def _put(self, question: FlowQuestion, turn: Turn) -> Any:
        """Put the question's prompt into the text, if the context holds it and an answer."""
        prompt = tuple(turn.tokenizer.encode(question.prompt))
        room = turn.event.request.context_left + turn.back - len(turn.keep)
        if len(prompt) + _answer_room(question, turn.tokenizer) >= room:
            note = turn.actions.note
            skipped = note(flow=self.definition.name, question=question.name, skipped="the context is full")
            left = self._leave(None, turn)
            return [skipped, left] if left is not None else skipped
        self.question, self.phase, self.matcher = question, Phase.PROMPTED, None
        span = Span(base=turn.base, asked=prompt, erase=question.erase_mode)
        tokens = (*turn.keep, *prompt)
        self.move = Move(tokens=tokens, text=span.text, span=span, wanted=question, counted=question.name)
        return turn.commit(tokens, scratch=question.scratch)

    # Answering ---------------------------------------------------------------------------------------------

    def _answer(self, event: ForwardPass, turn: Turn) -> Any:
        question, span = self._present(), self._present_span()
        choices = question.strategy.finite()
        if choices is not None and question.decide is Decide.WHOLE:
            decided = decide_whole(event, choices, turn.tokenizer)
            self.answer, self.probs, self.phase = decided.answer, decided.probs, Phase.ANSWERED
            answered = replace(span, answer=decided.tokens)
            self.move = Move(tokens=decided.tokens, text=answered.text, span=answered, wanted=None)
            return turn.actions.force_tokens(decided.tokens, scratch=question.scratch)
        return self._answer_tokenwise(event, turn)

    def _answer_tokenwise(self, event: ForwardPass, turn: Turn) -> Any:
        question = self._present()
        if self.matcher is None:
            constraint = Constraint(question.strategy, turn.tokenizer, len(event.logits), leading_space=True)
            self.matcher, self.phase, self.probs = constraint.start(), Phase.ANSWERING, {}
        mask = self.matcher.mask().to(event.logits.device)
        if self.matcher.complete and self._ends(event, mask):
            return self._complete(turn)
        if len(event.request.generated) - self._present_span().prompted >= MOST_ANSWER_TOKENS:
            raise FlowError(f"question {question.name!r}: the answer passed {MOST_ANSWER_TOKENS} tokens without an end")
        return turn.actions.adjust_logits(event.logits.masked_fill(~mask, -torch.inf))

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

    def _complete(self, turn: Turn) -> Any:
        """Record the answer, route on, and take back what the question's erase mode says."""
        question, span = self._present(), self._present_span()
        generated = turn.event.request.generated
        tokens = generated[span.prompted :]
        whole = self.phase is Phase.ANSWERED
        answer = self.answer if whole else question.strategy.answer_of(turn.tokenizer.decode(tokens))
        spent = len(generated) - span.begun
        following = self._record(question, answer, self.probs, tokens, spent=spent)
        self.matcher = None
        keep = tokens if question.erase_mode is EraseMode.PROMPT else ()
        return self._go(following, replace(turn, back=spent if question.scratch else 0, keep=keep))

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
            called(assign, "assign", question.name, self.state, self.state, answer)
        target = next_target(question, answer, self.state)
        self.state.history[-1] = replace(visit, route=described(target))
        return target

    # Ends --------------------------------------------------------------------------------------------------

    def _leave(self, target: Target, turn: Turn) -> Any:
        """Follow a target that is no question."""
        self.question = None
        if isinstance(target, str):
            return self._say(target, turn)
        if isinstance(target, FlowRoute) and target.kind is RouteKind.OUTPUT:
            self.phase = Phase.DONE
            return turn.actions.force_output(turn.tokenizer.encode(target.text or ""))
        if isinstance(target, FlowRoute) and target.kind is RouteKind.TOOL:
            payload = target.payload
            if callable(payload):
                payload = called(payload, "the payload of route_tool", None, self.state, self.state)
            return self._later(lambda later: later.actions.tool_calls(payload), target, turn)
        if callable(target):
            function = target
            return self._later(lambda later: self._act(function, later), target, turn)
        if target is not None:
            raise FlowError(f"a flow can't lead to {target!r}: {TARGETS}")
        self.phase = Phase.DONE
        return self._back(turn, None) if turn.back else None

    def _act(self, function: Callable[..., Any], turn: Turn) -> Any:
        """Call a user's ``fn(state, actions, tokenizer)``; tokens that it forces are put there even if overruled."""
        state = self.state
        answer = called(function, described(function), None, state, state, turn.actions, turn.tokenizer)
        listed = [answer] if isinstance(answer, Action) else list(answer or [])
        forced = [action for action in listed if isinstance(action, ForceTokens)]
        if len(forced) == 1 and forced[0].tokens:
            tokens = forced[0].tokens
            self.move = Move(
                tokens=tokens, text=(*turn.event.request.generated, *tokens), span=None,
                wanted=lambda state, actions, tokenizer: forced[0],
            )  # fmt: skip
        return answer

    def _say(self, text: str, turn: Turn) -> Any:
        self.phase = Phase.DONE
        said = tuple(turn.tokenizer.encode(text))
        tokens = (*turn.keep, *said)
        if not turn.back and not tokens:
            return None
        self.move = Move(tokens=tokens, text=(*turn.base, *said), span=None, wanted=text)
        return turn.commit(tokens)

    def _later(self, act: Callable[[Turn], Any], wanted: Target, turn: Turn, *, counted: str | None = None) -> Any:
        """Take back first, act at the next pass: an action of the user's must find the text as if nothing was asked."""
        if not turn.back and isinstance(turn.event, ForwardPass):
            self.phase = Phase.DONE
            return act(turn)
        self.phase, self.pending = Phase.PENDING, act
        return self._back(turn, wanted, counted) if turn.back else None

    def _back(self, turn: Turn, wanted: Target, counted: str | None = None) -> Any:
        self.move = Move(tokens=turn.keep, text=turn.base, span=None, wanted=wanted, counted=counted)
        return turn.actions.backtrack(turn.back, turn.keep)


def _answer_room(question: FlowQuestion, tokenizer: Tokenizer) -> int:
    """Tokens that an answer may take."""
    choices = question.strategy.finite()
    if choices is None:
        return OPEN_ANSWER_ROOM
    return max(len(tokenizer.encode(f" {choice}")) for choice in choices)
