"""What can't be seen in a token gets a mark, and no text can forge one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widgets.base.labels import MARK_END, MARK_START, joined_glyphs, marked


def bare(text: str) -> str:
    return text.replace(MARK_START, "").replace(MARK_END, "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "[·]the"),
        ("a\n", "a[↵]"),
        ("<b>&amp;", "<b>&amp;"),
        ("<i>·</i>", "<i>·</i>"),
        ("<0xF0><0x9F>", "[F0 9F]"),
        ("\ue000x\ue001", "[<U+E000>]x[<U+E001>]"),
        ("\u202e", "[<U+202E>]"),
        ("", "[∅]"),
    ],
)
def test_marks_stand_for_what_is_invisible(text: str, shown: str) -> None:
    assert marked(text).replace(MARK_START, "[").replace(MARK_END, "]") == shown


@given(st.text(max_size=40))
def test_marks_come_in_pairs_and_never_from_the_text(text: str) -> None:
    label = marked(text)
    depth = 0
    for char in label:
        depth += (char == MARK_START) - (char == MARK_END)
        assert depth in (0, 1)
    assert depth == 0
    assert not any(char.isspace() for char in bare(label) if char != "\u3000")


@given(st.text(alphabet="<>&\"'i/ab;#x27", max_size=40).filter(bool))
def test_what_can_be_seen_is_shown_letter_by_letter(text: str) -> None:
    assert bare(marked(text)) == text


def test_a_split_emoji_is_joined_once_at_the_token_that_completes_it() -> None:
    texts = ["a", "<0xF0>", "<0x9F><0x98>", "<0x80>", "b", "<0xF0>", "c", "<0xC3>", "<0xA9>"]
    assert joined_glyphs(texts) == {3: "😀", 8: "é"}


@given(st.text(min_size=1, max_size=6).filter(lambda text: text.isprintable() and " " not in text))
def test_every_character_of_a_run_of_bytes_is_found(text: str) -> None:
    pieces = [f"<0x{byte:02X}>" for byte in text.encode()]
    assert "".join(bare(glyph) for glyph in joined_glyphs(pieces).values()).replace("◌", "") == text
