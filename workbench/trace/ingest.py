"""Request logs of the public engine ("ingest" JSON) to traces and back.

A log is one JSON object per request: ``request``, ``events``, ``mod_calls``, ``mod_logs``, ``actions``; several
requests are a list of those. Logs that this module wrote hold each record whole (under ``details``) and come back as
they were, without activations, which a log has no place for. Logs that the public engine wrote are read by
``ingest_reading``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import TraceError
from .checking import check_manifest, folded
from .history import History
from .ingest_checks import LIMIT_BYTES, Part, parsed
from .ingest_reading import read_log
from .ingest_records import plain, record_of, unspelt, whole
from .record import ACTION, Record, readable
from .trace import Trace

__all__ = ["from_ingest", "read_ingest", "to_ingest"]

FORMAT = 1
EVENT_TYPES = {"prefilled": "Prefilled", "forward_pass": "ForwardPass", "sampled": "Sampled", "added": "Added"}
ACTION_TYPES = {
    "adjust_prefill": "AdjustedPrefill",
    "adjust_logits": "AdjustedLogits",
    "force_tokens": "ForceTokens",
    "backtrack": "Backtrack",
    "force_output": "ForceOutput",
    "tool_calls": "ToolCalls",
    "emit_error": "EmitError",
}


def to_ingest(trace: Trace, request_id: str | None = None) -> list[dict[str, Any]]:
    """One log per request of a trace (or of the one named), JSON-able.

    :raises TraceError: no such request.
    """
    wanted = trace.request_ids if request_id is None else (trace.history(request_id).request_id,)
    return [_log(trace, name) for name in wanted]


def read_ingest(path: str | Path, decode: Callable[[int], str] | None = None) -> Trace:
    """The trace of a log file; see ``from_ingest``.

    :raises TraceError: it can't be read, is too large, is no JSON, or is no log; the message says where.
    """
    place = Path(path)
    try:
        size = place.stat().st_size
        if size > LIMIT_BYTES:
            raise TraceError(f"{place} has {size / 2**20:.0f} MiB; a log of up to {LIMIT_BYTES >> 20} MiB is read")
        text = place.read_text("utf-8-sig")
    except OSError as error:
        raise TraceError(f"can't read {place}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{place} is no log: it is not UTF-8 text ({error})") from None
    try:
        return from_ingest(parsed(text), decode)
    except TraceError as error:
        raise TraceError(f"{place}: {error}") from error


def from_ingest(document: Any, decode: Callable[[int], str] | None = None) -> Trace:
    """The trace of one log or a list of logs.

    ``decode`` gives the text of a token id; without it only tokens that the log spells are known by text.

    :raises TraceError: a part is missing, of a wrong type, too large or contradicts another; the message says which.
    """
    logs = document if isinstance(document, list) else [document]
    if not logs:
        raise TraceError("the list of logs is empty")
    listed = isinstance(document, list)
    parts = [Part(log, f"log {number}" if listed else "the log") for number, log in enumerate(logs)]
    ours = [_is_ours(part) for part in parts]
    if any(ours) and not all(ours):
        raise TraceError("some of the logs were written by this workbench and some were not: import them one by one")
    try:
        trace = _restored(parts) if all(ours) else read_log(parts, decode)
    except RecursionError:
        raise TraceError("the log is nested too deeply") from None
    return _checked(trace)


# Writing ---------------------------------------------------------------------------------------------------


def _log(trace: Trace, request_id: str) -> dict[str, Any]:
    history = trace.history(request_id)
    records = [record for record in trace.records if record.request_id == request_id]
    events: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    actions: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for record in records:
        if record.kind in EVENT_TYPES:
            events.append(_event(record, len(events)))
            continue
        answers = EVENT_TYPES.values() if events else ()
        if record.kind == ACTION and record.data.get("event") in answers:
            calls.append(_call(record, len(events) - 1))
        if record.kind == ACTION and record.data.get("event") in answers and record.action in ACTION_TYPES:
            actions.append(_action(record, len(calls) - 1))
        else:
            others.append(whole(record))
    request = _request(trace, history, records)
    request["workbench"] = {"format": FORMAT, "run": plain(_run_of(trace.run, request_id)), "records": others}
    return {"request": request, "events": events, "mod_calls": calls, "mod_logs": [], "actions": actions}


def _request(trace: Trace, history: History, records: Sequence[Record]) -> dict[str, Any]:
    told = trace.run.get("requests", {}).get(history.request_id, {})
    names = [str(mod.get("name")) for mod in told.get("mods", ())]
    sampling = told.get("sampling", {})
    made = {
        "request_id": f"{trace.run.get('run_id', 'run')}.{history.request_id}",
        "model": str(trace.run.get("model", {}).get("name", "")),
        "max_tokens": told.get("max_new_tokens"),
        "temperature": sampling.get("temperature"),
        "mod_text": ", ".join(names),
        "active_mod_name": names[0] if names else None,
        "user_prompt": next((readable(record.text) for record in records if record.kind == "prefilled"), ""),
        "user_prompt_token_ids": history.prompt,
        "final_token_ids": [life.token for life in history.live],
        "final_text": readable("".join(life.text for life in history.live)),
        "inference_stats": {
            "prompt_tokens": len(history.prompt),
            "generated_tokens": len(history.live),
            "total_tokens": len(history.tokens),
        },
    }
    return {key: plain(value) for key, value in made.items() if value is not None}


def _run_of(run: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """The manifest as far as it is about one request, without what its missing activations would need."""
    told = {name: dict(value) for name, value in run.get("requests", {}).items() if name == request_id}
    for value in told.values():
        value["capture"] = []
    return {**run, "requests": told}


def _event(record: Record, order: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "event_type": EVENT_TYPES[record.kind],
        "step": record.step,
        "sequence_order": order,
        "details": {"workbench": whole(record)},
    }
    match record.kind:
        case "prefilled":
            made |= {"prompt_length": len(record.tokens), "tokens_so_far_len": 0}
            made["max_steps"] = record.data.get("max_new_tokens")
        case "forward_pass":
            made["top_tokens"] = [
                {"token": token, "prob": math.exp(value), "logprob": value} for token, value in record.top
            ]
        case "sampled":
            made |= {"sampled_token": record.tokens[0] if record.tokens else None, "token_text": readable(record.text)}
        case _:
            made |= {"added_tokens": list(record.tokens), "added_token_count": len(record.tokens)}
            made["forced"] = record.origin != "sampled"
    return {key: plain(value) for key, value in made.items() if value is not None}


def _call(record: Record, order: int) -> dict[str, Any]:
    raised = record.action == "raised"
    return {
        "event_sequence_order": order,
        "mod_name": record.mod or "",
        "event_type": record.data["event"],
        "step": record.step,
        "execution_time_ms": record.duration_ns / 1e6,
        "exception_occurred": raised,
        **({"exception_message": readable(str(record.data.get("error", "")))} if raised else {}),
    }


def _action(record: Record, call: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "mod_call_sequence": call,
        "action_type": ACTION_TYPES[str(record.action)],
        "action_order": 0,
        "details": {"workbench": whole(record)},
    }
    count = len(record.tokens)
    if record.tokens:
        made["tokens"] = list(record.tokens)
    match record.action:
        case "adjust_prefill":
            made |= {"new_prompt": readable(record.text), "new_length": count}
            made["adjusted_max_steps"] = record.data.get("max_steps")
        case "force_tokens" | "force_output":
            made |= {"token_count": count, "tokens_preview": readable(record.text[:80])}
        case "backtrack":
            made |= {"backtrack_steps": record.data.get("n"), "backtrack_token_count": count}
        case "adjust_logits":
            made["temperature"] = record.data.get("token_temp")
        case "tool_calls":
            made |= {"has_tool_calls": True, "tool_calls": record.data.get("payload")}
        case _:
            made["error_message"] = readable(str(record.data.get("message", "")))
    return {key: plain(value) for key, value in made.items() if value is not None}


# Reading our own -------------------------------------------------------------------------------------------


def _is_ours(part: Part) -> bool:
    inside = part.part("request").value.get("workbench")
    if inside is None:
        return False
    if not isinstance(inside, dict) or inside.get("format") != FORMAT:
        raise TraceError(f"{part.place}: this version reads format {FORMAT} of its own logs")
    return True


def _restored(parts: Sequence[Part]) -> Trace:
    """The trace whose requests these logs are."""
    run: dict[str, Any] = {}
    records: list[Record] = []
    for part in parts:
        inside = part.part("request").part("workbench")
        own = unspelt(inside.part("run").value)
        requests = Part(own, inside.place).part("requests").value
        known = run.get("requests", {})
        if run and (own.get("run_id") != run.get("run_id") or set(requests) & set(known)):
            raise TraceError("a list of logs is one run with each request once: import other runs one by one")
        run = {**own, "requests": {**known, **requests}}
        found = [Part(one, f"{inside.place}, record {n}") for n, one in enumerate(inside.list("records"))]
        for name in ("events", "actions"):
            listed = part.parts(name)
            found += [one.part("details").part("workbench") for one in listed]
        records += [record_of(one) for one in found]
    if not isinstance(run.get("model"), dict):
        raise TraceError("the log names no model")
    records.sort(key=lambda record: record.seq)
    return Trace(run, records)


def _checked(trace: Trace) -> Trace:
    """Records that each are well-formed may contradict each other: fold them once, here, where it can be said."""
    try:
        check_manifest(trace.run)
        known = folded(trace.records, trace.run["requests"])
    except TraceError as error:
        raise TraceError(f"the log's records contradict each other: {error}") from error
    if not known:
        raise TraceError("the log has no events")
    return Trace(trace.run, trace.records, known)
