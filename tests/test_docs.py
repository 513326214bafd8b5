"""The documents tell the truth: their code runs, their links lead somewhere, their tables are complete."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from named_tests import defined

from workbench.engine import ActionBuilder
from workbench.engine.actions import ALLOWED, ANY, NAMES
from workbench.mods import MODS
from workbench.trace import Record, TokenLife

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [path for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))) if path.is_file()]
LINKED = (*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "data" / "README.md")

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield each Python block that is to run, with the line that it begins at, counted from 0."""
    for found in FENCE.finditer(text):
        if found[1].split() == ["python"]:
            yield text.count("\n", 0, found.start(2)), found[2]


def needs_the_real_model(text: str) -> bool:
    """Whether some block loads a model that has to be fetched: ``load()`` or ``load("smollm2…")``."""
    return any(re.search(r"""\bload\(\s*(?:\)|["'](?:smollm2|gemma))""", code) for _, code in blocks(text))


def anchor(heading: str) -> str:
    """A heading as a link to it spells it."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def faulty_links(path: Path, text: str) -> Iterator[str]:
    """Yield a sentence for each relative link that leads to no file, or to no heading of a page."""
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, fragment = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if name and not there.exists():
            yield f"{path.name} links to {target}, which does not exist"
        elif fragment and there.suffix == ".md":
            page = text if there == path else there.read_text("utf-8")
            if fragment not in map(anchor, HEADING.findall(FENCE.sub("", page))):
                yield f"{path.name} links to {target}; {there.name} has no such heading"


def with_marks(path: Path) -> object:
    marks = [pytest.mark.real, pytest.mark.slow] if needs_the_real_model(path.read_text("utf-8")) else []
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [with_marks(path) for path in PAGES])
def test_a_pages_code_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": f"page_{path.stem}"}
    for line, code in blocks(path.read_text("utf-8")):
        exec(compile("\n" * line + code, f"<{path.name}>", "exec"), namespace)


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in LINKED])
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    assert list(faulty_links(path, path.read_text("utf-8"))) == []


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def table_rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of every table row."""
    for line in FENCE.sub("", text).splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_test_that_a_page_names_exists(path: Path) -> None:
    for file, function in re.findall(r"`(tests/[\w/]+\.py)(?:::([\w:]+))?", path.read_text("utf-8")):
        assert (ROOT / file).is_file(), f"{file} is not there"
        assert not function or function in defined(file), f"{file}::{function} is not there"


@pytest.mark.parametrize("name", sorted(MODS))
def test_every_ready_mod_has_its_example(name: str) -> None:
    text = page("mods.md")
    assert f"**`{name}(" in text
    assert any(f"{name}(" in code for _, code in blocks(text))


def test_the_table_of_actions_is_the_one_that_is_enforced() -> None:
    told = {
        match[1]: cells[1:5]
        for cells in table_rows(page("mods.md"))
        if (match := re.match(r"`(\w+)\(", cells[0])) and len(cells) == 6
    }
    events = {NAMES[kind]: ["y" if event in allowed else "" for event in ANY] for kind, allowed in ALLOWED.items()}
    assert told == {**events, "noop": ["y"] * len(ANY)}
    assert set(told) | {"adjusted_logits"} == {
        name for name, made in vars(ActionBuilder).items() if not name.startswith("_") and callable(made)
    }


@pytest.mark.parametrize("kind", [Record, TokenLife])
def test_every_field_of_a_trace_is_explained(kind: type) -> None:
    explained = {
        word for cells in table_rows(page("traces_and_reports.md")) for word in re.findall(r"`(\w+)`", cells[0])
    }
    assert {field.name for field in fields(kind)} <= explained


def test_only_plain_python_blocks_run() -> None:
    text = "```python\na = 1\n```\n```python no-run\nb\n```\n```\nc\n```\n\n```python\nd = 2\n```\n"
    assert list(blocks(text)) == [(1, "a = 1\n"), (11, "d = 2\n")]


@pytest.mark.parametrize(
    ("code", "real"),
    [
        ('load("smollm2-135m-instruct")', True),
        ("load()", True),
        ('load("tiny-llama")', False),
        ('cached("gemma-3-270m")', False),
    ],
)
def test_a_page_is_real_if_its_code_loads_a_real_model(code: str, real: bool) -> None:
    assert needs_the_real_model(f"smollm2 is small.\n```python\n{code}\n```\n") is real
    assert not needs_the_real_model(f"```python no-run\n{code}\n```\n")


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("[x](nowhere.md)", "which does not exist"),
        ("[x](#nothing)", "has no such heading"),
        ("[x](#a-b-c)", None),
        ("[x](https://example.org/y)", None),
    ],
)
def test_a_link_that_leads_nowhere_is_reported(link: str, says: str | None) -> None:
    faults = list(faulty_links(DOCS / "page.md", f"# `A` b, c\n{link}\n"))
    assert (says is None and not faults) or (says is not None and says in faults[0])
