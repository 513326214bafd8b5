"""Blocks to one HTML document that asks for nothing from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import count
from typing import Any

import jinja2
from markupsafe import Markup

from .blocks import Block, Fold, Heading, Picture, Plot
from .embed import csp_hash, download_link, json_for_script
from .legible import legible, shortened
from .markup import note_html
from .plots import plotly_library

__all__ = ["frame_page", "render", "render_block"]

ENTRY_LENGTH = 120
"""Characters of a heading in the table of contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the table of contents."""

    anchor: str
    text: str
    level: int


def render(title: str, blocks: Sequence[Block]) -> str:
    """The whole document. Same title and blocks, same text."""
    everything = list(_walk(blocks))
    style = _resource("style.css")
    scripts = [plotly_library(), _resource("plots.js")] if any(isinstance(b, Plot) for b in everything) else []
    anchors, figures = count(1), count(1)
    numbers = {
        id(block): next(figures if isinstance(block, (Picture, Plot)) else anchors)
        for block in everything
        if isinstance(block, (Heading, Picture, Plot))
    }
    contents = [
        Entry(anchor=f"s{numbers[id(block)]}", text=shortened(block.text, ENTRY_LENGTH), level=block.level)
        for block in everything
        if isinstance(block, Heading)
    ]
    return (
        _environment()
        .get_template("template.html")
        .render(
            title=title,
            blocks=blocks,
            contents=contents,
            number_of=lambda block: numbers[id(block)],
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(style, scripts),
        )
    )


def render_block(block: Block, number: int) -> Markup:
    """One block as HTML, for a page that is not made of blocks; ``number`` is its figure's or anchor's."""
    macros: Any = _environment().get_template("macros.html").module
    return Markup(macros.block(block, lambda _: number))


def frame_page(title: str, body: Markup, *, with_plots: bool) -> str:
    """A page of ours round a body that was made elsewhere, which may hold styles but no script that runs."""
    style = _resource("style.css") + _resource("notebook.css")
    scripts = [plotly_library(), _resource("plots.js")] if with_plots else []
    allowed = f"; script-src {' '.join(map(csp_hash, scripts))}" if scripts else ""
    return (
        _environment()
        .get_template("notebook.html")
        .render(
            title=title,
            body=body,
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'{allowed}",
        )
    )


def _walk(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Fold):
            yield from _walk(block.blocks)


def _policy(style: str, scripts: Sequence[str]) -> str:
    """Nothing may load, and only our own style and scripts, named by their hashes, may act.

    Plotly writes styles while it draws, so a page with figures has to allow inline ones; scripts stay named.
    """
    styles = "'unsafe-inline'" if scripts else csp_hash(style)
    rules = ["default-src 'none'", f"style-src {styles}", "base-uri 'none'", "form-action 'none'"]
    if scripts:
        rules += [f"script-src {' '.join(map(csp_hash, scripts))}", "img-src data: blob:"]
    return "; ".join(rules)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_legible_unless_ours,
    )
    environment.filters.update(note=note_html, download=download_link, script_json=json_for_script, short=shortened)
    return environment


def _legible_unless_ours(value: Any) -> Any:
    """The one gate: whatever the template prints and did not make itself is text, made legible, then escaped."""
    return value if isinstance(value, Markup) else legible(str(value))


@lru_cache(maxsize=8)
def _resource(name: str) -> str:
    return (files(__package__ or "") / name).read_text("utf-8")
