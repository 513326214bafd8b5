"""One chain: what it draws next, what it decides, and what it stands at. It knows of no model and no cache.

Whoever drives it (the batched sampler, or a mod in the engine) asks :meth:`Chain.begin` where to go on, feeds the
model, and hands over each drawn token with its scalars. Since all random numbers are named by the chain itself, two
drivers of one chain walk the same path.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from .cache_move import CacheMove
from .philox import Purpose, uniform_one
from .target import (
    MARGIN,
    Scalars,
    Target,
    Terms,
    acceptance,
    accepts,
    log_p,
    log_weight,
    pivot_from,
)

__all__ = ["Chain", "Decision", "Proposal", "Suffix"]

MOST_TRIES = 255
TRY_SHIFT = 24
"""The index of a token's draw holds its position below this bit and the number of the try above."""


@dataclass(slots=True)
class Suffix:
    """Tokens that were drawn behind a pivot, and their scalars ``[n, 3]``."""

    tokens: list[int]
    scalars: Scalars


@dataclass(slots=True)
class Proposal:
    """A suffix in the making behind ``pivot``. An extension of the text by the next block is one without a rival."""

    pivot: int
    extends: bool
    tokens: list[int] = field(default_factory=list)
    scalars: list[Scalars] = field(default_factory=list)
    tries: list[Suffix] = field(default_factory=list)
    """Those completed before this one, where several are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One proposal and what became of it, with all that is needed to decide it again."""

    chain: int
    block: int
    iteration: int
    """From 1; 0 is the extension of the block, which is no decision."""
    alpha: float
    tau: float
    pivot: int
    old_tokens: tuple[int, ...]
    new_tokens: tuple[int, ...]
    old_scalars: Scalars = field(repr=False, compare=False)
    """``[n, 3]`` float64: x_tok, lse_1, lse_tau of the old suffix."""
    new_scalars: Scalars = field(repr=False, compare=False)
    terms: Terms
    """Of the new suffix against the old one. With several tries ``log_a`` is not their sum."""
    log_a: float
    u: float
    accepted: bool
    tries: int
    forwarded: int
    """Tokens that the model was fed for it."""
    length: int
    """Of the generated text after it, in tokens."""
    log_p: float
    """Log-probability (nats, temperature 1) of the whole generated text after it."""
    cache: CacheMove | None = field(default=None, repr=False, compare=False)
    """None where no cache was watched: under ``reasoning_with_sampling``, and in runs kept by an older version."""

    @property
    def log_u(self) -> float:
        with np.errstate(divide="ignore"):
            return float(np.log(self.u))

    @property
    def margin(self) -> float:
        """``log A - log u``: above 0 it was accepted."""
        return self.log_a - self.log_u

    @property
    def flagged(self) -> bool:
        """Too close to call: in another precision it might have gone the other way."""
        return not abs(self.margin) >= MARGIN

    @property
    def kind(self) -> str:
        """``accepted``, ``rejected``, or ``null`` where the proposal was the old suffix itself."""
        if self.old_tokens == self.new_tokens:
            return "null"
        return "accepted" if self.accepted else "rejected"

    @property
    def first_difference(self) -> int | None:
        """Position in the generated text of the first token that differs, or None."""
        # No suffix is the beginning of another: each goes on to an end token or to the block's end.
        pairs = enumerate(zip(self.old_tokens, self.new_tokens, strict=False), start=self.pivot)
        return next((position for position, (old, new) in pairs if old != new), None)


class Chain:
    """A chain towards ``target``: ``tokens`` and ``scalars`` are its state, which only :meth:`finish` changes.

    ``alpha`` is the target's unless the chain is a rung of a ladder; the proposal's temperature is the target's.
    """

    def __init__(
        self,
        number: int,
        target: Target,
        *,
        seed: int,
        ends: Collection[int],
        tries: int = 1,
        alpha: float | None = None,
    ) -> None:
        self.number = number
        self.target = target
        self.seed = seed
        self.ends = frozenset(ends)
        self.tries = tries
        self.alpha = target.alpha if alpha is None else alpha
        self.tau = target.temperature
        self.tokens: list[int] = []
        self._scalars: Scalars = np.empty((target.max_tokens, 3))
        self.block = 0
        self.iteration = 0
        """Decisions made in this block."""
        self.proposal: Proposal | None = None
        self.spent = 0
        """Tokens drawn for the open proposal."""

    def __repr__(self) -> str:
        return f"<Chain {self.number} block={self.block} iteration={self.iteration} tokens={len(self.tokens)}>"

    @property
    def scalars(self) -> Scalars:
        """``[len(tokens), 3]`` float64, a view."""
        return self._scalars[: len(self.tokens)]

    @property
    def log_p(self) -> float:
        """Log-probability (nats) of the generated text."""
        return float(log_p(self.scalars).sum())

    @property
    def limit(self) -> int:
        return self.target.limit(self.block)

    @property
    def ended(self) -> bool:
        """Whether the text ends with an end token."""
        return bool(self.tokens) and self.tokens[-1] in self.ends

    @property
    def finished(self) -> bool:
        return self.block >= self.target.n_blocks

    # Going on ------------------------------------------------------------------------------------------------

    def begin(self) -> Proposal | None:
        """Open the next extension or proposal; None once every block has had its proposals."""
        while not self.finished:
            if self.iteration == 0 and len(self.tokens) < self.limit and not self.ended:
                return self._open(Proposal(pivot=len(self.tokens), extends=True))
            if self.iteration < self.target.n_mcmc:
                u = self._uniform(Purpose.PIVOT, self.iteration + 1)
                return self._open(Proposal(pivot=pivot_from(u, len(self.tokens)), extends=False))
            self.block += 1
            self.iteration = 0
        return None

    def _open(self, proposal: Proposal) -> Proposal:
        self.proposal = proposal
        self.spent = 0
        return proposal

    def draw_index(self) -> tuple[int, int]:
        """(iteration, index) that name the next token's random number."""
        proposal = self._current()
        iteration = 0 if proposal.extends else self.iteration + 1
        return iteration, proposal.pivot + len(proposal.tokens) + (len(proposal.tries) << TRY_SHIFT)

    def add(self, token: int, scalars: Scalars) -> bool:
        """Append a drawn token with its scalars ``[3]``; True once the suffix is complete."""
        proposal = self._current()
        proposal.tokens.append(token)
        proposal.scalars.append(scalars)
        self.spent += 1
        return token in self.ends or proposal.pivot + len(proposal.tokens) >= self.limit

    def another_try(self) -> bool:
        """After a completed suffix: put it by and start one more, if there are tries left."""
        proposal = self._current()
        if proposal.extends or len(proposal.tries) + 1 >= self.tries:
            return False
        proposal.tries.append(Suffix(proposal.tokens, np.array(proposal.scalars)))
        proposal.tokens, proposal.scalars = [], []
        return True

    def finish(self) -> tuple[Decision | None, int | None]:
        """Close a complete proposal: the decision, and which try now stands in the text (None: the old suffix).

        An extension gives no decision and stands.
        """
        proposal = self._current()
        self.proposal = None
        tries = [*proposal.tries, Suffix(proposal.tokens, np.array(proposal.scalars))]
        if proposal.extends:
            self._replace(proposal.pivot, tries[0])
            return None, 0
        self.iteration += 1
        decision, chosen = self._decide(proposal.pivot, tries)
        return decision, chosen if decision.accepted else None

    def restore(
        self, *, tokens: Sequence[int], scalars: Scalars, block: int, iteration: int, proposal: Proposal | None,
        spent: int,
    ) -> None:  # fmt: skip
        """Stand where a saved chain stood."""
        self._replace(0, Suffix(list(tokens), scalars))
        self.block, self.iteration, self.proposal, self.spent = block, iteration, proposal, spent

    def exchange(self, other: Chain) -> None:
        """Trade texts with another chain that stands at the same place of the same target."""
        self.tokens, other.tokens = other.tokens, self.tokens
        self._scalars, other._scalars = other._scalars, self._scalars

    # Deciding ------------------------------------------------------------------------------------------------

    def _decide(self, pivot: int, tries: Sequence[Suffix]) -> tuple[Decision, int]:
        old = Suffix(self.tokens[pivot:], self.scalars[pivot:].copy())
        length = len(self.tokens)
        chosen = self._choose(tries, pivot)
        new = tries[chosen]
        terms = acceptance(
            old.scalars, new.scalars, self.alpha, self.tau, old_length=length, new_length=pivot + len(new.tokens)
        )
        log_a = terms.log_a if len(tries) == 1 else self._many_log_a(tries, chosen, old, pivot)
        u = self._uniform(Purpose.ACCEPT, self.iteration)
        accepted = accepts(u, log_a)
        if accepted:
            self._replace(pivot, new)
        decision = Decision(
            chain=self.number, block=self.block, iteration=self.iteration, alpha=self.alpha, tau=self.tau, pivot=pivot,
            old_tokens=tuple(old.tokens), new_tokens=tuple(new.tokens), old_scalars=old.scalars,
            new_scalars=new.scalars, terms=terms, log_a=log_a, u=u, accepted=accepted, tries=len(tries),
            forwarded=self.spent, length=len(self.tokens), log_p=self.log_p,
        )  # fmt: skip
        return decision, chosen

    def _weight(self, suffix: Suffix, pivot: int) -> float:
        return log_weight(suffix.scalars, self.alpha, self.tau, pivot + len(suffix.tokens))

    def _choose(self, tries: Sequence[Suffix], pivot: int) -> int:
        """Which try is put forward: one of them by its weight ``pi / q``."""
        if len(tries) == 1:
            return 0
        weights = np.array([self._weight(one, pivot) for one in tries])
        shares = np.exp(weights - weights.max()).cumsum()
        u = self._uniform(Purpose.CHOICE, self.iteration)
        return int(min(np.searchsorted(shares, u * shares[-1], side="right"), len(tries) - 1))

    def _many_log_a(self, tries: Sequence[Suffix], chosen: int, old: Suffix, pivot: int) -> float:
        """Multiple-try Metropolis with independent tries (Liu, Liang & Wong 2000, the others as reference points).

        The sum of all tries' weights against that with the old suffix in place of the chosen one.
        """
        weights = [self._weight(one, pivot) for one in tries]
        against = [weight for index, weight in enumerate(weights) if index != chosen]
        return float(np.logaddexp.reduce(weights) - np.logaddexp.reduce([*against, self._weight(old, pivot)]))

    def _replace(self, pivot: int, suffix: Suffix) -> None:
        self.tokens[pivot:] = suffix.tokens
        self._scalars[pivot : pivot + len(suffix.tokens)] = suffix.scalars

    def _uniform(self, purpose: Purpose, iteration: int) -> float:
        return uniform_one(self.seed, chain=self.number, block=self.block, iteration=iteration, purpose=purpose)

    def _current(self) -> Proposal:
        if self.proposal is None:
            raise AssertionError(f"{self!r} has no open proposal: call begin() first")
        return self.proposal
