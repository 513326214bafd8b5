"""A report: parts are added one by one and written as one file that opens anywhere, offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pandas as pd
from markupsafe import Markup

from ..carry import CarryModel, CarryTrace, Control, Effect
from ..errors import FlowError, ReportError
from ..flows import FlowDefinition
from ..mcmc import Chains, Decision
from ..models import HookedModel
from ..trace import TokenLife, Trace
from .blocks import Block, Fold, Grid, Heading, Picture, Plot, grid_of
from .carry_results import results_blocks
from .carry_sections import carry_blocks
from .chain_sections import chain_blocks
from .comparison import chain_comparison, trace_comparison
from .flow_sections import flow_blocks, flows_in
from .kept import carry_part, chain_part, trace_part
from .legible import legible
from .markdown import Markdown
from .markup import split_note
from .page import render
from .plots import plot_of
from .provenance import kept_blocks, part_blocks, provenance_blocks
from .sections import file_stems, trace_blocks
from .steps import record_file
from .words import Words
from .writing import write

__all__ = ["Report", "report_of"]

INLINE_LIMIT = 1_500_000
"""Largest document, characters, that a notebook shows in place; a larger one is summarised."""


class Report:
    """A document made of notes, tables, figures, traces, flows, chains and carried prompts, in the order added.

    The same parts give the same bytes: no time, duration or random number goes in. ``command`` is what made the
    report, if that should stand in it.
    """

    def __init__(self, title: str, *, command: str | None = None) -> None:
        if not isinstance(title, str) or not title.strip():
            raise ReportError(f"a report needs a title, got {title!r}")
        self.title = title.strip()
        self.command = command
        self._blocks: list[Block] = []
        self._parts: list[dict[str, Any]] = []
        self._added = 0

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The whole document as data, the last section included, for writers of other formats."""
        return (*self._blocks, *(kept_blocks(self._parts, self.command) if self._parts else ()))

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
        number = 1 + sum(isinstance(block, Plot) for block in self._blocks)
        self._blocks.append(plot_of(plotly_figure, caption, table, f"figure-{number}.csv"))
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
        wanted = trace.request_ids if request_id is None else (trace.history(request_id).request_id,)
        files = file_stems(wanted, self._stem())
        self._blocks += list(trace_blocks(trace, model, tokens, files))
        self._keep(trace, files, model)
        return self

    def flow(self, flow: FlowDefinition, trace: Trace | None = None, model: HookedModel | None = None) -> Self:
        """A flow's drawing and data; with a trace, its visits, probabilities and what it erased there.

        The other parts of the trace are added by :meth:`trace`.

        :raises ReportError: not a flow.
        """
        if not isinstance(flow, FlowDefinition):
            raise ReportError(f"flow() takes a FlowDefinition, got {type(flow).__name__}; wrap a question in one")
        try:
            document: str | None = flow.to_json()
        except FlowError:
            document = None
        words = Words(Trace({}) if trace is None else trace, model)
        self._blocks += list(flow_blocks(flow, trace, words, document, f"{self._stem('flow-')}flow"))
        return self

    def chains(
        self, chains: Chains, model: HookedModel | None = None, *, decisions: Sequence[Decision] | None = None
    ) -> Self:
        """A run of chains: texts, timeline, acceptance, log A, diagnostics, and some ``decisions`` in full.

        With the model tokens are shown as text and the run can be made again from the report.

        :raises ReportError: not a run of chains.
        """
        if not isinstance(chains, Chains):
            raise ReportError(f"chains() takes what PowerSampler.run() gives, got {type(chains).__name__}")
        file = f"{self._stem('chains-')}decisions.jsonl"
        self._blocks += list(chain_blocks(chains, Words(Trace({}), model), file, decisions))
        source = None if model is None else dict(model.source)
        self._parts.append(chain_part(chains, source, None if model is None else model.tokenizer.fingerprint, file))
        self._blocks += list(part_blocks(self._parts[-1]))
        return self

    def carry(
        self,
        trace: CarryTrace,
        model: CarryModel | None = None,
        *,
        controls: Sequence[Control] = (),
        effects: Sequence[Effect] = (),
    ) -> Self:
        """A carried prompt: what its states say and how they move, and what controls and edits showed.

        ``controls`` come from ``model.controls(rows)``, ``effects`` from :func:`workbench.carry.effect_grid`.

        :raises ReportError: not a carry trace, or another model's.
        """
        if not isinstance(trace, CarryTrace):
            raise ReportError(f"carry() takes what CarryModel.run() gives, got {type(trace).__name__}")
        self._blocks += list(carry_blocks(trace, model, controls, effects, f"{self._stem('carry-')}carry"))
        self._parts.append(carry_part(trace, model))
        self._blocks += list(part_blocks(self._parts[-1]))
        return self

    def carry_results(self, results: Mapping[str, Any]) -> Self:
        """The tables of measured controls: ``results.json`` of ``workbench carry controls``, or of the bundled toy.

        :raises ReportError: they are something else.
        """
        self._blocks += list(results_blocks(results))
        return self

    def compare(
        self,
        first: Trace | Chains,
        second: Trace | Chains,
        names: tuple[str, str] = ("the first", "the second"),
        model: HookedModel | None = None,
    ) -> Self:
        """Two traces, or two runs of chains, beside each other, aligned at the first difference.

        :raises ReportError: two things of different kinds.
        """
        if isinstance(first, Trace) and isinstance(second, Trace):
            self._blocks += list(trace_comparison(first, second, names, f"{self._stem('both-')}compare"))
            for trace, name in zip((first, second), names, strict=True):
                self._attach(trace, model, name)
        elif isinstance(first, Chains) and isinstance(second, Chains):
            words = Words(Trace({}), model)
            self._blocks += list(chain_comparison(first, second, names, words, f"{self._stem('both-')}compare"))
        else:
            kinds = f"{type(first).__name__} and {type(second).__name__}"
            raise ReportError(f"compare() takes two traces or two runs of chains, got {kinds}")
        return self

    def _attach(self, trace: Trace, model: HookedModel | None, name: str) -> None:
        """A trace as data only: its records and where it came from."""
        files = file_stems(trace.request_ids, self._stem())
        told = tuple(provenance_blocks(trace, trace.request_ids))
        self._blocks.append(Heading(text=f"Where {name} came from"))
        for request_id, stem in files.items():
            records = [record for record in trace.records if record.request_id == request_id]
            self._blocks.append(record_file(records, f"{stem}-records.jsonl"))
        self._blocks += [block for block in told if not (isinstance(block, Heading) and block.level == 2)]
        self._keep(trace, files, model)

    def _stem(self, first: str = "") -> str:
        """What the names of the next part's files begin with: nothing of the first part, then a number."""
        self._added += 1
        return first if self._added == 1 else f"{first}{self._added}-"

    def _keep(self, trace: Trace, files: Mapping[str, str], model: HookedModel | None) -> None:
        names = [f"{stem}-records.jsonl" for stem in files.values()]
        self._parts.append(trace_part(trace, list(files), names, model))

    # Writing -------------------------------------------------------------------------------------------

    def html(self) -> str:
        """The whole document as HTML."""
        return render(self.title, self.blocks)

    def save(self, path: str | Path) -> Path:
        """Write the document to ``path``, all of it or nothing: ``.html``, ``.md`` or ``.pdf`` by its ending.

        Markdown has its drawings and raw data in a folder beside it; a PDF is printed by a browser.

        :raises ReportError: it can't be written (disk full, read-only, a directory), no browser for a PDF.
        """
        return write(Path(path), self.html, self._markdown, bare=True)

    def _markdown(self, folder: str) -> tuple[str, Mapping[str, bytes]]:
        document = Markdown(folder)
        return document.render(self.title, self.blocks), document.files

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


def report_of(
    trace: Trace, model: HookedModel | None = None, title: str | None = None, *, command: str | None = None
) -> Report:
    """A report of one trace, named after its run and model, with the flows that ran in it."""
    run = trace.run
    named = f"Run {run.get('run_id', 'without a name')} of {run.get('model', {}).get('name', 'an unnamed model')}"
    report = Report(title or named, command=command).trace(trace, model)
    for flow in flows_in(trace):
        report.flow(flow, trace, model)
    return report
