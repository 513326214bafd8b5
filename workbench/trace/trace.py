"""The record of a run in memory: append-only, readable as data frames, comparable, savable."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import TraceError, did_you_mean
from .history import History, TokenLife
from .record import Record

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Trace"]


class Trace:
    """Everything that happened in one run, and what is needed to run it again.

    ``run`` is the manifest (model, tokenizer, versions, requests with prompts, sampling, seeds and mods),
    JSON-able. ``records`` grows by calling the trace: it is a sink. Nothing is ever taken out. ``histories`` are those
    of ``records`` where somebody made them already.
    """

    def __init__(
        self,
        run: Mapping[str, Any],
        records: list[Record] | None = None,
        histories: dict[str, History] | None = None,
    ) -> None:
        self.run: dict[str, Any] = dict(run)
        self.records: list[Record] = [] if records is None else records
        self._folded: tuple[int, dict[str, History]] = (0, {}) if histories is None else (len(self.records), histories)
        self._indexed = 0
        self._captured: list[Record] = []
        self._starts: list[int] = []
        self._hooks: dict[str, None] = {}
        self._lock = threading.Lock()

    def __call__(self, record: Record) -> None:
        self.records.append(record)

    # Tokens --------------------------------------------------------------------------------------------

    @property
    def histories(self) -> dict[str, History]:
        """Per request, the tokens as the records tell them."""
        with self._lock:  # a live run appends while others read
            upto, known = self._folded
            end = len(self.records)
            for record in self.records[upto:end]:
                known.setdefault(record.request_id, History(record.request_id)).apply(record)
            self._folded = (end, known)
        return known

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(self.histories)

    def history(self, request_id: str | None = None) -> History:
        """One request's history; with a single request its name may be left out.

        :raises TraceError: no such request, or several and none named.
        """
        known = self.histories
        if request_id is None and len(known) == 1:
            return next(iter(known.values()))
        if request_id is not None and request_id not in known:
            request_id = request_id.partition("@")[0]  # as events call it
        if request_id not in known:
            raise TraceError(
                f"no request {request_id!r} in this trace; it has {', '.join(known) or 'none'}."
                f"{did_you_mean(str(request_id), known)}"
            )
        return known[request_id]

    # Activations ---------------------------------------------------------------------------------------

    @property
    def hooks(self) -> tuple[str, ...]:
        """Names of the captured hooks."""
        self._row_starts()
        return tuple(self._hooks)

    def activation(self, hook: str, token: TokenLife) -> Tensor:
        """One hook's value at the position that ``token`` was chosen from, in the pass that it was chosen in.

        Works for tokens that were taken back too. Shape ``[d_model]`` for residual hooks.

        :raises TraceError: the hook was not captured, or that pass was not recorded.
        """
        if token.source_row is None:
            raise TraceError(
                f"token {token.uid} ({token.text!r}) has no recorded activations: the run captured nothing "
                "where it was chosen. Run with capture='blocks.*.hook_resid_post'."
            )
        return self.activation_row(hook, token.source_row)

    def activation_row(self, hook: str, row: int) -> Tensor:
        """One hook's value in activation row ``row`` (see ``data['row']`` of forward passes)."""
        index = bisect_right(self._row_starts(), row) - 1
        if index >= 0:
            record = self._captured[index]
            offset = row - int(record.data["row"])
            held = record.activations or {}
            if hook not in held:
                raise TraceError(
                    f"hook {hook!r} was not captured; captured: {', '.join(held) or 'none'}.{did_you_mean(hook, held)}"
                )
            if offset < len(held[hook]):
                return held[hook][offset]
        raise TraceError(f"activation row {row} is not in this trace (a run that was killed may lack its last)")

    def _row_starts(self) -> list[int]:
        with self._lock:
            end = len(self.records)
            for record in self.records[self._indexed : end]:
                if record.activations:
                    self._captured.append(record)
                    self._starts.append(int(record.data["row"]))
                    self._hooks.update(dict.fromkeys(record.activations))
            self._indexed = end
        return self._starts

    def residuals(self, token: TokenLife, hook: str = "hook_resid_post") -> Tensor:
        """The residual stream by layer where ``token`` was chosen, ``[layer, d_model]`` float32.

        :raises TraceError: not every layer's ``blocks.N.{hook}`` was captured.
        """
        layers, captured = self.run.get("model", {}).get("n_layers"), set(self.hooks)
        if not isinstance(layers, int):
            raise TraceError("this trace does not say how many layers its model has: it was imported, or is damaged")
        missing = [name for n in range(layers) if (name := f"blocks.{n}.{hook}") not in captured]
        if missing:
            raise TraceError(
                f"{len(missing)} of {layers} 'blocks.N.{hook}' were not captured ({missing[0]} …). "
                f"Run with capture='blocks.*.{hook}'."
            )
        return torch.stack([self.activation(f"blocks.{n}.{hook}", token).float() for n in range(layers)])

    # Tables --------------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """One row per record, in order. Columns are the fields of :class:`Record` but activations."""
        from .frames import record_frame

        return record_frame(self.records)

    def tokens(self) -> pd.DataFrame:
        """One row per token ever committed, with when and why it was removed."""
        from .frames import token_frame

        return token_frame(self.histories)

    # Files ---------------------------------------------------------------------------------------------

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Write the trace to a directory: ``run.json``, parquet records, safetensors activations.

        :raises TraceError: the directory holds something already, or the disk is full or read-only.
        """
        from .writing import save_trace

        return save_trace(self, Path(directory), overwrite=overwrite)

    @classmethod
    def load(cls, directory: str | Path) -> Trace:
        """Read a saved trace; of a run that was killed, everything up to its last whole part.

        :raises TraceError: no trace there, a damaged file, or one from a newer format.
        """
        from .files import load_trace

        return cls(*load_trace(Path(directory)))

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        lives = sum(len(h.every) for h in self.histories.values())
        return (
            f"<Trace {self.run.get('run_id', '?')}: {len(self.records)} records, "
            f"{len(self.histories)} requests, {lives} tokens committed, {len(self.hooks)} hooks captured>"
        )

    def _repr_html_(self) -> str:
        from .frames import trace_html

        return trace_html(self)
