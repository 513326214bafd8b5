"""Where a flow is, and where its question stands in the text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .question import EraseMode

__all__ = ["Phase", "Span"]


class Phase(StrEnum):
    """Where a flow is: before its start, its prompt in the text, answering, acting on an answer, or through."""

    WAITING = "waiting"
    PROMPTED = "prompted"
    ANSWERING = "answering"
    ANSWERED = "answered"
    PENDING = "pending"
    DONE = "done"


@dataclass(slots=True, kw_only=True)
class Span:
    """A question in the text: ``begun`` generated tokens come before it."""

    begun: int
    asked: tuple[int, ...]
    erase: EraseMode
    answer: tuple[int, ...] = ()

    @property
    def prompted(self) -> int:
        """Generated tokens before the answer."""
        return self.begun + len(self.asked)

    def stands_in(self, generated: tuple[int, ...]) -> bool:
        """Whether the question is in the text."""
        return generated[self.begun : self.prompted] == self.asked

    def answered_in(self, generated: tuple[int, ...]) -> tuple[int, ...]:
        """The answer as far as it is in the text: all of it or nothing."""
        end = self.prompted + len(self.answer)
        return self.answer if generated[self.prompted : end] == self.answer else ()
