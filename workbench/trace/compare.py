"""Where two runs part: the first record that differs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .record import Record
from .trace import Trace

__all__ = ["Difference", "first_difference"]

EXACT = ("request_id", "step", "position", "kind", "mod", "action", "tokens", "origin", "status")
CLOSE = ("logprob", "raw_logprob", "entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where two traces differ. ``index`` counts records from 0."""

    index: int
    field: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"record {self.index}: {self.field} was {self.expected!r}, now {self.found!r}"


def first_difference(expected: Trace, found: Trace, *, tolerance: float = 1e-4) -> Difference | None:
    """Compare record by record: what happened exactly, probabilities to ``tolerance`` nats; None if equal.

    Durations, run ids and versions are not compared.
    """
    for index, (old, new) in enumerate(zip(expected.records, found.records, strict=False)):
        difference = _differs(index, old, new, tolerance)
        if difference is not None:
            return difference
    if len(expected) != len(found):
        shorter = min(len(expected), len(found))
        return Difference(index=shorter, field="number of records", expected=len(expected), found=len(found))
    return None


def _differs(index: int, old: Record, new: Record, tolerance: float) -> Difference | None:
    for name in EXACT:
        if getattr(old, name) != getattr(new, name):
            return Difference(index=index, field=name, expected=getattr(old, name), found=getattr(new, name))
    for name in CLOSE:
        before, after = getattr(old, name), getattr(new, name)
        if (before is None) != (after is None) or (
            before is not None and not math.isclose(before, after, rel_tol=tolerance, abs_tol=tolerance)
        ):
            return Difference(index=index, field=name, expected=before, found=after)
    return None
