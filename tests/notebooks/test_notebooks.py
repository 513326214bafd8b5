"""The committed notebooks say what they are, hold no outputs, run from top to bottom, and open offline as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from offline_pages import look_at, open_all, picture, wider_than_the_page

from workbench.reports import NotebookReport

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
SECONDS_PER_CELL = 300

each_notebook = pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.ipynb"))]
)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def test_the_tour_that_make_lab_opens_is_there() -> None:
    assert (FOLDER / "00_tour.ipynb").is_file()


@each_notebook
def test_a_committed_notebook_holds_no_outputs(path: Path) -> None:
    notebook = read(path)
    assert "widgets" not in notebook.metadata, f"{path.name} holds widget state; strip it"
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            assert cell.outputs == [], f"{path.name}, cell {number} holds outputs; strip them"
            assert cell.execution_count is None, f"{path.name}, cell {number} holds an execution count"


@each_notebook
def test_the_first_cell_states_purpose_time_and_model(path: Path) -> None:
    first = read(path).cells[0]
    assert first.cell_type == "markdown", f"{path.name} starts with a {first.cell_type} cell, not with text"
    text = first.source.replace("*", "").lower()
    missing = [label for label in ("purpose:", "time:", "model:") if label not in text]
    assert not missing, f"{path.name}: the first cell lacks {', '.join(missing)}"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.browser
@each_notebook
def test_a_notebook_runs_from_top_to_bottom_and_its_page_opens_offline(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One execution serves both, since it is what takes the time."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # nobody's own start-up files
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},  # where JupyterLab would run it
        store_widget_state=False,
    )
    client.execute()
    shown = NotebookReport(title=path.stem, notebook=notebook, digest="", name=path.name)
    check_page(shown.save(tmp_path / f"{path.stem}.html"), notebook)


def check_page(page_file: Path, notebook: nbformat.NotebookNode) -> None:
    """The page holds every output and every figure, and asks for nothing."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    figures = sum("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs)
    windows = sum("wb-fallback" in "".join(output.get("data", {}).get("text/html", "")) for output in outputs)

    def act(page: Any) -> dict[str, int]:
        if figures:
            page.locator(".plot .main-svg").first.wait_for()
        open_all(page)
        picture(page, f"notebook-{page_file.stem}")
        return {
            "outputs": page.locator(".output_area").count(),
            "figures": page.locator("main > div .plot, .output_area .plot").count(),
            "windows": sum(one.is_visible() for one in page.locator(".wb-fallback").all()),
            "wide": wider_than_the_page(page),
        }

    look = look_at(page_file, act)
    assert look.faults == []
    assert look.result["outputs"] == len(outputs)
    assert look.result["figures"] >= figures
    assert look.result["windows"] == windows
    assert look.result["wide"] == 0
