"""The tokens of a request as a strip of boxes: what stayed, and at its place what was taken back.

Shade says how likely the model itself held a token; who put it there is said by underline and a label.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

from ..trace import History, Record, TokenLife
from .blocks import number
from .legible import label_html, legible
from .words import Words

__all__ = ["Branch", "removed_branches", "token_strip"]

SHADES = (0.9, 0.5, 0.2, 0.05, 0.01)
"""Class ``p0`` is a probability of 0.9 or more, ``p5`` one below 0.01, ``pu`` an unknown one."""
MOST_TOKENS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Tokens that were taken back in one go. ``position`` is where the sequence ended afterwards."""

    position: int
    step: int
    mod: str | None
    lives: tuple[TokenLife, ...]


def removed_branches(records: Iterable[Record], history: History) -> list[Branch]:
    """Each removal of one request with the very tokens that it took, in the order in which they happened."""
    live: list[TokenLife] = []
    branches = []
    added = 0
    for record in records:
        if record.request_id != history.request_id:
            continue
        if record.kind == "added":
            live += history.every[added : added + len(record.tokens)]
            added += len(record.tokens)
        elif record.kind == "removed":
            kept = len(live) - len(record.tokens)
            gone = tuple(live[kept:])
            branches.append(Branch(position=record.position, step=record.step, mod=record.mod, lives=gone))
            del live[kept:]
    return branches


def token_strip(history: History, branches: Sequence[Branch], words: Words, *, most: int = MOST_TOKENS) -> Markup:
    """The strip with its legend, as HTML; more than ``most`` tokens are cut, and that is said."""
    start = len(history.prompt)
    live = history.live[:most]
    by_place: dict[int, list[Branch]] = {}
    for branch in branches:
        by_place.setdefault(branch.position - start, []).append(branch)
    parts: list[str] = []
    begin = 0
    for place in sorted(place for place in by_place if place <= len(live)):
        parts += _row(live[begin:place], words)
        parts += (_branch_row(branch, words) for branch in by_place[place])
        begin = place
    parts += _row(live[begin:], words)
    if len(history.live) > most:
        parts.append(f'<p class="more">The first {most:,} of {len(history.live):,} tokens are drawn.</p>')
    name = escape(legible(f"Tokens of request {history.request_id}"))
    body = "".join(parts) or '<p class="more">No token was committed.</p>'
    return Markup(f'<div class="strip" role="group" tabindex="0" aria-label="{name}">{body}</div>{_LEGEND}')


def _row(lives: Sequence[TokenLife], words: Words) -> list[str]:
    if not lives:
        return []
    return ['<p class="row">', *_runs(lives, words), "</p>"]


def _runs(lives: Sequence[TokenLife], words: Words) -> Iterable[str]:
    """Tokens of one origin together, with a label before those that were not sampled."""
    for (origin, mod), run in groupby(lives, key=lambda life: (life.origin, life.added_by)):
        if origin != "sampled":
            by = f" by {mod}" if mod else ""
            yield f'<span class="by">{escape(legible(origin + by))}</span>'
        yield from (_token(life, words) for life in run)


def _token(life: TokenLife, words: Words) -> str:
    known = {"forced": "forced", "reinjected": "reinjected"}
    kinds = ["t", _shade(life.raw_logprob), known.get(life.origin, "")]
    kinds.append("special" if words.special(life.token) else "")
    shown = f'<span class="{" ".join(filter(None, kinds))}" title="{_told(life)}">{label_html(life.text)}</span>'
    return shown + ("<br>" if "\n" in life.text else "")


def _shade(logprob: float | None) -> str:
    if logprob is None or math.isnan(logprob):
        return "pu"
    return f"p{sum(math.exp(logprob) < bound for bound in SHADES)}"


def _told(life: TokenLife) -> Markup:
    """The tooltip; the tokens table says the same for those who have none."""
    parts = [f"#{life.uid} at {life.position}, step {life.added_step}, {life.origin}"]
    parts += [f"by {life.added_by}"] if life.added_by else []
    for name, value in (("p", life.logprob), ("model p", life.raw_logprob)):
        parts += [] if value is None else [f"{name} {number(math.exp(value))}"]
    return escape(legible(", ".join(parts)))


def _branch_row(branch: Branch, words: Words) -> str:
    count = len(branch.lives)
    by = f" by {branch.mod}" if branch.mod else ""
    what = legible(f"{count} token{'' if count == 1 else 's'} taken back{by} at step {branch.step}")
    tokens = "".join(_runs(branch.lives[:400], words))
    more = f'<span class="by">and {count - 400:,} more</span>' if count > 400 else ""
    return f'<p class="row gone"><span class="by">{escape(what)}</span><del>{tokens}</del>{more}</p>'


_LEGEND = Markup(
    '<p class="legend">Probability that the model itself gave the token: '
    '<span class="t p0">0.9 or more</span> <span class="t p1">0.5</span> <span class="t p2">0.2</span> '
    '<span class="t p3">0.05</span> <span class="t p4">0.01</span> <span class="t p5">below 0.01</span> '
    '<span class="t pu">not known</span>. Put there by a mod: <span class="t pu forced">forced</span> '
    '<span class="t pu reinjected">after taking back</span>. '
    '<span class="t pu special">special token</span>. Taken back: '
    '<del><span class="t pu">struck through</span></del>. <i>·</i> is a space, <i>↵</i> a line break; other '
    "slanted marks stand for characters that cannot be seen.</p>"
)
