"""The built documentation stands by itself: links lead somewhere, no network is asked, no public name is left out.

``make docs`` builds it, warnings being errors; these tests look at what it built, and build it where it is out of date.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from contents import with_navigation
from mathml import tex2mathml
from rooms import Entry, described, entries, lives_in, public_rooms

ROOT = Path(__file__).resolve().parents[1]

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
"""Attributes whose value a browser fetches by itself."""
STYLE_URL = re.compile(r"""(?:url\(|@import\s+)\s*["']?([^"')\s]+)""")
UNDOCUMENTED: set[str] = set()
"""Public names that still lack a docstring. The list may only shrink."""


class Page(HTMLParser):
    """What a page loads, where it links to, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if LOADING.get(tag) in values and values.get("rel") not in ("canonical", "next", "prev", "index", "search"):
            self.loads.append(values[LOADING[tag]])


def outside(address: str) -> bool:
    """Whether an address leads away from the site: it has a scheme that asks a network, or begins with ``//``."""
    return bool(re.match(r"(?:https?|wss?|ftp):|//", address))


def missing_loads(site: Path) -> Iterator[str]:
    """Yield a sentence for each thing that a page or a style sheet loads from elsewhere, or that is not there."""
    for path in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        text = path.read_text("utf-8")
        loads = Page(text).loads if path.suffix == ".html" else STYLE_URL.findall(text)
        for address in loads:
            if address.startswith(("data:", "#")):
                continue
            if outside(address):
                yield f"{path.relative_to(site)} loads {address}"
            elif not (path.parent / unquote(address.partition("?")[0].partition("#")[0])).exists():
                yield f"{path.relative_to(site)} loads {address}, which is not there"


def broken_links(site: Path) -> Iterator[str]:
    """Yield a sentence for each link inside the site that leads to no page, or to nothing on it."""
    pages = {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    for path, page in sorted(pages.items()):
        for link in page.links:
            if outside(link) or link.startswith("mailto:"):
                continue
            name, _, fragment = unquote(link).partition("#")
            there = (path.parent / name).resolve() if name else path
            if not there.exists():
                yield f"{path.relative_to(site)} links to {link}, which does not exist"
            elif fragment and there in pages and fragment not in pages[there].ids:
                yield f"{path.relative_to(site)} links to {link}; there is no such place"


@pytest.fixture(scope="module")
def site() -> Path:
    if shutil.which("make") is None:
        pytest.fail("the site is built by make, which is not here")
    built = subprocess.run(["make", "-s", "build/docs/built"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return (ROOT / "build" / "docs").resolve()


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    assert list(missing_loads(site)) == []


@pytest.mark.slow
def test_every_link_inside_the_site_leads_somewhere(site: Path) -> None:
    assert list(broken_links(site)) == []


@pytest.mark.slow
def test_the_page_of_a_room_begins_with_a_table_of_its_names(site: Path) -> None:
    for room in ("workbench", *public_rooms()):
        text = (site / "api" / f"{room.removeprefix('workbench.')}.html").read_text("utf-8")
        rows = re.search(r'<table class="[^"]*\bnames\b.*?</table>', text, re.DOTALL)
        assert rows is not None, room
        assert rows[0].count("<tr") == len(entries(room)) + 1, room


@pytest.mark.slow
def test_every_public_name_has_its_entry_on_the_page_of_its_room(site: Path) -> None:
    lost = []
    for room in public_rooms():
        page = site / "api" / f"{room.removeprefix('workbench.')}.html"
        there = Page(page.read_text("utf-8")).ids if page.exists() else set()
        lost += [
            one.name
            for one in entries(room)
            if lives_in(one, room) and one.name not in there and f"module-{one.name}" not in there
        ]
    assert lost == []


def test_every_public_name_has_a_docstring() -> None:
    bare = {one.name for room in public_rooms() for one in entries(room) if lives_in(one, room) and not one.text}
    assert bare <= UNDOCUMENTED, f"no docstring: {', '.join(sorted(bare - UNDOCUMENTED))}"
    assert bare >= UNDOCUMENTED, f"documented by now, take off the list: {', '.join(sorted(UNDOCUMENTED - bare))}"


@cache
def index() -> str:
    return (ROOT / "docs" / "index.md").read_text("utf-8")


def test_every_page_is_in_the_index() -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    listed = {line for block in with_navigation(index()).split("```{toctree}")[1:] for line in block.split("\n")}
    assert pages - listed == {"index"}


def test_the_sections_of_the_index_become_the_navigation() -> None:
    made = with_navigation(
        "# T\n\n[x](a.md)\n\n## One\n\n- [b](b.md), [again](b.md#c)\n- [d](x/d.md)\n\n## Two\n\n[b](b.md)\n"
    )
    assert made.count("{toctree}") == 1
    assert ":caption: One\n\nb\nx/d\n```" in made


def entry(**changes: str) -> Entry:
    return Entry(**{"name": "r.N", "source": "r.m.N", "kind": "data", "text": "", "value": "", **changes})


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("A model. Another sentence.\n\nMore.", "A model."),
        ("Uses :meth:`~a.b.take` and\n:class:`C`.", "Uses ``take`` and ``C``."),
        ("One, e.g. Two, is one.", "One, e.g. Two, is one."),
    ],
)
def test_a_row_of_a_room_says_the_first_sentence(text: str, summary: str) -> None:
    assert entry(text=text).summary == summary


def test_a_constant_is_shown_with_its_value_and_where_it_is_defined() -> None:
    lines = list(described(entry(value="('a',)", text="What it is.")))
    assert lines[0] == ".. py:data:: N"
    assert {"   :value: ('a',)", "   :canonical: r.m.N", "   What it is."} <= set(lines)


def test_formulas_become_mathml() -> None:
    assert tex2mathml(r"\frac{1}{n}").startswith("<math")


@pytest.mark.parametrize(
    ("html", "says"),
    [
        ('<a href="no.html">x</a>', "does not exist"),
        ('<a href="#no">x</a>', "no such place"),
        ('<p id="yes"></p><a href="#yes">x</a>', None),
        ('<a href="https://example.org/">x</a>', None),
    ],
)
def test_a_link_of_the_site_that_leads_nowhere_is_reported(tmp_path: Path, html: str, says: str | None) -> None:
    (tmp_path / "index.html").write_text(html, "utf-8")
    faults = list(broken_links(tmp_path))
    assert (says is None and not faults) or (says is not None and says in faults[0])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.html", '<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js"),
        ("a.html", '<link rel="stylesheet" href="//example.org/x.css">', "loads //example.org/x.css"),
        ("a.html", '<img src="no.png">', "is not there"),
        ("a.css", "@import 'https://example.org/font.css';", "loads https://example.org/font.css"),
        ("a.css", "p { background: url(data:image/png;base64,AA) }", None),
        ("a.html", '<link rel="canonical" href="https://example.org/">', None),
    ],
)
def test_a_page_that_asks_a_network_is_reported(tmp_path: Path, name: str, text: str, says: str | None) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    faults = list(missing_loads(tmp_path))
    assert (says is None and not faults) or (says is not None and says in faults[0])
