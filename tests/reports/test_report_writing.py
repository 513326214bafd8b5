"""Markdown and files: what is written beside what, and that no text from a run becomes markup there either."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mistune
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report_traces import Page, real_trace, written_carry, written_chains, written_flow, written_trace

import workbench
from workbench.errors import ReportError
from workbench.reports import Report, find_browser
from workbench.reports.markdown import Markdown, escaped
from workbench.reports.printing import _undated

RENDER = mistune.create_markdown(escape=False, plugins=["table", "strikethrough", "url"])
ELEMENTS = {
    "h1", "h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td", "pre", "code", "em", "strong", "ul", "ol", "li",
    "a", "img", "blockquote",
}  # fmt: skip
NASTY = (
    "<script>alert(1)</script> [x](javascript:a) ![y](z) **b** `c` ~~d~~ https://e.org <img src=x> # h\n"
    "- i\n> j\n|k|\n1. l"
)


def rendered(text: str) -> Page:
    """A Markdown text as a reader's program would show it, raw HTML let through."""
    return Page(str(RENDER(text)))


def document(text: str) -> tuple[str, dict[str, bytes]]:
    frame = pd.DataFrame({"a": pd.Series([text], dtype=object)})
    report = Report(f"T {text}").note(text).table(frame, text).trace(written_trace(text)).flow(written_flow(text))
    report.chains(written_chains(text)).carry(written_carry(text))
    made = Markdown("x_files")
    return made.render(report.title, report.blocks), made.files


def check(text: str, files: dict[str, bytes]) -> None:
    page = rendered(text)
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    links = [str(a["href"]) for tag, a in page.elements if tag == "a"]
    pictures = [str(a["src"]) for tag, a in page.elements if tag == "img"]
    assert set(links) | set(pictures) <= set(files)
    text.encode("utf-8", "backslashreplace")


@pytest.mark.parametrize("text", [NASTY, "```\n<b>", "\ud800\x1b[0m\u202e", "a" * 100_000])
def test_what_comes_from_outside_stays_text_in_markdown(text: str) -> None:
    check(*document(text))


@settings(max_examples=15)
@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=30))
@example("<b>")
def test_any_text_at_all_stays_text_in_markdown(text: str) -> None:
    check(*document(text))


@settings(max_examples=150)
@given(st.text("<>&*_`[]()#|~!\\-+=:.1a \n", min_size=1, max_size=20))
def test_escaped_text_on_a_line_is_shown_as_it_is(text: str) -> None:
    line = " ".join(text.split())
    page = Page(f"<p>{RENDER(f'x {escaped(line)} x')}</p>")
    assert {tag for tag, _ in page.elements} <= {"p"}
    assert " ".join(page.text.split()) == f"x {line} x".replace("  ", " ")


def test_markdown_holds_the_numbers_and_the_data_lies_beside_it(tmp_path: Path) -> None:
    model: Any = workbench.load("tiny-llama")
    trace = real_trace(model)
    path = Report("A run").trace(trace, model).save(tmp_path / "new" / "run.md")
    text = path.read_text("utf-8")
    beside = {file.name for file in (tmp_path / "new" / "run_files").iterdir()}
    assert {"r0-tokens.csv", "r0-records.jsonl", "reproduce.json"} <= beside
    assert any(name.endswith(".svg") for name in beside)
    lines = (tmp_path / "new" / "run_files" / "r0-records.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == len(trace)
    page = rendered(text)
    assert [a["src"] for tag, a in page.elements if tag == "img"]
    assert re.search(r"second\\?_thoughts", text)
    for _, attributes in page.having("src"):
        drawing = (tmp_path / "new" / str(attributes["src"])).read_text("utf-8")
        assert drawing.startswith("<svg ")
        assert "<script" not in drawing


def test_an_ending_that_names_no_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"the ending may be \.html, \.md or \.pdf"):
        Report("x").note("y").save(tmp_path / "x.docx")
    assert not list(tmp_path.iterdir())


def test_a_pdf_without_a_browser_names_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("WORKBENCH_BROWSER", raising=False)
    assert find_browser() is None
    with pytest.raises(ReportError, match="none was found here: install Chromium, Chrome or Edge"):
        Report("x").note("y").save(tmp_path / "x.pdf")


def test_dates_of_printing_are_taken_out_without_moving_a_byte() -> None:
    printed = b"1 0 obj <</CreationDate (D:20261130203712+00'00')/ModDate (D:20261130203712Z)>> endobj"
    plain = _undated(printed)
    assert len(plain) == len(printed)
    assert b"2026" not in plain
    assert _undated(plain) == plain
