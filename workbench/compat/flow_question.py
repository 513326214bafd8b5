"""What users of the SDK write for a flow: questions, where answers lead, and the state that they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ..errors import CompatError
from ..flows import EraseMode, RouteKind, normalised
from .checks import callable_given, text_given
from .prompt_parts import erase_mode as erase_mode_of
from .strategy_constructor import ChoicesStrat, StrategyConstructor, strategy_given

__all__ = [
    "FlowDefinition",
    "FlowQuestion",
    "FlowRoute",
    "FlowState",
    "RequestState",
    "RouteKind",
    "RouteTarget",
    "normalised",
    "route_message",
    "route_noop",
    "route_output",
    "route_question",
    "route_summary",
    "route_tool",
]

RouteTarget: TypeAlias = Any
"""A question, a route, a definition (its root), a text (a message), None (back to the text), a function of the state
that gives one of these, or a function that gives an action."""


@dataclass(frozen=True, slots=True)
class FlowRoute:
    """Where to go; ``value`` is the question, the text or the function."""

    kind: RouteKind
    value: Any = None


@runtime_checkable
class NeededState(Protocol):
    """What a flow itself needs of a request's state."""

    request_id: str
    current_question: Any
    pending_route: Any
    answers: dict[str, str]


@runtime_checkable
class FlowState(NeededState, Protocol):
    """A request's state as the SDK describes it; a ``state_factory`` may give more."""

    data: dict[str, Any]


@dataclass
class RequestState:
    """The state that a flow makes where no ``state_factory`` was given."""

    request_id: str
    current_question: FlowQuestion | None = None
    pending_route: FlowRoute | None = None
    answers: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


class FlowQuestion:
    """One question, the form of its answer, and where answers lead. The methods give the question back, to chain.

    ``strategy`` says what an answer looks like; ``responses`` is short for ``ChoicesStrat(responses)``.
    ``completion_text`` is forced behind the answer, and erased with the rest where something is erased.

    :raises CompatError: no name, not exactly one of strategy and responses, or a strategy that is none.
    """

    def __init__(
        self,
        name: str,
        prompt: str,
        strategy: StrategyConstructor | None = None,
        completion_text: str | None = "\n",
        erase_mode: EraseMode | str | None = EraseMode.NONE,
        *,
        responses: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise CompatError(f"a question needs a name, got {name!r}")
        if (strategy is None) == (responses is None):
            raise CompatError(f"question {name!r}: give its answers either as strategy=… or as responses=[…]")
        self.name = name
        self.prompt = text_given(prompt, f"the prompt of question {name!r}")
        given = ChoicesStrat(responses or ()) if strategy is None else strategy
        self.strategy = strategy_given(given, f"question {name!r} needs a strategy")
        self.erase_mode = erase_mode_of(erase_mode)
        self.completion_text = completion_text
        self.transitions: dict[str, RouteTarget] = {}
        self.default_route: RouteTarget = None
        self.assignments: list[Callable[[Any, str], Any]] = []
        self.branch_resolvers: list[Callable[[Any], RouteTarget]] = []
        self._auto: Callable[[Any], str | None] | None = None

    def on(self, answer: str, target: RouteTarget) -> FlowQuestion:
        """Where one answer leads; compared without case and surrounding space."""
        self.transitions[normalised(text_given(answer, f"an answer to question {self.name!r}"))] = target
        return self

    def then(self, target: RouteTarget) -> FlowQuestion:
        """Where every other answer leads."""
        self.default_route = target
        return self

    otherwise = then

    def assign(self, fn: Callable[[Any, str], Any]) -> FlowQuestion:
        """Call ``fn(state, answer)`` once the answer is recorded."""
        self.assignments.append(callable_given(fn, "assign() takes a function of (state, answer)"))
        return self

    def branch(self, fn: Callable[[Any], RouteTarget]) -> FlowQuestion:
        """Ask ``fn(state)`` for the target where no ``on`` matches; None leaves it to the next, and to ``then``."""
        self.branch_resolvers.append(callable_given(fn, "branch() takes a function of the state"))
        return self

    def with_auto_answer(self, fn: Callable[[Any], str | None]) -> FlowQuestion:
        """Answer by ``fn(state)`` without asking the model, unless it gives no text, or a blank one."""
        self._auto = callable_given(fn, "with_auto_answer() takes a function of the state")
        return self

    def auto_answer(self, state: Any) -> str | None:
        """The automatic answer, or None where the model is to be asked."""
        answer = None if self._auto is None else self._auto(state)
        return answer.strip() or None if isinstance(answer, str) else None

    def __repr__(self) -> str:
        return f"<FlowQuestion {self.name!r}>"


@dataclass(slots=True)
class FlowDefinition:
    """A named flow, its first question, and ``summary_builder(state)`` for ``route_summary``."""

    name: str
    root: FlowQuestion
    summary_builder: Callable[[Any], str] | None = None

    def all_questions(self) -> list[FlowQuestion]:
        """The root and what can be seen to follow: targets that are functions are not called, so not followed."""
        found: list[FlowQuestion] = []
        waiting: list[RouteTarget] = [self.root]
        while waiting:
            target = waiting.pop()
            if isinstance(target, FlowRoute):
                waiting.append(target.value)
            elif isinstance(target, FlowDefinition):
                waiting.append(target.root)
            elif isinstance(target, FlowQuestion) and target not in found:
                found.append(target)
                waiting += [*target.transitions.values(), target.default_route]
        return found


def route_question(question: FlowQuestion) -> FlowRoute:
    """Ask another question."""
    return FlowRoute(RouteKind.QUESTION, question)


def route_message(text: str) -> FlowRoute:
    """Put a text into the output, and the token that ends a text behind it."""
    return FlowRoute(RouteKind.MESSAGE, text)


def route_summary(message: str | None = None) -> FlowRoute:
    """A message: what the definition's ``summary_builder(state)`` gives, or ``message`` without one."""
    return FlowRoute(RouteKind.SUMMARY, message)


def route_output(text: str) -> FlowRoute:
    """Make the output exactly this text and finish.

    :raises CompatError: it is no text.
    """
    return FlowRoute(RouteKind.OUTPUT, text_given(text, "route_output()'s argument"))


def route_tool(callback: Callable[..., Any]) -> FlowRoute:
    """Call ``callback(actions, state, tokenizer)`` for an action, often ``actions.tool_calls(…)``.

    :raises CompatError: it can't be called.
    """
    return FlowRoute(RouteKind.TOOL, callable_given(callback, "route_tool() takes a function"))


def route_noop() -> FlowRoute:
    """Back to normal generation, like None."""
    return FlowRoute(RouteKind.NOOP)
