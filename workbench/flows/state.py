"""What a flow remembers of a request: its answers, and every question it asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["FlowState", "Visit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One question asked once: what came of it, as a trace or a drawing may tell it."""

    question: str
    answer: str
    probs: Mapping[str, float]
    """Probability of every choice, if the choices were finite."""
    tokens: tuple[int, ...]
    """The answer's token ids as they were generated."""
    spent: int
    """Tokens committed for prompt and answer."""
    erased: bool
    """Whether the answer was taken back too."""
    choices: int | None = None
    """How many answers were allowed; None where they can't be counted."""
    auto: bool = False
    """Whether a function answered instead of the model."""
    route: str = ""
    """Where the answer led, in a few words: a question's name, or what was done."""

    def as_data(self) -> dict[str, Any]:
        """The visit as JSON data, as it stands in the ``note`` records of a trace."""
        return {**asdict(self), "probs": dict(self.probs), "tokens": list(self.tokens)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Visit:
        """The visit that a trace's note tells of; what else the note holds is left out."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        return cls(**{**known, "tokens": tuple(known.get("tokens", ()))})


@dataclass(slots=True, kw_only=True)
class FlowState:
    """What a flow knows in one request. ``data`` is for the user's own functions."""

    request_id: str
    answers: dict[str, str] = field(default_factory=dict)
    answer_probs: dict[str, dict[str, float]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    history: list[Visit] = field(default_factory=list)
