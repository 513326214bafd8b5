"""``workbench report``, ``reproduce`` and ``notebook-report``: what they write, say and answer with."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

import nbformat
import pytest

from workbench.bundled import bundled

Command = Callable[..., tuple[int, str, str]]
RUN = ("run", "--model", "tiny-llama", "--raw", "--prompt", "12*3=", "--max-new-tokens", "6", "--no-capture", "-q")
MCMC = (
    "mcmc",
    "--model",
    "tiny-llama",
    "--prompt",
    "hi",
    "--block-size",
    "3",
    "--n-mcmc",
    "2",
    "--max-tokens",
    "6",
    "-q",
)
CARRY = (
    "carry",
    "run",
    "--model",
    "tiny-llama",
    "--raw",
    "--prompt",
    "hi there",
    "--pauses",
    "2",
    "--band",
    "1:2",
    "-q",
)


@pytest.fixture
def runs(command: Command, tmp_path: Path) -> Path:
    """A folder with a trace, chains and a carried prompt."""
    for name, words in (("trace", (*RUN, "--mod", "calculator", "--seed", "0")), ("chains", MCMC), ("carry", CARRY)):
        code, _, err = command(*words, "--out", tmp_path / name)
        assert code == 0, err
    return tmp_path


def test_every_kind_of_run_makes_a_report_that_can_be_run_again(command: Command, runs: Path) -> None:
    for kind in ("trace", "chains", "carry"):
        page = runs / f"{kind}.html"
        assert command("report", runs / kind, "-o", page)[:2] == (0, f"written: {page}\n")
        code, out, _ = command("reproduce", page)
        assert (code, out.count("agrees: ")) == (0, 1), out
        told = re.findall(r"<dd>(workbench report [^<]*)</dd>", page.read_text("utf-8"))
        assert told == [f"workbench report {runs / kind}"]


def test_measured_controls_make_a_report_that_keeps_nothing_to_run(command: Command, tmp_path: Path) -> None:
    page = tmp_path / "toy.html"
    assert command("report", bundled("carry"), "-o", page)[0] == 0
    assert "The carry and its controls" in page.read_text("utf-8")
    code, _, err = command("reproduce", page)
    assert code == 2
    assert "keeps nothing to run again" in err


def test_two_runs_are_compared(command: Command, runs: Path) -> None:
    assert command(*RUN, "--seed", "1", "--out", runs / "other")[0] == 0
    page = runs / "both.html"
    assert command("report", runs / "trace", "--compare", runs / "other", "-o", page)[0] == 0
    assert "and then part" in page.read_text("utf-8")
    code, out, _ = command("reproduce", page)
    assert (code, out.count("agrees: ")) == (0, 2)
    code, _, err = command("report", runs / "trace", "--compare", runs / "chains", "-o", page)
    assert code == 2
    assert "two traces can be compared" in err


def test_markdown_has_its_data_beside_it(command: Command, runs: Path) -> None:
    assert command("report", runs / "chains", "-o", runs / "out" / "c.md")[0] == 0
    text = (runs / "out" / "c.md").read_text("utf-8")
    links = re.findall(r"\]\((c_files/[^)]+)\)", text)
    assert links
    assert all((runs / "out" / link).is_file() for link in links)
    lines = (runs / "out" / "c_files" / "chains-decisions.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 4
    assert json.loads(lines[0])["chain"] == 0


def test_without_a_browser_a_pdf_is_refused_with_a_way_out(
    command: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_BROWSER", "no-such-browser")
    code, _, err = command("report", runs / "carry", "--no-lens", "-o", runs / "c.pdf")
    assert code == 2
    assert "a PDF is printed by a browser, and none was found here" in err
    assert "save as .html" in err
    assert not (runs / "c.pdf").exists()


def test_an_unknown_ending_and_an_empty_place_are_refused(command: Command, runs: Path) -> None:
    assert "the ending may be .html, .md or .pdf" in command("report", runs / "trace", "-o", runs / "x.docx")[2]
    (runs / "empty").mkdir()
    code, _, err = command("report", runs / "empty", "-o", runs / "x.html")
    assert code == 2
    assert "holds no trace: there is no run.json in it" in err


def test_the_exit_code_says_agree_differ_or_could_not(command: Command, runs: Path) -> None:
    page = runs / "c.html"
    command("report", runs / "chains", "-o", page)
    text = page.read_text("utf-8")
    body = re.search(r"download='reproduce\.json' href='data:application/json;charset=utf-8,([^']*)'", text)
    assert body is not None

    def with_kept(old: str, new: str) -> Path:
        told = unquote(body[1])
        assert old in told
        page.write_text(text.replace(body[1], quote(told.replace(old, new))), "utf-8")
        return page

    assert command("reproduce", page)[0] == 0
    assert command("reproduce", with_kept('"seed": 0', '"seed": 1'))[0] == 1
    assert command("reproduce", with_kept('"name": "tiny-llama"', '"name": "/somewhere/else"'))[0] == 3
    assert command("reproduce", page, "--model", "tiny-llama")[0] == 0
    assert command("reproduce", runs / "nothing.html")[0] == 2
    code, out, _ = command("reproduce", with_kept('"seed": 0', '"seed": 0 '), "--most-tokens", "3")
    assert code == 3
    assert "--most-tokens" in out


def test_a_report_of_chains_whose_model_is_gone_says_what_it_leaves_out(command: Command, runs: Path) -> None:
    head = runs / "chains" / "chain.json"
    told = json.loads(head.read_text("utf-8"))
    told["model"]["name"] = str(runs / "gone.gguf")
    head.write_text(json.dumps(told), "utf-8")
    code, _, err = command("report", runs / "chains", "-o", runs / "x.html")
    assert code == 0
    assert "without what needs the model, since the model can't be loaded" in err
    shutil.rmtree(runs / "chains")
    assert command("report", runs / "chains", "-o", runs / "x.html")[0] == 2


# Notebooks -----------------------------------------------------------------------------------------------------


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    cells = [
        nbformat.v4.new_markdown_cell("# A study\n\nSome *text*, a [link](https://example.org)."),
        nbformat.v4.new_code_cell("import pandas as pd\nprint('<b>bold?</b>')\npd.DataFrame({'a': [1.5, 2.5]})"),
        nbformat.v4.new_code_cell("import plotly.graph_objects as go\ngo.Figure(go.Scatter(x=[1, 2], y=[3.5, 4.5]))"),
    ]
    made = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "P"}})
    path = tmp_path / "study.ipynb"
    nbformat.write(made, path)
    return path


@pytest.mark.slow
def test_a_notebook_is_executed_and_written_with_its_figures_and_their_numbers(
    command: Command, notebook: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    before = notebook.read_bytes()
    page = tmp_path / "study.html"
    code, out, err = command("notebook-report", notebook, "-o", page)
    assert (code, out) == (0, f"written: {page}\n"), err
    text = page.read_text("utf-8")
    assert notebook.read_bytes() == before
    assert "<title>A study</title>" in text
    assert "&lt;b&gt;bold?&lt;/b&gt;" in text
    assert "Numbers of: Figure 1 of the notebook" in text
    assert "4.5" in text
    assert text.count("plotly.js v") == 1
    ours = text.partition("<script>")[0]  # plotly's own source holds addresses that it doesn't ask for
    assert not re.findall(r'(?:src|href)="https?:(?!//example\.org)', ours)
    command("notebook-report", notebook, "-o", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_a_notebook_can_be_taken_as_it_is(command: Command, notebook: Path, tmp_path: Path) -> None:
    assert command("notebook-report", notebook, "--no-execute", "-o", tmp_path / "n.html", "--title", "Mine")[0] == 0
    text = (tmp_path / "n.html").read_text("utf-8")
    assert "<title>Mine</title>" in text
    assert "plotly.js v" not in text
    assert command("notebook-report", notebook, "--no-execute", "-o", tmp_path / "n.md")[0] == 0
    assert (tmp_path / "n.md").read_text("utf-8").startswith("# A study")


@pytest.mark.slow
def test_a_cell_that_raises_is_an_error_unless_errors_are_allowed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    path = tmp_path / "bad.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), path)
    code, _, err = command("notebook-report", path, "-o", tmp_path / "bad.html")
    assert code == 2
    assert "a cell raised ZeroDivisionError" in err
    assert not (tmp_path / "bad.html").exists()
    assert command("notebook-report", path, "--allow-errors", "-o", tmp_path / "bad.html")[0] == 0
    assert "ZeroDivisionError" in (tmp_path / "bad.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("content", "says"), [("no json", "is no notebook"), ("{}", "is no notebook"), (None, "can't be read")]
)
def test_what_is_no_notebook_is_refused(command: Command, tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "x.ipynb"
    if content is not None:
        path.write_text(content)
    code, _, err = command("notebook-report", path, "--no-execute", "-o", tmp_path / "x.html")
    assert code == 2
    assert says in err
