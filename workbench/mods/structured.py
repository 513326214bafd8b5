"""Mods for output that a program reads: tool calls and JSON, checked, and rolled again when malformed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..engine import ActionBuilder, Added, Answer, Event, FunctionMod, Prefilled, mod
from ..models import Tokenizer
from .strict_json import closing, parse_json
from .texts import covering

__all__ = ["TOOL_CALL", "tool_call", "valid_json"]

TOOL_CALL = r"<tool_call>(.*?)</tool_call>"
_FENCE = re.compile(r"\s*(?:```\w*[ \t]*\n\s*)?")
_FENCE_BEGUN = re.compile(r"\s*`{1,3}\w*[ \t]*\Z")


def tool_call(pattern: str = TOOL_CALL, max_rolls: int = 3) -> FunctionMod:
    """A mod that ends the run with ``tool_calls`` once the text holds a call, ``{"name", "arguments"}``.

    The first group of ``pattern`` (a regular expression; dots match newlines) is the call's JSON. A malformed
    call is taken back and rolled again, up to ``max_rolls`` times, then the run ends with an error. At
    temperature 0 every roll is the same.

    :raises ValueError: ``pattern`` is no regular expression or has no group.
    """
    try:
        wanted = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ValueError(f"tool_call(pattern={pattern!r}) is not a regular expression: {error}") from None
    if not wanted.groups:
        raise ValueError(f"tool_call(pattern={pattern!r}) needs a group around the JSON, such as {TOOL_CALL!r}")
    _check_rolls("tool_call", max_rolls)

    @mod(name="tool_call", params={"pattern": pattern, "max_rolls": max_rolls})
    def hand_over(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        if not isinstance(event, Added):
            return None
        text = tokenizer.decode(event.request.generated)
        found = wanted.search(text)
        if found is None:
            return None
        try:
            return actions.tool_calls(_call(found.group(1) or ""))
        except ValueError as error:
            return _roll_again(event, actions, tokenizer, found.start(), max_rolls, f"tool call: {error}")

    return hand_over


def _call(text: str) -> dict[str, Any]:
    """The call as a payload. Some models write the arguments as a string of JSON."""
    value = parse_json(text.strip())
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError('it must be an object with a "name"')
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        arguments = parse_json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError('its "arguments" must be an object')
    return {"name": value["name"], "arguments": arguments}


def valid_json(max_rolls: int = 5) -> FunctionMod:
    """A mod that lets only JSON through: one value, ended right after it.

    An answer that begins as no JSON, closes a value that does not parse, or ends before the value is closed
    is taken back whole and rolled again, up to ``max_rolls`` times, then the run ends with an error. A
    code fence around the value is dropped. At temperature 0 every roll is the same. Put it after
    mods that change ``max_new_tokens``.
    """
    _check_rolls("valid_json", max_rolls)

    @mod(name="valid_json", params={"max_rolls": max_rolls})
    def keep_json(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        if isinstance(event, Prefilled):
            event.state["limit"] = event.max_new_tokens
        if not isinstance(event, Added):
            return None
        generated = event.request.generated
        text = tokenizer.decode(generated, skip_special=True)
        ended = generated[-1] in tokenizer.eos_token_ids
        try:
            value = _finished_value(text, ended or len(generated) >= event.state["limit"])
        except ValueError as error:
            return _roll_again(event, actions, tokenizer, 0, max_rolls, f"JSON: {error}")
        if value is None or (ended and value == text.strip()):
            return None
        if value == text.strip() and tokenizer.eos_token_ids:
            return actions.force_tokens(tokenizer.eos_token_ids[:1])
        return actions.force_output(tokenizer.encode(value))

    return keep_json


def _finished_value(text: str, ended: bool) -> str | None:
    """The JSON value in ``text`` once it is complete, None while it may still become one.

    :raises ValueError: it is none and can't become one.
    """
    fence = _FENCE.match(text)
    begin = fence.end() if fence else 0
    if not ended and (begin == len(text) or _FENCE_BEGUN.match(text)):
        return None
    if text[begin : begin + 1] not in tuple('"[{-0123456789tfn'):
        raise ValueError(f"no value begins with {text[begin : begin + 12]!r}")
    end = closing(text, begin)
    if end is None and not ended:
        return None
    value = text[begin:end].rstrip()
    parse_json(value)
    return value


def _roll_again(
    event: Added, actions: ActionBuilder, tokenizer: Tokenizer, character: int, max_rolls: int, why: str
) -> Answer:
    """Take back the text from ``character`` on, or give up after ``max_rolls`` times."""
    rolls = event.state["rolls"] = event.state.get("rolls", 0) + 1
    if rolls > max_rolls:
        return actions.emit_error(f"gave up after {rolls} rolls; the last gave no {why}")
    tokens = event.request.generated
    first, before = covering(tokens, tokenizer, character)
    return actions.backtrack(len(tokens) - first, tokenizer.encode(before) if before else None)


def _check_rolls(name: str, max_rolls: int) -> None:
    if not isinstance(max_rolls, int) or max_rolls < 0:
        raise ValueError(f"{name}(max_rolls={max_rolls!r}) must be a whole number, 0 or more")
