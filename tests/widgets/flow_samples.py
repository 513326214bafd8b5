"""A small flow for the tests of the editor: two questions, then a text made of their answers."""

from __future__ import annotations

from typing import Any

from workbench.flows import FlowDefinition, FlowQuestion, flow_function


@flow_function("sample.say")
def say(ctx: Any, actions: Any, tokenizer: Any) -> Any:
    """Says both answers, and what was counted."""
    return actions.force_tokens(
        tokenizer.encode(f"[{ctx.answers['first']} {ctx.answers['second']} {ctx.data['seen']}]")
    )


@flow_function("sample.count")
def count(state: Any, answer: str) -> None:
    """Notes each answer."""
    state.data["seen"] = [*state.data.get("seen", []), answer]


def two_questions(erase: str = "all", *, counted: bool = True) -> FlowDefinition:
    """``counted``: every answer is assigned too, as ``say`` needs where the flow is run."""
    second = FlowQuestion("second", " B?", ["one", "two"], erase_mode=erase).then(say)
    first = FlowQuestion("first", " A?", ["yes", "no"], erase_mode=erase).then(second)
    if counted:
        first.assign(count)
        second.assign(count)
    return FlowDefinition("two", first)
