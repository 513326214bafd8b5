"""The browser half of a window as two strings, put together once at import.

anywidget turns a script into a Blob URL, from which no relative import works; so shared parts are joined to a
window's ``index.js`` here. Parts are plain functions without imports or exports; ``index.js`` has the only export.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["LARGEST_SCRIPT", "script", "style"]

HERE = Path(__file__).parent
LARGEST_SCRIPT = 60_000
"""Bound on a window's script, bytes: it travels in the message that opens the window, with its first data."""


def script(folder: Path, *parts: str) -> str:
    """The shared parts (``dom`` is always there), then ``index.js`` of ``folder``."""
    files = [HERE / f"{name}.js" for name in ("dom", *parts)]
    return "\n".join(path.read_text("utf-8") for path in (*files, folder / "index.js"))


def style(folder: Path, *parts: str) -> str:
    """The shared theme, then the styles of shared parts and ``style.css`` of ``folder``."""
    files = [HERE / f"{name}.css" for name in ("theme", *parts)]
    return "\n".join(path.read_text("utf-8") for path in (*files, folder / "style.css"))
