"""The browser half of this window: several files, put together as one and shortened to what a message may carry."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..base import script

__all__ = ["together"]

_SPARE = re.compile(r"^\s+|^[ \t]*//.*\n|(?<=[;{,]) // [^\"'`\n]*$", re.MULTILINE)
"""Indentation and comments. No script here has a text of several lines, in which they would count."""


def together(folder: Path, parts: Iterable[str]) -> str:
    """The named scripts of a folder, then the shared part and ``index.js``, without indentation and comments."""
    texts = [*((folder / f"{name}.js").read_text("utf-8") for name in parts), script(folder)]
    return _SPARE.sub("", _SPARE.sub("", "\n".join(texts)))
