"""TraceExplorer: the tokens of a run as a strip, and everything that is known about the chosen one beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import traitlets

from workbench.errors import ReportError, did_you_mean
from workbench.models import HookedModel
from workbench.reports import legible, residual_norms
from workbench.trace import Trace, first_difference

from ..base import Window, json_safe, script, style
from ..reading import COLUMNS, ORIGINS, LayerView, Reading, StepView, checked_directions, detail, norm_matrix, page
from ..reading import residual_hooks as captured_residuals
from .differences import difference_frame, first_parting
from .static import explorer_html

__all__ = ["COLOURS", "TraceExplorer"]

HERE = Path(__file__).parent
COLOURS = ("probability", "entropy", "origin", "mod")
NORM_BYTES = 200_000
"""Norms of one message."""


class TraceExplorer(Window):
    """A window on a trace.

    ``model`` (the one that made the trace) adds the logit lens; ``directions`` are named vectors, or
    ``workbench.mods.Direction``, whose cosine with each layer's residual stream is shown; ``compare`` is a second
    trace, shown below the first and aligned with it at the first difference. Every number in the window is also
    given by :meth:`frame`, :meth:`events`, :meth:`candidates`, :meth:`layers`, :meth:`attention`, :meth:`norms`
    and :meth:`differences`. A trace that grows is read again by :meth:`refresh`.

    :raises TraceError: no such request, or a trace without any.
    :raises ReportError: the model is not the one that made the trace, or no such colour.
    :raises ValueError: a direction of another size.
    """

    _esm = script(HERE, "strip", "heat", "cards", "panels", "layers")
    _css = style(HERE, "explorer", "parts")

    chosen = traitlets.List(traitlets.Int()).tag(sync=True)
    """The item that :meth:`select` put the cursor on, and how often it was called; empty before. It stays, so that a
    view that is opened later begins there. Only written here: a browser could change it."""

    def __init__(
        self,
        trace: Trace,
        model: HookedModel | None = None,
        *,
        request_id: str | None = None,
        compare: Trace | None = None,
        directions: Mapping[str, Any] | None = None,
        colour: str = "probability",
    ) -> None:
        if colour not in COLOURS:
            raise ReportError(f"no colour {colour!r}; choose from {', '.join(COLOURS)}.{did_you_mean(colour, COLOURS)}")
        self.trace = trace
        self.model = model
        self.compare = compare
        width = None if model is None else model.d_model
        self.directions = checked_directions(directions, width)
        self.colour = colour
        self._readings = self._read(request_id)
        self._selected: int | None = None
        self._selections = 0
        super().__init__(self._state())
        self.answers.update(page=self._answer_page, detail=self._answer_detail, norms=self._answer_norms,
                            request=self._answer_request)  # fmt: skip

    def _read(self, request_id: str | None) -> list[Reading]:
        if request_id is None and len(self.trace.request_ids) > 1:
            request_id = self.trace.request_ids[0]
        first = Reading(self.trace, request_id, self.model)
        if self.compare is None:
            return [first]
        other = None if len(self.compare.request_ids) == 1 else first.request_id
        return [first, Reading(self.compare, other, self.model)]

    @property
    def request_id(self) -> str:
        """The request that is shown."""
        return self._readings[0].request_id

    def refresh(self) -> None:
        """Read the trace again: for one that has grown since."""
        self._show(self._read(self.request_id), self._selected)

    def show(self, request_id: str) -> None:
        """Show another request of the trace.

        :raises TraceError: there is none of that name.
        """
        self._show(self._read(request_id))

    def select(self, uid: int) -> None:
        """Move the cursor to a token: of every view that is open, and of those that open later.

        :raises ReportError: there is no such token.
        """
        self._readings[0].life(uid)
        self._choose(uid)

    def _show(self, readings: list[Reading], uid: int | None = None) -> None:
        self._readings = readings
        with self.hold_sync():  # one message: no view sees the tokens of one reading with the cursor of another
            self._choose(uid if uid in readings[0].index else None)
            self.state = self._state()

    def _choose(self, uid: int | None) -> None:
        self._selected, self._selections = uid, self._selections + 1
        self.chosen = [] if uid is None else [self._readings[0].index[uid], self._selections]

    # The same numbers ----------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """What the strip shows: one row per token, in the order of display (see ``Reading.frame``)."""
        return self._readings[0].frame()

    def events(self, uid: int) -> pd.DataFrame:
        """The records of the step that brought a token, and of its removal: rows of ``trace.frame()``."""
        return self._step(uid).events()

    def candidates(self, uid: int) -> pd.DataFrame:
        """The likeliest tokens before and after the mods where a token was chosen (see ``StepView.candidates``)."""
        return self._step(uid).candidates()

    def removed_mass(self, uid: int) -> float | None:
        """The probability that masks took from the model's own distribution there; None if no logits were edited."""
        return self._step(uid).removed_mass

    def layers(self, uid: int, k: int = 5) -> pd.DataFrame:
        """Norm, logit lens and cosines by layer where a token was chosen (see ``LayerView.frame``)."""
        return LayerView(self._readings[0], self._readings[0].life(uid), self.directions).frame(k)

    def attention(self, uid: int, layer: int | None = None, head: int = 0) -> pd.DataFrame:
        """What one head looked at from the position before a token (see ``LayerView.attention``)."""
        return LayerView(self._readings[0], self._readings[0].life(uid)).attention(layer, head)

    def norms(self) -> pd.DataFrame:
        """Residual norms of every generated token and captured layer, as ``workbench.reports.residual_norms``."""
        return residual_norms(self.trace, self.request_id)

    def differences(self) -> pd.DataFrame:
        """The two outputs side by side by position: ``position, text, other_text, same`` and both probabilities.

        :raises ReportError: there is nothing to compare with.
        """
        if self.compare is None:
            raise ReportError("nothing to compare with: TraceExplorer(trace, compare=other)")
        return difference_frame(*self._readings)

    def _step(self, uid: int) -> StepView:
        return StepView(self._readings[0], self._readings[0].life(uid))

    # What the browser is told --------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        first = self._readings[0]
        return {
            "columns": list(COLUMNS),
            "origins": list(ORIGINS),
            "colours": list(COLOURS),
            "colour": self.colour,
            "requests": [[name, legible(name)] for name in self.trace.request_ids],
            "request": first.request_id,
            "sides": [self._side(reading) for reading in self._readings],
            "parting": self._parting(),
            "detail": {"side": 0, **self._detail(first, self._start(first))} if first.items else None,
        }

    def _side(self, reading: Reading) -> dict[str, Any]:
        gone = sum(life.removed_step is not None for life in reading.history.every)
        model = reading.trace.run.get("model", {}).get("name", "?")
        return {
            "title": f"{legible(str(model))} · request {legible(reading.request_id)}",
            "told": f"{len(reading.prompt)} prompt tokens, {len(reading.history.every)} committed, {gone} taken back, "
            f"{'ended by ' + reading.history.reason if reading.history.reason else 'not finished'}",
            "layers": list(captured_residuals(reading)),
            "page": page(reading, 0),
            "begin": self._start(reading),
        }

    @staticmethod
    def _start(reading: Reading) -> int:
        """The item to begin with: the first generated one."""
        return min(len(reading.prompt), max(len(reading.items) - 1, 0))

    def _parting(self) -> dict[str, Any] | None:
        if self.compare is None:
            return None
        difference = first_difference(self.trace, self.compare)
        items, told = first_parting(*self._readings)
        records = "The records are equal." if difference is None else f"First different record: {difference}."
        return {"items": items, "told": f"{told} {legible(records)}"}

    def _detail(self, reading: Reading, item: int, layer: int | None = None, head: int = 0) -> dict[str, Any]:
        found = detail(
            reading, reading.items[item].life.uid, directions=self.directions, layer=layer, head=head,
            trace_name="trace" if reading is self._readings[0] else "other",
        )  # fmt: skip
        return dict(found)

    # Answers -------------------------------------------------------------------------------------------------

    def _asked(self, content: Mapping[str, Any]) -> tuple[int, Reading]:
        side = int(content.get("side", 0))
        return side, self._readings[min(max(side, 0), len(self._readings) - 1)]

    def _answer_page(self, content: Mapping[str, Any]) -> None:
        side, reading = self._asked(content)
        found = page(reading, max(int(content["start"]), 0))
        self.tell("page", {"side": side, **found, "numbers": None}, [found["numbers"]])

    def _answer_detail(self, content: Mapping[str, Any]) -> None:
        side, reading = self._asked(content)
        item, layer = int(content["item"]), content.get("layer")
        if not 0 <= item < len(reading.items):
            raise ReportError(f"no token at place {item} of {len(reading.items)}: the trace was read again since")
        found = self._detail(reading, item, None if layer is None else int(layer), int(content.get("head") or 0))
        weights = found["attention"].pop("weights", None)
        self.tell(
            "detail", {"side": side, "asked": content.get("asked"), **found}, [] if weights is None else [weights]
        )

    def _answer_norms(self, content: Mapping[str, Any]) -> None:
        """All norms, in as many messages as their size asks for."""
        side, reading = self._asked(content)
        layers, matrix = norm_matrix(reading)
        if not layers or not len(matrix):
            return
        medians = pd.DataFrame(matrix).median(axis=0).tolist()
        each = max(NORM_BYTES // (4 * len(layers)), 1)
        for start in range(0, len(matrix), each):
            part = matrix[start : start + each]
            told = {"side": side, "start": start, "count": len(part), "total": len(matrix), "layers": layers}
            self.tell("norms", {**told, "medians": json_safe(medians)}, [part.astype("<f4").tobytes()])

    def _answer_request(self, content: Mapping[str, Any]) -> None:
        self.show(str(content["request"]))

    # Without a browser ---------------------------------------------------------------------------------------

    def static_html(self) -> str:
        return explorer_html(self._readings)

    def __repr__(self) -> str:
        if not self._open:
            return "<TraceExplorer>"
        made = len(self._readings[0].history.every)
        return f"<TraceExplorer of request {self.request_id}: {made} tokens committed>"

    def close(self) -> None:
        super().close()
        self._readings = []
        self.trace = self.compare = self.model = None  # type: ignore[assignment]
        self.directions = {}
