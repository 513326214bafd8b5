"""Numbers that a person typed into a field of a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from workbench.errors import ReportError

__all__ = ["typed_number"]

Number = TypeVar("Number", int, float)


def typed_number(content: Mapping[str, Any], name: str, kind: type[Number]) -> Number:
    """The field ``name`` of a message as a number.

    :raises ReportError: the field is empty, or holds no such number.
    """
    given = content.get(name)
    try:
        return kind(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        wanted = "a whole number" if kind is int else "a number"
        got = "is empty" if given in (None, "") else f"is {given!r}"
        raise ReportError(f"the field {name.replace('_', ' ')!r} {got}; type {wanted}") from None
