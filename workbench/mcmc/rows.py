"""The cache rows of several chains: what is fed for a proposal, and what comes back when it is turned down."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ..errors import ModelError
from ..models import Cache, HookedModel, Tail
from .chain import Chain
from .scoring import Scorer
from .target import Scalars

__all__ = ["ChainRows"]

PIECE = 16
"""Positions fed at once where logits of all are wanted: so many rows of logits are held."""


class ChainRows:
    """One row of keys and values per chain, behind a prompt that is fed once and shared.

    The invariant: between proposals a row holds the prompt and the chain's text but for its last token; the logits
    behind a pivot need the token before it, which is therefore fed (again). The shared part leaves out the
    prompt's last token, so that this is possible at pivot 0 too. A proposal takes the old suffix's keys and values out
    (`Cache.take`) and, if it is turned down, puts them back: bit for bit, and nothing is computed again.
    """

    def __init__(self, model: HookedModel, prompt: Sequence[int], count: int) -> None:
        if not model.cache_works:
            raise ModelError("chains need the KV cache, which is switched off for this model (see the warning at load)")
        self.model = model
        self.prompt = tuple(prompt)
        base = model.new_cache()
        if len(self.prompt) > 1:
            model.forward([self.prompt[:-1]], base)
        self.prefilled = len(self.prompt) - 1
        """Tokens fed for what all rows share."""
        self.cache: Cache = base.fork(0, count)
        self.row_of = list(range(count))
        """By chain, its row; swaps change it."""
        self.old: dict[int, Tail] = {}
        """By chain, what was taken out for the open proposal."""
        self.tries: dict[int, list[Tail]] = {}
        """By chain, what its completed tries had in the cache."""

    def length(self, chain: Chain) -> int:
        """Positions in the chain's row."""
        return self.cache.lengths[self.row_of[chain.number]]

    def stand(self, chain: Chain, scorer: Scorer | None) -> Scalars:
        """Feed the text of a chain that was put where another stood, a piece at a time.

        Gives its scalars ``[len(tokens), 3]``, or none without a scorer.
        """
        row, tokens = self.row_of[chain.number], chain.tokens
        ids = [self.prompt[-1], *tokens[:-1]]
        found = [np.empty((0, 3))]
        for first in range(0, len(ids), PIECE):
            piece = ids[first : first + PIECE]
            feed: list[list[int]] = [[] for _ in self.row_of]
            feed[row] = piece
            keep = [len(piece) if scorer else 1 for _ in self.row_of]
            logits = self.model.forward(feed, self.cache, keep=keep).logits[row]
            if scorer is not None:
                found.append(scorer.score(logits, tokens[first : first + PIECE]))
        return np.concatenate(found)

    def open(self, chain: Chain) -> None:
        """Make room behind the pivot of a proposal that just began."""
        proposal = chain.proposal
        if proposal is not None and not proposal.extends:
            row = self.row_of[chain.number]
            self.old[chain.number] = self.cache.take(row, len(chain.tokens) - proposal.pivot)

    def feed(self, chains: Sequence[Chain]) -> list[Tensor]:
        """Feed each chain's newest token; the logits ``[vocab]`` of what comes next, in the order of ``chains``."""
        tokens: list[list[int]] = [[] for _ in self.row_of]
        for chain in chains:
            tokens[self.row_of[chain.number]] = [self._newest(chain)]
        before = self.cache.lengths
        try:
            logits = self.model.forward(tokens, self.cache).logits
        except BaseException:  # an interrupt too: as if nothing had been fed
            for row, (length, now) in enumerate(zip(before, self.cache.lengths, strict=True)):
                self.cache.rewind(row, now - length)
            raise
        return [logits[self.row_of[chain.number]][-1] for chain in chains]

    def _newest(self, chain: Chain) -> int:
        proposal = chain.proposal
        if proposal is not None and proposal.tokens:
            return proposal.tokens[-1]
        before = len(chain.tokens) if proposal is None else proposal.pivot
        return chain.tokens[before - 1] if before else self.prompt[-1]

    def next_try(self, chain: Chain, length: int) -> None:
        """Put by what a completed try of ``length`` tokens left in the cache, and begin anew at the pivot."""
        taken = self.cache.take(self.row_of[chain.number], length)
        self.tries.setdefault(chain.number, []).append(taken)

    def close(self, chain: Chain, length: int, chosen: int | None) -> None:
        """Leave in the row what now is the chain's text: try number ``chosen``, or the old suffix for None.

        ``length`` is that of the last try, which is in the row.
        """
        row = self.row_of[chain.number]
        old, earlier = self.old.pop(chain.number, None), self.tries.pop(chain.number, [])
        if chosen == len(earlier):
            return
        self.cache.rewind(row, length)
        kept = old if chosen is None else earlier[chosen]
        if kept is not None:
            self.cache.put(row, kept)

    def swap(self, first: int, second: int) -> None:
        """Trade the rows of two chains."""
        self.row_of[first], self.row_of[second] = self.row_of[second], self.row_of[first]

    def activations_at(
        self, chain: Chain, position: int, tokens: Sequence[int], hooks: Sequence[str]
    ) -> list[dict[str, Tensor]]:
        """The hooks' values where each of ``tokens`` would stand at ``position`` of the chain's text.

        Feeds one token each, in the chain's own row, and leaves the row as it was.
        """
        row = self.row_of[chain.number]
        behind = self.cache.take(row, self.cache.lengths[row] - len(self.prompt) - position)
        found = []
        for token in tokens:
            feed: list[list[int]] = [[] for _ in self.row_of]
            feed[row] = [token]
            held = self.model.forward(feed, self.cache, capture=hooks).activations
            found.append({hook: held[hook][row][-1].cpu() for hook in hooks})
            self.cache.rewind(row, 1)
        self.cache.put(row, behind)
        return found
