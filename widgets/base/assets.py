"""The browser half of a window as two strings, put together once at import.

anywidget turns a script into a Blob URL, from which no relative import works; so shared parts are joined to a
window's ``index.js`` here. Parts are plain functions without imports or exports; ``index.js`` has the only export.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["LARGEST_SCRIPT", "script", "style"]

HERE = Path(__file__).parent
LARGEST_SCRIPT = 60_000
"""Bound on a window's script, bytes: it travels in the message that opens the window, with its first data."""
_SELECTORS = re.compile(r"([^{}]+)(?=\{)")
_COMMA = re.compile(r",(?![^()]*\))")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_TOLD = re.compile(r"(?<=[;{,]) // [^\"'`\n]*$")
"""What is said at the end of a line."""
_OPEN = (";", "{", ",", "(", "[")
"""After these a line can be joined to the next one: no statement ends there without saying so."""


def script(folder: Path, *parts: str, own: Iterable[str] = ()) -> str:
    """The shared parts (``dom`` is always there), those of ``folder`` in ``own``, then its ``index.js``; shortened."""
    shared = [HERE / f"{name}.js" for name in ("dom", *parts)]
    files = [*shared, *(folder / f"{name}.js" for name in own), folder / "index.js"]
    return lean("\n".join(path.read_text("utf-8") for path in files))


def style(folder: Path, kind: str, *parts: str) -> str:
    """The shared theme, then the styles of shared parts and ``style.css`` of ``folder``, for windows of ``kind`` only.

    All styles of a page hold for all of it: without that bound, one window's rules would change the looks of another
    kind of window that has a class of the same name.
    """
    shared = "\n".join((HERE / f"{name}.css").read_text("utf-8") for name in ("theme", *parts))
    return f"{shared}\n{bounded((folder / 'style.css').read_text('utf-8'), kind)}"


def bounded(css: str, kind: str) -> str:
    """Rules that hold within windows of ``kind`` only, each more specific by one class.

    So they win over the shared ones, which come again, and perhaps later, with every other window of the page.
    """
    own = re.compile(rf"\.wb(-{re.escape(kind)})?(?![\w-])")

    def within(selector: str) -> str:
        selector = selector.strip()
        root = own.match(selector)
        return f".wb.wb-{kind}{selector[root.end() :]}" if root else f".wb-{kind} {selector}"

    def all_within(match: re.Match[str]) -> str:
        if match[1].lstrip().startswith("@"):
            return match[1]
        return "\n" + ", ".join(map(within, _COMMA.split(match[1]))) + " "

    return _SELECTORS.sub(all_within, _COMMENT.sub("", css))


def lean(text: str) -> str:
    """A script without indentation, comments and most line ends: they are for readers, not for a notebook.

    It knows nothing of the language but this: no text of ours goes over several lines, and no comment begins within
    one that does not follow ``;``, ``{`` or ``,``.
    """
    lines = (_TOLD.sub("", line.strip()) for line in text.splitlines())
    kept = [line for line in lines if line and not line.startswith("//")]
    return "".join(line if line.endswith(_OPEN) and "//" not in line else f"{line}\n" for line in kept)
