"""The committed notebooks as a reader opens them in JupyterLab: each window in them is there.

What stands behind the last window is left out here; tests/notebooks runs every notebook to its end.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from lab_driver import Lab
from offline_pages import accessibility_faults
from playwright.sync_api import expect

import widgets

pytestmark = [pytest.mark.slow, pytest.mark.real]

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
WITH_WINDOWS = [path for path in sorted(FOLDER.glob("*.ipynb")) if "from widgets import" in path.read_text("utf-8")]
SECONDS = 600


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in WITH_WINDOWS])
def test_each_window_of_a_notebook_opens(lab: Lab, path: Path) -> None:
    book = nbformat.read(path, 4)
    showing = [n for n, cell in enumerate(book.cells) if any(f"{window}(" in cell.source for window in widgets.__all__)]
    book.cells = book.cells[: showing[-1] + 2]
    copy = lab.notebooks / path.name
    nbformat.write(book, copy)
    with lab.opened(copy) as notebook:
        notebook.run_all(seconds=SECONDS)
        places = notebook.page.evaluate(_WITH_VIEW)
        assert places, "a notebook that imports a window shows one"
        for place in places:
            notebook.page.evaluate("place => jupyterapp.shell.currentWidget.content.scrollToItem(place)", place)
            cell = notebook.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{place}']")
            window = cell.locator(".wb").first
            expect(window).to_be_visible(timeout=60_000)
            expect(cell.locator(".wb-fallback")).to_be_hidden()
            expect(window.locator(".wb-error").first).to_be_hidden()
            assert accessibility_faults(window) == []
            notebook.screenshot(f"notebook-{path.stem}-{place}", window)
        assert notebook.faults() == []


_WITH_VIEW = """() => jupyterapp.shell.currentWidget.content.widgets
  .map((cell, place) => [cell.model.outputs, place])
  .filter(([outputs]) => outputs && Array.from({ length: outputs.length }, (_, n) => outputs.get(n))
    .some((output) => "application/vnd.jupyter.widget-view+json" in output.data))
  .map(([, place]) => place)"""
