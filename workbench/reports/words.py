"""The text of token ids, as far as a trace (and a model, if there is one) knows it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..models import HookedModel
from ..trace import ACTION, Trace

__all__ = ["Words", "prompt_text"]

BYTES = re.compile(r"(?:<0x[0-9A-F]{2}>)+")


class Words:
    """Token ids to text. Without a model only ids that were committed have one; others show as ``#id``."""

    def __init__(self, trace: Trace, model: HookedModel | None = None) -> None:
        self._tokenizer = None if model is None else model.tokenizer
        self._size = 0 if model is None else len(model.tokenizer)
        self._ends = frozenset(trace.run.get("model", {}).get("eos_token_ids", ()))
        self._special: dict[int, bool] = {}
        self._known: dict[int, str] = {
            token: text
            for record in trace.records
            if record.kind == "added"
            for token, text in zip(record.tokens, record.data["texts"], strict=True)
        }

    def of(self, token: int) -> str:
        """The text of one token."""
        if token not in self._known and self._tokenizer is not None and 0 <= token < self._size:
            self._known[token] = self._tokenizer.token_text(token)
        return self._known.get(token, f"#{token}")

    def special(self, token: int) -> bool:
        """Whether it is a special token and not the same letters written out."""
        if token not in self._special:
            if self._tokenizer is not None and 0 <= token < self._size:
                self._special[token] = self._tokenizer.is_special(token)
            else:
                self._special[token] = token in self._ends
        return self._special[token]

    def text(self, tokens: Sequence[int]) -> str:
        """Running text: characters that were split over tokens are joined again."""
        if self._tokenizer is not None and all(0 <= token < self._size for token in tokens):
            text = self._tokenizer.decode(tokens)
            if "\ufffd" not in text:
                return text
        parts: list[str] = []
        for token in tokens:
            piece = self.of(token)
            if parts and BYTES.fullmatch(piece) and BYTES.fullmatch(parts[-1]):
                parts[-1] += piece
            else:
                parts.append(piece)
        return "".join(_joined(part) for part in parts)


def _joined(part: str) -> str:
    """The characters of ``<0xF0><0x9F>…`` where the bytes make any, else the bytes."""
    if not BYTES.fullmatch(part):
        return part
    try:
        return bytes.fromhex(part.replace("<0x", "").replace(">", "")).decode()
    except UnicodeDecodeError:
        return part


def prompt_text(trace: Trace, request_id: str) -> str:
    """The prompt as it was fed, after what a mod made of it."""
    text = ""
    for record in trace.records:
        if record.request_id == request_id and (
            record.kind == "prefilled"
            or (record.kind == ACTION and record.action == "adjust_prefill" and record.status == "applied")
        ):
            text = record.text
    return text
