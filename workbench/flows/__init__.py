"""Questions come in; a mod that asks them, decides the answers and leaves no mark goes out."""

from .checking import Problem
from .constraint import Constraint, Matcher
from .engine import FlowEngine, after_text, when_unsure
from .functions import flow_function, registered
from .question import Decide, EraseMode, FlowDefinition, FlowQuestion, FlowState, Visit
from .routes import (
    FlowRoute,
    RouteKind,
    route_message,
    route_noop,
    route_output,
    route_question,
    route_summary,
    route_tool,
)
from .schema import json_schema
from .strategies import (
    CharsMode,
    CharsStrat,
    ChoicesStrat,
    GrammarStrat,
    JsonStrat,
    ListStrat,
    RegexStrat,
    UntilEndType,
    UntilStrat,
)

__all__ = [
    "CharsMode",
    "CharsStrat",
    "ChoicesStrat",
    "Constraint",
    "Decide",
    "EraseMode",
    "FlowDefinition",
    "FlowEngine",
    "FlowQuestion",
    "FlowRoute",
    "FlowState",
    "GrammarStrat",
    "JsonStrat",
    "ListStrat",
    "Matcher",
    "Problem",
    "RegexStrat",
    "RouteKind",
    "UntilEndType",
    "UntilStrat",
    "Visit",
    "after_text",
    "flow_function",
    "json_schema",
    "registered",
    "route_message",
    "route_noop",
    "route_output",
    "route_question",
    "route_summary",
    "route_tool",
    "when_unsure",
]
