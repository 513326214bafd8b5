"""What makes a carry model a :class:`~workbench.models.HookedModel`: names and sizes of its base, its own passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..models import Blocks, Cache, Edit, Forward, HookedModel, Tokenizer
from .adapters import Adapter
from .cache import CarryCache
from .runner import BandRunner
from .serving import serve
from .settings import CarrySettings, PauseToken
from .taps import CARRY_HOOKS

__all__ = ["ServedCarry"]


class ServedCarry:
    """The half of :class:`workbench.carry.CarryModel` that the engine sees."""

    base: HookedModel
    blocks: Blocks
    settings: CarrySettings
    adapter: Adapter
    pause: PauseToken
    runner: BandRunner

    @property
    def name(self) -> str:
        return f"{self.base.name}+carry"

    @property
    def backend(self) -> str:
        return self.base.backend

    @property
    def n_layers(self) -> int:
        return self.base.n_layers

    @property
    def d_model(self) -> int:
        return self.base.d_model

    @property
    def n_ctx(self) -> int:
        return self.base.n_ctx

    @property
    def vocab_size(self) -> int:
        return self.base.vocab_size

    @property
    def hook_names(self) -> tuple[str, ...]:
        """The base's hooks, then ``carry.e``, ``carry.x`` and ``carry.s``: entering, merged, leaving the band."""
        return (*self.base.hook_names, *CARRY_HOOKS)

    @property
    def edit_names(self) -> tuple[str, ...]:
        return (*self.base.edit_names, *CARRY_HOOKS)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.base.tokenizer

    @property
    def source(self) -> Mapping[str, Any]:
        return {**self.base.source, "carry": self.config()}

    def config(self) -> dict[str, Any]:
        """JSON-able: settings, adapter and pause token."""
        return {
            **self.settings.to_dict(),
            "adapter": self.adapter.config(),
            "adapter_fingerprint": self.adapter.fingerprint(),
            "pause_token": self.pause.text,
        }

    @property
    def cache_works(self) -> bool:
        return True

    @property
    def device(self) -> torch.device:
        return self.base.device

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    def new_cache(self, batch: int = 1, *, prompt_lengths: Sequence[int] | None = None) -> CarryCache:
        """An empty cache. ``prompt_lengths`` says where each row's prompt ends; without, its tokens do."""
        return CarryCache(self, batch, prompt_lengths)

    def forward(
        self,
        tokens: Sequence[Sequence[int]],
        cache: Cache,
        *,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
        keep: Sequence[int] | None = None,
    ) -> Forward:
        """As :meth:`HookedModel.forward`. An edit of a band hook at a prompt position acts in every loop."""
        return serve(self, tokens, cache, capture=capture, edits=edits, keep=keep)

    def unembed(self, residual: Tensor) -> Tensor:
        return self.base.unembed(residual)
