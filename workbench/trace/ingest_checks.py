"""Reading a stranger's JSON part by part, with the place in every complaint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import TraceError
from .record import readable

__all__ = ["LIMIT_BYTES", "Part", "parsed"]

LIMIT_BYTES = 256 * 2**20
"""Largest log file that is read."""
LIMIT_ITEMS = 1_000_000
"""Most entries of one list."""
LIMIT_NUMBER = 2**53
"""Largest whole number: what every JSON reader keeps exactly."""


def parsed(text: str) -> Any:
    """JSON text as data.

    :raises TraceError: it is no JSON, nested too deeply, or holds numbers that JSON does not know.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise TraceError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise TraceError(f"this is no JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


@dataclass(frozen=True, slots=True)
class Part:
    """One object of a log and where it stands. Each method gives one entry, or complains.

    :raises TraceError: the part is no object, or an entry is missing or of another type.
    """

    value: Any
    place: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, dict):
            raise TraceError(f"{self.place} must be an object, got {_shown(self.value)}")

    def _entry(self, name: str) -> Any:
        if name not in self.value:
            raise TraceError(f"{self.place} has no {name!r}")
        return self.value[name]

    def part(self, name: str) -> Part:
        return Part(self._entry(name), f"{name} of {self.place}")

    def list(self, name: str) -> Sequence[Any]:
        """A list, empty if it is missing."""
        found = self.value.get(name)
        if found is None:
            return ()
        if not isinstance(found, list):
            raise TraceError(f"{name} of {self.place} must be a list, got {_shown(found)}")
        if len(found) > LIMIT_ITEMS:
            raise TraceError(f"{name} of {self.place} has {len(found):,} entries; up to {LIMIT_ITEMS:,} are read")
        return found

    def parts(self, name: str) -> Sequence[Part]:
        return [Part(one, f"{name}[{number}] of {self.place}") for number, one in enumerate(self.list(name))]

    def whole(self, name: str) -> int:
        """A whole number of 0 or more."""
        found = self._entry(name)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= LIMIT_NUMBER:
            raise TraceError(f"{name} of {self.place} must be a whole number of 0 or more, got {_shown(found)}")
        return found

    def whole_or_none(self, name: str) -> int | None:
        return None if self.value.get(name) is None else self.whole(name)

    def tokens(self, name: str) -> tuple[int, ...]:
        """Token ids, none if they are missing."""
        found = self.list(name)
        for number, token in enumerate(found):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
                raise TraceError(f"{name}[{number}] of {self.place} must be a token id, got {_shown(token)}")
        return tuple(found)

    def text(self, name: str) -> str:
        found = self._entry(name)
        if not isinstance(found, str):
            raise TraceError(f"{name} of {self.place} must be a text, got {_shown(found)}")
        return str(readable(found))

    def text_or_none(self, name: str) -> str | None:
        return None if self.value.get(name) is None else self.text(name)

    def yes(self, name: str) -> bool:
        """True or false, false if it is missing."""
        found = self.value.get(name)
        if found is not None and not isinstance(found, bool):
            raise TraceError(f"{name} of {self.place} must be true or false, got {_shown(found)}")
        return bool(found)

    def number_or_none(self, name: str) -> float | None:
        found = self.value.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, (int, float)) or abs(found) > 1e18:
            raise TraceError(f"{name} of {self.place} must be a number, got {_shown(found)}")
        return float(found)


def _shown(value: Any) -> str:
    kind = {dict: "an object", list: "a list", type(None): "nothing"}.get(type(value))
    if kind is not None:
        return kind
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a very large number"
    return text if len(text) <= 60 else text[:57] + "…"
