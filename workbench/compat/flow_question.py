"""What users of the SDK write for a flow: questions, where answers lead, and the state that they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ..errors import CompatError
from .self_prompt import EraseMode
from .strategy_constructor import ChoicesStrat, StrategyConstructor

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


class RouteKind(StrEnum):
    QUESTION = "question"
    MESSAGE = "message"
    SUMMARY = "summary"
    OUTPUT = "output"
    TOOL = "tool"
    NOOP = "noop"


@dataclass(frozen=True, slots=True)
class FlowRoute:
    """Where to go; ``value`` is the question, the text or the function."""

    kind: RouteKind
    value: Any = None


@runtime_checkable
class FlowState(Protocol):
    """What a flow needs of a request's state; a ``state_factory`` may give more."""

    request_id: str
    current_question: Any
    pending_route: Any
    answers: dict[str, str]
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
        *,
        responses: Sequence[str] | None = None,
        erase_mode: EraseMode | str = EraseMode.NONE,
        completion_text: str | None = "\n",
    ) -> None:
        if not isinstance(name, str) or not name:
            raise CompatError(f"a question needs a name, got {name!r}")
        if (strategy is None) == (responses is None):
            raise CompatError(f"question {name!r}: give its answers either as strategy=… or as responses=[…]")
        if strategy is not None and not isinstance(strategy, StrategyConstructor):
            raise CompatError(f"question {name!r} needs a strategy such as ChoicesStrat([…]), got {strategy!r}")
        self.name = name
        self.prompt = prompt
        self.strategy = ChoicesStrat(responses or ()) if strategy is None else strategy
        self.erase_mode = EraseMode(erase_mode)
        self.completion_text = completion_text
        self.transitions: dict[str, RouteTarget] = {}
        self.default: RouteTarget = None
        self.assigns: list[Callable[[Any, str], Any]] = []
        self.branches: list[Callable[[Any], RouteTarget]] = []
        self.auto_answer: Callable[[Any], str | None] | None = None

    def on(self, answer: str, target: RouteTarget) -> FlowQuestion:
        """Where one answer leads; compared without case and surrounding space."""
        self.transitions[normalised(answer)] = target
        return self

    def then(self, target: RouteTarget) -> FlowQuestion:
        """Where every other answer leads."""
        self.default = target
        return self

    otherwise = then

    def assign(self, fn: Callable[[Any, str], Any]) -> FlowQuestion:
        """Call ``fn(state, answer)`` once the answer is recorded."""
        self.assigns.append(fn)
        return self

    def branch(self, fn: Callable[[Any], RouteTarget]) -> FlowQuestion:
        """Ask ``fn(state)`` for the target where no ``on`` matches; None leaves it to the next, and to ``then``."""
        self.branches.append(fn)
        return self

    def with_auto_answer(self, fn: Callable[[Any], str | None]) -> FlowQuestion:
        """Answer by ``fn(state)`` without asking the model, unless it gives None."""
        self.auto_answer = fn
        return self

    def __repr__(self) -> str:
        return f"<FlowQuestion {self.name!r}>"


@dataclass(slots=True)
class FlowDefinition:
    """A named flow, its first question, and ``summary_builder(state)`` for ``route_summary``."""

    name: str
    root: FlowQuestion
    summary_builder: Callable[[Any], str] | None = None


def normalised(answer: str) -> str:
    """How answers are compared."""
    return answer.strip().casefold()


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
    """Make the output exactly this text and finish."""
    return FlowRoute(RouteKind.OUTPUT, text)


def route_tool(callback: Callable[..., Any]) -> FlowRoute:
    """Call ``callback(actions, state, tokenizer)`` for an action, often ``actions.tool_calls(…)``."""
    return FlowRoute(RouteKind.TOOL, callback)


def route_noop() -> FlowRoute:
    """Back to normal generation, like None."""
    return FlowRoute(RouteKind.NOOP)
