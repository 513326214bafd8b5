"""Parameters come in, ready-made mods for everyday use go out; a registry makes them again by name."""

from .arithmetic import evaluate, format_number
from .asking import ask_at_terminal, ask_when_unsure
from .banning import ban_tokens
from .calculating import calculator
from .collection import Collection, Found, Passage
from .equations import Equation, find_equation
from .expressions import ArithmeticRefused
from .phrases import replace_phrase
from .prefilling import canned_output, replace_prefill
from .registry import MODS, ModSpecError, build, parse, rebuild
from .steering import Direction, difference_of_means, steer
from .structured import tool_call, valid_json
from .tools import (
    Tool,
    calculator_tool,
    call_runtime_tool,
    date_tool,
    find_sum,
    ready_tools,
    search_tool,
    tool_flow,
)
from .watching import watch

__all__ = [
    "MODS",
    "ArithmeticRefused",
    "Collection",
    "Direction",
    "Equation",
    "Found",
    "ModSpecError",
    "Passage",
    "Tool",
    "ask_at_terminal",
    "ask_when_unsure",
    "ban_tokens",
    "build",
    "calculator",
    "calculator_tool",
    "call_runtime_tool",
    "canned_output",
    "date_tool",
    "difference_of_means",
    "evaluate",
    "find_equation",
    "find_sum",
    "format_number",
    "parse",
    "ready_tools",
    "rebuild",
    "replace_phrase",
    "replace_prefill",
    "search_tool",
    "steer",
    "tool_call",
    "tool_flow",
    "valid_json",
    "watch",
]
