"""What users write for a strategy: plain values, compiled with the tokenizer once a request begins."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from ..errors import CompatError
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
]


class StrategyConstructor(abc.ABC):
    """Something a strategy is made of; users make their own by giving ``into_strategy``."""

    @abc.abstractmethod
    def into_strategy(self, tokenizer: Any) -> Strategy:
        """The strategy for this tokenizer."""


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

    :raises CompatError: no end to stop at.
    """

    def __init__(self, start: str | None, end_type: UntilEndType | str, end: str = "\n") -> None:
        self.start = start or ""
        self.end_type = UntilEndType(end_type)
        self.end = "\n" if self.end_type is UntilEndType.NEWLINE else end
        if not isinstance(self.end, str) or not self.end:
            raise CompatError(f"UntilStrat needs a text to end at, got {end!r}")

    def into_strategy(self, tokenizer: Any) -> UntilStrategy:
        return UntilStrategy(self.start, self.end_type, self.end)


class CharsStrat(StrategyConstructor):
    """Characters of a kind: at most ``stop`` of them, or up to the text ``stop``; at least ``min``.

    :raises CompatError: a stop that is neither a number of at least 1 nor a text, or a minimum above it.
    """

    def __init__(self, mode: CharsMode | str, stop: int | str, min: int = 0) -> None:
        if isinstance(stop, bool) or not isinstance(stop, (int, str)) or (stop == "" or stop == 0):
            raise CompatError(f"CharsStrat(stop={stop!r}): give the most characters, or the text to stop at")
        if isinstance(stop, int) and not 0 <= min <= stop:
            raise CompatError(f"CharsStrat(min={min!r}, stop={stop!r}): the minimum lies between 0 and stop")
        self.mode = CharsMode(mode)
        self.stop = stop
        self.min = min

    def into_strategy(self, tokenizer: Any) -> CharsStrategy:
        return CharsStrategy(self.mode, self.stop, self.min)


class ListStrat(StrategyConstructor):
    """A list: one strategy for ``min`` to ``max`` elements, or a list of strategies for exactly these.

    :raises CompatError: an element that is no strategy, or a minimum above the maximum.
    """

    def __init__(
        self,
        elements: StrategyConstructor | Sequence[StrategyConstructor],
        open: str | None = None,
        close: str | None = None,
        wrap: str | None = None,
        sep: str | None = ", ",
        end_with: str | None = None,
        min: int = 0,
        max: int | None = None,
    ) -> None:
        listed = list(elements) if isinstance(elements, (list, tuple)) else [elements]
        if not listed or not all(isinstance(one, StrategyConstructor) for one in listed):
            raise CompatError(f"ListStrat's elements are strategies such as ChoicesStrat([…]), got {elements!r}")
        if min < 0 or (max is not None and max < (min or 1)):
            raise CompatError(
                f"ListStrat(min={min!r}, max={max!r}): the maximum is at least 1 and at least the minimum"
            )
        self.elements = elements
        self.open, self.close, self.wrap, self.sep, self.end_with = open, close, wrap, sep, end_with
        self.min, self.max = min, max

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
