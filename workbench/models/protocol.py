"""What a model must offer to be run by the engine: the one socket that every backend plugs into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .kv_rows import Tail
    from .tokenizer import Tokenizer

__all__ = ["Cache", "Edit", "Forward", "HookedModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of one hook's value at a span of the positions that one row feeds in this pass.

    ``fn`` gets the activation of the span, ``[stop - start, ...]`` with the position first, and returns
    one of the same shape. It must treat positions independently: the engine may feed a span in one pass
    or in several, and both must mean the same.
    """

    hook: str
    row: int
    start: int
    """First affected position, counted from the row's first newly fed token."""
    stop: int
    fn: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What one pass gave, row by row; a row that fed nothing holds empty tensors.

    ``logits[row]`` is ``[keep, vocab]`` float32 for the row's last ``keep`` fed positions;
    ``activations[hook][row]`` is ``[new, ...]``, position first, after any edit.
    """

    logits: tuple[Tensor, ...]
    activations: dict[str, tuple[Tensor, ...]]
    owned: bool = False
    """Whether the activations are ordinary tensors in memory that nobody else holds: they may be written to."""
    note: str = ""
    """Which way the pass took, where its backend has several; empty where there is one."""


@runtime_checkable
class Cache(Protocol):
    """The keys and values of each row's first ``lengths[row]`` tokens."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many leading tokens of each row the cache holds."""
        ...

    def rewind(self, row: int, n: int) -> None:
        """Forget the last ``n`` positions of ``row``: O(1), no copy. Raises ValueError past the start."""
        ...

    def take(self, row: int, n: int) -> Tail:
        """Rewind ``row`` by ``n`` and hand over the keys and values that it forgets: O(n), nothing computed."""
        ...

    def put(self, row: int, tail: Tail) -> None:
        """Append to ``row`` what :meth:`take` gave, bit for bit, behind the positions that it stood behind."""
        ...

    def fork(self, row: int, copies: int) -> Cache:
        """A cache of ``copies`` rows that all begin as ``row`` is now, sharing its memory."""
        ...


@runtime_checkable
class HookedModel(Protocol):
    """A causal language model with named activations and a cache that rewinds.

    Hook names are TransformerLens's (``blocks.3.hook_resid_post``) whichever backend is underneath.
    """

    @property
    def name(self) -> str:
        """The name or path it was loaded from."""
        ...

    @property
    def backend(self) -> str:
        """Which implementation runs it: ``bridge``, ``hooked`` or ``lean``."""
        ...

    @property
    def n_layers(self) -> int: ...

    @property
    def d_model(self) -> int: ...

    @property
    def n_ctx(self) -> int:
        """The longest sequence, in tokens, that the model accepts."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def hook_names(self) -> tuple[str, ...]:
        """Every hook that can be captured."""
        ...

    @property
    def edit_names(self) -> tuple[str, ...]:
        """Every hook whose value can be changed."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def source(self) -> Mapping[str, Any]:
        """Where the weights came from, JSON-able, for a trace's provenance."""
        ...

    @property
    def cache_works(self) -> bool:
        """Whether the KV cache passed its check at load; if not, every pass feeds whole rows."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def new_cache(self, batch: int = 1) -> Cache:
        """An empty cache for ``batch`` independent rows."""
        ...

    def forward(
        self,
        tokens: Sequence[Sequence[int]],
        cache: Cache,
        *,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
        keep: Sequence[int] | None = None,
    ) -> Forward:
        """Feed ``tokens[row]`` after what the cache holds of each row (an empty list feeds nothing).

        ``keep[row]`` is how many of the row's last fed positions need logits (default 1 each). Rows may
        feed different numbers of tokens and hold different lengths; each gets what it would get alone.

        :raises UnknownHookError: a captured or edited hook does not exist.
        :raises PromptError: a token id is outside the vocabulary, or a row would exceed ``n_ctx``.
        """
        ...

    def unembed(self, residual: Tensor) -> Tensor:
        """Final norm and unembedding: ``[..., d_model]`` to logits ``[..., vocab]`` float32."""
        ...
