"""The flow as HTML that needs no script and no kernel: the drawing as SVG, and all of it as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from workbench.reports import legible

from ..base import table_html
from .view import BOX_WIDTH, HEAD, ROW, row_place

__all__ = ["COLUMNS", "flow_html", "flow_rows"]

COLUMNS = ("question", "prompt", "answers", "erased", "answer", "leads to", "findings")
MOST_DRAWN = 60
"""Questions up to which there is a drawing beside the table."""
LETTER = 7.2
"""Width of a letter, pixels, as a bound."""


def flow_html(name: str, boxes: Mapping[str, Mapping[str, Any]]) -> str:
    """The drawing and the table; every text is escaped."""
    shown = escape(legible(name))
    if not boxes:
        return f"<p><b>Flow {shown}</b>: no question yet. With a live kernel, press Add question in the window.</p>"
    title = f"<p><b>Flow {shown}</b>, {len(boxes)} question{'' if len(boxes) == 1 else 's'}</p>"
    drawing = _svg(boxes) if len(boxes) <= MOST_DRAWN else ""
    return title + drawing + table_html("Questions and where their answers lead", COLUMNS, flow_rows(boxes))


def flow_rows(boxes: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """One row per answer (or other way on) of each question."""
    rows = []
    for box in boxes.values():
        data = box["data"]
        findings = "; ".join(each["message"] for each in box["problems"])
        about = [box["name"], data["prompt"], box["facts"], data["erase_mode"]]
        for number, row in enumerate(box["rows"]):
            first = [*about, row["label"], row["told"] or "otherwise", findings]
            rows.append([legible(cell) for cell in (first if not number else ["", "", "", "", *first[4:6], ""])])
    return rows


def _svg(boxes: Mapping[str, Mapping[str, Any]]) -> str:
    left = min(box["place"][0] for box in boxes.values()) - 20
    top = min(box["place"][1] for box in boxes.values()) - 20
    wide = max(box["place"][0] for box in boxes.values()) + BOX_WIDTH + 40 - left
    tall = max(box["place"][1] + box["height"] for box in boxes.values()) + 20 - top
    parts = [*_arrows(boxes), *(part for box in boxes.values() for part in _box(box))]
    return (
        '<svg role="img" aria-label="Drawing of the flow; the table below has all of it" '
        f'viewBox="{left:.0f} {top:.0f} {wide:.0f} {tall:.0f}" style="max-width:100%;height:auto;width:{wide:.0f}px" '
        f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>'
    )


def _arrows(boxes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for box in boxes.values():
        for number, row in enumerate(box["rows"]):
            if row["to"] is None:
                continue
            x, y = row_place(box, number)
            to_x, to_y = boxes[row["to"]]["place"]
            bend = max(abs(to_x - x) / 2, 40)
            yield (
                f'<path d="M{x:.0f} {y:.0f}C{x + bend:.0f} {y:.0f} {to_x - bend:.0f} {to_y + 16:.0f} {to_x:.0f} '
                f'{to_y + 16:.0f}" fill="none" stroke="#76757a" stroke-width="1.5"/>'
                f'<circle cx="{to_x:.0f}" cy="{to_y + 16:.0f}" r="3.5" fill="#76757a"/>'
            )


def _box(box: Mapping[str, Any]) -> Iterator[str]:
    x, y = box["place"]
    yield (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{box["height"]}" rx="6" fill="#fff" '
        'stroke="#56565c"/>'
    )
    lines: Sequence[tuple[float, str, str]] = [
        (20, box["name"], 'font-weight="bold"'),
        (42, box["data"]["prompt"], ""),
        (72, f"{box['facts']} · erase {box['data']['erase_mode']}", ""),
        *((HEAD + ROW * number + 15, _line(row), "") for number, row in enumerate(box["rows"][:8])),
    ]
    for down, text, style in lines:
        yield f'<text x="{x + 9:.0f}" y="{y + down:.0f}" fill="#1d1d1f" {style}>{escape(_cut(text))}</text>'


def _line(row: Mapping[str, Any]) -> str:
    return f"{row['label']} → {row['told']}" if row["told"] else f"{row['label']}"


def _cut(text: str) -> str:
    flat = " ".join(legible(text).split())
    most = int((BOX_WIDTH - 18) / LETTER)
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
