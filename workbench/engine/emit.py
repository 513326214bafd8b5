"""Numbering records and handing them to whoever listens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models import Tokenizer
from ..trace import Record, Sink
from .request import Request

__all__ = ["Emitter"]


class Emitter:
    """Makes the records of one run: one sequence number each, text of the tokens filled in."""

    def __init__(self, run_id: str, sinks: Sequence[Sink], tokenizer: Tokenizer) -> None:
        self._run_id = run_id
        self._sinks = tuple(sinks)
        self._tokenizer = tokenizer
        self._seq = 0

    def __call__(
        self, request: Request, kind: str, position: int, *, tokens: Sequence[int] = (), **fields: Any
    ) -> None:
        record = Record(
            run_id=self._run_id,
            request_id=request.request_id,
            seq=self._seq,
            step=request.step,
            position=position,
            kind=kind,
            tokens=tuple(tokens),
            text=self._tokenizer.decode(tokens) if tokens else "",
            **fields,
        )
        self._seq += 1
        for sink in self._sinks:
            sink(record)

    def text_of(self, token: int) -> str:
        """The text of one token, cached."""
        return self._tokenizer.token_text(token)
