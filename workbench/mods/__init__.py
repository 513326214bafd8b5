"""Parameters come in, ready-made mods for everyday use go out; a registry makes them again by name."""

from .arithmetic import evaluate, format_number
from .asking import ask_at_terminal, ask_when_unsure
from .banning import ban_tokens
from .calculating import calculator
from .equations import Equation, find_equation
from .expressions import ArithmeticRefused
from .phrases import replace_phrase
from .prefilling import canned_output, replace_prefill
from .registry import MODS, ModSpecError, build, parse, rebuild
from .steering import Direction, difference_of_means, steer
from .structured import tool_call, valid_json
from .watching import watch

__all__ = [
    "MODS",
    "ArithmeticRefused",
    "Direction",
    "Equation",
    "ModSpecError",
    "ask_at_terminal",
    "ask_when_unsure",
    "ban_tokens",
    "build",
    "calculator",
    "canned_output",
    "difference_of_means",
    "evaluate",
    "find_equation",
    "format_number",
    "parse",
    "rebuild",
    "replace_phrase",
    "replace_prefill",
    "steer",
    "tool_call",
    "valid_json",
    "watch",
]
