"""Where an answer leads: explicit routes, then branches, then the fallback; functions followed to something doable."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import FlowError
from .arity import arity
from .question import FlowDefinition, FlowQuestion, Target, normalised
from .routes import FlowRoute, RouteKind
from .state import FlowState

__all__ = ["TARGETS", "called", "described", "next_target", "resolved"]

MOST_STEPS = 64
"""Functions of the state that may lead to one another before it is called a circle."""


TARGETS = "it may be a question, a route, a flow, a text, None, or a function of (state) or (state, actions, tokenizer)"


def next_target(question: FlowQuestion, answer: str, state: FlowState) -> Target:
    """Explicit ``on``, then ``branch``, then ``then``."""
    key = normalised(answer)
    if key in question.routes:
        return question.routes[key]
    if question.brancher is not None:
        target: Target = called(question.brancher, "branch", question.name, state, state)
        if target is not None:
            return target
    return question.fallback


def resolved(target: Target, definition: FlowDefinition, state: FlowState) -> Target:
    """Follow functions of the state, messages and summaries until something that can be done.

    :raises FlowError: functions that lead to functions without end, or to something that is no target.
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
        if isinstance(target, (FlowQuestion, FlowDefinition)) or not callable(target) or arity(target) == 3:
            return target
        target = called(target, described(target), None, state, state)
    raise FlowError(f"flow {definition.name!r}: functions lead to functions without end")


def _summary(definition: FlowDefinition, state: FlowState) -> str:
    if definition.summary_builder is None:
        return "; ".join(f"{name}: {answer}" for name, answer in state.answers.items())
    told = called(definition.summary_builder, f"summary_builder of flow {definition.name!r}", None, state, state)
    if not isinstance(told, str):
        raise FlowError(f"the summary_builder of flow {definition.name!r} must give text, got {told!r}")
    return told


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


def called(fn: Callable[..., Any], what: str, question: str | None, state: FlowState, *arguments: Any) -> Any:
    """Call a user's function.

    :raises FlowError: it raised; the message says what, in which question and after which answers.
    """
    try:
        found = fn(*arguments)
    except FlowError:
        raise
    except Exception as error:
        where = "" if question is None else f" of question {question!r}"
        raise FlowError(
            f"{what}{where} raised {type(error).__name__}: {error} (answers so far: {state.answers})"
        ) from error
    if inspect.isawaitable(found):
        if inspect.iscoroutine(found):
            found.close()
        raise FlowError(f"{what} gave something to await: a flow calls plain functions, not async ones")
    return found
