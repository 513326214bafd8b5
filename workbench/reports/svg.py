"""Small drawings as SVG text: scales, heat strips and what drawings share; no script, same input same bytes.

Every label is made legible and escaped here; axes and text take the colour of the page (``currentColor``).
Cells are quantised to nine colours and the legend says where the colours change, so a cell can be read
back to an interval; the exact numbers are in the table beside each chart.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from .legible import legible

__all__ = [
    "COSINE",
    "DIVERGING",
    "PROBABILITY",
    "SEQUENTIAL",
    "Scale",
    "cut",
    "diverging",
    "drawing",
    "heat_strip",
    "sequential",
]

# Cividis (Nuñez, Anderton, Renslow 2018), made to look alike with and without colour blindness.
SEQUENTIAL = (
    "#00224e", "#163a6c", "#3b4f6d", "#575d6d", "#6f7073", "#989178", "#bdae6d", "#dfcb5a", "#fee838",
)  # fmt: skip
# Blue to orange: told apart by every kind of colour blindness, light in the middle.
DIVERGING = (
    "#0b559f", "#3a8ac2", "#7db8da", "#c2dbec", "#efedea", "#fbd5ae", "#f0a35e", "#cf6d22", "#8f3f06",
)  # fmt: skip
MISSING = "#9a9a9a"
STRIP_WIDTH = 860
GUTTER = 44
LABEL_CHARACTERS = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Nine colours and the eight values between them, with what the legend writes at those."""

    title: str
    edges: tuple[float, ...]
    marks: tuple[str, ...]
    colours: tuple[str, ...]
    prefix: str
    """Of the CSS classes ``{prefix}0`` to ``{prefix}8``, by which a page may replace the colours."""

    def bin(self, value: float) -> int:
        return bisect_right(self.edges, value)


_P_EDGES = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.9)
PROBABILITY = Scale(
    title="probability",
    edges=_P_EDGES,
    marks=tuple(f"{edge:g}" for edge in _P_EDGES),
    colours=SEQUENTIAL,
    prefix="s",
)

_COSINE_EDGES = (-0.5, 0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
COSINE = Scale(
    title="cosine",
    edges=_COSINE_EDGES,
    marks=tuple(f"{edge:g}" for edge in _COSINE_EDGES),
    colours=SEQUENTIAL,
    prefix="s",
)


def diverging(values: Sequence[float], title: str) -> Scale:
    """A scale for base-2 logarithms of ratios, symmetric around zero and wide enough for nearly all."""
    sizes = sorted(abs(value) for value in values if math.isfinite(value))
    typical = sizes[min(int(len(sizes) * 0.98), len(sizes) - 1)] if sizes else 0.0
    limit = next((nice for nice in (0.1, 0.25, 0.5, 1, 2, 4, 8) if nice >= typical), 16)
    edges = tuple(limit * (2 * i / 9 - 1) for i in range(1, 9))
    return Scale(
        title=title, edges=edges, marks=tuple(f"×{2**edge:.3g}" for edge in edges), colours=DIVERGING, prefix="d"
    )


def sequential(values: Sequence[float], title: str) -> Scale:
    """A scale for amounts of zero or more: eight edges, each double the one below, up to about the largest."""
    largest = max((value for value in values if math.isfinite(value)), default=0.0)
    top = 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0
    edges = tuple(top / 2 ** (8 - i) for i in range(8))
    return Scale(title=title, edges=edges, marks=tuple(f"{edge:.2g}" for edge in edges), colours=SEQUENTIAL, prefix="s")


# Heat strips -----------------------------------------------------------------------------------------------


def heat_strip(
    values: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    scale: Scale,
    alternative: str,
    texts: Sequence[Sequence[str]] | None = None,
) -> Markup:
    """Cells ``values[row][column]`` (NaN: none), the first row at the bottom; ``texts`` are written into them.

    ``alternative`` is what a screen reader says instead.
    """
    wide, high = (104, 24) if texts else (_fit(len(columns)), 14 if len(rows) <= 16 else 9)
    width, height = GUTTER + wide * len(columns) + 4, high * len(rows) + 22
    # Names of columns stand above where cells are read one by one, ticks below where they are a picture.
    shift = 20 if texts else 0
    parts = [
        f'<g transform="translate(0 {shift})">',
        _row_labels(rows, high),
        _cells(values, scale, wide, high),
        _texts(values, texts, scale, wide, high) if texts else "",
        "</g>",
        _column_labels(columns, wide, 13 if texts else high * len(rows) + 15, every=bool(texts)),
        _legend(scale, height + 10),
    ]
    # Few columns make a strip narrower than its legend.
    return drawing(max(width, GUTTER + 480), height + 50, alternative, parts)


def _fit(columns: int) -> float:
    """Width of a cell, so that a strip fills the page but a short one does not look like bricks."""
    return round(min(max((STRIP_WIDTH - GUTTER) / max(columns, 1), 2), 22), 2)


def drawing(width: float, height: float, alternative: str, parts: Sequence[str]) -> Markup:
    return Markup(
        '<svg class="chart" xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
        'role="img" aria-label="{alternative}" font-size="11" font-family="system-ui, sans-serif" '
        'fill="currentColor">{body}</svg>'
    ).format(w=f"{width:g}", h=f"{height:g}", alternative=legible(alternative), body=Markup("".join(parts)))


def _cells(values: Sequence[Sequence[float]], scale: Scale, wide: float, high: float) -> str:
    """One path per colour, neighbours of one colour joined: small, however many cells there are."""
    paths: dict[int, list[str]] = {}
    for row, line in enumerate(values):
        top = high * (len(values) - 1 - row)
        start = 0
        for column in range(1, len(line) + 1):
            bin_here = _bin(line[start], scale)
            if column == len(line) or _bin(line[column], scale) != bin_here:
                span = (column - start) * wide
                move = f"M{GUTTER + start * wide:.6g} {top:g}h{span:.6g}v{high:g}h-{span:.6g}z"
                paths.setdefault(bin_here, []).append(move)
                start = column
    return "".join(
        f'<path class="{scale.prefix}{index}" fill="{scale.colours[index]}" d="{"".join(moves)}"/>'
        if index >= 0
        else f'<path class="none" fill="{MISSING}" fill-opacity=".35" d="{"".join(moves)}"/>'
        for index, moves in sorted(paths.items())
    )


def _bin(value: float, scale: Scale) -> int:
    return -1 if math.isnan(value) else scale.bin(value)


def _texts(
    values: Sequence[Sequence[float]], texts: Sequence[Sequence[str]], scale: Scale, wide: float, high: float
) -> str:
    """What stands in the cells, black or white by which can be read on the cell's colour."""
    found = []
    for row, line in enumerate(texts):
        middle = high * (len(texts) - row) - high / 2 + 4
        for column, text in enumerate(line):
            index = _bin(values[row][column], scale)
            ink = "#111" if index < 0 or index >= len(scale.colours) - 4 else "#fff"
            x = GUTTER + wide * (column + 0.5)
            found.append(f'<text x="{x:g}" y="{middle:g}" text-anchor="middle" fill="{ink}">{cut(text)}</text>')
    return "".join(found)


def cut(text: str, most: int = LABEL_CHARACTERS) -> Markup:
    """Text that fits into a cell, safe whatever it is."""
    shown = legible(text[: most + 1])
    return escape(shown if len(shown) <= most else shown[: most - 1] + "…")


def _row_labels(rows: Sequence[str], high: float) -> str:
    every = max(1, math.ceil(13 / high), math.ceil(len(rows) / 16) if high < 13 else 1)
    return "".join(
        f'<text x="{GUTTER - 6}" y="{high * (len(rows) - row) - high / 2 + 4:g}" text-anchor="end">'
        f"{cut(rows[row])}</text>"
        for row in range(0, len(rows), every)
    )


def _column_labels(columns: Sequence[str], wide: float, y: float, *, every: bool) -> str:
    step = 1 if every else _nice_step(len(columns), max(1, int(len(columns) * wide / 64)))
    return "".join(
        f'<text x="{GUTTER + wide * (column + 0.5):.6g}" y="{y:g}" text-anchor="middle">{cut(columns[column])}</text>'
        for column in range(0, len(columns), step)
    )


def _nice_step(count: int, places: int) -> int:
    """A step of 1, 2 or 5 times a power of ten with which ``count`` things need at most ``places`` labels."""
    steps = (int(digit + "0" * power) for power in range(9) for digit in "125")
    return next(step for step in steps if count <= places * step)


def _legend(scale: Scale, y: float) -> str:
    wide = 44
    swatches = "".join(
        f'<rect class="{scale.prefix}{index}" x="{GUTTER + index * wide}" y="{y + 14:g}" width="{wide}" height="10" '
        f'fill="{colour}"/>'
        for index, colour in enumerate(scale.colours)
    )
    marks = "".join(
        f'<text x="{GUTTER + (index + 1) * wide}" y="{y + 36:g}" text-anchor="middle" font-size="10">{cut(mark)}</text>'
        for index, mark in enumerate(scale.marks)
    )
    return f'<text x="{GUTTER}" y="{y + 8:g}">{cut(scale.title, 60)}</text>{swatches}{marks}'
