"""Messages from the browser before anything is done with them: how large, how deep, and of which kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.errors import ReportError, WorkbenchError
from workbench.reports import legible

__all__ = ["checked_message", "told_error"]

MOST_CHARACTERS = 4_000_000
"""In all texts of a message: a flow's file is the largest."""
MOST_ITEMS = 200_000
MOST_DEPTH = 100
LONGEST_ERROR = 2000


def checked_message(content: Any) -> str:
    """The kind of a message of sound size.

    :raises ReportError: it is no object with a kind, or too large or too deep.
    """
    if not isinstance(content, Mapping) or not isinstance(content.get("type"), str):
        raise ReportError("the browser sent a message without a type: reload the page")
    level: list[Any] = [content]
    items = characters = 0
    for _ in range(MOST_DEPTH):
        items += len(level)
        characters += sum(len(each) for each in level if isinstance(each, (str, bytes)))
        if items > MOST_ITEMS or characters > MOST_CHARACTERS:
            raise ReportError(
                f"the browser sent a message of more than {MOST_ITEMS:,} entries or {MOST_CHARACTERS:,} characters: "
                "nothing was done"
            )
        held = [[*each.keys(), *each.values()] if isinstance(each, Mapping) else each
                for each in level if isinstance(each, (Mapping, list, tuple))]  # fmt: skip
        level = [inner for each in held for inner in each]
        if not level:
            return str(content["type"])
    raise ReportError(f"the browser sent a message nested deeper than {MOST_DEPTH} levels: nothing was done")


def told_error(error: Exception, kind: str) -> str:
    """What the red row says of an error: ours as they are, of others what could not be done with the message."""
    if isinstance(error, (WorkbenchError, ValueError)):
        told = str(error)
    elif isinstance(error, (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)):
        told = f"the browser's message {legible(kind)[:40]!r} can't be used ({type(error).__name__}: {error})"
    else:
        told = f"{type(error).__name__}: {error}"
    return told if len(told) <= LONGEST_ERROR else told[: LONGEST_ERROR - 1] + "…"
