"""A flow as SVG: a box per question with its answers in it, an arrow from an answer to the question it leads to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..flows import FlowDefinition, layout
from .blocks import number
from .legible import legible
from .svg import cut, drawing

__all__ = ["Way", "flow_drawing"]

BOX_WIDTH, LINE, HEAD = 300, 18, 62
ACROSS, GAP, EDGE = BOX_WIDTH + 80, 26, 4
MOST_WAYS = 12
"""Answers that are written into one box; the table beside the drawing has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One answer of a question and where it leads."""

    question: str
    answer: str
    leads: str
    """In a few words."""
    to: str | None = None
    """The question it leads to, if it is one."""
    probability: float | None = None
    """Mean over the visits that computed it."""
    taken: int | None = None
    """How often it was given; None without a run."""


def flow_drawing(flow: FlowDefinition, ways: Sequence[Way], asked: Mapping[str, int] | None) -> Markup:
    """The drawing, the same for the same flow and run; ``asked`` counts visits by question."""
    own = {name: [way for way in ways if way.question == name] for name in flow.questions}
    heights = {name: HEAD + LINE * min(len(here), MOST_WAYS + 1) + 6.0 for name, here in own.items()}
    places = layout(flow, heights, across=ACROSS, gap=GAP)
    arrows = [arrow for name in places for arrow in _arrows(places, name, own[name])]
    boxes = [
        part
        for name, (x, y) in places.items()
        for part in _box(flow, name, own[name], asked, (x + EDGE, y + EDGE), heights[name])
    ]
    width = max(x for x, _ in places.values()) + BOX_WIDTH + 2 * EDGE
    height = max(y + heights[name] for name, (_, y) in places.items()) + 2 * EDGE
    told = f"Flow {flow.name}: {len(places)} questions; the table has every answer, where it leads and how often."
    return drawing(width, height, told, [*boxes, *arrows])


def _box(
    flow: FlowDefinition,
    name: str,
    ways: Sequence[Way],
    asked: Mapping[str, int] | None,
    corner: tuple[float, float],
    height: float,
) -> Iterator[str]:
    x, y = corner
    yield (
        f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{height:g}" rx="6" fill="currentColor" '
        'fill-opacity=".05" stroke="currentColor" stroke-opacity=".55"/>'
    )
    times = "" if asked is None else f"asked {asked[name]}×"
    yield f'<text x="{x + 10:g}" y="{y + 20:g}" font-weight="600" font-size="12.5">{cut(name, 30)}</text>'
    yield f'<text x="{x + BOX_WIDTH - 10:g}" y="{y + 20:g}" text-anchor="end">{times}</text>'
    prompt = " ".join(legible(flow.questions[name].prompt).split())
    yield f'<text x="{x + 10:g}" y="{y + 38:g}" font-style="italic">{cut(prompt, 50)}</text>'
    yield f'<path d="M{x:g} {y + 47:g}h{BOX_WIDTH}" stroke="currentColor" stroke-opacity=".3"/>'
    for line, way in enumerate(ways[:MOST_WAYS]):
        at = y + HEAD + LINE * line + 2
        yield f'<text x="{x + 10:g}" y="{at:g}">{cut(_told(way), 34)}</text>'
        if way.to is None:
            yield f'<text x="{x + BOX_WIDTH - 10:g}" y="{at:g}" text-anchor="end">→ {cut(way.leads, 22)}</text>'
    if len(ways) > MOST_WAYS:
        at = y + HEAD + LINE * MOST_WAYS + 2
        yield f'<text x="{x + 10:g}" y="{at:g}">and {len(ways) - MOST_WAYS} more</text>'


def _told(way: Way) -> str:
    parts = [way.answer if len(way.answer) <= 16 else f"{way.answer[:15]}…"]
    parts += [] if way.probability is None else [f"p {number(way.probability)}"]
    parts += [] if way.taken is None else [f"given {way.taken}×"]
    return " · ".join(parts)


def _arrows(places: Mapping[str, tuple[float, float]], name: str, ways: Sequence[Way]) -> Iterator[str]:
    """From an answer's line to the left side of the question it leads to; dashed where it leads back."""
    for line, way in enumerate(ways[:MOST_WAYS]):
        if way.to is None or way.to not in places:
            continue
        x, y = places[name][0] + BOX_WIDTH + EDGE, places[name][1] + EDGE + HEAD + LINE * line - 2
        end, down = places[way.to][0] + EDGE, places[way.to][1] + EDGE + 16
        dashed = ' stroke-dasharray="5 4"' if places[way.to][0] <= places[name][0] else ""
        heavy = 2.4 if way.taken else 1.2
        yield (
            f'<path d="M{x:g} {y:g}C{x + 50:g} {y:g} {end - 50:g} {down:g} {end - 7:g} {down:g}" fill="none" '
            f'stroke="currentColor" stroke-opacity=".7" stroke-width="{heavy}"{dashed}/>'
        )
        yield f'<path d="M{end:g} {down:g}l-9 -5v10z"/>'
