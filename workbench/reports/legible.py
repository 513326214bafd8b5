"""Text that nobody vouches for, made visible: control, direction and invisible characters get a name.

Nothing here escapes for HTML but :func:`label_html`; the page template escapes everything it prints.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from markupsafe import Markup, escape

__all__ = ["label", "label_html", "legible", "shortened"]

LABEL_LENGTH = 48
"""Longest token label, characters; the rest is counted, not shown."""
NAMED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
JOINERS = frozenset({0x200C, 0x200D})
"""Zero-width (non-)joiner: harmless in running text, where emoji and Persian need them."""


def _named(code: int) -> str | None:
    """What stands for an invisible character, or None where it can be seen as it is."""
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    if noncharacter or unicodedata.category(chr(code)) in NAMED_CATEGORIES:
        return f"<U+{code:04X}>"
    return None


def _token_mark(code: int) -> str | None:
    """The same within a token, where spaces and line breaks need a mark too."""
    marks = {0x20: "·", 0x0A: "↵", 0x09: "⇥"}
    if code in marks:
        return marks[code]
    if unicodedata.category(chr(code)) == "Zs":
        return f"<U+{code:04X}>"
    return _named(code)


class _Running(dict[int, str]):
    """A translation table that fills itself: running text keeps line breaks, tabs and joiners."""

    def __missing__(self, code: int) -> str:
        kept = code in (0x0A, 0x09) or code in JOINERS
        self[code] = shown = chr(code) if kept else _named(code) or chr(code)
        return shown


_RUNNING = _Running()


def legible(text: str) -> str:
    """Running text with its control, direction and other invisible characters shown: ``␛``, ``<U+202E>``."""
    return text.translate(_RUNNING)


def shortened(text: str, length: int) -> str:
    """At most ``length`` characters, with a count of those left out."""
    if len(text) <= length:
        return text
    return f"{text[:length]}… (+{len(text) - length:,} characters)"


@lru_cache(maxsize=1 << 16)
def label_html(text: str, length: int = LABEL_LENGTH) -> Markup:
    """One token as HTML: marks that stand for something invisible are in ``<i>``, so none can be forged."""
    parts = [Markup("<i>◌</i>") if _combines(text) else Markup()]
    for char in text[:length]:
        mark = _token_mark(ord(char))
        parts.append(escape(char) if mark is None else Markup("<i>{}</i>").format(mark))
    if len(text) > length:
        parts.append(Markup("<i>… (+{:,} characters)</i>").format(len(text) - length))
    return Markup("").join(parts) if text else Markup("<i>∅</i>")


@lru_cache(maxsize=1 << 16)
def label(text: str, length: int = LABEL_LENGTH) -> str:
    """One token as plain text: ``·`` for a space, ``↵`` for a line break, names for what is invisible."""
    shown = "".join(_token_mark(ord(char)) or char for char in text[:length])
    more = f"… (+{len(text) - length:,} characters)" if len(text) > length else ""
    return ("◌" if _combines(text) else "") + shown + more if text else "∅"


def _combines(text: str) -> bool:
    """Whether it starts with a mark that would attach itself to whatever stands before it."""
    return bool(text) and unicodedata.category(text[0]).startswith("M")
