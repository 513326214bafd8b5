"""Where an answer leads: explicit routes, then branches, then the fallback; functions followed to something doable."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import FlowError
from .question import FlowDefinition, FlowQuestion, FlowState, Target, normalised
from .routes import FlowRoute, RouteKind

__all__ = ["called", "described", "next_target", "resolved"]

MOST_STEPS = 64
"""Functions of the state that may lead to one another before it is called a circle."""


def next_target(question: FlowQuestion, answer: str, state: FlowState) -> Target:
    """Explicit ``on``, then ``branch``, then ``then``."""
    key = normalised(answer)
    if key in question.routes:
        return question.routes[key]
    if question.brancher is not None:
        target: Target = called(question.brancher, "branch", question, state, state)
        if target is not None:
            return target
    return question.fallback


def resolved(target: Target, definition: FlowDefinition, state: FlowState) -> Target:
    """Follow functions of the state, messages and summaries until something that can be done.

    :raises FlowError: functions that lead to functions without end.
    """
    for _ in range(MOST_STEPS):
        if isinstance(target, FlowRoute):
            match target.kind:
                case RouteKind.MESSAGE:
                    return target.text
                case RouteKind.SUMMARY:
                    return _summary(definition, state)
                case RouteKind.NOOP:
                    return None
                case _:
                    return target
        if isinstance(target, (FlowQuestion, FlowDefinition)) or not callable(target) or _arity(target) != 1:
            return target
        target = target(state)
    raise FlowError(f"flow {definition.name!r}: functions lead to functions without end")


def _summary(definition: FlowDefinition, state: FlowState) -> str:
    if definition.summary_builder is not None:
        return definition.summary_builder(state)
    return "; ".join(f"{name}: {answer}" for name, answer in state.answers.items())


def described(target: Target) -> str:
    """A target in a few words: the name of a question, or what is done."""
    match target:
        case FlowQuestion():
            return target.name
        case FlowDefinition():
            return target.root.name
        case FlowRoute(kind=RouteKind.QUESTION, question=FlowQuestion() as question):
            return question.name
        case None | FlowRoute(kind=RouteKind.NOOP):
            return "back to the text"
        case str():
            return f"message: {target}"
        case FlowRoute(text=None):
            return str(target.kind)
        case FlowRoute():
            return f"{target.kind}: {target.text}"
        case _:
            return f"function {getattr(target, '__name__', type(target).__name__)}"


def _arity(fn: Callable[..., Any]) -> int:
    """How many positional parameters a function takes: 1 for fn(state), 3 for fn(state, actions, tokenizer)."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(fn).parameters.values()
    return sum(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)


def called(fn: Callable[..., Any], what: str, question: FlowQuestion, state: FlowState, *arguments: Any) -> Any:
    """Call a user's function; what it raises says in which question and after which answers."""
    try:
        return fn(*arguments)
    except Exception as error:
        error.add_note(f"in {what}() of question {question.name!r}, after the answers {state.answers}")
        raise
