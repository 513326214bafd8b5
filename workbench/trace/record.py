"""One line of a trace: an event of a run, or an action that a mod answered with."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

__all__ = ["ACTION", "EVENTS", "WARNING", "Record", "Sink", "data_texts", "readable"]

EVENTS = ("prefilled", "forward_pass", "sampled", "added", "removed", "finished")
"""Kinds of records that an event leaves."""
ACTION = "action"
"""The kind of a record that a mod's answer leaves."""
WARNING = "warning"
"""The kind of a record that says what a person should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What happened at one moment of one request.

    ``kind`` is an event name, ``action`` or ``warning``. Probabilities are natural logarithms; entropy is
    in nats. ``data`` holds what only some kinds have, JSON-able:

    - ``prefilled``: ``max_new_tokens``;
    - ``forward_pass``: ``fed_start`` and ``fed`` (the span of positions this pass computed), ``scored``
      (position -> raw log-probability of forced tokens, now known), ``edits`` (spans and edit names),
      ``row`` (number of the first activation row of this pass, if anything was captured);
    - ``sampled``: ``removed_mass`` (probability that masks took from the model's own distribution);
    - ``finished``: ``reason``, and ``tool_calls`` or ``error``;
    - actions: their own arguments, and ``note`` where something needs saying.
    """

    run_id: str
    request_id: str
    seq: int
    step: int
    position: int
    kind: str
    mod: str | None = None
    action: str | None = None
    tokens: tuple[int, ...] = ()
    text: str = ""
    origin: str | None = None
    logprob: float | None = None
    raw_logprob: float | None = None
    entropy: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """Likeliest next tokens with their log-probabilities, best first."""
    status: str | None = None
    """Of actions: ``applied``, ``shadowed`` (an earlier structural action won, or a mod raised) or ``refused``."""
    duration_ns: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    activations: Mapping[str, Tensor] | None = field(default=None, compare=False, repr=False)
    """Captured hooks of a forward pass, ``[fed, ...]`` each; saved beside the records."""


def readable(value: Any) -> Any:
    """Text that any file or table can hold: a lone surrogate becomes a question mark; other values as they are."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def data_texts(records: Sequence[Record]) -> pa.LargeStringArray:
    """Each record's ``data`` as JSON text.

    The encoder is called once for all, and what it wrote is split: a call for each takes several times as long, and a
    trace may have a million. A ``null`` stands between them; where one of them says such a thing itself, a word that
    nobody can foresee.
    """
    if not records:
        return pa.array([], pa.large_string())
    texts = _split(records, None)
    return texts if len(texts) == len(records) else _split(records, secrets.token_hex(16))


def _split(records: Sequence[Record], mark: str | None) -> pa.LargeStringArray:
    between: list[Any] = [mark] * (2 * len(records) - 1)
    between[::2] = [record.data for record in records]
    written = json.dumps(between, ensure_ascii=True, default=dict, check_circular=False)[1:-1]
    return pc.split_pattern(pa.array([written], pa.large_string()), f", {json.dumps(mark)}, ").values


Sink = Callable[[Record], None]
"""What receives a run: a :class:`Trace` (in memory), a :class:`TraceWriter` (on disk), or a function."""
