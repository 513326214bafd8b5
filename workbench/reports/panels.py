"""Line panels and bars as SVG text: small multiples that a page can hold by the dozen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .blocks import number
from .legible import legible
from .svg import cut, drawing

__all__ = ["Line", "bars", "line_panels"]

PANEL_WIDTH, PANEL_HEIGHT = 210, 138
LEFT, TOP, RIGHT, BOTTOM = 46, 22, 8, 20
BAR_HEIGHT, BAR_WIDTH = 24, 340
NAME_WIDTH = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One panel: a value per x (NaN: none), and what is usual there (lower quartile, median, upper quartile)."""

    title: str
    values: tuple[float, ...]
    usual: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The values of a y axis, from ``low`` to ``high``, spread evenly or by their logarithm."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, values: Sequence[float], *, logarithmic: bool) -> Axis:
        """An axis that holds all of them with a little room."""
        kept = [value for value in values if math.isfinite(value) and (value > 0 or not logarithmic)]
        low, high = (min(kept), max(kept)) if kept else (1.0, 10.0)
        if logarithmic:
            return cls(low=math.log10(low) - 0.05, high=math.log10(high) + 0.05, logarithmic=True)
        room = (high - low) * 0.06 or max(abs(high), 1.0) * 0.06
        return cls(low=low - room, high=high + room, logarithmic=False)

    def share(self, value: float) -> float:
        """Where a value lies, 0 at the bottom to 1 at the top."""
        at = math.log10(max(value, 1e-30)) if self.logarithmic else value
        return min(max((at - self.low) / (self.high - self.low), 0.0), 1.0)

    def value(self, share: float) -> float:
        """The value there, to as many digits as an axis has room for."""
        at = self.low + share * (self.high - self.low)
        return float(f"{10**at if self.logarithmic else at:.2g}")


def line_panels(
    lines: Sequence[Line], xs: Sequence[int], *, alternative: str, logarithmic: bool = True, shared: bool = True
) -> Markup:
    """Small multiples with one y axis (or, if not ``shared``, one each), side by side as far as the page is wide.

    On a logarithmic axis values that are not positive are drawn at its foot.
    """
    values = [[*line.values, *(quantile for band in line.usual for quantile in band)] for line in lines]
    together = Axis.of([value for own in values for value in own], logarithmic=logarithmic)
    axes = [together if shared else Axis.of(own, logarithmic=logarithmic) for own in values]
    panels = Markup("").join(_panel(line, xs, axis) for line, axis in zip(lines, axes, strict=True))
    return Markup('<div class="panels" role="img" aria-label="{}">{}</div>').format(legible(alternative), panels)


def _panel(line: Line, xs: Sequence[int], axis: Axis) -> Markup:
    def x(value: int) -> float:
        return LEFT + (value - xs[0]) / max(xs[-1] - xs[0], 1) * (PANEL_WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return PANEL_HEIGHT - BOTTOM - axis.share(value) * (PANEL_HEIGHT - TOP - BOTTOM)

    def points(values: Sequence[float]) -> list[str]:
        return [f"{x(at):.5g},{y(value):.5g}" for at, value in zip(xs, values, strict=True) if not math.isnan(value)]

    body = [f'<text x="{LEFT}" y="13" font-weight="600">{cut(line.title, 28)}</text>', _axes(xs, x, y, axis)]
    if line.usual:
        lower, middle, upper = (points(values) for values in zip(*line.usual, strict=True))
        outline = " ".join([*upper, *reversed(lower)])
        body.append(f'<polygon points="{outline}" fill="currentColor" fill-opacity=".13"/>')
        body.append(
            f'<polyline points="{" ".join(middle)}" fill="none" stroke="currentColor" stroke-opacity=".6" '
            'stroke-dasharray="3 3"/>'
        )
    drawn = points(line.values)
    if len(drawn) == 1:
        drawn *= 2  # a line of one point is nothing to see; its round ends are
    body.append(
        f'<polyline class="line" points="{" ".join(drawn)}" fill="none" stroke="#c4561a" '
        'stroke-width="1.8" stroke-linejoin="round" stroke-linecap="round"/>'
    )
    return Markup(
        '<svg width="{w}" height="{h}" viewBox="0 0 {w} {h}" aria-hidden="true" font-size="10.5" '
        'font-family="system-ui, sans-serif" fill="currentColor">{body}</svg>'
    ).format(w=PANEL_WIDTH, h=PANEL_HEIGHT, body=Markup("".join(body)))


def _axes(xs: Sequence[int], x: Callable[[int], float], y: Callable[[float], float], axis: Axis) -> str:
    """The frame of a panel: three values up; first, middle and last along."""
    bottom = PANEL_HEIGHT - BOTTOM
    frame = f'd="M{LEFT} {TOP}V{bottom}H{PANEL_WIDTH - RIGHT}" fill="none"'
    found = [f'<path {frame} stroke="currentColor" stroke-opacity=".5"/>']
    for value in dict.fromkeys(axis.value(share) for share in (0.08, 0.5, 0.92)):
        found.append(f'<text x="{LEFT - 5}" y="{y(value) + 3.5:.5g}" text-anchor="end">{value:g}</text>')
        found.append(
            f'<path d="M{LEFT} {y(value):.5g}H{PANEL_WIDTH - RIGHT}" stroke="currentColor" stroke-opacity=".12"/>'
        )
    for at in dict.fromkeys((xs[0], xs[len(xs) // 2], xs[-1])):
        found.append(f'<text x="{x(at):.5g}" y="{PANEL_HEIGHT - 6}" text-anchor="middle">{at}</text>')
    return "".join(found)


# Bars --------------------------------------------------------------------------------------------------------


def bars(
    names: Sequence[str],
    values: Sequence[float],
    *,
    alternative: str,
    intervals: Sequence[tuple[float, float]] | None = None,
    most: float | None = None,
) -> Markup:
    """Horizontal bars of values of 0 or more (NaN: none), with an interval over each where there are some.

    ``most`` is the value of a bar of full length, by default the largest.
    """
    ends = [high for _, high in intervals or ()]
    longest = most or max([value for value in (*values, *ends) if math.isfinite(value)], default=0.0) or 1.0
    parts = list(_bar_rows(names, values, intervals, longest))
    return drawing(NAME_WIDTH + BAR_WIDTH + 70, BAR_HEIGHT * len(names) + 4, alternative, parts)


def _bar_rows(
    names: Sequence[str],
    values: Sequence[float],
    intervals: Sequence[tuple[float, float]] | None,
    longest: float,
) -> Iterator[str]:
    def along(value: float) -> float:
        return NAME_WIDTH + value / longest * BAR_WIDTH

    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        top = row * BAR_HEIGHT
        yield f'<text x="{NAME_WIDTH - 8}" y="{top + 16}" text-anchor="end">{cut(name, 40)}</text>'
        if not math.isfinite(value):
            yield f'<text x="{NAME_WIDTH + 6}" y="{top + 16}">–</text>'
            continue
        size = along(value) - NAME_WIDTH
        where = f'x="{NAME_WIDTH}" y="{top + 5}" width="{size:.5g}" height="{BAR_HEIGHT - 9}"'
        yield f'<rect class="bar" {where} fill="#3a8ac2"/>'
        end = value
        if intervals is not None:
            low, end = intervals[row][0], max(intervals[row][1], value)
            middle = top + BAR_HEIGHT / 2 + 0.5
            path = f"M{along(low):.5g} {middle - 4}v8m0 -4H{along(intervals[row][1]):.5g}m0 -4v8"
            yield f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.4"/>'
        yield f'<text x="{along(end) + 6:.5g}" y="{top + 16}">{number(value)}</text>'
