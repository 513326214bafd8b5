"""What users write for a strategy: plain values, compiled with the tokenizer once a request begins."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ..errors import CompatError
from .checks import member, text_given
from .strategy_base import Strategy
from .strategy_list import ListStrategy
from .strategy_primitives import (
    CharsMode,
    CharsStrategy,
    ChoicesStrategy,
    UntilEndType,
    UntilStrategy,
)

__all__ = [
    "CharsMode",
    "CharsStrat",
    "ChoicesStrat",
    "ListStrat",
    "StrategyConstructor",
    "UntilEndType",
    "UntilStrat",
    "strategy_given",
]


@runtime_checkable
class StrategyConstructor(Protocol):
    """Something a strategy is made of; users make their own by giving ``into_strategy``."""

    @abstractmethod
    def into_strategy(self, tokenizer: Any) -> Strategy:
        """The strategy for this tokenizer."""


def strategy_given(strategy: Any, what: str) -> StrategyConstructor:
    """``strategy``, which is one.

    :raises CompatError: it is not.
    """
    if isinstance(strategy, type) or not isinstance(strategy, StrategyConstructor):
        raise CompatError(f"{what} such as ChoicesStrat([…]), got {strategy!r}")
    return strategy


class ChoicesStrat(StrategyConstructor):
    """One of some texts.

    :raises CompatError: none, or something that is no text.
    """

    def __init__(self, choices: Sequence[str]) -> None:
        if isinstance(choices, str) or not choices or not all(isinstance(one, str) and one for one in choices):
            raise CompatError(f"ChoicesStrat takes a list of texts, none of them empty, got {choices!r}")
        self.choices = list(choices)

    def into_strategy(self, tokenizer: Any) -> ChoicesStrategy:
        return ChoicesStrategy(self.choices)


class UntilStrat(StrategyConstructor):
    """Text that begins with ``start`` (nothing, if empty) up to ``end``.

    :raises CompatError: no end to stop at, no such kind of end, or a start that is no text.
    """

    def __init__(self, start: str | None, end_type: UntilEndType | str, end: str = "\n") -> None:
        self.start = text_given(start or "", "UntilStrat's start")
        self.end_type = member(UntilEndType, end_type, "UntilStrat's end_type")
        self.end = "\n" if self.end_type is UntilEndType.NEWLINE else end
        if not isinstance(self.end, str) or not self.end:
            raise CompatError(f"UntilStrat needs a text to end at, got {end!r}")

    def into_strategy(self, tokenizer: Any) -> UntilStrategy:
        return UntilStrategy(self.start, self.end_type, self.end)


class CharsStrat(StrategyConstructor):
    """Characters of a kind: at most ``stop`` of them, or up to the text ``stop``; at least ``min``.

    :raises CompatError: a stop that is neither a number of at least 1 nor a text, a minimum above it, or no such mode.
    """

    def __init__(self, mode: CharsMode | str, stop: int | str, min: int | None = None) -> None:
        if isinstance(stop, bool) or not isinstance(stop, (int, str)) or stop in ("", 0):
            raise CompatError(f"CharsStrat(stop={stop!r}): give the most characters, or the text to stop at")
        self.mode = member(CharsMode, mode, "CharsStrat's mode")
        self.stop = stop
        self.min = _count(min or 0, f"CharsStrat(min={min!r})")
        if isinstance(stop, int) and self.min > stop:
            raise CompatError(f"CharsStrat(min={min!r}, stop={stop!r}): the minimum lies between 0 and stop")

    def into_strategy(self, tokenizer: Any) -> CharsStrategy:
        return CharsStrategy(self.mode, self.stop, self.min)


def _count(number: Any, what: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise CompatError(f"{what} must be a whole number of 0 or more")
    return number


class ListStrat(StrategyConstructor):
    """A list: one strategy for ``min`` to ``max`` elements, or a list of strategies for exactly these.

    Without a separator the elements stand apart by ``", "``; ``max`` of None or 0 leaves the end to the model. A list
    of strategies has its own length, whatever ``min`` and ``max`` say.

    :raises CompatError: an element that is no strategy, a mark that is no text, or a minimum above the maximum.
    """

    def __init__(
        self,
        elements: StrategyConstructor | Sequence[StrategyConstructor],
        open: str | None = None,
        close: str | None = None,
        wrap: str | None = None,
        sep: str | None = None,
        min: int | None = None,
        max: int | None = None,
        end_with: str | None = None,
    ) -> None:
        listed = elements if isinstance(elements, (list, tuple)) else [elements]
        for one in listed or [elements]:
            strategy_given(one, "ListStrat's elements are strategies")
        for name, mark in (("open", open), ("close", close), ("wrap", wrap), ("sep", sep), ("end_with", end_with)):
            text_given(mark or "", f"ListStrat's {name}")
        self.min = _count(min or 0, f"ListStrat(min={min!r})")
        self.max = _count(max, f"ListStrat(max={max!r})") if max else None
        if listed is elements:
            self.min = self.max = len(listed)
        if self.max is not None and self.max < self.min:
            raise CompatError(f"ListStrat(min={min!r}, max={max!r}): the maximum is at least the minimum")
        self.elements = elements
        self.open, self.close, self.wrap, self.sep, self.end_with = open, close, wrap, sep or ", ", end_with

    def into_strategy(self, tokenizer: Any) -> ListStrategy:
        elements: Any
        if isinstance(self.elements, StrategyConstructor):
            elements = self.elements.into_strategy(tokenizer)
        else:
            elements = [one.into_strategy(tokenizer) for one in self.elements]
        return ListStrategy(
            elements, open=self.open, close=self.close, wrap=self.wrap, sep=self.sep, end_with=self.end_with,
            least=self.min, most=self.max,
        )  # fmt: skip
