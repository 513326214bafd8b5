"""The tokens of a run, reconstructed from its records alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .record import ACTION, Record

__all__ = ["History", "TokenLife", "histories"]


@dataclass(slots=True, kw_only=True)
class TokenLife:
    """One committed token: when and why it came, and when and why it went."""

    request_id: str
    uid: int
    """Number of the commit in its request: 0, 1, 2, … never reused."""
    position: int
    token: int
    text: str
    origin: str
    added_step: int
    added_by: str | None
    logprob: float | None = None
    raw_logprob: float | None = None
    entropy: float | None = None
    """Of the model's own distribution there, in nats, if the token was put there right after a pass."""
    removed_step: int | None = None
    removed_by: str | None = None
    source_row: int | None = None
    """Activation row of the position it was chosen from (the one before it)."""
    edits: tuple[str, ...] = ()
    """Names of the edits that were active where it was processed, once it was."""

    @property
    def visible(self) -> bool:
        return self.removed_step is None


@dataclass(slots=True)
class History:
    """All tokens of one request so far."""

    request_id: str
    prompt: list[int] = field(default_factory=list)
    live: list[TokenLife] = field(default_factory=list)
    every: list[TokenLife] = field(default_factory=list)
    reason: str | None = None
    rows: dict[int, int] = field(default_factory=dict)
    """Activation row of each position, as last computed."""
    _sampled: Record | None = None
    _entropy: float | None = None

    @property
    def tokens(self) -> list[int]:
        """The full context: prompt and visible generated tokens."""
        return self.prompt + [life.token for life in self.live]

    def apply(self, record: Record) -> None:
        """Advance by one record of this request."""
        match record.kind:
            case "prefilled":
                self.prompt = list(record.tokens)
            case "forward_pass":
                self._passed(record)
            case "sampled":
                self._sampled = record
            case "added":
                self._added(record)
            case "removed":
                self._removed(record)
            case "finished":
                self.reason = str(record.data["reason"])
            case _ if record.kind == ACTION and record.action == "adjust_prefill" and record.status == "applied":
                self.prompt = list(record.tokens)
            case _:
                pass

    def _passed(self, record: Record) -> None:
        self._entropy = record.entropy
        start, fed = int(record.data["fed_start"]), int(record.data["fed"])
        first_row = record.data.get("row")
        if first_row is not None:
            self.rows.update({start + i: int(first_row) + i for i in range(fed)})
        for position, value in record.data.get("scored", {}).items():
            self._at(int(position)).raw_logprob = float(value)
        for position in range(max(start, len(self.prompt)), start + fed):
            self._at(position).edits = ()
        for position in range(start + 1, start + fed + 1):
            if len(self.prompt) <= position < len(self.prompt) + len(self.live):
                life = self._at(position)
                life.source_row = self.rows.get(position - 1) if life.source_row is None else life.source_row
        for begin, end, names in record.data.get("edits", ()):
            for position in range(max(begin, len(self.prompt)), end):
                self._at(position).edits = tuple(names)

    def _at(self, position: int) -> TokenLife:
        return self.live[position - len(self.prompt)]

    def _added(self, record: Record) -> None:
        drawn = self._sampled if record.origin == "sampled" else None
        for index, token in enumerate(record.tokens):
            position = record.position + index
            life = TokenLife(
                request_id=self.request_id,
                uid=len(self.every),
                position=position,
                token=token,
                text=record.data["texts"][index],
                origin=record.origin or "sampled",
                added_step=record.step,
                added_by=record.mod,
                logprob=drawn.logprob if drawn else None,
                raw_logprob=record.raw_logprob if index == 0 else None,
                entropy=self._entropy if index == 0 and record.raw_logprob is not None else None,
                source_row=self.rows.get(position - 1),
            )
            self.live.append(life)
            self.every.append(life)

    def _removed(self, record: Record) -> None:
        kept = len(self.live) - len(record.tokens)
        for life in self.live[kept:]:
            life.removed_step = record.step
            life.removed_by = record.mod
            self.rows.pop(life.position, None)
        del self.live[kept:]


def histories(records: Iterable[Record]) -> dict[str, History]:
    """Every request's history, in order of first appearance."""
    found: dict[str, History] = {}
    for record in records:
        history = found.setdefault(record.request_id, History(record.request_id))
        history.apply(record)
    return found
