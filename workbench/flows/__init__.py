"""Questions come in; a mod that asks them, decides the answers and leaves no mark goes out."""

from .checking import Problem
from .constraint import Constraint, Matcher
from .drawing import Drawing
from .engine import FlowEngine
from .entries import AfterText, WhenUnsure, after_text, when_unsure
from .functions import flow_function, registered, registered_functions
from .layout import layout, outline
from .question import Decide, EraseMode, FlowDefinition, FlowQuestion, normalised, question_of
from .recorded import states_of
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
from .state import FlowState, Visit
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
    "AfterText",
    "CharsMode",
    "CharsStrat",
    "ChoicesStrat",
    "Constraint",
    "Decide",
    "Drawing",
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
    "WhenUnsure",
    "after_text",
    "flow_function",
    "json_schema",
    "layout",
    "normalised",
    "outline",
    "question_of",
    "registered",
    "registered_functions",
    "route_message",
    "route_noop",
    "route_output",
    "route_question",
    "route_summary",
    "route_tool",
    "states_of",
    "when_unsure",
]
