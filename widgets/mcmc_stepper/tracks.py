"""What is stepped through: a run or a branch of it, as far as it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import ChainError
from workbench.mcmc import Chains, Decision, PowerSampler, TextState, WhatIf, load_chains, state_before
from workbench.models import HookedModel, Tokenizer

__all__ = ["TokenTexts", "Track", "read_source"]


@dataclass(slots=True, kw_only=True)
class Track:
    """One run, or one branch. ``chains`` is replaced as a whole whenever a decision is made, never changed in place."""

    number: int
    told: str
    chains: Chains
    sampler: PowerSampler | None = field(default=None, repr=False)
    """What makes further decisions; None for a saved run."""
    shown: int = 0
    """Decisions that :meth:`steps <workbench.mcmc.PowerSampler.steps>` has given: chains side by side may be ahead."""
    parent: int | None = None
    """The track that it branched off."""
    at: int | None = None
    """The parent's decision behind which it goes on."""
    supposed: WhatIf | None = None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self.chains.decisions[: self.shown]

    @property
    def total(self) -> int:
        """Decisions at the end."""
        return len(self.chains.decisions) if self.sampler is None else self.sampler.total

    def refresh(self) -> None:
        """Take over what the sampler has made. To be called between two of its passes."""
        if self.sampler is not None:
            self.chains, self.shown = self.sampler.result(), self.sampler.given

    def place(self, index: int) -> int:
        """The index of a decision that is shown, counted from the end where negative.

        :raises ChainError: there is no such decision.
        """
        if not -self.shown <= index < self.shown:
            has = f"it has decisions 0 to {self.shown - 1}" if self.shown else "it has made none yet: step() makes one"
            raise ChainError(f"there is no decision {index} in {self.told}; {has}")
        return index % self.shown

    def decision(self, index: int) -> Decision:
        return self.chains.decisions[self.place(index)]

    def before(self, index: int) -> TextState:
        """The text that the decision was made about."""
        return state_before(self.chains, self.place(index))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why a branch is no sample of the first run's target."""
        return () if self.supposed is None else self.supposed.warnings


class TokenTexts:
    """The text of token ids. Without a tokenizer a saved run has none, and an id stands as ``#id``."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer

    def of(self, token: int) -> str:
        return f"#{token}" if self.tokenizer is None else self.tokenizer.token_text(token)


def read_source(source: Any, model: HookedModel | None) -> tuple[Track, HookedModel | None]:
    """The first track of a window, and the model that rows can be computed with.

    :raises ChainError: ``source`` is no sampler, result or directory of one, or not of this model.
    """
    if isinstance(source, PowerSampler):
        if model is not None and model is not source.model:
            raise ChainError("a sampler has its model with it: leave model out, or give the sampler's own")
        track = Track(number=0, told="the run", chains=source.result(), sampler=source, shown=source.given)
        return track, source.model
    if isinstance(source, str | Path):
        source = load_chains(source, model)
    if not isinstance(source, Chains):
        raise ChainError(
            "MCMCStepper looks at a PowerSampler, at its result (Chains), or at a directory that holds one; "
            f"got {type(source).__name__}"
        )
    return Track(number=0, told="the run", chains=source, shown=len(source.decisions)), model
