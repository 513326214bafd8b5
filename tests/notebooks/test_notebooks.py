"""The committed notebooks say what they are, hold no outputs, and run from top to bottom."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

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
@each_notebook
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # nobody's own start-up files
    client = NotebookClient(
        read(path),
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},  # where JupyterLab would run it
    )
    client.execute()
