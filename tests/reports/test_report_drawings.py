"""Drawings say what the numbers say, in colours that can be told apart and text that can be read."""

from __future__ import annotations

import math
import re
from importlib.resources import files
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from workbench.reports.panels import Line, line_panels
from workbench.reports.svg import DIVERGING, PROBABILITY, SEQUENTIAL, diverging, heat_strip

SVG = "{http://www.w3.org/2000/svg}"


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    digits = colour.removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def themes() -> list[dict[str, str]]:
    """The variables of the style sheet: light, dark over light, print over light."""
    css = (files("workbench.reports") / "style.css").read_text("utf-8")
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    light, *others = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]+);", block)) for block in blocks)
    return [light, *({**light, **other} for other in others)]


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark", "print"])
def test_text_can_be_read_in_every_theme(theme: dict[str, str]) -> None:
    pairs = [(ink, ground) for ink in ("ink", "soft", "link", "gone") for ground in ("paper", "sheet")]
    pairs += [("warn", "warn-paper"), *(("tok", f"p{i}") for i in range(6)), ("tok", "sheet"), ("mark", "sheet")]
    pairs += [("mark", f"p{i}") for i in range(3)]
    poor = {pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in pairs}
    assert {pair: ratio for pair, ratio in poor.items() if ratio < 4.5} == {}


def strip(values: list[list[float]], **options: object) -> ElementTree.Element:
    rows, columns = [str(i) for i in range(len(values))], [f"c{i}" for i in range(len(values[0]))]
    settings = {"rows": rows, "columns": columns, "scale": PROBABILITY, "alternative": "a picture", **options}
    return ElementTree.fromstring(heat_strip(values, **settings))  # type: ignore[arg-type]


def area_by_class(svg: ElementTree.Element) -> dict[str, int]:
    """How many unit cells each colour covers."""
    found = {}
    for path in svg.iter(f"{SVG}path"):
        spans = re.findall(r"h([\d.]+)v([\d.]+)h-", path.attrib["d"])
        found[path.attrib["class"]] = round(sum(float(w) for w, _ in spans))
    return found


def test_every_cell_has_the_colour_of_its_interval() -> None:
    values = [[0.00001, 0.02, 0.95], [0.95, 0.95, math.nan]]
    found = area_by_class(strip(values))
    unit = found["s0"]
    assert {name: area / unit for name, area in found.items()} == {"s0": 1, "s3": 1, "s8": 3, "none": 1}


def test_words_in_cells_can_be_read() -> None:
    values = [[(*PROBABILITY.edges, 1.0)[i] * 0.99 for i in range(9)]]
    svg = strip(values, texts=[["word"] * 9])
    inks = [text.attrib["fill"] for text in svg.iter(f"{SVG}text") if text.text == "word"]
    assert [contrast(ink, colour) >= 4.5 for ink, colour in zip(inks, SEQUENTIAL, strict=True)] == [True] * 9


def test_the_legend_says_where_colours_change() -> None:
    texts = [text.text for text in strip([[0.5]]).iter(f"{SVG}text")]
    assert [f"{edge:g}" for edge in PROBABILITY.edges] == texts[-8:]


def test_a_diverging_scale_is_symmetric_around_zero() -> None:
    scale = diverging([-0.4, 0.1, 0.3], "ratio")
    assert scale.bin(0.0) == 4
    assert [scale.bin(-v) for v in (0.1, 0.2, 0.4, 9)] == [8 - scale.bin(v) for v in (0.1, 0.2, 0.4, 9)]
    assert len({scale.bin(v / 10) for v in range(-6, 7)}) == 9
    assert all(luminance(a) < luminance(b) for a, b in pairwise(DIVERGING[:5]))
    assert all(luminance(a) > luminance(b) for a, b in pairwise(DIVERGING[4:]))
    assert all(luminance(a) < luminance(b) for a, b in pairwise(SEQUENTIAL))


@pytest.mark.parametrize("text", ["<script>", "\x1b[31m", "\u202eevil", "\ud800", '"/><b>', "a" * 100_000])
def test_hostile_labels_stay_text(text: str) -> None:
    svg = strip([[0.1, 0.2]], texts=[[text, text]], columns=[text, text], rows=[text], alternative=text[:50])
    assert {node.tag for node in svg.iter()} <= {f"{SVG}{tag}" for tag in ("svg", "g", "path", "text", "rect")}
    assert max(len(node.text or "") for node in svg.iter()) < 60


def test_lines_go_up_where_the_values_do() -> None:
    lines = [
        Line(title="<b>", values=(1.0, 10.0, 100.0), usual=((1, 2, 3),) * 3),
        Line(title="flat", values=(5.0,) * 3),
    ]
    page = ElementTree.fromstring(line_panels(lines, (0, 1, 2), alternative="norms"))
    drawn = [node for node in page.iter("polyline") if node.get("class") == "line"]
    heights = [[float(point.split(",")[1]) for point in node.attrib["points"].split()] for node in drawn]
    assert heights[0][0] > heights[0][1] > heights[0][2]
    assert heights[0][0] - heights[0][1] == pytest.approx(heights[0][1] - heights[0][2], abs=0.1)
    assert len(set(heights[1])) == 1
    assert page.attrib == {"class": "panels", "role": "img", "aria-label": "norms"}
