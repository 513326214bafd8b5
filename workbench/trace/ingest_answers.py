"""What a log of the public engine says of one action of a mod, and how many tokens a ``Backtrack`` took back there.

The engine's server reads an action's values beside its type or inside its ``details``; the engine itself writes
``details``. So both are read here, the former first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import TraceError
from .ingest_checks import Part, parsed

__all__ = ["ACTIONS", "RULES", "Answer", "Rule", "answer_of", "likeliest", "spelt", "took_ns"]

ACTIONS = {
    "AdjustedPrefill": "adjust_prefill",
    "AdjustedLogits": "adjust_logits",
    "ForceTokens": "force_tokens",
    "Backtrack": "backtrack",
    "ForceOutput": "force_output",
    "ToolCalls": "tool_calls",
    "EmitError": "emit_error",
}
"""Their types, and the names that actions have here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How an engine carried actions out, which its log does not say."""

    surplus: Mapping[str, tuple[int, int]]
    """Committed tokens that ``Backtrack`` takes back beyond its number, by event: with new tokens, and without."""
    silent: bool
    """Whether tokens put there in answer to ``Added`` have no ``Added`` of their own."""


RULES = (
    Rule(surplus={"Sampled": (-1, -1)}, silent=True),  # a drawn token counts there, though it was never committed
    Rule(surplus={"ForwardPass": (1, 0), "Sampled": (0, -1), "Added": (0, -1)}, silent=True),
    Rule(surplus={"ForwardPass": (1, 1), "Added": (-1, -1)}, silent=False),
)
"""What its documents say, what its first engine did, and what its later one does, by their code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One action, as far as the log tells."""

    kind: str
    mod: str
    took_ns: int
    steps: int = 0
    """Of a ``Backtrack``: its number."""
    tokens: tuple[int, ...] | None = None
    """None where the log does not hold them all."""
    text: str = ""
    data: Mapping[str, Any]

    @property
    def ending(self) -> dict[str, Any]:
        """What a record of the end says of an action that ends the request."""
        told = {"ToolCalls": {"tool_calls": self.data.get("payload")}, "EmitError": {"error": self.data.get("message")}}
        return told.get(self.kind, {})

    def removed(self, event: str, rule: Rule) -> int:
        """How many committed tokens a ``Backtrack`` took back in answer to ``event``."""
        with_tokens, without = rule.surplus.get(event, (0, 0))
        return max(self.steps + (with_tokens if self.tokens else without), 0) if self.steps else 0


def answer_of(action: Part, call: Part) -> Answer:
    """What an action says.

    :raises TraceError: it has no known type, or a value of a wrong one.
    """
    kind = action.text("action_type")
    if kind not in (*ACTIONS, "Noop"):
        raise TraceError(f"action_type of {action.place} is {kind[:60]!r}; known: Noop, {', '.join(ACTIONS)}")
    steps = _holder(action, "backtrack_steps").whole_or_none("backtrack_steps") or 0
    values: dict[str, dict[str, Any]] = {
        "Backtrack": {"n": steps},
        "AdjustedLogits": {"token_temp": _holder(action, "temperature").number_or_none("temperature")},
        "ToolCalls": {"payload": _payload(_holder(action, "tool_calls").value.get("tool_calls"))},
        "EmitError": {"message": _holder(action, "error_message").text_or_none("error_message") or ""},
        "AdjustedPrefill": {
            "max_steps": _holder(action, "adjusted_max_steps").whole_or_none("adjusted_max_steps") or None
        },
    }
    return Answer(
        kind=kind, mod=call.text("mod_name"), took_ns=took_ns(call), steps=steps, tokens=_tokens(action),
        text=_text(action), data={key: value for key, value in values.get(kind, {}).items() if value is not None},
    )  # fmt: skip


def took_ns(call: Part) -> int:
    """How long a mod took, in nanoseconds; 0 where the log does not say."""
    return int(max(call.number_or_none("execution_time_ms") or 0.0, 0.0) * 1e6)


def spelt(log: Part) -> dict[int, str]:
    """The text of every token that a log spells anywhere."""
    found: dict[int, str] = {}
    for event in log.parts("events"):
        if event.value.get("event_type") == "Sampled" and (text := event.text_or_none("token_text")) is not None:
            found[event.whole("sampled_token")] = text
        for candidate in _candidates(event) or ():
            if isinstance(candidate.value.get("token_str"), str) and isinstance(candidate.value.get("token"), int):
                found[candidate.whole("token")] = candidate.text("token_str")
    for action in log.parts("actions"):
        tokens, texts = _tokens(action) or (), _texts(action)
        if len(tokens) == len(texts):
            found.update(zip(tokens, texts, strict=True))
    return found


def likeliest(event: Part) -> tuple[tuple[int, float], ...] | None:
    """The candidates of a pass with their log-probabilities; None where they stand in a form of the writer's own."""
    found = _candidates(event)
    if found is None:
        return None
    named = [one for one in found if isinstance(one.value.get("token"), int)]
    return tuple((one.whole("token"), value) for one in named if (value := _logprob(one)) is not None)


def _logprob(candidate: Part) -> float | None:
    """Log-probability of a candidate, which a log gives as that or as a probability."""
    value = candidate.number_or_none("logprob")
    chance = candidate.number_or_none("prob")
    if value is None and chance is not None and chance > 0:
        value = math.log(chance)
    return value


def _candidates(event: Part) -> list[Part] | None:
    found = event.value.get("top_tokens")
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        return None  # "any JSON structure", its documents say
    return list(event.parts("top_tokens"))


def _holder(action: Part, name: str) -> Part:
    """Where a value of an action stands."""
    details = action.value.get("details")
    if action.value.get(name) is None and isinstance(details, dict) and details.get(name) is not None:
        return Part(details, f"details of {action.place}")
    return action


def _tokens(action: Part) -> tuple[int, ...] | None:
    """The action's tokens; older logs hold the first few only, and how many there are."""
    holder = _holder(action, "tokens")
    if holder.value.get("tokens") is not None:
        return holder.tokens("tokens")
    holder = _holder(action, "tokens_preview")
    if not isinstance(holder.value.get("tokens_preview"), list):
        return None
    shown = holder.tokens("tokens_preview")
    return shown if len(shown) == _holder(action, "token_count").whole_or_none("token_count") else None


def _texts(action: Part) -> tuple[str, ...]:
    """Each token's text, or none where the log has one text for all."""
    holder = _holder(action, "tokens_as_text")
    found = holder.value.get("tokens_as_text")
    if found is None or isinstance(found, str):
        return ()
    listed = holder.list("tokens_as_text")
    return tuple(Part({"text": text}, f"tokens_as_text of {holder.place}").text("text") for text in listed)


def _text(action: Part) -> str:
    if texts := _texts(action):
        return "".join(texts)
    for name in ("tokens_as_text", "tokens_preview", "new_prompt"):
        holder = _holder(action, name)
        if holder.value.get(name) and not isinstance(holder.value[name], list):
            return holder.text(name)
    return ""


def _payload(given: Any) -> Any:
    """What a ``ToolCalls`` held: the engine writes it as JSON text, cut where that is long."""
    if not isinstance(given, str):
        return given
    try:
        return parsed(given)
    except TraceError:
        return given
