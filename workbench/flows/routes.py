"""Where an answer may lead besides to another question."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .question import FlowQuestion

__all__ = [
    "FlowRoute",
    "RouteKind",
    "route_message",
    "route_noop",
    "route_output",
    "route_question",
    "route_summary",
    "route_tool",
]


class RouteKind(StrEnum):
    """What a route does once a question is answered."""

    QUESTION = "question"
    MESSAGE = "message"
    SUMMARY = "summary"
    OUTPUT = "output"
    TOOL = "tool"
    NOOP = "noop"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRoute:
    """Where to go: see the ``route_…`` functions."""

    kind: RouteKind
    question: FlowQuestion | None = None
    text: str | None = None
    payload: Any = None


def route_question(question: FlowQuestion) -> FlowRoute:
    """Ask another question."""
    return FlowRoute(kind=RouteKind.QUESTION, question=question)


def route_message(text: str) -> FlowRoute:
    """Put a text into the output and go on."""
    return FlowRoute(kind=RouteKind.MESSAGE, text=text)


def route_summary() -> FlowRoute:
    """Put what the flow's ``summary_builder(state)`` gives into the output and go on."""
    return FlowRoute(kind=RouteKind.SUMMARY)


def route_output(text: str) -> FlowRoute:
    """Make the output exactly this text and finish."""
    return FlowRoute(kind=RouteKind.OUTPUT, text=text)


def route_tool(payload: Any) -> FlowRoute:
    """Finish with a tool call; a function gets the state and gives the payload."""
    return FlowRoute(kind=RouteKind.TOOL, payload=payload)


def route_noop() -> FlowRoute:
    """Back to normal generation, like None."""
    return FlowRoute(kind=RouteKind.NOOP)
