"""No text, whoever wrote it, becomes markup, and none of it hides."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report_traces import Page, written_carry, written_chains, written_flow, written_trace

from workbench.reports import Report
from workbench.reports.legible import label, label_html, legible

NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><b>bold</b>",
    "</title></style></script><!-- ",
    "\x1b[31mred\x1b[0m \x00\x07\x7f\x9b",
    "\u202eevil\u202c \u2066x\u2069 \u200bzero\ufeff \U000e0041",
    "\ud800 lone \udfff",
    "{{ 7*7 }}{% raw %}",
    "=HYPERLINK(1)\r\n%0A%22%27#&amp;&lt;",
    "é\u0301\u0301 \u0301 שלום العربية",
    "]]>\u2028\u2029\ufffe",
)
ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "h1", "h2", "h3", "nav", "ul", "ol", "li", "main",
    "div", "p", "strong", "b", "i", "dl", "dt", "dd", "pre", "code", "table", "caption", "thead", "tbody", "tr", "th",
    "td", "details", "summary", "figure", "figcaption", "span", "del", "br", "small", "footer", "svg", "g", "path",
    "rect", "text", "polyline", "polygon",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "href", "id", "aria-label", "aria-hidden", "role",
    "tabindex", "scope", "title", "download", "xmlns", "width", "height", "viewbox", "font-size", "font-family", "fill",
    "transform", "d", "x", "y", "text-anchor", "points", "stroke", "stroke-opacity", "stroke-width", "fill-opacity",
    "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "font-weight", "font-style", "rx",
}  # fmt: skip
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def document(text: str) -> str:
    columns = pd.Index([text, "n"], dtype=object)  # pandas' own string type refuses lone surrogates
    frame = pd.DataFrame([[text, 1.5], ["b", 2.5]], columns=columns, dtype=object)
    frame.index = pd.Index([text, "x"], name=text, dtype=object)
    report = Report(f"T {text}").note(text).note(f"# {text}\n\n- {text}\n\n```\n{text}\n```\n**{text}** `{text}`")
    report.table(frame, text).trace(written_trace(text)).compare(written_trace(text), written_trace("b"), (text, "b"))
    report.flow(written_flow(text)).chains(written_chains(text))
    return report.carry(written_carry(text)).html()


def check(html: str) -> Page:
    page = Page(html)
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert {name for _, attributes in page.elements for name in attributes} <= ATTRIBUTES
    links = [str(attributes["href"]) for _, attributes in page.having("href")]
    assert all(re.match(r"#\w+$|data:(text/csv|application/json(l)?);charset=utf-8,", link) for link in links)
    assert not UNSEEN.search(html)
    html.encode()
    return page


@pytest.mark.parametrize("text", NASTY)
def test_what_comes_from_outside_stays_text(text: str) -> None:
    plain = Page(document("plain"))
    page = check(document(text))
    kinds = ("h1", "h2", "table", "figure", "details", "svg", "dl")
    assert [t for t, _ in page.elements if t in kinds] == [t for t, _ in plain.elements if t in kinds]


@settings(max_examples=25)
@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=30))
@example("0\n\n# x")
@example("`**`**` ```")
def test_any_text_at_all_stays_text(text: str) -> None:
    check(document(text))


def test_hostile_text_is_there_to_be_seen() -> None:
    page = check(document("<script>alert(1)</script> \x1b[31m \u202e \ud800"))
    assert "<script>alert(1)</script> ␛[31m <U+202E> <U+D800>" in page.text


def test_a_hundred_thousand_characters_are_counted_not_drawn() -> None:
    page = check(document("a" * 100_000))
    assert "(+80,000 characters)" in page.text
    assert max(len(str(a["title"])) for _, a in page.having("title")) < 100_200
    assert "… (+99,952 characters)" in page.text


@given(st.text(st.characters(exclude_categories=())))
def test_legible_text_holds_nothing_invisible(text: str) -> None:
    assert not UNSEEN.search(legible(text))
    assert legible(legible(text)) == legible(text)
    assert not UNSEEN.search(label(text))
    assert " " not in label(text).replace("… (+", "").replace(" characters)", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "·the"),
        ("\n\t", "↵⇥"),
        ("\u00a0", "<U+00A0>"),
        ("\x1b[0m", "␛[0m"),
        ("\u202eabc", "<U+202E>abc"),
        ("\ud83d", "<U+D83D>"),
        ("\u0301", "◌\u0301"),
        ("", "∅"),
        ("é漢🦊", "é漢🦊"),
    ],
)
def test_tokens_have_legible_labels(text: str, shown: str) -> None:
    assert label(text) == shown


def test_a_mark_can_not_be_forged() -> None:
    assert label_html(" ") == "<i>·</i>"
    assert label_html("·") == "·"
    assert label_html("<i>·</i>") == "&lt;i&gt;·&lt;/i&gt;"


def test_joined_emoji_and_line_breaks_stay_whole_in_running_text() -> None:
    assert legible("👩\u200d🔬\n\tend") == "👩\u200d🔬\n\tend"


def test_a_mod_name_can_not_leave_its_attribute() -> None:
    name: Any = "x' onmouseover='alert(1)"
    page = check(document(name))
    assert not page.having("onmouseover")
