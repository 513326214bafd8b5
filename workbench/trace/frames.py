"""Records and tokens as pandas data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from .history import History, TokenLife
from .record import Record, data_texts, readable

if TYPE_CHECKING:
    from .trace import Trace

__all__ = ["record_frame", "token_frame", "trace_html"]

PLAIN = (
    "run_id", "request_id", "seq", "step", "position", "kind", "mod", "action", "tokens", "text", "origin",
    "logprob", "raw_logprob", "entropy", "top", "status", "duration_ns",
)  # fmt: skip
TEXTS = frozenset({"run_id", "request_id", "kind", "mod", "action", "text", "origin", "status"})
COUNTS = frozenset({"seq", "step", "position", "duration_ns"})
CHANCES = frozenset({"logprob", "raw_logprob", "entropy"})


def record_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record; ``data`` as JSON text."""
    columns = {name: _column(records, name) for name in PLAIN}
    columns["data"] = pd.Series(data_texts(records), dtype="str")
    return pd.DataFrame(columns, copy=False)


def _column(records: Sequence[Record], name: str) -> Any:
    """One field of all records, in the form that pandas takes over as it is: a trace may have a million."""
    values = map(attrgetter(name), records)
    if name in COUNTS:
        return np.fromiter(values, np.int64, len(records))
    if name in CHANCES:
        return pd.array(np.array(list(values), dtype=np.float64), dtype="Float64")
    found = list(values)
    if name not in TEXTS:
        return pd.Series(found, dtype=object)
    told = {text: readable(text) for text in set(found)}  # few texts, many times
    if any(text != same for text, same in told.items()):
        found = [told[text] for text in found]
    return pd.Series(pa.array(found, pa.large_string()), dtype="str")


def token_frame(histories: Mapping[str, History]) -> pd.DataFrame:
    """One row per token ever committed."""
    names = [field.name for field in fields(TokenLife)]
    lives: Iterable[TokenLife] = [life for history in histories.values() for life in history.every]
    frame = pd.DataFrame([[readable(getattr(life, name)) for name in names] for life in lives], columns=names)
    frame.insert(6, "visible", [life.visible for history in histories.values() for life in history.every])
    for name in ("logprob", "raw_logprob", "entropy"):
        frame[name] = frame[name].astype("Float64")
    for name in ("removed_step", "source_row"):
        frame[name] = frame[name].astype("Int64")
    return frame


def trace_html(trace: Trace) -> str:
    """A small table for notebooks: one line per request, text escaped, no script."""
    rows = []
    for request_id, history in trace.histories.items():
        gone = len(history.every) - len(history.live)
        text = "".join(life.text for life in history.live)
        cells = [request_id, history.reason or "running", str(len(history.live)), str(gone), text[:200]]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    heads = "".join(f"<th>{name}</th>" for name in ("request", "ended", "tokens", "taken back", "output"))
    return (
        f"<p>Trace <code>{escape(str(trace.run.get('run_id', '?')))}</code>, {len(trace)} records, "
        f"{len(trace.hooks)} hooks captured</p><table><tr>{heads}</tr>{''.join(rows)}</table>"
    )
