"""Tools that a flow may call while the model generates: a calculator, a search, a calendar.

A tool answers with an action, as a mod does. The ready ones read what was asked from ``actions.request.asked`` and
put what they found into the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache

from ..engine import Action, ActionBuilder
from ..errors import did_you_mean
from ..flows import FlowQuestion, FlowState, flow_function
from ..models import Tokenizer
from .calendar import calendar_facts
from .collection import Collection
from .equations import Equation, find_equation

__all__ = [
    "Tool",
    "calculator_tool",
    "call_runtime_tool",
    "date_tool",
    "find_sum",
    "ready_tools",
    "search_tool",
    "tool_flow",
]

_TELEPHONE = re.compile(r"[0-9]{3}(-[0-9]{3})?-[0-9]{4}")
LONGEST_QUESTION = 1000
"""Characters, from the end, in which a sum is looked for."""

_SPOKEN = [
    (re.compile(pattern, re.IGNORECASE), sign)
    for pattern, sign in (
        (r"(?<=[\d)])\s+(?:times|multiplied\s+by)\s+(?=[\d(])", " * "),
        (r"(?<=[\d)])\s+(?:divided\s+by)\s+(?=[\d(])", " / "),
        (r"(?<=[\d)])\s+(?:plus)\s+(?=[\d(])", " + "),
        (r"(?<=[\d)])\s+(?:minus)\s+(?=[\d(])", " - "),
    )
]
_OPERAND_END = re.compile(r"[0-9)](?!\s*+(?:\*\*|//|[-+*/^%.×÷])?\s*+[0-9(])")  # the sum does not go on from there


@dataclass(frozen=True, slots=True)
class Tool:
    """What a flow can call: a name to choose it by, a description for the prompt, and what it does.

    ``fn(actions, tokenizer)`` answers as a mod does on a ForwardPass: with an action, a list of them, or None.
    """

    name: str
    description: str
    fn: Callable[[ActionBuilder, Tokenizer], Action | Sequence[Action] | None]

    def __str__(self) -> str:
        return f"{self.name} ({self.description})"


def find_sum(text: str) -> Equation | None:
    """The longest sum in a question, such as ``17 * 23`` in "What is 17 times 23?", with its exact value, or None."""
    if len(text) > LONGEST_QUESTION:
        text = "x" + text[-LONGEST_QUESTION:]  # a letter before it, so that half a sum is not taken for a whole one
    for pattern, sign in _SPOKEN:
        text = pattern.sub(sign, text)
    ends = [match.end() for match in _OPERAND_END.finditer(text)]
    found = [equation for end in ends if (equation := find_equation(text[:end] + " ="))]
    sums = [equation for equation in found if not _TELEPHONE.fullmatch(equation.expression)]
    return max(sums, key=lambda equation: len(equation.expression), default=None)


def calculator_tool() -> Tool:
    """Works out the sum in what was asked and writes it with its result."""

    def calculate(actions: ActionBuilder, tokenizer: Tokenizer) -> list[Action]:
        found = find_sum(actions.request.asked)
        if found is None:
            return [actions.note(tool="calculator", found=None)]
        text = f"{found.expression} = {found.result_text}"
        return _told(actions, tokenizer, "calculator", text, text + ".\n")

    return Tool("calculator", "works out sums", calculate)


def search_tool(collection: Collection | None = None, *, most_sentences: int = 2) -> Tool:
    """Looks up what was asked in a text collection (the bundled one) and quotes the nearest passage, with its title."""
    held = [] if collection is None else [collection]

    def search(actions: ActionBuilder, tokenizer: Tokenizer) -> list[Action]:
        if not held:
            held.append(Collection.load())
        found = held[0].search(actions.request.asked, 1)
        if not found:
            return [actions.note(tool="search", found=None)]
        passage = found[0].passage
        sentences = re.split(r"(?<=[.?!]) ", passage.text)[:most_sentences]
        return _told(actions, tokenizer, "search", passage.title, f"{passage.title}: {' '.join(sentences)}\n")

    return Tool("search", "looks up facts", search)


def date_tool(today: date | None = None) -> Tool:
    """Says today's date, and how far it is to a date that was asked about. ``today`` is for tests and replays."""

    def tell(actions: ActionBuilder, tokenizer: Tokenizer) -> list[Action]:
        text = calendar_facts(actions.request.asked, today or date.today())
        return _told(actions, tokenizer, "calendar", text, text + "\n")

    return Tool("calendar", "knows today's date", tell)


def _told(actions: ActionBuilder, tokenizer: Tokenizer, tool: str, found: str, text: str) -> list[Action]:
    return [actions.note(tool=tool, found=found), actions.force_tokens(tokenizer.encode(text))]


@cache
def ready_tools() -> tuple[Tool, ...]:
    """The tools that come with the workbench."""
    return calculator_tool(), search_tool(), date_tool()


def tool_flow(
    tools: Sequence[Tool] | None = None,
    *,
    should_call: str = " I can call tools: {tools}. Should I call one to help the user? Answer yes or no:",
    which: str = " Which of these tools helps: {tools}? Answer:",
) -> FlowQuestion:
    """The questions that decide whether to call a tool and which; all is erased but what the tool writes.

    ``{tools}`` in the prompts stands for the tools with their descriptions. The answers are in the flow's state
    under ``runtime_tool_calls`` and ``runtime_tool_router``.

    :raises ValueError: fewer than two tools, or two of one name.
    """
    given = ready_tools() if tools is None else tuple(tools)
    names = [tool.name for tool in given]
    if len(given) < 2 or len(set(names)) < len(names):
        raise ValueError(f"a tool flow chooses among two tools or more, each with its own name; got {names}")
    listed = ", ".join(map(str, given))

    def call(ctx: FlowState, actions: ActionBuilder, tokenizer: Tokenizer) -> object:
        return _named(ctx.answers["runtime_tool_router"], given).fn(actions, tokenizer)

    router = FlowQuestion(
        name="runtime_tool_router", prompt=which.replace("{tools}", listed), responses=names, erase_mode="all"
    ).then(call_runtime_tool if tools is None else call)
    asked = FlowQuestion(
        name="runtime_tool_calls",
        prompt=should_call.replace("{tools}", listed),
        responses=["yes", "no"],
        erase_mode="all",
    )
    return asked.on("yes", router).on("no", None)


@flow_function("call_runtime_tool")
def call_runtime_tool(ctx: FlowState, actions: ActionBuilder, tokenizer: Tokenizer) -> object:
    """For flow files: call the ready tool that the question ``runtime_tool_router`` was answered with.

    :raises ValueError: the answer is no ready tool's name, or that question was not asked.
    """
    return _named(ctx.answers.get("runtime_tool_router", ""), ready_tools()).fn(actions, tokenizer)


def _named(name: str, tools: Sequence[Tool]) -> Tool:
    for tool in tools:
        if tool.name == name:
            return tool
    names = [tool.name for tool in tools]
    raise ValueError(f"no tool {name!r}; there are {', '.join(names)}.{did_you_mean(name, names)}")
