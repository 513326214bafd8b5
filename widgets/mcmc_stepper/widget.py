"""MCMCStepper: a chain of Metropolis-Hastings decisions, one at a time, down to the tiles of the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from workbench.errors import ChainError
from workbench.mcmc import Chains, PowerSampler, TextState, WhatIf, contrast_of, trace_row, what_if
from workbench.models import HookedModel

from ..base import Outbox, script, style
from . import frames
from .messages import Talking
from .static import stepper_html
from .tracks import TokenTexts, Track, read_source
from .work import Work

__all__ = ["MCMCStepper"]

HERE = Path(__file__).parent
PARTS = ("timeline", "cards", "kernel", "supposing")


class MCMCStepper(Talking):
    """A window on the decisions of a :class:`~workbench.mcmc.PowerSampler`, of its result, or of a saved run.

    ``source`` is a sampler (which the window can step), a :class:`~workbench.mcmc.Chains`, or the directory of one.
    With ``model`` a saved run has token texts, tile-by-tile traces, contrasts of any decision, and branches; a sampler
    has its own. ``tile`` is how many columns of a row of logits one tile of the trace has.

    Every view is also a call: :meth:`frame` (the timeline), :meth:`tokens`, :meth:`terms`, :meth:`verdict`,
    :meth:`programs` and :meth:`kernel` (inside the kernel), :meth:`cache`, :meth:`contrast`, :meth:`what_if`,
    :meth:`branch` and :meth:`compare`. A decision is named by its place in :meth:`frame`, from the end where negative;
    ``track`` is 0 for the run and counts branches from 1. All numbers come from the kernel's arithmetic on the CPU
    (``workbench.mcmc.reference``), from the three scalars that the run kept of each position.

    :meth:`step` and :meth:`run` work in a thread; leave the sampler alone elsewhere meanwhile.

    :raises ChainError: a source that is none, or a model that did not make it.
    """

    _esm = script(HERE, "strip", "cards", own=PARTS)
    _css = style(HERE, "mcmc", "parts")

    def __init__(
        self, source: PowerSampler | Chains | str | Path, model: HookedModel | None = None, *, tile: int = 1024
    ) -> None:
        if tile < 1:
            raise ChainError(f"a tile has 1 column or more, got {tile}")
        first, self.model = read_source(source, model)
        self.tracks = [first]
        self.tile = tile
        self.texts = TokenTexts(None if self.model is None else self.model.tokenizer)
        self._sent = {}
        self.outbox = Outbox(self._tell_news)
        self.work = Work(self.outbox.touch, self.report, self.notice)
        super().__init__(self._state())
        self._listen()

    # Views -------------------------------------------------------------------------------------------------------

    def frame(self, track: int = 0) -> pd.DataFrame:
        """The timeline: every decision so far, in the order in which they were made."""
        return frames.decisions_frame(self.track(track))

    def text(self, index: int, track: int = 0) -> TextState:
        """The whole text that a decision was made about, with its scalars."""
        return self.track(track).before(index)

    def tokens(self, index: int, track: int = 0) -> pd.DataFrame:
        """Old and new suffix, a row per token, with log p, log q and what each adds to log A."""
        return frames.tokens_frame(self.track(track), index, self.texts)

    def terms(self, index: int, track: int = 0) -> pd.DataFrame:
        """The terms that add up to log A."""
        return frames.terms_frame(self.track(track), index)

    def verdict(self, index: int, track: int = 0) -> dict[str, Any]:
        """u, log u, log A, the margin, the verdict, and the words of Philox."""
        return frames.verdict_of(self.track(track), index)

    def programs(self, index: int, track: int = 0) -> pd.DataFrame:
        """Inside the kernel, program by program: what ``row_stats`` gave for each row of both suffixes."""
        return frames.programs_frame(self.track(track), index, self.texts)

    def kernel(
        self, index: int, row: int, side: str = "new", *, tile: int | None = None, track: int = 0
    ) -> pd.DataFrame:  # fmt: skip
        """Inside the kernel, tile by tile: rescale factors, running max and sums of one row; see ``attrs``.

        The row's logits are computed again by one pass over the text before it.

        :raises ChainError: no model, no such row or decision.
        """
        chosen, model = self.track(track), self._checked_model()
        with self.work.model_lock:
            width = self.tile if tile is None else tile
            return frames.kernel_frame(trace_row(model, chosen.chains, chosen.place(index), side, row, tile=width))

    def cache(self, index: int, track: int = 0) -> pd.DataFrame:
        """What survived of keys and values, in positions.

        :raises ChainError: the run was kept by a version that did not record it.
        """
        return frames.cache_frame(self.track(track), index)

    def contrast(self, index: int, hooks: str = "blocks.*.hook_resid_post", track: int = 0) -> pd.DataFrame:
        """Old against new at the first token that differs, layer by layer: the run's own, or computed now.

        :raises ChainError: no token differs; nothing was kept and there is no model.
        """
        chosen = self.track(track)
        with self.work.model_lock:
            return frames.contrast_frame(contrast_of(chosen.chains, chosen.place(index), self.model, hooks))

    # What if -----------------------------------------------------------------------------------------------------

    def what_if(
        self, index: int, *, redraw: int = 0, verdict: str | None = None, alpha: float | None = None, track: int = 0
    ) -> WhatIf:
        """The decision with u drawn again, its verdict set (``accept`` or ``reject``), or under another alpha.

        ``warnings`` of the answer say why what follows from it is no sample of the target.
        """
        chosen = self.track(track)
        return what_if(chosen.chains, chosen.place(index), redraw=redraw, verdict=verdict, alpha=alpha)

    def branch(self, index: int, *, track: int = 0, **how: Any) -> int:
        """A new chain that goes on behind a decision, as it was or as :meth:`what_if` has it; the number of its track.

        ``how`` are ``redraw``, ``verdict``, ``alpha``, ``tau``, ``n_mcmc``, ``seed`` and ``save`` of
        :func:`workbench.mcmc.branch`. The chain it left stays as it is. Its random numbers are those of a seed of its
        own, which ``tracks[number].chains.settings.seed`` has. :meth:`step` and :meth:`run` make its decisions.

        :raises ChainError: no model, no such decision, or nothing left to decide behind it.
        """
        chosen = self.track(track)
        return self._grow(chosen, chosen.place(index), how)

    def compare(self, track: int) -> pd.DataFrame:
        """A branch beside the chain that it left, by block and iteration.

        :raises ChainError: the track is no branch.
        """
        grown = self.track(track)
        if grown.parent is None:
            raise ChainError(f"track {track} is no branch: branch(index) makes one")
        return frames.compare_frame(self.track(grown.parent), grown)

    # Stepping ----------------------------------------------------------------------------------------------------

    @property
    def state_of_work(self) -> str:
        """``idle``, ``running``, ``stopping`` or ``failed``."""
        return self.work.state

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for what runs; false if it still does after so many seconds."""
        return self.work.wait(seconds)

    def refresh(self) -> None:
        """Take over decisions that a sampler made elsewhere, such as in a cell."""
        with self.work.model_lock:
            for track in self.tracks:
                track.refresh()
        self.outbox.touch()

    # Further -----------------------------------------------------------------------------------------------------

    def static_html(self) -> str:
        return stepper_html(self)

    def __repr__(self) -> str:
        if not self._open:
            return "<MCMCStepper>"
        track: Track = self.tracks[0]
        accepted = sum(decision.accepted for decision in track.decisions)
        return (
            f"<MCMCStepper decisions={track.shown} of {track.total} accepted={accepted} "
            f"branches={len(self.tracks) - 1} {'live' if track.sampler else 'saved'}>"
        )

    def close(self) -> None:
        """Stop what runs, remove the views and let go of everything. The sampler itself stays usable."""
        if self._open:
            self.work.close()
            self.outbox.close()
            self.tracks, self.model, self.texts = [], None, TokenTexts(None)
        super().close()
