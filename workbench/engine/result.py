"""What a generation gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from ..models import Message
from ..trace import Trace
from .request import Lane, Request

__all__ = ["Result"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """One request's outcome. ``tokens`` are the visible generated ones, an end token included."""

    request_id: str
    text: str
    """The output as text, special tokens left out."""
    tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    reason: str
    """eos, max_tokens, stop, force_output, tool_calls, error, budget or interrupted."""
    trace: Trace = field(repr=False)
    tool_calls: Any = None
    error: str | None = None
    seed: int = 0
    index: int = 0
    """Which stream of ``seed`` it drew from: its place in the batch."""
    forward_tokens: int = 0
    """Tokens fed through the model after the prompt: the work that mods and sampling cost."""
    conversation: tuple[Message, ...] = ()
    lane: Lane | None = field(default=None, repr=False, compare=False)
    """The row of the KV cache to go on from; see ``release``."""
    request: Request | None = field(default=None, repr=False, compare=False)

    def release(self) -> None:
        """Give the KV cache back (tens of MB): tokens, text and trace stay, ``resume`` is over for its whole line."""
        if self.lane is not None:
            self.lane.cache = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "…"
        return f"<Result {self.request_id}: {shown!r}, {len(self.tokens)} tokens, ended by {self.reason}>"

    def _repr_html_(self) -> str:
        shown = f"<pre style='white-space:pre-wrap'>{escape(self.text)}</pre>"
        extra = f", error: {escape(self.error)}" if self.error else ""
        extra += f", tool calls: {escape(repr(self.tool_calls))}" if self.tool_calls is not None else ""
        return f"{shown}<p>{len(self.tokens)} tokens, ended by <b>{escape(self.reason)}</b>{extra}</p>"
