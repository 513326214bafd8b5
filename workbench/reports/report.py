"""A report: parts are added one by one and written as one HTML file that opens anywhere, offline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pandas as pd
from markupsafe import Markup

from ..errors import ReportError
from ..models import HookedModel
from ..trace import TokenLife, Trace
from .blocks import Block, Fold, Grid, Heading, Picture, Plot, grid_of
from .legible import legible
from .markup import split_note
from .page import render
from .plots import plot_of
from .sections import trace_blocks

__all__ = ["Report", "report_of"]

INLINE_LIMIT = 1_500_000
"""Largest document, characters, that a notebook shows in place; a larger one is summarised."""


class Report:
    """A document made of notes, tables, figures and traces, in the order in which they are added.

    The same parts give the same bytes: no time, duration or random number goes in.
    """

    def __init__(self, title: str) -> None:
        if not isinstance(title, str) or not title.strip():
            raise ReportError(f"a report needs a title, got {title!r}")
        self.title = title.strip()
        self._blocks: list[Block] = []

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The parts so far, for writers of other formats."""
        return tuple(self._blocks)

    # Adding --------------------------------------------------------------------------------------------

    def note(self, text: str) -> Self:
        """Prose: paragraphs, ``#`` headings, lists, fenced code, ``**bold**`` and `` `code` ``; no HTML."""
        self._blocks += split_note(str(text))
        return self

    def table(self, frame: pd.DataFrame, caption: str) -> Self:
        """A data frame, its first 300 rows to read and all of them as an attached CSV file.

        The index is shown when it has a name or is not just 0, 1, 2, …

        :raises ReportError: not a data frame.
        """
        if not isinstance(frame, pd.DataFrame):
            raise ReportError(f"table() takes a pandas DataFrame, got {type(frame).__name__}")
        named = any(name is not None for name in frame.index.names)
        counted = isinstance(frame.index, pd.RangeIndex) and not named
        number = 1 + sum(isinstance(block, Grid) for block in self._blocks)
        self._blocks.append(grid_of(frame, caption, attach=f"table-{number}.csv", index=not counted))
        return self

    def figure(self, plotly_figure: Any, caption: str, table: pd.DataFrame | None = None) -> Self:
        """An interactive plotly figure; ``table`` holds its numbers, by default its traces' x, y and z.

        :raises ReportError: not a plotly figure, or one whose numbers can't be told without ``table``.
        """
        self._blocks.append(plot_of(plotly_figure, caption, table))
        return self

    def trace(
        self,
        trace: Trace,
        model: HookedModel | None = None,
        tokens: Sequence[TokenLife | int] | None = None,
        request_id: str | None = None,
    ) -> Self:
        """Everything about a run, or about one of its requests.

        With the model that made it and captured residuals, the logit lens of ``tokens`` (uids or
        :class:`TokenLife`; by default the first forced one and the three of highest entropy).

        :raises ReportError: another model's trace, or a token that is not there.
        :raises TraceError: no such request.
        """
        several = request_id is None and len(trace.request_ids) > 1
        if several and any(isinstance(token, int) for token in tokens or ()):
            raise ReportError(
                f"token numbers belong to one request, and this trace has {', '.join(trace.request_ids)}: "
                "pass request_id=, or TokenLife objects"
            )
        self._blocks += list(trace_blocks(trace, model, tokens, request_id))
        return self

    # Writing -------------------------------------------------------------------------------------------

    def html(self) -> str:
        """The whole document as HTML."""
        return render(self.title, self._blocks)

    def save(self, path: str | Path) -> Path:
        """Write the document to ``path``, all of it or nothing.

        :raises ReportError: it can't be written (disk full, read-only, a directory).
        """
        target = Path(path)
        building = target.with_name(f".{target.name}.{os.getpid()}.part")
        content = self.html().encode()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                building.write_bytes(content)
                os.replace(building, target)
            finally:
                building.unlink(missing_ok=True)
        except OSError as error:
            raise ReportError(
                f"can't write the report to {target}: {error.strerror or error}. Choose another path; "
                "the report is still here."
            ) from error
        return target

    def __repr__(self) -> str:
        return f"<Report {self.title!r}: {len(self._blocks)} parts>"

    def _repr_html_(self) -> str:
        """A summary that survives anywhere, and below it the document in a frame of its own."""
        names = [block.text for block in self._blocks if isinstance(block, Heading) and block.level == 2]
        figures = sum(isinstance(block, (Picture, Plot)) for block in self._blocks)
        tables = sum(isinstance(block, (Grid, Fold)) for block in self._blocks)
        rows = Markup("").join(Markup("<li>{}</li>").format(legible(name)) for name in names)
        head = Markup(
            '<p><b>{}</b>: {} figures, {} tables and folds; <code>.save("report.html")</code> writes it.</p><ul>{}</ul>'
        )
        summary = head.format(legible(self.title), figures, tables, rows)
        document = self.html()
        if len(document) > INLINE_LIMIT:
            return str(summary)
        frame = Markup(
            '<iframe sandbox="allow-downloads{}" srcdoc="{}" title="{}" '
            'style="width:100%;height:36rem;border:0"></iframe>'
        )
        scripts = " allow-scripts" if any(isinstance(block, Plot) for block in self._blocks) else ""
        return str(summary + frame.format(scripts, document, legible(self.title)))


def report_of(trace: Trace, model: HookedModel | None = None, title: str | None = None) -> Report:
    """A report of one trace, named after its run and model."""
    run = trace.run
    named = f"Run {run.get('run_id', 'without a name')} of {run.get('model', {}).get('name', 'an unnamed model')}"
    return Report(title or named).trace(trace, model)
