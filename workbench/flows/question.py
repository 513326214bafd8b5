"""What users write: questions, where their answers lead, and the flow that holds them together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import FlowError, did_you_mean
from .arity import arity
from .routes import FlowRoute
from .state import FlowState
from .strategies import KNOWN_STRATEGIES, ChoicesStrat, Strategy

if TYPE_CHECKING:
    from ..models import Tokenizer
    from .checking import Problem
    from .drawing import Drawing

__all__ = ["Decide", "EraseMode", "FlowDefinition", "FlowQuestion", "Target", "normalised", "question_of"]


class EraseMode(StrEnum):
    """What of a question stays in the output: everything, the answer only, or nothing."""

    NONE = "none"
    PROMPT = "prompt"
    ALL = "all"


class Decide(StrEnum):
    """How an answer is found: whole strings compared by probability, or token by token under a mask."""

    WHOLE = "whole"
    TOKENWISE = "tokenwise"


Target: TypeAlias = "FlowQuestion | FlowRoute | FlowDefinition | str | Callable[..., Any] | None"
"""A question, a route, a flow (its root), a message (text), None (back to normal generation), a function
``fn(state) -> Target``, or a function ``fn(state, actions, tokenizer) -> action``."""


Assign: TypeAlias = Callable[[FlowState, str], Any]
Branch: TypeAlias = Callable[[FlowState], Any]
AutoAnswer: TypeAlias = Callable[[FlowState], "str | None"]


class FlowQuestion:
    """A question that the model asks itself, and where each answer leads.

    ``responses`` are the allowed answers (or ``strategy=`` the general form); ``erase_mode`` says what stays in
    the output. A finite set of answers is decided on whole strings by their probability (``decide="whole"``);
    ``"tokenwise"`` masks token by token, which favours answers that begin likely. The methods return the question
    itself, so that they chain.

    :raises FlowError: no name, no prompt, no answers or two ways of stating them, an unknown mode.
    """

    def __init__(
        self,
        name: str,
        prompt: str,
        responses: Sequence[str] | None = None,
        *,
        strategy: Strategy | None = None,
        erase_mode: str = EraseMode.NONE,
        decide: str = Decide.WHOLE,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise FlowError(f"a question needs a name, got {name!r}")
        if not isinstance(prompt, str) or not prompt:
            raise FlowError(f"question {name!r} needs a prompt, got {prompt!r}")
        if isinstance(responses, str):
            raise FlowError(f"question {name!r}: responses is a list of answers, got the text {responses!r}")
        if strategy is not None and not isinstance(strategy, KNOWN_STRATEGIES):
            raise FlowError(
                f"question {name!r}: strategy is one of the strategies of workbench.flows, such as "
                f"RegexStrat('[0-9]+'), got {strategy!r}; a list of answers goes into responses=[…]"
            )
        if (responses is None) == (strategy is None):
            raise FlowError(f"question {name!r}: give its answers either as responses=[…] or as strategy=…")
        self.name = name
        self.prompt = prompt
        self.strategy: Strategy = ChoicesStrat(tuple(responses)) if strategy is None else strategy  # type: ignore[arg-type]
        self.erase_mode = _mode(EraseMode, erase_mode, f"question {name!r}: erase_mode")
        self.decide = _mode(Decide, decide, f"question {name!r}: decide")
        self.routes: dict[str, Target] = {}
        """Targets by normalised answer."""
        self.fallback: Target = None
        self.has_fallback = False
        self.assigns: list[Assign] = []
        self.brancher: Branch | None = None
        self.auto_answer: AutoAnswer | None = None
        self.retries: tuple[int, Target] | None = None
        self.entry: Callable[[Any], bool] | None = None

    # Chaining ------------------------------------------------------------------------------------------

    def on(self, answer: str, target: Target) -> FlowQuestion:
        """Where one answer leads; compared without case and surrounding space."""
        key = normalised(answer)
        finite = self.strategy.choices if isinstance(self.strategy, ChoicesStrat) else self.strategy.finite()
        if finite is not None and key not in map(normalised, finite):
            raise FlowError(
                f"question {self.name!r} can't be answered {answer!r}; its answers are "
                f"{', '.join(map(repr, finite[:64]))}.{did_you_mean(answer, finite)}"
            )
        if key in self.routes:
            raise FlowError(f"question {self.name!r}: answer {answer!r} leads somewhere already")
        self.routes[key] = _target(target, f"question {self.name!r}: on({answer!r})")
        return self

    def then(self, target: Target) -> FlowQuestion:
        """Where every other answer leads."""
        if self.has_fallback:
            raise FlowError(f"question {self.name!r} has a then() or otherwise() already")
        self.fallback, self.has_fallback = _target(target, f"question {self.name!r}: then"), True
        return self

    otherwise = then

    def assign(self, fn: Assign) -> FlowQuestion:
        """Call ``fn(state, answer)`` once the answer is recorded, before any routing."""
        self.assigns.append(_function(fn, f"question {self.name!r}: assign"))
        return self

    def branch(self, fn: Branch) -> FlowQuestion:
        """Ask ``fn(state)`` for the target, where no ``on`` matches; None leaves it to ``then``."""
        self.brancher = _function(fn, f"question {self.name!r}: branch")
        return self

    def with_auto_answer(self, fn: AutoAnswer) -> FlowQuestion:
        """Answer by ``fn(state)`` without asking the model, unless it gives None."""
        self.auto_answer = _function(fn, f"question {self.name!r}: with_auto_answer")
        return self

    def retry(self, most: int, target: Target) -> FlowQuestion:
        """After ``most`` visits in one request, go to ``target`` instead of asking again."""
        if not isinstance(most, int) or most < 1:
            raise FlowError(f"question {self.name!r}: retry needs a number of visits of at least 1, got {most!r}")
        self.retries = (most, _target(target, f"question {self.name!r}: retry"))
        return self

    def when(self, predicate: Callable[[Any], bool]) -> FlowQuestion:
        """Where in the generation the flow enters here: ``predicate(event)`` on each ForwardPass (default: at once)."""
        self.entry = _function(predicate, f"question {self.name!r}: when")
        return self

    def checked_answer(self, answer: Any) -> str:
        """An answer that a function gave.

        :raises FlowError: it is no text, or none of the answers where these can be listed.
        """
        finite = self.strategy.finite()
        if not isinstance(answer, str) or (finite is not None and normalised(answer) not in map(normalised, finite)):
            allowed = "a text" if finite is None else ", ".join(map(repr, finite))
            raise FlowError(f"question {self.name!r}: with_auto_answer gave {answer!r}; the answers are {allowed}")
        return answer

    @property
    def scratch(self) -> bool:
        """Whether something of it is taken back: then all of it stands in the text on that promise."""
        return self.erase_mode is not EraseMode.NONE

    # Looking ------------------------------------------------------------------------------------------

    def targets(self) -> Iterator[tuple[str, Target]]:
        """Every target that is written down, with the answer (or the method) that leads to it."""
        yield from self.routes.items()
        if self.has_fallback:
            yield "then", self.fallback
        if self.retries is not None:
            yield "retry", self.retries[1]

    def __repr__(self) -> str:
        return f"<FlowQuestion {self.name!r}, {len(self.routes)} routes, erase {self.erase_mode}>"


class FlowDefinition:
    """A named flow: its root question, and how to sum it up.

    :raises FlowError: two different questions of one name are reachable.
    """

    def check_names(self) -> None:
        """Look again whether names are unique, since questions may have been linked after the flow was made.

        :raises FlowError: they are not.
        """
        _reachable(self.root)

    def __init__(
        self, name: str, root: FlowQuestion, summary_builder: Callable[[FlowState], str] | None = None
    ) -> None:
        self.name = name
        self.root = root
        self.summary_builder = summary_builder
        self.questions = _reachable(root)
        self.positions: dict[str, tuple[float, float]] = {}
        """Where an editor shows each question, x and y by name; empty where nobody placed any."""

    # The forms below live beside this module; they are looked up when called, since they build on it.

    def to_json(self) -> str:
        """The flow as a JSON document (see docs/flow.schema.json): data only, functions by registered name.

        :raises FlowError: a function that has no registered name.
        """
        from .document import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> FlowDefinition:
        """The flow of a JSON document. Nothing in it is run.

        :raises FlowError: with the place in the document and what would be right.
        """
        from .document import from_json

        return from_json(text)

    def to_python(self) -> str:
        """Python source that builds the same flow."""
        from .python_source import to_python

        return to_python(self)

    def check(self, tokenizer: Tokenizer | None = None) -> list[Problem]:
        """What looks wrong, before anything runs."""
        from .checking import check

        return check(self, tokenizer)

    def draw(self, states: Iterable[FlowState] = ()) -> Drawing:
        """A mermaid flowchart; with the ``states`` of runs, how often and how probably each way was taken."""
        from .drawing import draw

        return draw(self, states)

    def __repr__(self) -> str:
        return f"<FlowDefinition {self.name!r}, {len(self.questions)} questions from {self.root.name!r}>"


def normalised(answer: str) -> str:
    """How answers are compared."""
    return answer.strip().casefold()


def question_of(target: Target) -> FlowQuestion | None:
    """The question that a written-down target leads to, if it is one."""
    if isinstance(target, FlowQuestion):
        return target
    if isinstance(target, FlowDefinition):
        return target.root
    return target.question if isinstance(target, FlowRoute) else None


def _reachable(root: FlowQuestion) -> dict[str, FlowQuestion]:
    """Every question reachable from the root by what is written down, by name."""
    found: dict[str, FlowQuestion] = {}
    waiting = [root]
    while waiting:
        question = waiting.pop()
        known = found.setdefault(question.name, question)
        if known is not question:
            raise FlowError(f"two questions are named {question.name!r}: give each its own name")
        for _, target in question.targets():
            following = question_of(target)
            if following is not None and found.get(following.name) is not following:
                waiting.append(following)
    return found


def _mode(kind: type[StrEnum], value: str, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        choices = [str(item) for item in kind]
        raise FlowError(
            f"{what} must be one of {', '.join(choices)}, got {value!r}.{did_you_mean(str(value), choices)}"
        ) from None


def _function(fn: Any, what: str) -> Any:
    if not callable(fn):
        raise FlowError(f"{what} needs a function, got {fn!r}")
    if inspect.iscoroutinefunction(fn):
        raise FlowError(f"{what} needs a plain function, got the async {fn!r}")
    return fn


def _target(target: Any, what: str) -> Any:
    if target is None or isinstance(target, (FlowQuestion, FlowRoute, FlowDefinition, str)):
        return target
    if callable(target) and not inspect.iscoroutinefunction(target) and not isinstance(target, type):
        arity(target)
        return target
    raise FlowError(
        f"{what} can't lead to {target!r}: it may be a question, a route, a flow, a text, None, or a plain function of "
        "(state) or (state, actions, tokenizer)"
    )
