"""A small, safe subset of Markdown: headings, paragraphs, lists, fenced code, ``**bold**`` and `` `code` ``.

Everything else is text. What comes out was escaped piece by piece, so no tag can come from the note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from .blocks import Heading, Note
from .legible import legible

__all__ = ["note_html", "split_note"]

INLINE = re.compile(r"(`[^`\n]+`|\*\*[^*\n]+\*\*)")
HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
BULLET = re.compile(r"[-*+][ \t]+(\S.*)")
NUMBERED = re.compile(r"\d{1,9}[.)][ \t]+(\S.*)")
FENCE = "```"


def split_note(text: str) -> list[Heading | Note]:
    """Headings on their own, for the table of contents, and the prose between them.

    ``#`` becomes level 2 (the title is the only 1), ``##`` and deeper level 3.
    """
    found: list[Heading | Note] = []
    prose: list[str] = []
    fenced = False
    for line in [*text.replace("\r\n", "\n").split("\n"), None]:
        match = None if line is None or fenced else HEADING.fullmatch(line.strip())
        if (match or line is None) and any(map(str.strip, prose)):
            found.append(Note(text="\n".join(prose)))
        if match:
            plain = "".join(piece.strip("`*") for piece in INLINE.split(match[2]))
            found.append(Heading(text=plain, level=2 if len(match[1]) == 1 else 3))
        if line is not None:
            fenced ^= line.strip().startswith(FENCE)
            prose = [] if match else [*prose, line]
    return found


def note_html(text: str) -> Markup:
    """HTML of prose without headings."""
    return Markup("").join(_blocks(legible(text.replace("\r\n", "\n")).split("\n")))


def _blocks(lines: list[str]) -> Iterator[Markup]:
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        if line.startswith(FENCE):
            end = next((i for i in range(at + 1, len(lines)) if lines[i].strip() == FENCE), len(lines))
            yield Markup("<pre><code>{}</code></pre>").format("\n".join(lines[at + 1 : end]))
            at = end + 1
        elif not line:
            at += 1
        else:
            end = at + 1
            while end < len(lines) and _kind(lines[end]) == _kind(line):
                end += 1
            yield _run(_kind(line), [other.strip() for other in lines[at:end]])
            at = end


def _kind(line: str) -> str:
    line = line.strip()
    if not line or line.startswith(FENCE):
        return "other"
    if BULLET.fullmatch(line):
        return "ul"
    return "ol" if NUMBERED.fullmatch(line) else "p"


def _run(kind: str, lines: list[str]) -> Markup:
    if kind == "p":
        return Markup("<p>{}</p>").format(_inline(" ".join(lines)))
    pattern = BULLET if kind == "ul" else NUMBERED
    matches = (pattern.fullmatch(line) for line in lines)
    items = Markup("").join(Markup("<li>{}</li>").format(_inline(m[1])) for m in matches if m)
    return Markup(f"<{kind}>{{}}</{kind}>").format(items)


def _inline(text: str) -> Markup:
    return Markup("").join(_piece(piece) for piece in INLINE.split(text))


def _piece(piece: str) -> Markup:
    if len(piece) > 2 and piece[0] == piece[-1] == "`":
        return Markup("<code>{}</code>").format(piece[1:-1])
    if len(piece) > 4 and piece.startswith("**") and piece.endswith("**"):
        return Markup("<strong>{}</strong>").format(piece[2:-2])
    return escape(piece)
