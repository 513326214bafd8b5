"""One record of ours inside a log: as JSON data, and checked field by field on the way back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..errors import TraceError
from .ingest_checks import Part
from .record import Record, readable

__all__ = ["plain", "record_of", "unspelt", "whole"]

UNSAVED = "activations"


def whole(record: Record) -> dict[str, Any]:
    """A record as JSON data, without activations and without the row that would find them."""
    made = {one.name: getattr(record, one.name) for one in fields(Record) if one.name != UNSAVED}
    made["data"] = {key: value for key, value in record.data.items() if key != "row"}
    data: dict[str, Any] = plain(made)
    return data


def plain(value: Any) -> Any:
    """JSON data: tuples become lists, and numbers that JSON lacks are spelt."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, Mapping):
        return {str(readable(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return readable(value)


def unspelt(value: Any) -> Any:
    """The opposite of ``plain``, as far as JSON can hold the difference."""
    if isinstance(value, dict):
        if set(value) == {"$float"} and value["$float"] in ("inf", "-inf", "nan"):
            return float(value["$float"])
        return {key: unspelt(one) for key, one in value.items()}
    return [unspelt(one) for one in value] if isinstance(value, list) else value


def record_of(part: Part) -> Record:
    """A record of ours, every field of the type that it should have."""
    value = part.value
    top = [(Part({"id": one[0]}, part.place).whole("id"), one[1]) for one in part.list("top") if _is_pair(one)]
    return Record(
        run_id=part.text("run_id"), request_id=part.text("request_id"), seq=part.whole("seq"), step=part.whole("step"),
        position=part.whole("position"), kind=part.text("kind"), mod=part.text_or_none("mod"),
        action=part.text_or_none("action"), tokens=part.tokens("tokens"), text=part.text("text"),
        origin=part.text_or_none("origin"), logprob=_number(value, "logprob", part), top=tuple(top),
        raw_logprob=_number(value, "raw_logprob", part), entropy=_number(value, "entropy", part),
        status=part.text_or_none("status"), duration_ns=part.whole("duration_ns"),
        data=unspelt(part.part("data").value),
    )  # fmt: skip


def _is_pair(value: Any) -> bool:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], (int, float)):
        return True
    raise TraceError(f"a candidate is a pair of token id and log-probability, got {json.dumps(value)[:60]}")


def _number(value: Mapping[str, Any], name: str, part: Part) -> float | None:
    found = unspelt(value.get(name))
    if found is None or (isinstance(found, (int, float)) and not isinstance(found, bool)):
        return None if found is None else float(found)
    raise TraceError(f"{part.place}: {name} must be a number, got {json.dumps(found)[:60]}")
