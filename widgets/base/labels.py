"""Token texts on their way to the browser: what can't be seen gets a mark, and no text can forge one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from html import unescape

from workbench.reports import label_html

__all__ = ["MARK_END", "MARK_START", "joined_glyphs", "marked"]

MARK_START, MARK_END = "\ue000", "\ue001"
"""Private-use characters around a mark. In a token's own text they are themselves replaced by a mark (U+E000)."""
BYTES = re.compile(r"(?:<0x[0-9A-F]{2}>)+")


@lru_cache(maxsize=1 << 16)
def marked(text: str) -> str:
    """A token's text for display: marks such as ``·`` between :data:`MARK_START` and :data:`MARK_END`.

    A token that is part of a character shows its bytes: ``F0 9F``.
    """
    if BYTES.fullmatch(text):
        return f"{MARK_START}{text.replace('><0x', ' ').removeprefix('<0x').removesuffix('>')}{MARK_END}"
    # The text was escaped, so every tag in it is one of ours.
    return unescape(str(label_html(text)).replace("<i>", MARK_START).replace("</i>", MARK_END))


def joined_glyphs(texts: Sequence[str]) -> dict[int, str]:
    """By index of the last token of a run of byte tokens, the characters that the run spells.

    A run that is no whole UTF-8 text is left out: its bytes are all that can be said of it.
    """
    found: dict[int, str] = {}
    start: int | None = None
    for index, text in enumerate([*texts, ""]):
        if BYTES.fullmatch(text):
            start = index if start is None else start
        elif start is not None:
            found.update(_glyphs(texts, start, index))
            start = None
    return found


def _glyphs(texts: Sequence[str], start: int, stop: int) -> dict[int, str]:
    """Characters spelt by the tokens ``start`` to ``stop``; each at the token that completes it."""
    found: dict[int, str] = {}
    pending = b""
    for index in range(start, stop):
        pending += bytes.fromhex(texts[index].replace("<0x", "").replace(">", ""))
        try:
            found[index] = marked(pending.decode())
        except UnicodeDecodeError:
            continue
        pending = b""
    return found
