"""The text that a chain stood at when a proposal was made: read backwards from where it stands now.

A decision keeps both suffixes and not the whole text. What stands behind it follows from the text of today: cut to
the length that the decision left, exchanges undone, and the suffix that lost put back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..errors import ChainError
from .chain import Decision
from .result import Chains
from .target import Scalars
from .tempering import Swap

__all__ = ["TextState", "checked_index", "state_after", "state_before", "walk_back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextState:
    """What a chain stood at. Nothing in it is settled."""

    tokens: tuple[int, ...]
    scalars: Scalars = field(repr=False, compare=False)
    """``[len(tokens), 3]`` float64: x_tok, lse_1, lse_tau."""

    def cut(self, length: int) -> TextState:
        return TextState(tokens=self.tokens[:length], scalars=self.scalars[:length])

    def ending(self, pivot: int, tokens: tuple[int, ...], scalars: Scalars) -> TextState:
        """The same text with another suffix from ``pivot`` on."""
        return TextState(
            tokens=(*self.tokens[:pivot], *tokens), scalars=np.concatenate([self.scalars[:pivot], scalars])
        )  # fmt: skip


def checked_index(chains: Chains, index: int) -> int:
    """The place of a decision in ``chains.decisions``, counted from its end where negative.

    :raises ChainError: there is no such decision.
    """
    count = len(chains.decisions)
    if not -count <= index < count:
        has = f"has decisions 0 to {count - 1}" if count else "made none yet"
        raise ChainError(f"there is no decision {index}; the run {has}")
    return index % count


def state_before(chains: Chains, index: int) -> TextState:
    """What the chain of decision ``index`` stood at when its proposal was made.

    :raises ChainError: no such decision, or the records of the run do not fit together.
    """
    target = chains.decisions[checked_index(chains, index)]
    return _before(_just_after(chains, target), target)


def state_after(chains: Chains, index: int) -> TextState:
    """What the chain of decision ``index`` stood at right after it, before any exchange.

    :raises ChainError: no such decision, or the records of the run do not fit together.
    """
    return _just_after(chains, chains.decisions[checked_index(chains, index)])


def walk_back(chains: Chains, chain: int) -> Iterator[tuple[Decision, TextState]]:
    """The decisions of one chain, newest first, each with the text right after it, before any exchange.

    :raises ChainError: the records of the run do not fit together.
    """
    swaps = [swap for swap in chains.swaps if swap.accepted]
    states = {text.chain: TextState(tokens=text.tokens, scalars=text.scalars) for text in chains.texts}
    by_place: dict[tuple[int, int], dict[int, Decision]] = {}
    for decision in chains.decisions:
        if swaps or decision.chain == chain:  # without exchanges no chain knows of another
            by_place.setdefault((decision.block, decision.iteration), {})[decision.chain] = decision
    for place in sorted(by_place, reverse=True):
        made = by_place[place]
        _undo_exchanges(states, made, [swap for swap in swaps if (swap.block, swap.iteration) == place])
        if chain in made:
            yield made[chain], states[chain]
        for number, decision in made.items():
            states[number] = _before(states[number], decision)


def _just_after(chains: Chains, target: Decision) -> TextState:
    return next(state for decision, state in walk_back(chains, target.chain) if decision is target)


def _undo_exchanges(states: dict[int, TextState], made: dict[int, Decision], swaps: list[Swap]) -> None:
    """From the texts before the next decisions to those right after ``made``: extensions and exchanges taken back."""
    lengths = {chain: decision.length for chain, decision in made.items()}
    for swap in swaps:
        _exchange(lengths, swap)
    for chain, length in lengths.items():
        states[chain] = states[chain].cut(length)
    for swap in reversed(swaps):
        _exchange(states, swap)


def _exchange(held: dict[int, TextState] | dict[int, int], swap: Swap) -> None:
    held[swap.first], held[swap.second] = held[swap.second], held[swap.first]  # type: ignore[assignment]


def _before(after: TextState, decision: Decision) -> TextState:
    stands = decision.new_tokens if decision.accepted else decision.old_tokens
    if after.tokens[decision.pivot :] != stands:
        raise ChainError(
            f"the decision of chain {decision.chain}, block {decision.block}, iteration {decision.iteration} does not "
            "lead to the text that the run holds: its files do not belong together"
        )
    return after.ending(decision.pivot, decision.old_tokens, decision.old_scalars)
