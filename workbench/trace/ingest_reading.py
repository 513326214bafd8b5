"""A log that the public engine wrote, as the records it would have been here.

Such a log says less than a trace: it has no prompt tokens beyond the user's own, the text of drawn tokens only, and
no event for what was taken back. What follows from the rest is filled in; what does not is said in a warning record.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import TraceError
from .ingest_checks import Part
from .record import ACTION, WARNING, Record
from .trace import Trace

__all__ = ["read_log"]

Decode = Callable[[int], str]
EVENTS = ("Prefilled", "ForwardPass", "Sampled", "Added")
ACTIONS = {
    "AdjustedPrefill": "adjust_prefill",
    "AdjustedLogits": "adjust_logits",
    "ForceTokens": "force_tokens",
    "Backtrack": "backtrack",
    "ForceOutput": "force_output",
    "ToolCalls": "tool_calls",
    "EmitError": "emit_error",
}
ENDS = {"ForceOutput": "force_output", "ToolCalls": "tool_calls", "EmitError": "error"}


def read_log(parts: Sequence[Part], decode: Decode | None) -> Trace:
    """The trace of some logs, one request each.

    :raises TraceError: something in a log is not what it should be; the message says where.
    """
    names = [part.part("request").text("request_id") for part in parts]
    run_id = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]
    records: list[Record] = []
    requests: dict[str, Any] = {}
    for part, name in zip(parts, names, strict=True):
        request_id = name.replace("@", "_")  # a trace takes what follows an @ for something of its own
        if request_id in requests:
            raise TraceError(f"two of the logs are of request {name!r}")
        reading = _Reading(part, run_id, request_id, decode, records)
        requests[request_id] = reading.read()
    model = {"name": parts[0].part("request").text_or_none("model") or "not recorded", "eos_token_ids": []}
    return Trace({"run_id": run_id, "model": model, "requests": requests, "status": "imported"}, records)


@dataclass(slots=True)
class _Reading:
    """One log being read, event by event."""

    log: Part
    run_id: str
    request_id: str
    decode: Decode | None
    records: list[Record]
    prompt: tuple[int, ...] = ()
    live: list[int] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    step: int = 0
    fed: int = 0
    likely: Mapping[int, float] = field(default_factory=dict)
    """Log-probabilities of the last pass's likeliest tokens."""
    prefilled: bool = False
    repeated: int = 0
    end: str | None = None
    ending: dict[str, Any] = field(default_factory=dict)

    def read(self) -> dict[str, Any]:
        """Append the request's records; gives what the manifest says of it."""
        events = sorted(self.log.parts("events"), key=lambda event: event.whole("sequence_order"))
        orders = [event.whole("sequence_order") for event in events]
        if len(set(orders)) < len(orders):
            raise TraceError(f"events of {self.log.place}: two have the same sequence_order")
        if not events:
            raise TraceError(f"{self.log.place} has no events")
        self.texts = {
            event.whole("sampled_token"): text
            for event in events
            if event.value.get("event_type") == "Sampled" and (text := event.text_or_none("token_text")) is not None
        }
        answers = self._answers(set(orders))
        for event, order in zip(events, orders, strict=True):
            kind = event.text("event_type")
            self._event(kind, event)
            for answer in answers.get(order, ()):
                answer(kind)
        return self._finish()

    # Events ------------------------------------------------------------------------------------------------

    def _event(self, kind: str, event: Part) -> None:
        match kind:
            case "Prefilled":
                self._prefill(event)
            case "ForwardPass":
                self._pass(event)
            case "Sampled":
                token = event.whole("sampled_token")
                known = self.likely.get(token)
                self._emit("sampled", self._length, tokens=(token,), text=self._text(token), raw_logprob=known)
            case "Added":
                self._add(event.tokens("added_tokens"), "forced" if event.yes("forced") else "sampled", None)
            case _:
                raise TraceError(f"event_type of {event.place} must be one of {', '.join(EVENTS)}, got {kind[:60]!r}")

    def _prefill(self, event: Part) -> None:
        if self.prefilled:
            self.repeated += 1
            return
        self.prefilled = True
        request = self.log.part("request")
        asked, length = request.tokens("user_prompt_token_ids"), event.whole_or_none("prompt_length")
        self.prompt = asked if length in (None, len(asked)) else ()
        most = event.whole_or_none("max_steps")
        shown = (one.text_or_none("input_text") for one in self.log.parts("events") if "input_text" in one.value)
        text = request.text_or_none("user_prompt") if self.prompt else next(shown, None)
        self._emit("prefilled", 0, tokens=self.prompt, text=text or "", data={"max_new_tokens": most})
        if not self.prompt and length:
            self._warn(
                f"the log does not hold the prompt's {length} tokens: positions count from the first generated one"
            )

    def _pass(self, event: Part) -> None:
        self.step += 1
        start, length = min(self.fed, max(self._length - 1, 0)), self._length
        self.fed = length
        top = tuple(
            (one.whole("token"), value)
            for one in event.parts("top_tokens")
            if isinstance(one.value.get("token"), int) and (value := _logprob(one)) is not None
        )
        self.likely = dict(top)
        self._emit("forward_pass", max(length - 1, 0), top=top, data={"fed_start": start, "fed": length - start})

    def _add(self, tokens: Sequence[int], origin: str, mod: str | None) -> None:
        if not tokens:
            return
        position = self._length
        texts = [self._text(token) for token in tokens]
        self.live.extend(tokens)
        self._emit(
            "added", position, tokens=tuple(tokens), text="".join(texts), origin=origin, mod=mod,
            raw_logprob=self.likely.get(tokens[0]) if origin == "sampled" else None, data={"texts": texts},
        )  # fmt: skip

    def _take_back(self, n: int, mod: str) -> None:
        count = min(n, len(self.live))
        if count < n:
            self._warn(f"mod {mod!r} took back {n} tokens where {len(self.live)} had been generated")
        if count:
            removed = tuple(self.live[len(self.live) - count :])
            del self.live[len(self.live) - count :]
            self.fed = min(self.fed, self._length)
            self._emit("removed", self._length, tokens=removed, mod=mod)

    # Answers -----------------------------------------------------------------------------------------------

    def _answers(self, orders: set[int]) -> dict[int, list[Callable[[str], None]]]:
        """What is to be done after each event, in the order of the calls: notes, then actions."""
        calls = self.log.parts("mod_calls")
        found: dict[int, list[Callable[[str], None]]] = {}
        for call in calls:
            if call.whole("event_sequence_order") not in orders:
                raise TraceError(
                    f"{call.place} belongs to event {call.whole('event_sequence_order')}, which is not there"
                )
            if call.yes("exception_occurred"):
                found.setdefault(call.whole("event_sequence_order"), []).append(self._raised(call))
        for name, make in (("mod_logs", self._noted), ("actions", self._acted)):
            for one in self.log.parts(name):
                number = one.whole("mod_call_sequence")
                if number >= len(calls):
                    raise TraceError(f"{one.place} belongs to mod call {number}; there are {len(calls)}")
                found.setdefault(calls[number].whole("event_sequence_order"), []).append(make(one, calls[number]))
        return found

    def _raised(self, call: Part) -> Callable[[str], None]:
        name, message = call.text("mod_name"), call.text_or_none("exception_message") or ""
        return lambda kind: self._note(kind, name, "raised", "refused", {"error": message}, call)

    def _noted(self, log: Part, call: Part) -> Callable[[str], None]:
        name = log.text("mod_name")
        data = {"log": log.text("log_message"), "level": log.text_or_none("log_level") or "INFO"}
        return lambda kind: self._note(kind, name, "note", "applied", data, call)

    def _acted(self, action: Part, call: Part) -> Callable[[str], None]:
        name, kind_of = call.text("mod_name"), action.text("action_type")
        if kind_of not in (*ACTIONS, "Noop"):
            raise TraceError(f"action_type of {action.place} is {kind_of[:60]!r}; known: Noop, {', '.join(ACTIONS)}")
        return lambda kind: self._act(kind, kind_of, name, action, call)

    def _act(self, event: str, kind: str, mod: str, action: Part, call: Part) -> None:
        if kind == "Noop":
            return
        steps = action.whole_or_none("backtrack_steps") or 0
        told: dict[str, dict[str, Any]] = {
            "Backtrack": {"n": steps},
            "AdjustedLogits": {"token_temp": action.number_or_none("temperature")},
            "ToolCalls": {"payload": action.value.get("tool_calls")},
            "EmitError": {"message": action.text_or_none("error_message") or ""},
            "AdjustedPrefill": {"max_steps": action.whole_or_none("adjusted_max_steps")},
        }
        data = told.get(kind, {})
        text = action.text_or_none("tokens_preview") or action.text_or_none("new_prompt") or ""
        kept = {key: value for key, value in data.items() if value is not None}
        if kind == "AdjustedPrefill" and not self.live:
            self.prompt = ()
            self._warn("the log does not hold the new prompt's tokens: positions count from the first generated one")
        self._note(event, mod, ACTIONS[kind], "applied", kept, call, text)
        if kind == "Backtrack":  # on Sampled the public engine counts the drawn token, which is not committed
            self._take_back(max(steps - 1, 0) if event == "Sampled" else steps, mod)
        if kind in ENDS:
            self.end = ENDS[kind]
            ending = {"ToolCalls": {"tool_calls": data.get("payload")}, "EmitError": {"error": data.get("message")}}
            self.ending = ending.get(kind, {})

    # Ends --------------------------------------------------------------------------------------------------

    def _finish(self) -> dict[str, Any]:
        request = self.log.part("request")
        final = request.tokens("final_token_ids")
        if final and self.end == "force_output" and tuple(self.live) != final:
            self._take_back(len(self.live), "force_output")
            self._add(final, "forced", None)
        if final and tuple(self.live) != final:
            self._warn("the log's final tokens are not those that its events add up to")
        if self.repeated:
            self._warn(f"{self.repeated} repeated Prefilled events are left out")
        most = request.whole_or_none("max_tokens")
        full = most is not None and len(self.live) >= most
        self._emit("finished", self._length, data={
            "reason": self.end or ("max_tokens" if full else "not recorded"), **self.ending,
        })  # fmt: skip
        mod = request.text_or_none("active_mod_name") or request.text_or_none("mod_text")
        temperature = request.number_or_none("temperature")
        return {
            "prompt_tokens": list(self.prompt), "conversation": [], "capture": [], "max_new_tokens": most,
            "sampling": {} if temperature is None else {"temperature": temperature},
            "mods": [] if not mod else [{"name": mod, "params": None, "source": None}],
        }  # fmt: skip

    # Inside ------------------------------------------------------------------------------------------------

    @property
    def _length(self) -> int:
        return len(self.prompt) + len(self.live)

    def _text(self, token: int) -> str:
        if token not in self.texts and self.decode is not None:
            self.texts[token] = self.decode(token)
        return self.texts.get(token, f"#{token}")

    def _note(
        self, event: str, mod: str, action: str, status: str, data: Mapping[str, Any], call: Part, text: str = ""
    ) -> None:
        took = call.number_or_none("execution_time_ms") or 0.0
        self._emit(
            ACTION, max(self._length - 1, 0), mod=mod, action=action, status=status, text=text,
            duration_ns=int(max(took, 0.0) * 1e6), data={"event": event, **data},
        )  # fmt: skip

    def _warn(self, message: str) -> None:
        self._emit(WARNING, self._length, data={"message": message})

    def _emit(self, kind: str, position: int, **fields: Any) -> None:
        self.records.append(
            Record(
                run_id=self.run_id,
                request_id=self.request_id,
                seq=len(self.records),
                step=self.step,
                position=position,
                kind=kind,
                **fields,
            )
        )


def _logprob(candidate: Part) -> float | None:
    """Log-probability of a candidate, which a log gives as that or as a probability."""
    value = candidate.number_or_none("logprob")
    chance = candidate.number_or_none("prob")
    if value is None and chance is not None and chance > 0:
        value = math.log(chance)
    return value
