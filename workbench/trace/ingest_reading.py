"""A log that the public engine wrote, as the records it would have been here.

Such a log says less than a trace: it has no prompt tokens beyond the user's own, the text of few tokens, and no event
for what was taken back. What follows from the rest is filled in; what does not is said in a warning record. How many
tokens a ``Backtrack`` took back depends on the engine's version: the first rule by which the events add up to the final
tokens is taken, and the documented one where none does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import TraceError
from .ingest_answers import ACTIONS, RULES, Answer, Rule, answer_of, likeliest, spelt, took_ns
from .ingest_checks import Part
from .record import ACTION, WARNING, Record
from .trace import Trace

__all__ = ["read_log"]

Decode = Callable[[int], str]
EVENTS = ("Prefilled", "ForwardPass", "Sampled", "Added")
LOOK_AHEAD = 4
"""Events after an action among which the ``Added`` of its tokens would be."""
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
        tried = []
        for rule in RULES:
            reading = _Reading(part, run_id, request_id, decode, len(records), rule)
            tried.append((reading, reading.read()))
            if reading.adds_up:
                break
        reading, requests[request_id] = tried[-1] if tried[-1][0].adds_up else tried[0]
        records += reading.records
    model = {"name": parts[0].part("request").text_or_none("model") or "not recorded", "eos_token_ids": []}
    return Trace({"run_id": run_id, "model": model, "requests": requests, "status": "imported"}, records)


@dataclass(slots=True)
class _Reading:
    """One log being read, event by event."""

    log: Part
    run_id: str
    request_id: str
    decode: Decode | None
    before: int
    """Records of the logs before this one."""
    rule: Rule
    records: list[Record] = field(default_factory=list)
    prompt: tuple[int, ...] = ()
    live: list[int] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    step: int = 0
    fed: int = 0
    likely: Mapping[int, float] = field(default_factory=dict)
    """Log-probabilities of the last pass's likeliest tokens."""
    prefilled: bool = False
    repeated: int = 0
    unread: int = 0
    """Passes whose candidates stand in a form that is not known."""
    end: str | None = None
    ending: dict[str, Any] = field(default_factory=dict)
    owed: str | None = None
    """The mod whose tokens the next forced ``Added`` brings."""
    output: tuple[int, ...] = ()
    """What a ``ForceOutput`` made the output."""
    upcoming: tuple[tuple[str, bool], ...] = ()
    """The events to come: kinds, and whether they are forced."""
    adds_up: bool = True
    """Whether the events give the final tokens, as far as the log names these."""

    def read(self) -> dict[str, Any]:
        """Append the request's records; gives what the manifest says of it."""
        events = sorted(self.log.parts("events"), key=lambda event: event.whole("sequence_order"))
        orders = [event.whole("sequence_order") for event in events]
        if len(set(orders)) < len(orders):
            raise TraceError(f"events of {self.log.place}: two have the same sequence_order")
        if not events:
            raise TraceError(f"{self.log.place} has no events")
        self.texts = spelt(self.log)
        answers = self._answers(set(orders))
        kinds = [(event.text("event_type"), event.yes("forced")) for event in events]
        for index, (event, order) in enumerate(zip(events, orders, strict=True)):
            kind = kinds[index][0]
            self.upcoming = tuple(kinds[index + 1 : index + 1 + LOOK_AHEAD])
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
                self.owed = self.owed if event.yes("forced") else None
                self._add(event.tokens("added_tokens"), "forced" if event.yes("forced") else "sampled", self.owed)
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
        top = likeliest(event)
        self.unread += top is None
        self.likely = dict(top or ())
        self._emit("forward_pass", max(length - 1, 0), top=top or (), data={"fed_start": start, "fed": length - start})

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
        return lambda kind: self._note(kind, name, "raised", {"error": message}, took_ns(call), status="refused")

    def _noted(self, log: Part, call: Part) -> Callable[[str], None]:
        name = log.text("mod_name")
        data = {"log": log.text("log_message"), "level": log.text_or_none("log_level") or "INFO"}
        return lambda kind: self._note(kind, name, "note", data, took_ns(call))

    def _acted(self, action: Part, call: Part) -> Callable[[str], None]:
        answer = answer_of(action, call)
        return lambda kind: None if answer.kind == "Noop" else self._act(kind, answer)

    def _act(self, event: str, answer: Answer) -> None:
        if answer.kind == "AdjustedPrefill" and not self.live:
            self.prompt = answer.tokens or ()
            if not self.prompt:
                self._warn(
                    "the log does not hold the new prompt's tokens: positions count from the first generated one"
                )
        self._note(
            event, answer.mod, ACTIONS[answer.kind], answer.data, answer.took_ns,
            text=answer.text, tokens=answer.tokens or (),
        )  # fmt: skip
        if answer.kind == "Backtrack":
            self._take_back(answer.removed(event, self.rule), answer.mod)
        if answer.kind in ("Backtrack", "ForceTokens"):
            self.owed = answer.mod
            if self.rule.silent and not self._is_told(event):
                self._add(answer.tokens or (), "forced", answer.mod)
        if answer.kind in ENDS:
            self.end, self.ending, self.output = ENDS[answer.kind], answer.ending, answer.tokens or ()

    def _is_told(self, event: str) -> bool:
        """Whether an ``Added`` is to come for tokens that were put there in answer to ``event``."""
        awaited = ("Sampled", "Added") if event == "Added" else ("Added",)
        return next((forced for kind, forced in self.upcoming if kind in awaited), False)

    # Ends --------------------------------------------------------------------------------------------------

    def _finish(self) -> dict[str, Any]:
        request = self.log.part("request")
        final = request.tokens("final_token_ids") or self.output
        if final and self.end == "force_output" and tuple(self.live) != final:
            self._take_back(len(self.live), "force_output")
            self._add(final, "forced", None)
        ended = (
            bool(final) and final == tuple(self.live[:-1]) and not self.end
        )  # its final tokens are without the one that ends a text
        self.adds_up = not final or ended or final == tuple(self.live) or self.end in ("tool_calls", "error")
        if not self.adds_up:
            self._warn("the log's final tokens are not those that its events add up to")
        if self.repeated:
            self._warn(f"{self.repeated} repeated Prefilled events are left out")
        if self.unread:
            self._warn(f"the likeliest tokens of {self.unread} passes stand in a form that is not known")
        most = request.whole_or_none("max_tokens")
        full = most is not None and len(self.live) >= most
        self._emit("finished", self._length, data={
            "reason": self.end or ("eos" if ended else "max_tokens" if full else "not recorded"), **self.ending,
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
        self, event: str, mod: str, action: str, data: Mapping[str, Any], took: int, status: str = "applied",
        **fields: Any,
    ) -> None:  # fmt: skip
        self._emit(
            ACTION, max(self._length - 1, 0), mod=mod, action=action, status=status, duration_ns=took,
            data={"event": event, **data}, **fields,
        )  # fmt: skip

    def _warn(self, message: str) -> None:
        self._emit(WARNING, self._length, data={"message": message})

    def _emit(self, kind: str, position: int, **fields: Any) -> None:
        self.records.append(
            Record(
                run_id=self.run_id,
                request_id=self.request_id,
                seq=self.before + len(self.records),
                step=self.step,
                position=position,
                kind=kind,
                **fields,
            )
        )
