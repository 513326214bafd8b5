"""CarryInspector: what a carry's states hold, how they move, whether they are needed, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from workbench.carry import (
    CarryModel,
    CarryTrace,
    Check,
    JacobianLens,
    attention_shares,
    band_warning,
    cost_panel,
)
from workbench.errors import CarryError
from workbench.models import HookedModel

from ..base import script, style
from . import frames, studies
from .messages import Found, Talking
from .results import ablation_frame, read_results, results_frame
from .static import inspector_html
from .studies import Layers, Question
from .subject import LOGIT, Subject, read_rows, read_token
from .worker import Worker

__all__ = ["CarryInspector"]

HERE = Path(__file__).parent
T = TypeVar("T")
PARTS = ("charts", "read", "motion", "need", "inside")
"""Scripts of this folder beside its ``index.js``."""


class CarryInspector(Talking):
    """A window on a carry.

    ``model`` is a :class:`~workbench.carry.CarryModel`; ``trace`` a trace of it, or a prompt (text, chat messages or
    token ids), which is run here with the model's settings and ``max_new_tokens``.

    - ``target``: the token whose rank is followed (the first answer token, if nothing is said); ``watch``: further
      ones; ``concepts``: the tokens that the steps 0, 1, … are expected to hold, in order. Tokens are ids or texts.
    - ``rows``: ``(prompt, answer)`` pairs on which lenses are fitted and effects, controls and layers measured; without
      them that is done on the trace's own prompt, where nothing can be generalised from.
    - ``known``: pairs that the plain model, without pauses, should answer, by which a band is chosen (else ``rows``).
    - ``others``: further traces by name, such as a donor's, for patches and for the plane of states.
    - ``results``: a ``results.json`` of ``workbench carry controls``, or its folder, for the table of trained controls.
    - ``lens``: a fitted Jacobian lens; :meth:`fit_lens` makes one.

    Every number in the window is also given by a call: :meth:`chain`, :meth:`trajectories`, :meth:`concepts`,
    :meth:`dynamics`, :meth:`loops`, :meth:`orbit`, :meth:`attention`, :meth:`effects`, :meth:`controls`,
    :meth:`results`, :meth:`layers`, :meth:`gradients`, :meth:`cost`. What the states can be read as is one thing,
    whether they are needed another: only :meth:`effects` and :meth:`controls` speak of the latter.

    :raises CarryError: a trace that this model did not make, a token that is none, rows without answers, results that
        are none.
    :raises PromptError: a prompt that can't be run.
    """

    _esm = script(HERE, "cards", own=PARTS)
    _css = style(HERE, "carry", "parts")

    def __init__(
        self,
        model: CarryModel,
        trace: CarryTrace | str | Sequence[Any],
        *,
        target: str | int | None = None,
        watch: Sequence[str | int] = (),
        concepts: Sequence[str | int] | None = None,
        rows: Sequence[tuple[Any, Any]] = (),
        known: Sequence[tuple[Any, Any]] = (),
        others: Mapping[str, CarryTrace] | None = None,
        results: str | Path | None = None,
        lens: JacobianLens | None = None,
        max_new_tokens: int = 1,
    ) -> None:
        _checked_model(model)
        self.given = "trace" if isinstance(trace, CarryTrace) else repr(trace)
        run = (
            trace if isinstance(trace, CarryTrace) else model.run(trace, max_new_tokens=max_new_tokens, attention=True)
        )
        self.subject = Subject(
            model=model,
            trace=run,
            rows=read_rows(model, rows),
            known=read_rows(model, known),
            target=-1 if target is None else read_token(model, target),
            watched=tuple(read_token(model, token) for token in watch),
            concepts=tuple(read_token(model, token) for token in concepts or ()),
            concepts_given=concepts is not None,
            others=dict(others or {}),
            jacobian=lens,
        )
        self.found = Found(costs=cost_panel(model, run), results=None if results is None else read_results(results))
        self.worker = Worker(model, self._tell_work, self.notice)
        super().__init__(self._state())
        self._listen()

    @property
    def model(self) -> CarryModel:
        return self.subject.model

    @property
    def trace(self) -> CarryTrace:
        return self.subject.trace

    # What can be read (V1 to V3) -------------------------------------------------------------------------------

    def chain(self, k: int = 5, *, exclude_mouth: bool = False) -> pd.DataFrame:
        """V1: the ``k`` (at most 10) likeliest tokens of each state by every lens, and what would be answered there.

        ``exclude_mouth`` leaves the token about to be said out of the lenses' lists.
        """
        return frames.chain_frame(self.subject, k=k, exclude_mouth=exclude_mouth)

    frame = chain

    def trajectories(self, tokens: Sequence[str | int] | None = None, lens: str = LOGIT) -> pd.DataFrame:
        """V2: rank and probability of tokens (the watched ones) over loops and then steps."""
        chosen = self.subject.watched if tokens is None else [read_token(self.model, token) for token in tokens]
        return frames.trajectory_frame(self.subject.trajectories(chosen, lens))

    def concepts(self, lens: str = LOGIT) -> pd.DataFrame:
        """V3: the lens's probability of each concept at each step."""
        return frames.concept_frame(self.subject, lens)

    # How states move (V4 to V6) --------------------------------------------------------------------------------

    def dynamics(self) -> pd.DataFrame:
        """V4: lengths, shares and cosines of every state (``CarryTrace.rows``)."""
        return frames.dynamics_frame(self.trace)

    def loops(self) -> pd.DataFrame:
        """V4: how far every prompt position moves in each loop, and the second difference."""
        return frames.loops_frame(self.trace)

    def orbit(self) -> pd.DataFrame:
        """V5: the states of this run and of the others in the plane of this run's two principal components.

        :raises CarryError: fewer than three states.
        """
        return frames.orbit_frame({"this run": self.trace, **self.subject.others})

    def attention(self, layer: int | None = None, head: int | None = None) -> pd.DataFrame:
        """V6: where each step's attention goes; the mean over layers or heads that are not named.

        :raises CarryError: the trace was run without ``attention=True``; no such layer or head.
        """
        return frames.attention_frame(attention_shares(self.trace, self.subject.windows), layer, head)

    # What is needed (V7, V8) -----------------------------------------------------------------------------------

    def effects(self, kind: str | None = None, **parameters: Any) -> pd.DataFrame:
        """V7: edit the state of one step, read the answer at another: KL divergence, flip rate, n and intervals.

        ``kind`` is ``zero``, ``mean``, ``frozen``, ``shuffle``, ``noise``, ``gain`` (with ``gain=``), ``patch`` (with
        ``donor=``, a name of ``others``) or ``swap`` (with ``first=`` and ``second=``, tokens); ``seed=`` for the
        random ones. Without a kind: the grid that was measured last.

        :raises CarryError: an unknown or impossible intervention; nothing measured yet.
        """
        if kind is not None:
            question = Question.of(self.subject, {"kind": kind, **parameters})
            self._keep_effects(question, studies.effects(self.subject, question))
        return frames.effects_frame(_there(self.found.effects, "effects('zero') measures one"))

    def controls(self, *, fresh: bool = False) -> pd.DataFrame:
        """V8: the same weights with, without and against the carry on the rows; measured once, again if ``fresh``."""
        if fresh or self.found.controls is None:
            self._keep_controls(studies.controls(self.subject))
        return frames.records_frame(_there(self.found.controls, ""))

    def results(self) -> pd.DataFrame:
        """V8: trained controls from ``results.json`` by system and hops, with what each costs.

        :raises CarryError: no results were given.
        """
        return results_frame(_there(self.found.results, "CarryInspector(…, results=path)"), self.block_weights)

    def ablations(self) -> pd.DataFrame:
        """V8: the trained carry's own weights with their states changed, from ``results.json``."""
        return ablation_frame(_there(self.found.results, "CarryInspector(…, results=path)"))

    # Band and cost (V9, V10) -----------------------------------------------------------------------------------

    def layers(self, *, fresh: bool = False) -> pd.DataFrame:
        """V9: how well the known rows' first answer token is read from each layer of the plain model."""
        return frames.layers_frame(self._layers_of(fresh))

    def gradients(self, *, fresh: bool = False) -> pd.DataFrame:
        """V9: mean norm of the answer loss's gradient by the state handed on from each step."""
        return frames.gradient_frame(self._layers_of(fresh))

    def _layers_of(self, fresh: bool = False) -> Layers:
        if fresh or self.found.layers is None:
            self._keep_layers(studies.layers(self.subject))
        return _there(self.found.layers, "")

    def band_warning(self, first: int, last: int) -> str | None:
        """V9: a sentence if a band ``first:last`` ends before the answer is readable.

        :raises CarryError: an empty band or one outside the model.
        """
        if not 0 <= first < last <= self.model.n_layers:
            raise CarryError(f"a band is 0 <= first < last <= {self.model.n_layers}, got {first}:{last}")
        return band_warning(self._layers_of().readings, (first, last))

    def cost(self) -> pd.DataFrame:
        """V10: token-layers, cache bytes and operations; the check's differences once :meth:`check` was called."""
        return frames.cost_frame(self.found.costs, self.found.check)

    def check(self) -> Check:
        """V10: run the whole-sequence scan on this input and compare."""
        self._keep_check(studies.check(self.subject))
        return _there(self.found.check, "")

    # Further ---------------------------------------------------------------------------------------------------

    def fit_lens(self) -> JacobianLens:
        """Fit the Jacobian lens on the rows' prompts (64 at most): it and its shuffled baseline join every reading."""
        lens = studies.fit_lens(self.subject)
        self._keep_lens(lens)
        return lens

    def stop(self) -> None:
        """Stop what runs; what was made before stays."""
        self.worker.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for what runs; false if it still does after so many seconds."""
        return self.worker.wait(seconds)

    def static_html(self) -> str:
        return inspector_html(self)

    def __repr__(self) -> str:
        if not self._open:
            return "<CarryInspector>"
        return f"<CarryInspector of {self.model_name}: {self.trace!r}>"

    def close(self) -> None:
        if self._open:
            self.worker.close()
        super().close()
        self.subject = self.worker = None  # type: ignore[assignment]


def _there(found: T | None, how: str) -> T:
    if found is None:
        raise CarryError(f"there is nothing of that yet: {how}")
    return found


def _checked_model(model: HookedModel | CarryModel) -> None:
    if not isinstance(model, CarryModel):
        raise CarryError(
            f"CarryInspector looks at a CarryModel, got {type(model).__name__}: "
            "CarryModel(model, band=(6, 12), pause_token=…) makes one, its adapter adding nothing before training"
        )
