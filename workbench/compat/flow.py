"""``FlowEngine``: asks a flow's questions one after the other, each as a self-prompt, and follows the answers."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from ..errors import CompatError
from .actions import ActionBuilder, ModAction, Noop
from .checks import callable_given
from .events import Added, ForwardPass, ModEvent, Prefilled
from .flow_question import (
    FlowDefinition,
    FlowQuestion,
    FlowRoute,
    FlowState,
    NeededState,
    RequestState,
    RouteKind,
    RouteTarget,
    normalised,
    route_message,
    route_noop,
    route_output,
    route_question,
    route_summary,
    route_tool,
)
from .remembering import remember
from .self_prompt import PromptState, SelfPrompt, answer_text
from .tokenizer import tokenize

__all__ = [
    "FlowDefinition",
    "FlowEngine",
    "FlowQuestion",
    "FlowRoute",
    "FlowState",
    "RequestState",
    "RouteTarget",
    "route_message",
    "route_noop",
    "route_output",
    "route_question",
    "route_summary",
    "route_tool",
]

MOST_STEPS = 64
"""Questions with automatic answers, and functions, that may lead to one another before it is called a circle."""


@dataclass(slots=True)
class Progress:
    """What the engine itself remembers of a request, beside the user's state."""

    definition: FlowDefinition | None
    """The flow that was entered last, whose summary is asked for."""
    question: FlowQuestion | None = None
    """The question that was answered last."""
    answer: str = ""
    """What the model gave for it."""
    recorded: bool = False
    """Whether the present question's answer is on record."""
    saying: list[int] = field(default_factory=list)
    """A message that was forced and that ``Added`` has not confirmed."""


class FlowEngine:
    """Drives a flow inside a mod: ``return ENGINE.handle_event(event, actions, tokenizer)``.

    ``flows`` are the definitions whose summaries may be asked for. ``state_factory(request_id)`` makes the state that
    callbacks read. ``_states`` and ``_constraints`` may be looked at.

    :raises CompatError: one of the arguments is something else, or the flow leads where none can.
    """

    def __init__(
        self,
        entry_question: FlowQuestion | FlowDefinition,
        flows: Mapping[str, FlowDefinition] | None = None,
        state_factory: Callable[[str], Any] | None = None,
    ) -> None:
        if not isinstance(entry_question, (FlowQuestion, FlowDefinition)):
            raise CompatError(f"entry_question is a FlowQuestion or a FlowDefinition, got {entry_question!r}")
        self.entry_question = entry_question
        if not isinstance(flows, (Mapping, NoneType)):
            raise CompatError(f"flows is a mapping of names to FlowDefinition, got {flows!r}")
        self.flows = dict(flows or {})
        self.state_factory = callable_given(state_factory or RequestState, "state_factory is a function of request_id")
        self._states: OrderedDict[str, Any] = OrderedDict()
        self._constraints: dict[str, SelfPrompt] = {}
        self._asked: dict[str, FlowQuestion] = {}
        self._progress: OrderedDict[str, Progress] = OrderedDict()

    def handle_event(self, event: ModEvent, actions: ActionBuilder, tokenizer: Any) -> ModAction:
        """Advance by one event; gives what the mod should answer."""
        state = self._get_state(event.request_id)
        progress = self._progress.get(event.request_id)
        if progress is None:
            roots = [one for one in self.flows.values() if one.root is self.entry_question]
            progress = remember(self._progress, event.request_id, Progress(next(iter(roots), None)))
            self._go(self.entry_question, state, progress)
        if isinstance(event, Prefilled) and state.current_question is not None:
            self._constraint(state.current_question).handle_prefilled(event, tokenizer)
        if isinstance(event, ForwardPass):
            return self._on_pass(event, state, progress, actions, tokenizer)
        if isinstance(event, Added):
            return self._on_added(event, state, progress, actions, tokenizer)
        return actions.noop()

    def _get_state(self, request_id: str) -> Any:
        """The user's state of a request, made if there is none."""
        if request_id not in self._states:
            made = self.state_factory(request_id)
            if not isinstance(made, NeededState):
                raise CompatError(
                    f"state_factory gave {made!r}: a state has request_id, current_question, pending_route and answers"
                )
            remember(self._states, request_id, made)
        return self._states[request_id]

    # Events ------------------------------------------------------------------------------------------------

    def _on_pass(
        self, event: ForwardPass, state: Any, progress: Progress, actions: ActionBuilder, tokenizer: Any
    ) -> ModAction:
        for _ in range(MOST_STEPS):
            if progress.saying:
                return actions.force_tokens(progress.saying)
            if state.pending_route is not None:
                route, state.pending_route = state.pending_route, None
                acted = self._act(route, state, progress, actions, tokenizer)
                if acted is not None:
                    return acted
                continue
            question = state.current_question
            if question is None:
                return actions.noop()
            asking = self._constraint(question)
            action = asking.handle_forward_pass(event, actions, tokenizer)
            asked = asking.state_of(event.request_id, tokenizer)
            if not self._followed(asked, question, state, progress, tokenizer) or not isinstance(action, Noop):
                return action
        raise self._circle()

    def _on_added(
        self, event: Added, state: Any, progress: Progress, actions: ActionBuilder, tokenizer: Any
    ) -> ModAction:
        if event.forced and event.added_tokens == progress.saying:
            progress.saying = []
        question = state.current_question
        if question is None:
            return actions.noop()
        asking = self._constraint(question)
        asking.handle_added(event, actions, tokenizer)
        asked = asking.state_of(event.request_id, tokenizer)
        erase = asked.backtrack_scheduled
        if erase:
            asked.backtrack_scheduled, asked.completed = False, True
        self._followed(asked, question, state, progress, tokenizer)
        return actions.backtrack(asked.backtrack_n, asked.backtrack_reinject) if erase else actions.noop()

    def _followed(
        self, asked: PromptState, question: FlowQuestion, state: Any, progress: Progress, tokenizer: Any
    ) -> bool:
        """Record an answer that is there; once all of the question is done, go where it leads and say so."""
        if asked.answered and not progress.recorded:
            progress.recorded = True
            progress.question = question
            progress.answer = answer_text(asked, tokenizer)
            self._record(question, progress.answer, state)
        if not asked.completed:
            return False
        self._go(self._next(question, progress.answer, state), state, progress)
        return True

    # Answers -----------------------------------------------------------------------------------------------

    def _constraint(self, question: FlowQuestion) -> SelfPrompt:
        known = self._constraints.get(question.name)
        if known is None or self._asked[question.name] is not question:
            made = SelfPrompt(
                {"text": question.prompt}, question.strategy, question.completion_text, question.erase_mode
            )
            made.suffix_with_all = True
            if known is not None:  # a question made anew under its old name: other requests may be inside the old one
                made._states = known._states
            self._constraints[question.name], self._asked[question.name] = made, question
        return self._constraints[question.name]

    @staticmethod
    def _record(question: FlowQuestion, answer: str, state: Any) -> None:
        state.answers[question.name] = answer
        for assign in question.assignments:
            assign(state, answer)

    @staticmethod
    def _next(question: FlowQuestion, answer: str, state: Any) -> RouteTarget:
        key = normalised(answer)
        if key in question.transitions:
            return question.transitions[key]
        found = (branch(state) for branch in question.branch_resolvers)
        return next((target for target in found if target is not None), question.default_route)

    def _go(self, target: RouteTarget, state: Any, progress: Progress) -> None:
        """Follow a target to a question that is asked, a route that is due at the next pass, or the end."""
        state.current_question = state.pending_route = None
        for _ in range(MOST_STEPS):
            if isinstance(target, FlowRoute) and target.kind is RouteKind.QUESTION:
                target = target.value
            if isinstance(target, FlowDefinition):
                progress.definition, target = target, target.root
            if isinstance(target, FlowQuestion):
                answer = target.auto_answer(state)
                if answer is None:
                    self._constraint(target).forget(state.request_id)
                    state.current_question, progress.recorded = target, False
                    return
                progress.question = target
                self._record(target, answer, state)
                target = self._next(target, answer, state)
            elif target is None or (isinstance(target, FlowRoute) and target.kind is RouteKind.NOOP):
                return
            elif isinstance(target, (FlowRoute, str)):
                state.pending_route = route_message(target) if isinstance(target, str) else target
                return
            elif callable(target) and _arguments(target) == 1:
                target = target(state)
            elif callable(target):
                state.pending_route = route_tool(target)
                return
            else:
                raise CompatError(
                    f"a flow can't lead to {target!r}: give a question, a route, a text, a function or None"
                )
        raise self._circle()

    def _circle(self) -> CompatError:
        return CompatError(f"the flow from {self.entry_question!r} goes on without end and asks the model nothing")

    # Routes ------------------------------------------------------------------------------------------------

    def _act(
        self, route: FlowRoute, state: Any, progress: Progress, actions: ActionBuilder, tokenizer: Any
    ) -> ModAction | None:
        """Carry out a route that is no question; None where it led on to something else."""
        if route.kind is RouteKind.OUTPUT:
            return actions.force_output(tokenize(route.value, tokenizer))
        if route.kind is RouteKind.TOOL:
            given = _call(route.value, actions, state, tokenizer)
            if isinstance(given, ModAction):
                return given
            self._go(given, state, progress)
            return None
        text = route.value or ""
        if route.kind is RouteKind.SUMMARY:
            text = self._summary(text, state, progress)
        end = getattr(tokenizer, "eos_token_id", None)  # a tokenizer of the user's own may lack it
        progress.saying = tokenize(text, tokenizer) + ([int(end)] if isinstance(end, int) else [])
        return actions.force_tokens(progress.saying) if progress.saying else None

    def _summary(self, message: str, state: Any, progress: Progress) -> str:
        holding = [one for one in self.flows.values() if progress.question in one.all_questions()]
        known = [*holding, progress.definition, *self.flows.values()]
        builders = [one.summary_builder for one in known if one is not None and one.summary_builder is not None]
        if builders:
            return str(builders[0](state))
        return message or "; ".join(f"{name}: {answer}" for name, answer in state.answers.items())


def _arguments(fn: Callable[..., Any]) -> int:
    """How many arguments a function must be given."""
    return len(_required(fn))


def _required(fn: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(fn).parameters.values()
    return [one.name for one in parameters if one.kind in kinds and one.default is one.empty]


def _call(fn: Callable[..., Any], actions: ActionBuilder, state: Any, tokenizer: Any) -> Any:
    """Call a tool's function by what its parameters say: three in either order of state and actions, or the state."""
    names = _required(fn)
    if len(names) == 1:
        return fn(state)
    if len(names) not in (0, 3):
        raise CompatError(
            f"a flow can't lead to {fn!r}, which takes {', '.join(names)}: a function is given the state, or (actions, "
            "state, tokenizer)"
        )
    return fn(state, actions, tokenizer) if names[1:2] == ["actions"] else fn(actions, state, tokenizer)
