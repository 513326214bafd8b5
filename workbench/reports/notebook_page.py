"""An executed notebook as one HTML file that opens offline: its text, code, outputs and figures, with provenance.

nbconvert makes the cells' HTML; the page round it is ours, so that nothing is fetched. Figures by plotly are drawn by
the library inside the page and have their numbers as a table; windows show their static form.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..engine import versions
from ..errors import ReportError
from .blocks import Alert, Block, Facts, Heading
from .markdown import Markdown
from .page import frame_page, render_block
from .plots import plot_of
from .writing import write

__all__ = ["NotebookReport", "notebook_report", "run_notebook"]

PLOTLY = "application/vnd.plotly.v1+json"
PRIORITY = (
    "text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/latex", "text/plain",
)  # fmt: skip
"""Kinds of output in the order of preference: what needs a kernel or a script is not among them."""
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookReport:
    """A notebook with its outputs, ready to be written."""

    title: str
    notebook: Any = None
    digest: str
    """SHA-256 of the notebook's file before it was executed."""
    name: str
    command: str | None = None

    def html(self) -> str:
        """The whole document. The same outputs give the same text."""
        body, figures = _body(self.notebook)
        told = Markup("").join(render_block(block, 0) for block in self._provenance())
        return frame_page(self.title, Markup(body) + told, with_plots=figures or "class=&#34;plot&#34;" in body)

    def markdown(self, folder: str) -> tuple[str, dict[str, bytes]]:
        """The document as Markdown, and the files in ``folder`` that it refers to; of figures it has the numbers."""
        from nbconvert import MarkdownExporter

        document = Markdown(folder)
        told = _with_figures(self.notebook, lambda block, _: {"text/markdown": document.parts([block])})
        text, resources = MarkdownExporter().from_notebook_node(told)
        for name, content in resources.get("outputs", {}).items():
            document.files[f"{folder}/{name}"] = content
            text = text.replace(f"]({name})", f"]({folder}/{name})")
        return f"{text}\n\n{document.parts(tuple(self._provenance()))}\n", document.files

    def save(self, path: str | Path) -> Path:
        """Write ``.html``, ``.md`` or ``.pdf`` by the file's ending.

        :raises ReportError: another ending, or it can't be written.
        """
        return write(Path(path), self.html, self.markdown)

    def _provenance(self) -> Iterator[Block]:
        yield Heading(text="Provenance")
        made = (("This report was made by", self.command),) if self.command else ()
        yield Facts(
            pairs=(
                ("Notebook", self.name),
                ("sha256 of its file", self.digest),
                *((f"Version of {name}", value) for name, value in versions().items()),
                *made,
            )
        )


def notebook_report(
    path: str | Path,
    *,
    execute: bool = True,
    seconds_per_cell: int | None = None,
    allow_errors: bool = False,
    title: str | None = None,
    command: str | None = None,
) -> NotebookReport:
    """Read a notebook, execute it in a fresh kernel (unless told not to), and make a report of it.

    Executing runs the notebook's code. The file itself is left as it is.

    :raises ReportError: no such notebook, one that is damaged, or a cell that raised.
    """
    import nbformat

    source = Path(path)
    try:
        content = source.read_bytes() if source.stat().st_size <= MOST_BYTES else b""
        notebook = nbformat.reads(content.decode("utf-8"), as_version=4)
    except OSError as error:
        raise ReportError(f"{source} can't be read: {error.strerror or error}") from error
    except (ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise ReportError(f"{source} is no notebook, or too large to be one: {str(error)[:200]}") from None
    if execute:
        run_notebook(notebook, source.parent, seconds_per_cell=seconds_per_cell, allow_errors=allow_errors)
    return NotebookReport(
        title=title or _title(notebook) or source.stem,
        notebook=notebook,
        digest=hashlib.sha256(content).hexdigest(),
        name=source.name,
        command=command,
    )


def run_notebook(notebook: Any, folder: Path, *, seconds_per_cell: int | None, allow_errors: bool) -> None:
    """Execute every cell in a fresh kernel that works in ``folder``; outputs are put into ``notebook``.

    :raises ReportError: a cell raised, or took too long.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = NotebookClient(
        notebook,
        timeout=seconds_per_cell,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder or Path())}},
        allow_errors=allow_errors,
        record_timing=False,
        store_widget_state=False,
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise ReportError(
            f"a cell raised {error.ename}: {error.evalue}. --allow-errors reports it all the same"
        ) from None
    except (CellTimeoutError, DeadKernelError) as error:
        raise ReportError(f"the notebook did not run to its end: {str(error)[:300]}") from None


def _title(notebook: Any) -> str | None:
    """The first heading of the notebook's text."""
    for cell in notebook.cells:
        found = re.search(r"^#\s+(.+)$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        if found:
            return str(found[1]).strip()
    return None


# The body --------------------------------------------------------------------------------------------------------


def _body(notebook: Any) -> tuple[str, bool]:
    """The cells as HTML, and whether there is a figure that plotly draws."""
    from nbconvert import HTMLExporter

    told = _with_figures(notebook, lambda block, number: {"text/html": str(render_block(block, number))})
    exporter = HTMLExporter(
        template_name="basic", anchor_link_text="", exclude_input_prompt=True, exclude_output_prompt=True
    )
    exporter.display_data_priority = list(PRIORITY)
    body, _ = exporter.from_notebook_node(told)
    return _reachable(str(body)), any(PLOTLY in output.get("data", {}) for output in _outputs(notebook))


def _with_figures(notebook: Any, made: Callable[[Block, int], dict[str, str]]) -> Any:
    """A copy in which each output of plotly's is what ``made`` makes of its block and number."""
    import nbformat

    told = nbformat.from_dict(copy.deepcopy(notebook))
    figures = [output for output in _outputs(told) if PLOTLY in output.get("data", {})]
    for number, output in enumerate(figures, 1):
        output["data"] = nbformat.from_dict(made(_figure(output["data"][PLOTLY], number), number))
    return told


def _outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def _figure(spec: Any, number: int) -> Block:
    """A figure as the notebook's output holds it."""
    import plotly.graph_objects as go

    try:
        figure = go.Figure(data=spec.get("data"), layout=spec.get("layout"))
        caption = str(figure.layout.title.text or f"Figure {number} of the notebook")
        return plot_of(figure, caption, None, f"figure-{number}.csv")
    except (ReportError, ValueError) as error:
        return Alert(text=f"A figure can't be shown here: {error}")


def _reachable(body: str) -> str:
    """What may be wider than the page can be scrolled with the keyboard too."""
    for kind, name in (("output_html", "Output"), ("output_png", "Picture"), ("output_svg", "Drawing")):
        body = body.replace(
            f'<div class="{kind} ', f'<div tabindex="0" role="region" aria-label="{name}" class="{kind} '
        )
    return body
