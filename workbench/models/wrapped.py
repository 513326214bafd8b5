"""What the two TransformerLens backends share: grouping rows, hooks per pass, and the cache self-check."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PromptError, UnknownHookError, UnsupportedModelError, did_you_mean
from .hooks import is_attention_map, known_hooks
from .kv_rows import KVRows, PassView, RowLengths
from .protocol import Cache, Edit, Forward
from .tokenizer import Tokenizer

__all__ = ["WrappedModel", "allowed_difference", "check_ids", "hooked", "relative_difference"]

SELF_CHECK_TOLERANCE = 1e-3
"""Largest difference of logits, relative to their largest magnitude, between passes that should agree."""


def relative_difference(logits: Tensor, reference: Tensor) -> float:
    """The largest difference, as a share of the reference's largest value."""
    return float((logits - reference.float()).abs().max() / reference.abs().max().clamp(min=1e-6))


def allowed_difference(dtype: torch.dtype) -> float:
    """How large :func:`relative_difference` may be: rounding alone reaches it in half precision."""
    return max(SELF_CHECK_TOLERANCE, 16 * torch.finfo(dtype).eps)


class WrappedModel(ABC):
    """A TransformerLens model behind :class:`HookedModel`. Subclasses say how one uniform group runs."""

    backend: str

    def __init__(self, name: str, points: Mapping[str, nn.Module], tokenizer: Tokenizer) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.lock = threading.RLock()
        self._points = points
        self._offer(known_hooks(points))
        self.cache_works = True
        self.source: dict[str, Any] = {"name": name}
        """Where the weights came from, for a trace's provenance."""

    # What a subclass states --------------------------------------------------------------------------

    n_layers: int
    d_model: int
    n_ctx: int
    vocab_size: int
    device: torch.device
    dtype: torch.dtype

    @abstractmethod
    def _run(self, tokens: Tensor, view: PassView, keep: int) -> Tensor:
        """Feed ``[rows, new]`` tokens through the blocks; logits ``[rows, keep, vocab]``."""

    @abstractmethod
    def unembed(self, residual: Tensor) -> Tensor: ...

    def _editable(self) -> tuple[str, ...]:
        return self.hook_names

    def point(self, name: str) -> nn.Module:
        """The hook point of that name.

        :raises UnknownHookError: this model offers none.
        """
        if name not in self._capturable:
            raise UnknownHookError(f"{self.name} offers no hook {name!r}.{did_you_mean(name, self.hook_names)}")
        return self._points[name]

    def _offer(self, names: tuple[str, ...]) -> None:
        self.hook_names = names
        self.edit_names = self._editable()
        self._capturable, self._editables = frozenset(self.hook_names), frozenset(self.edit_names)

    # The pass ----------------------------------------------------------------------------------------

    def new_cache(self, batch: int = 1) -> KVRows:
        return KVRows(self.n_layers, batch, self.n_ctx, enabled=self.cache_works)

    def forward(
        self,
        tokens: Sequence[Sequence[int]],
        cache: Cache,
        *,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
        keep: Sequence[int] | None = None,
    ) -> Forward:
        if not isinstance(cache, KVRows):
            raise TypeError(f"cache must come from this model's new_cache(), got {type(cache).__name__}")
        self._check(tokens, cache, capture, edits)
        kept = [1] * len(tokens) if keep is None else list(keep)
        empty = torch.empty(0)
        logits = [empty] * len(tokens)
        captured = {name: [empty] * len(tokens) for name in capture}
        with self.lock, torch.inference_mode():
            views = []
            for rows in _groups(tokens):
                view = cache.begin(rows, len(tokens[rows[0]]))
                group = self._group(tokens, view, capture, edits, max(kept[row] for row in rows))
                views.append(view)
                for index, row in enumerate(rows):
                    logits[row] = group.logits[index][-kept[row] :] if kept[row] else empty
                    for name in capture:
                        captured[name][row] = group.activations[name][index]
            for view in views:
                view.commit()
        return Forward(logits=tuple(logits), activations={name: tuple(rows) for name, rows in captured.items()})

    def _group(
        self,
        tokens: Sequence[Sequence[int]],
        view: PassView,
        capture: Sequence[str],
        edits: Sequence[Edit],
        keep: int,
    ) -> Forward:
        """Run the rows of one view, which all feed the same number of tokens."""
        ids = torch.tensor([list(tokens[row]) for row in view.rows], device=self.device)
        seen: dict[str, Tensor] = {}
        with ExitStack() as stack:
            for name in {*capture, *(edit.hook for edit in edits if edit.row in view.rows)}:
                mine = [edit for edit in edits if edit.hook == name and edit.row in view.rows]
                hook = _make_hook(name, mine, view, seen if name in capture else None)
                stack.enter_context(hooked(self._points[name], hook))
            logits = self._run(ids, view, max(keep, 1)).float()
        return Forward(
            logits=tuple(logits),
            activations={name: _rows_of(name, seen[name], view) for name in capture if name in seen},
        )

    def _check(
        self,
        tokens: Sequence[Sequence[int]],
        cache: RowLengths,
        capture: Sequence[str],
        edits: Sequence[Edit],
    ) -> None:
        lengths = cache.lengths
        if len(tokens) != len(lengths):
            raise ValueError(f"the cache has {len(lengths)} rows but tokens for {len(tokens)} were given")
        for row, ids in enumerate(tokens):
            if lengths[row] + len(ids) > self.n_ctx:
                raise PromptError(
                    f"row {row} would hold {lengths[row] + len(ids)} tokens; {self.name} accepts at most "
                    f"n_ctx={self.n_ctx}. Shorten the prompt or lower max_new_tokens."
                )
            for token in ids:
                if not 0 <= token < self.vocab_size:
                    raise PromptError(
                        f"token id {token} in row {row} is outside the vocabulary 0..{self.vocab_size - 1}"
                    )
        unknown = [name for name in capture if name not in self._capturable]
        unknown += [edit.hook for edit in edits if edit.hook not in self._editables]
        if unknown:
            raise UnknownHookError(
                f"{self.backend} backend of {self.name} offers no hook {unknown[0]!r} here."
                f"{did_you_mean(unknown[0], self.hook_names)} model.hook_names and model.edit_names list all."
            )

    # Self-check --------------------------------------------------------------------------------------

    def check_against(self, reference: Tensor) -> None:
        """Compare with the logits ``[pos, vocab]`` that plain transformers gave for :func:`check_ids`.

        Hooks that did not fire in that pass are no longer offered.

        :raises UnsupportedModelError: they differ, so the backend leaves something out of this architecture.
        """
        ids = check_ids(self.vocab_size)
        with self.lock, torch.inference_mode():
            view = self.new_cache().begin([0], len(ids))
            found = self._group([ids], view, self.hook_names, (), len(ids))
        self._offer(tuple(name for name in self.hook_names if name in found.activations))
        self._agree(found.logits[0], reference, "Try the other backend.")

    def _agree(self, logits: Tensor, reference: Tensor, way_out: str) -> None:
        difference = relative_difference(logits, reference)
        if not difference < allowed_difference(self.dtype):
            raise UnsupportedModelError(
                f"backend {self.backend!r} gives other logits for {self.name} than transformers does (by "
                f"{difference:.2g} of their size): it leaves out something that this model's config asks for. {way_out}"
            )

    def check_cache(self) -> float:
        """Compare cached with uncached logits on a short prompt; fall back to uncached on a mismatch.

        A renamed argument in a dependency once left the cache empty and generation silently wrong, so
        this runs at every load. Returns the largest relative difference.
        """
        ids = check_ids(self.vocab_size)
        plain = self.forward([ids], self.new_cache(), keep=[8]).logits[0]
        cache = self.new_cache()
        parts = [self.forward([part], cache, keep=[len(part)]).logits[0] for part in (ids[:5], ids[5:7], ids[7:])]
        difference = relative_difference(torch.cat(parts), plain)
        if not difference < allowed_difference(self.dtype):
            self.cache_works = False
            warnings.warn(
                f"{self.name} ({self.backend}): cached logits differ from uncached ones by {difference:.2g} "
                "of their size, so the KV cache is switched off: results stay exact, generation is slower. "
                "Check the versions of transformers (must be < 5.24) and transformer-lens.",
                stacklevel=3,
            )
        return difference

    def __repr__(self) -> str:
        return (
            f"<HookedModel {self.name} backend={self.backend} layers={self.n_layers} d_model={self.d_model} "
            f"n_ctx={self.n_ctx} vocab={self.vocab_size} {self.dtype} on {self.device}>"
        )


def check_ids(vocab_size: int) -> list[int]:
    """Eight token ids on which backends and caches are compared at load."""
    return [(7 * i + 3) % vocab_size for i in range(8)]


def _groups(tokens: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Rows that feed something, grouped by how much: one model call each."""
    by_length: dict[int, list[int]] = {}
    for row, ids in enumerate(tokens):
        if len(ids):
            by_length.setdefault(len(ids), []).append(row)
    yield from by_length.values()


@contextmanager
def hooked(point: nn.Module, fn: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Attach ``fn`` to one hook point for one pass, leaving everybody else's hooks alone."""
    conversion: Any = point.hook_conversion

    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor | None:
        value = fn(output if conversion is None else conversion.convert(output))
        return value if value is None or conversion is None else conversion.revert(value)

    handle = point.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _make_hook(
    name: str, edits: Sequence[Edit], view: PassView, seen: dict[str, Tensor] | None
) -> Callable[[Tensor], Tensor | None]:
    """A hook that applies ``edits`` in order and then notes the value, so that captures show the edit."""

    def fn(value: Tensor) -> Tensor | None:
        edited = value
        for edit in edits:
            if edited is value:
                edited = value.clone()
            index = view.rows.index(edit.row)
            if is_attention_map(name):
                first = view.width - view.past[index]
                span = edited[index, :, edit.start : edit.stop, first:]
                span.copy_(edit.fn(span.transpose(0, 1)).transpose(0, 1))
            else:
                edited[index, edit.start : edit.stop] = edit.fn(edited[index, edit.start : edit.stop])
        if seen is not None:
            seen[name] = edited
        return None if edited is value else edited

    return fn


def _rows_of(name: str, value: Tensor, view: PassView) -> tuple[Tensor, ...]:
    """Split a captured ``[rows, ...]`` tensor into one ``[new, ...]`` tensor per row."""
    if name.endswith("hook_attn_scores"):
        # One backend masks with -inf, the other with the lowest number: show the same.
        value = value.masked_fill(value <= torch.finfo(value.dtype).min / 2, -torch.inf)
    if is_attention_map(name):
        return tuple(value[index, :, :, view.width - past :].transpose(0, 1) for index, past in enumerate(view.past))
    return tuple(value)
