"""Whether the manifest and the records of a run fit together: what somebody sent may say anything.

What is checked here is what the rest of the house takes for granted: types, order, and that no record speaks of
positions that are not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ..errors import TraceError
from .history import History
from .record import ACTION, EVENTS, WARNING, Record

__all__ = ["check_manifest", "folded"]

KINDS = frozenset((*EVENTS, ACTION, WARNING))
ORIGINS = ("sampled", "forced", "reinjected")
MOST_TOKEN = 1 << 31
MOST_NUMBER = 1 << 53
MOST_LAYERS = 1 << 16
MOST_DEPTH = 100
"""Lists and objects within each other in a record's own data."""
REQUEST = {"prompt_tokens": list, "conversation": list, "capture": list, "mods": list, "sampling": dict}
"""Of a request in the manifest; what is there must be of this type."""


def check_manifest(run: Mapping[str, Any]) -> None:
    """:raises TraceError: the manifest lacks something that every run has, or it is of another type."""
    model, requests = run.get("model"), run.get("requests")
    if not isinstance(model, dict) or not isinstance(requests, dict):
        raise TraceError("it names no model or no requests")
    _need(isinstance(model.get("name", ""), str), "the model's name is no text")
    _need(isinstance(run.get("run_id", ""), str), "run_id is no text")
    for name, most in (("n_layers", MOST_LAYERS), ("d_model", MOST_NUMBER), ("vocab_size", MOST_NUMBER)):
        _need(name not in model or _is_whole(model[name], most), f"the model's {name} is no number of such things")
    _need(_are_tokens(model.get("eos_token_ids", [])), "the model's eos_token_ids are no token ids")
    for name, request in requests.items():
        where = f"request {name[:40]!r}"
        _need(isinstance(request, dict), f"{where} is no object")
        for key, kind in REQUEST.items():
            _need(isinstance(request.get(key, kind()), kind), f"{where}: {key} is no {kind.__name__}")
        _need(_are_tokens(request.get("prompt_tokens", [])), f"{where}: prompt_tokens are no token ids")
        _need(_are_texts(request.get("capture", [])), f"{where}: capture names no hooks")
        for mod in request.get("mods", []):
            named = isinstance(mod, dict) and isinstance(mod.get("name"), str)
            _need(named and isinstance(mod.get("source") or "", str), f"{where}: a mod has no name")


def folded(records: Sequence[Record], requests: Mapping[str, Any]) -> dict[str, History]:
    """Each request's history, every record having been checked against those before it.

    :raises TraceError: a record of a wrong type, out of order, of an unknown request, or that contradicts another.
    """
    known: dict[str, History] = {}
    last = -1
    for record in records:
        where = f"record {str(record.seq)[:20]} ({str(record.kind)[:20]})"
        try:
            _need(_is_whole(record.seq) and record.seq > last, "its number is not above the one before it")
            _need(record.request_id in requests, f"it is of the request {record.request_id!r}, which is not there")
            _check_fields(record)
            history = known.setdefault(record.request_id, History(record.request_id))
            _check_fit(record, history)
        except TraceError as error:
            raise TraceError(f"{where}: {error}") from None
        history.apply(record)
        last = record.seq
    return known


def _check_fields(record: Record) -> None:
    """That every field is of the type that :class:`Record` says."""
    _need(record.kind in KINDS, f"there is no such kind; known are {', '.join(sorted(KINDS))}")
    _need(isinstance(record.text, str), "its text is none")
    _need(_is_whole(record.step) and _is_whole(record.position), "its step or position is no whole number")
    _need(type(record.duration_ns) is int, "its duration is no whole number")
    _need(_are_tokens(record.tokens), "its tokens are no token ids")
    likely = all(_is_whole(token, MOST_TOKEN) and _is_chance(value) for token, value in record.top)
    _need(likely, "its likeliest tokens are no pairs of token id and log-probability")
    for name, value in (("logprob", record.logprob), ("raw_logprob", record.raw_logprob)):
        _need(value is None or _is_chance(value), f"its {name} is no logarithm of a probability")
    _need(isinstance(record.data, dict) and _depth(record.data) <= MOST_DEPTH, "its data is no object, or too deep")


def _check_fit(record: Record, history: History) -> None:
    """That a record can follow the records before it."""
    data, length = record.data, len(history.prompt) + len(history.live)
    match record.kind:
        case "forward_pass":
            _check_pass(data, len(history.prompt), length)
        case "added":
            texts = data.get("texts", ())
            _need(_are_texts(texts) and len(texts) == len(record.tokens), "it has not one text for each token")
            _need(record.origin in (None, *ORIGINS), f"its origin is none of {', '.join(ORIGINS)}")
            _need(record.position == length, f"it adds at position {record.position} of {length}")
        case "removed":
            there = len(history.live)
            _need(len(record.tokens) <= there, f"it removes {len(record.tokens)} tokens of {there}")
        case "finished":
            _need(isinstance(data.get("reason"), str), "it gives no reason")
        case "warning":
            _need(isinstance(data.get("message"), str), "it has no message")
        case "action":
            _need(isinstance(data.get("event", ""), str), "its event is no text")


def _check_pass(data: Mapping[str, Any], prompt: int, length: int) -> None:
    start, fed = data.get("fed_start"), data.get("fed")
    inside = _is_whole(start) and _is_whole(fed) and start + fed <= length  # type: ignore[operator]
    _need(inside, f"it feeds {str(fed)[:20]} positions from {str(start)[:20]} on, and there are {length}")
    _need("row" not in data or _is_whole(data["row"]), "its activation row is no whole number")
    scored, edits = data.get("scored", {}), data.get("edits", [])
    _need(isinstance(scored, dict) and isinstance(edits, (list, tuple)), "its scores or edits are of another type")
    for position, value in scored.items():
        digits = str(position)
        sound = digits.isascii() and digits.isdecimal() and len(digits) < 16 and _is_chance(value)
        _need(sound and prompt <= int(digits) < length, f"it scores position {digits[:20]!r} of {length}")
    for edit in edits:
        _need(isinstance(edit, (list, tuple)) and len(edit) == 3, "an edit is no span and names")
        begin, end, names = edit
        _need(_is_whole(begin) and _is_whole(end, length) and _are_texts(names), "an edit is no span and names")


def _need(sound: bool, reason: str) -> None:
    if not sound:
        raise TraceError(reason)


def _is_whole(value: Any, most: int = MOST_NUMBER) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_chance(value: Any) -> bool:
    """A log-probability, minus infinity and NaN among them; a sum of rounded ones may lie a little above 0."""
    return type(value) in (int, float) and not value > 1


def _are_tokens(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(_is_whole(value, MOST_TOKEN) for value in values)


def _are_texts(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(value, str) for value in values)


def _depth(data: Any) -> int:
    """How many containers lie within each other, counted level by level."""
    level, depth = [data], 0
    while level and depth <= MOST_DEPTH:
        held = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for each in chain.from_iterable(held) if isinstance(each, (dict, list, tuple))]
        depth += 1
    return depth
