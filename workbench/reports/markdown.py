"""Blocks to Markdown: tables and text in one file, drawings and raw data as files beside it.

What comes from a run is text here too: every character that Markdown or HTML gives a meaning is escaped, or stands in a
fence that is longer than any in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .blocks import Alert, Attachment, Block, Facts, Fold, Grid, Heading, Note, Picture, Plot, Verbatim
from .legible import legible
from .markup import FENCE, INLINE

__all__ = ["Markdown", "escaped"]

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$!])")
LEADING = re.compile(r"^(\s*)([-+=:]|\d+[.)])", re.MULTILINE)
LINK_SCHEME = re.compile(r"(https?|ftp|mailto|javascript|data):|www\.", re.IGNORECASE)
SHOWN_ROWS = 60
"""Rows of a table; the file beside has all."""
LONGEST_CELL = 200


def escaped(text: str) -> str:
    """Text as Markdown that shows it and nothing else; addresses are kept from becoming links."""
    shown = SPECIAL.sub(r"\\\1", legible(text))
    return LINK_SCHEME.sub(lambda found: found[0].replace(":", "&#58;").replace("www.", "www&#46;"), shown)


def _guarded(found: re.Match[str]) -> str:
    """The beginning of a line, so that it begins no list, heading or rule."""
    mark = found[2]
    return found[1] + (f"\\{mark}" if len(mark) == 1 else f"{mark[:-1]}\\{mark[-1]}")


class Markdown:
    """A document being written; ``files`` are those that it refers to, by their path relative to it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files: dict[str, bytes] = {}
        self._figures = 0

    def render(self, title: str, blocks: Sequence[Block]) -> str:
        """The whole document. Same title and blocks, same text."""
        return f"# {_flat(title)}\n\n{self.parts(blocks)}\n"

    def parts(self, blocks: Sequence[Block]) -> str:
        """Some blocks as they stand in a document."""
        return "\n\n".join(text for block in blocks for text in self._block(block))

    def _block(self, block: Block) -> Iterator[str]:
        match block:
            case Heading(text=text, level=level):
                yield f"{'#' * level} {_flat(text)}"
            case Note(text=text):
                yield _note(text)
            case Alert(text=text):
                yield f"> **Note well.** {_flat(text)}"
            case Facts(pairs=pairs):
                yield _table(("what", ""), [(name, value) for name, value in pairs])
            case Verbatim(label=label, text=text):
                yield f"{_flat(label)}:"
                yield _fenced(text)
            case Attachment():
                yield f"Attached: {self._file(block)}"
            case Grid():
                yield from self._grid(block)
            case Picture(html=html, caption=caption, twin=twin):
                yield from self._figure(html if html.startswith("<svg ") else None, caption, twin)
            case Plot(caption=caption, twin=twin):
                yield from self._figure(None, caption, twin)
            case Fold(summary=summary, blocks=inner):
                yield f"**{_flat(summary)}**"
                for one in inner:
                    yield from self._block(one)

    def _figure(self, svg: str | None, caption: str, twin: Grid | None) -> Iterator[str]:
        self._figures += 1
        if svg is not None:
            name = f"figure-{self._figures}.svg"
            # A drawing takes the page's colour of text; in a file of its own it needs a ground to be read on.
            drawn = str(svg).replace("<svg ", '<svg style="background:#fff;color:#111" ', 1)
            self.files[f"{self.folder}/{name}"] = drawn.encode()
            yield f"![{_flat(caption)}]({self.folder}/{name})"
        yield f"**Figure {self._figures}.** {_flat(caption)}"
        if twin is not None:
            yield from self._grid(twin)

    def _grid(self, grid: Grid) -> Iterator[str]:
        yield f"*{_flat(grid.caption)}*"
        if grid.rows:
            yield _table(grid.columns, grid.rows[:SHOWN_ROWS])
        shown = min(len(grid.rows), SHOWN_ROWS)
        more = [f"The first {shown} of {grid.total:,} rows."] if grid.total > shown else []
        more += [f"All rows: {self._file(grid.attachment)}"] if grid.attachment is not None else []
        if more:
            yield " ".join(more)

    def _file(self, file: Attachment) -> str:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", file.name)[:120]
        self.files[f"{self.folder}/{name}"] = file.text.encode("utf-8", "backslashreplace")
        return f"[{_flat(name)}]({self.folder}/{name})"


def _flat(text: str) -> str:
    """Text on one line."""
    return " ".join(escaped(text).split())


def _cell(text: str) -> str:
    return _flat(text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[_cell(name) for name in columns], ["---"] * len(columns), *([_cell(one) for one in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(text: str) -> str:
    shown = legible(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"


def _note(text: str) -> str:
    """A note's own small Markdown stays; everything else in it is text."""
    found, fenced = [], False
    for line in legible(text).replace("\r\n", "\n").split("\n"):
        if line.strip().startswith(FENCE):
            fenced = not fenced
            found.append(FENCE)
        elif fenced:
            found.append(line)
        else:
            found.append(_note_line(line))
    return "\n".join([*found, FENCE] if fenced else found)


def _note_line(line: str) -> str:
    mark = re.match(r"\s*([-*+]|\d{1,9}[.)])[ \t]+(?=\S)", line)
    rest = line[mark.end() :] if mark else line.strip()
    told = "".join(map(_piece, INLINE.split(rest)))
    return f"{mark[1]} {told}" if mark else LEADING.sub(_guarded, told)


def _piece(piece: str) -> str:
    if len(piece) > 2 and piece[0] == piece[-1] == "`":
        return piece
    if len(piece) > 4 and piece.startswith("**") and piece.endswith("**"):
        return f"**{escaped(piece[2:-2])}**"
    return escaped(piece)
