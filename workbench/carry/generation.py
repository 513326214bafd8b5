"""Greedy generation for a batch of prompts: prefill, loops and pauses once, then one position per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import CarryError, PromptError
from .runner import Columns, Growing, Kept, Where
from .scan import Do, Scan, carry_step, scan, tail_columns
from .settings import CarrySettings
from .spans import Layout, pack

if TYPE_CHECKING:
    from .model import CarryModel

__all__ = ["Generated", "generate"]

INCREMENTAL = ("carry", "feedforward", "prompt_loops", "plain")
"""Modes in which a new position needs no earlier one again. Depth loops would need every loop's keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One row's output."""

    prompt: tuple[int, ...]
    """Prompt tokens, without the pauses."""
    tokens: tuple[int, ...]
    """What was generated, an end token included."""
    reason: str
    """``eos`` or ``max_tokens``."""
    text: str


@torch.no_grad()
def generate(
    model: CarryModel,
    prompts: Sequence[Sequence[int]],
    settings: CarrySettings,
    *,
    max_new_tokens: int,
    do: Do | None = None,
    stop: bool = True,
) -> list[Generated]:
    """See :meth:`CarryModel.generate`. The first token is read at the last pause; exactly as many as asked are made.

    :raises CarryError: a mode that can't go on position by position, or nothing to generate.
    :raises PromptError: prompt, pauses and output together exceed ``n_ctx``.
    """
    if settings.mode not in INCREMENTAL:
        raise CarryError(
            f"mode {settings.mode!r} can't generate position by position (each loop needs its own keys and values): "
            f"score it with logits(), or use one of {', '.join(INCREMENTAL)}"
        )
    if max_new_tokens < 1:
        raise CarryError(f"max_new_tokens must be 1 or more, got {max_new_tokens}")
    batch = pack([(prompt, settings.pauses, ()) for prompt in prompts], model.pause.id, device=model.device)
    longest = int(batch.mask.sum(-1).max()) + max_new_tokens
    if longest > model.n_ctx:
        raise PromptError(
            f"prompt, {settings.pauses} pauses and {max_new_tokens} new tokens are {longest} positions; "
            f"{model.base.name} accepts at most n_ctx={model.n_ctx}"
        )
    with model.blocks.lock:
        layout = Layout.of(batch.mask, batch.prompt_lengths)
        found = scan(model.runner, model.adapter, batch.ids, layout, loops=settings.loops, mode=settings.mode, do=do)
        return _Decoding(model, settings, found, do, stop).run(prompts, max_new_tokens)


class _Decoding:
    """The caches of a batch and where each row stands."""

    def __init__(self, model: CarryModel, settings: CarrySettings, found: Scan, do: Do | None, stop: bool) -> None:
        self._model = model
        self._settings = settings
        self._layout = found.layout
        self._do = do
        self._ends = frozenset(model.tokenizer.eos_token_ids) if stop else frozenset()
        self._state = found.carried
        self._prefix: Kept = found.prefix
        self._band: Kept = found.band
        self._rows = len(found.e)
        self._live = [True] * self._rows
        self._step = settings.pauses
        whole = Columns(positions=self._prefix.positions, real=self._prefix.real, tokens=sum(found.layout.ends))
        past = Growing(None, whole)
        final = model.runner.suffix(found.s, whole, past)
        self._suffix: Kept = past.close()
        self._final = final[torch.arange(self._rows, device=final.device), found.layout.lengths - 1]

    def run(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[Generated]:
        made: list[list[int]] = [[] for _ in range(self._rows)]
        for index in range(max_new_tokens):
            logits = self._model.blocks.unembed(self._model.blocks.norm(self._final))
            chosen = logits.argmax(-1).tolist()
            for row, token in enumerate(chosen):
                if self._live[row]:
                    made[row].append(int(token))
                    self._live[row] = token not in self._ends
            if not any(self._live) or index == max_new_tokens - 1:
                break
            self._advance([made[row][-1] for row in range(self._rows)])
        return [
            Generated(
                prompt=tuple(map(int, prompt)),
                tokens=tuple(tokens),
                reason="eos" if tokens[-1] in self._ends else "max_tokens",
                text=self._model.tokenizer.decode(tokens, skip_special=True),
            )
            for prompt, tokens in zip(prompts, made, strict=True)
        ]

    def _advance(self, tokens: Sequence[int]) -> None:
        """Feed one token per row. A finished row's column is kept as padding: nothing sees it."""
        runner, columns = self._model.runner, self._columns()
        prefix = Growing(self._prefix, columns)
        e = runner.prefix(torch.tensor(tokens, device=self._model.device)[:, None], columns, prefix)
        self._prefix = prefix.close()
        band = Growing(self._band, columns)
        s = self._through_band(e, columns, band)
        self._band = band.close()
        suffix = Growing(self._suffix, columns)
        self._final = runner.suffix(s, columns, suffix)[:, 0]
        self._suffix = suffix.close()
        self._step += 1

    def _columns(self) -> Columns:
        columns = tail_columns(self._layout, self._step, 1)
        live = torch.tensor(self._live, device=self._model.device)[:, None]
        return Columns(positions=columns.positions, real=live, tokens=sum(self._live))

    def _through_band(self, e: Tensor, columns: Columns, past: Growing) -> Tensor:
        runner, merge = self._model.runner, self._model.adapter
        where = Where(phase="step", loop=0, step=self._step + 1, first=self._band.length, count=1)
        if self._state is None:
            x = e if self._settings.mode == "plain" else merge(e, e).masked_fill(~columns.real[..., None], 0)
            return runner.through_band(x, columns, past, where)
        handed = self._state if self._do is None else self._do(self._step, self._state)
        _, s = carry_step(runner, merge, e[:, 0], handed, columns, past, where)
        self._state = torch.where(columns.real, s, self._state)
        return s[:, None]
