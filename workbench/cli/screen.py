"""A run's text on a terminal, as its tokens are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..models import Tokenizer
    from ..trace import Record

__all__ = ["Screen"]

CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\ufffd")  # a terminal would obey them


class Screen:
    """A sink that writes a run's text to a terminal as tokens are committed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.shown, self.took_back = "", False

    def __call__(self, record: Record) -> None:
        if record.kind == "removed":
            del self.tokens[-len(record.tokens) :]
        elif record.kind == "added":
            self.tokens += record.tokens
        else:
            return
        text = self.tokenizer.decode(self.tokens, skip_special=True)
        print(self._more(text.rstrip("\ufffd")), end="", flush=True)  # half a character waits for its other bytes

    def rest(self) -> str:
        """What is still to be written: what waited; and once more what stayed, if something was taken back."""
        more = self._more(self.tokenizer.decode(self.tokens, skip_special=True))
        return more + (f"\n\nwithout what was taken back:\n{self.shown.translate(CONTROLS)}" if self.took_back else "")

    def _more(self, text: str) -> str:
        same = len(self.shown)
        while not text.startswith(self.shown[:same]):
            same -= 1
        mark = f"⌫{len(self.shown) - same} " if same < len(self.shown) else ""
        self.took_back = self.took_back or bool(mark)
        self.shown = text
        return mark + text[same:].translate(CONTROLS)
