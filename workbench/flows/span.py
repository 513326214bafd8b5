"""Where a flow is, where its question stands in the text, and what its last action was to bring about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ..engine import Added, Event
from .question import EraseMode

if TYPE_CHECKING:
    from .question import Target

__all__ = ["Move", "Phase", "Span"]


class Phase(StrEnum):
    """Where a flow is: before its start, its prompt in the text, answering, acting on an answer, or through."""

    WAITING = "waiting"
    PROMPTED = "prompted"
    ANSWERING = "answering"
    ANSWERED = "answered"
    PENDING = "pending"
    DONE = "done"

    @property
    def asking(self) -> bool:
        """Whether a question stands in the text that nobody may change now."""
        return self in (Phase.PROMPTED, Phase.ANSWERING, Phase.ANSWERED)


@dataclass(slots=True, kw_only=True)
class Span:
    """A question in the text: what was generated before it, its prompt, and its answer so far."""

    base: tuple[int, ...]
    asked: tuple[int, ...]
    erase: EraseMode
    answer: tuple[int, ...] = ()

    @property
    def begun(self) -> int:
        """Generated tokens before the question."""
        return len(self.base)

    @property
    def prompted(self) -> int:
        """Generated tokens before the answer."""
        return len(self.base) + len(self.asked)

    @property
    def text(self) -> tuple[int, ...]:
        """All that is generated while nobody else has a hand in it."""
        return (*self.base, *self.asked, *self.answer)

    def standing(self, generated: tuple[int, ...]) -> int:
        """How many tokens of the question are still in the text, where it began."""
        same = 0
        for mine, found in zip(self.text, generated, strict=False):
            if mine != found:
                break
            same += 1
        return max(0, same - self.begun)


@dataclass(slots=True, kw_only=True)
class Move:
    """An action of ours that is not known to have been carried out: another mod's may have taken its place."""

    tokens: tuple[int, ...]
    """What it commits."""
    text: tuple[int, ...]
    """What is generated once it was carried out."""
    span: Span | None
    """The question that stands in the text then."""
    wanted: Target
    """Where it leads; to be tried again if it was not carried out."""
    counted: str | None = None
    """The question whose visit it began."""

    def carried_out(self, event: Event) -> bool:
        """Asked once, on the first ForwardPass or Added after it."""
        if isinstance(event, Added):  # taking back alone is followed by a pass, never by an Added
            return event.mine and bool(self.tokens) and event.tokens == self.tokens[: len(event.tokens)]
        return event.request.generated == self.text
