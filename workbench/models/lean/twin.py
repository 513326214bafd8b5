"""The lean path as a plain torch loop: every hook, any device and dtype, any number of tokens.

It is the twin that the compiled gear is tested against. Everything but attention runs on one flat axis of columns, a
column being one fed token, so rows that feed different numbers of tokens share every matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .rows import Fed, LeanRows
from .taps import Taps
from .weights import LeanWeights

__all__ = ["head", "phases_of", "positions_of", "rms", "run_twin"]


def run_twin(
    weights: LeanWeights, store: LeanRows, fed: Fed, tokens: Tensor, taps: Taps, kept: Sequence[int]
) -> Tensor:
    """Feed ``tokens`` ``[column]`` through the model; logits ``[len(kept), vocab]`` float32 of the columns ``kept``."""
    device = weights.final.device
    positions = torch.tensor(positions_of(fed), device=device)
    groups = _groups(store, fed, device)
    cosines, sines = phases_of(weights, positions)
    embedded = weights.embed(tokens)
    rotary = cosines.to(embedded.dtype), sines.to(embedded.dtype)
    residual = taps.flat("hook_embed", embedded * weights.embed_scale)
    for layer in range(weights.n_layers):
        kind = weights.kind[layer]
        attend = _Attention(weights, store, layer, groups, (rotary[0][kind], rotary[1][kind]), taps)
        residual = _block(weights, layer, residual, attend, taps)
    normed = _norm(residual, weights.final, weights.epsilon, taps, "ln_final")
    return head(weights, normed[list(kept)])


def head(weights: LeanWeights, normed: Tensor) -> Tensor:
    """Unembed what the final norm gave: ``[..., d_model]`` to float32 logits, softcap included."""
    logits = weights.unembed(normed).float()
    return logits if weights.softcap is None else weights.softcap * torch.tanh(logits / weights.softcap)


def positions_of(fed: Fed) -> list[int]:
    """Position of every column in its row."""
    spans = zip(fed.past, fed.counts, strict=True)
    return [past + offset for past, count in spans for offset in range(count)]


def phases_of(weights: LeanWeights, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary cosines and sines, ``[kind, column, d_head / 2]`` float32, of ``positions`` ``[column]``."""
    angles = positions.float()[None, :, None] * weights.frequencies[:, None]
    scale = torch.tensor(weights.rotary_scale, device=positions.device)[:, None, None]
    return angles.cos() * scale, angles.sin() * scale


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Rows that feed the same number of tokens, whose attention is one batch."""

    rows: tuple[int, ...]
    past: tuple[int, ...]
    index: slice | Tensor
    """Picks them out of the store: a slice (a view) where they lie side by side."""
    columns: Tensor
    """``[row, new]``"""
    positions: Tensor
    """``[row, new]``"""
    width: int
    """Columns of the store that at least one of them may see."""
    whole: bool
    """Every query sees exactly what is before it in this pass: torch knows that mask."""


def _groups(store: LeanRows, fed: Fed, device: torch.device) -> list[_Group]:
    by_count: dict[int, list[int]] = {}
    for index, count in enumerate(fed.counts):
        by_count.setdefault(count, []).append(index)
    spans = fed.spans()
    groups = []
    for count, members in by_count.items():
        rows = tuple(fed.rows[i] for i in members)
        past = [fed.past[i] for i in members]
        _forget(store, rows, past, max(past) + count)
        side_by_side = rows == tuple(range(rows[0], rows[0] + len(rows)))
        starts = torch.tensor([spans[i].start for i in members], device=device)
        offsets = torch.arange(count, device=device)
        groups.append(
            _Group(
                rows=rows,
                past=tuple(past),
                index=slice(rows[0], rows[-1] + 1) if side_by_side else torch.tensor(rows, device=device),
                columns=starts[:, None] + offsets,
                positions=torch.tensor(past, device=device)[:, None] + offsets,
                width=max(past) + count,
                whole=max(past) == 0,
            )
        )
    return groups


def _forget(store: LeanRows, rows: Sequence[int], past: Sequence[int], width: int) -> None:
    """Blank what shorter rows left behind before a rewind: it is masked, but 0 * NaN would still leak."""
    for row, length in zip(rows, past, strict=True):
        if length < max(past):
            span = slice(length - store.base, width - store.base)
            store.keys[:, row, :, span] = 0
            store.values[:, row, :, span] = 0


def _block(weights: LeanWeights, layer: int, residual: Tensor, attend: _Attention, taps: Taps) -> Tensor:
    at, epsilon = f"blocks.{layer}", weights.epsilon
    residual = taps.flat(f"{at}.hook_resid_pre", residual)
    added = attend(_norm(residual, weights.before_attention[layer], epsilon, taps, f"{at}.ln1"))
    if weights.after_attention is not None:
        added = rms(added, weights.after_attention[layer], epsilon)
    residual = taps.flat(f"{at}.hook_resid_mid", residual + taps.flat(f"{at}.hook_attn_out", added))
    added = _mlp(weights, layer, _norm(residual, weights.before_mlp[layer], epsilon, taps, f"{at}.ln2"), taps)
    if weights.after_mlp is not None:
        added = rms(added, weights.after_mlp[layer], epsilon)
    return taps.flat(f"{at}.hook_resid_post", residual + taps.flat(f"{at}.hook_mlp_out", added))


def _mlp(weights: LeanWeights, layer: int, normed: Tensor, taps: Taps) -> Tensor:
    at = f"blocks.{layer}.mlp"
    gate, up = functional.linear(normed, weights.gate_up[layer]).chunk(2, dim=-1)
    gate, up = taps.flat(f"{at}.hook_pre", gate), taps.flat(f"{at}.hook_pre_linear", up)
    opened = functional.silu(gate) if weights.activation == "silu" else functional.gelu(gate, approximate="tanh")
    return functional.linear(taps.flat(f"{at}.hook_post", opened * up), weights.down[layer])


def rms(value: Tensor, factor: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm over the last axis, computed in float32, in the dtype of ``value``."""
    wide = value.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon) * factor).to(value.dtype)


def _norm(value: Tensor, factor: Tensor, epsilon: float, taps: Taps, at: str) -> Tensor:
    """A norm whose inner values can be seen. They are read-outs: a change of them would not reach the stream."""
    scale, normalized = f"{at}.hook_scale", f"{at}.hook_normalized"
    if scale in taps or normalized in taps:
        wide = value.float()
        root = (wide.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()
        taps.flat(scale, root.to(value.dtype))
        taps.flat(normalized, (wide / root).to(value.dtype))
    return rms(value, factor, epsilon)


class _Attention:
    """One layer's attention over what the store holds and what this pass adds to it."""

    def __init__(
        self,
        weights: LeanWeights,
        store: LeanRows,
        layer: int,
        groups: Sequence[_Group],
        rotary: tuple[Tensor, Tensor],
        taps: Taps,
    ) -> None:
        self._weights = weights
        self._store = store
        self._layer = layer
        self._groups = groups
        self._rotary = rotary
        self._taps = taps
        self._at = f"blocks.{layer}.attn"

    def __call__(self, normed: Tensor) -> Tensor:
        """``[column, d_model]`` to ``[column, d_model]``, before any norm behind it."""
        weights, at = self._weights, self._at
        heads, kv_heads, size = weights.n_heads, weights.n_kv_heads, weights.d_head
        mixed = functional.linear(normed, weights.qkv[self._layer])
        by_head = mixed.view(len(normed), heads + 2 * kv_heads, size)
        parts = torch.split(by_head, [heads, kv_heads, kv_heads], dim=1)
        query, key, value = (
            self._taps.flat(f"{at}.hook_{name}", part) for name, part in zip("qkv", parts, strict=True)
        )
        if weights.query_norm is not None and weights.key_norm is not None:
            query = rms(query, weights.query_norm[self._layer], weights.epsilon)
            key = rms(key, weights.key_norm[self._layer], weights.epsilon)
        query, key = self._turn(query), self._turn(key)
        mixed = self._mix(query, key, value)
        mixed = self._taps.flat(f"{at}.hook_z", mixed)
        return functional.linear(mixed.flatten(1), weights.attention_out[self._layer])

    def _turn(self, value: Tensor) -> Tensor:
        """Rotary embedding of ``[column, head, d_head]``: the halves of each head are the two coordinates."""
        cosines, sines = (part[:, None] for part in self._rotary)
        first, second = value.chunk(2, dim=-1)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What each column gathers, ``[column, head, d_head]``."""
        if len(self._groups) == 1:  # its columns are all there are, in order: no need to pick them
            group = self._groups[0]
            return self._attend(group, *(_square(part, group) for part in (query, key, value))).flatten(0, 1)
        mixed = torch.empty_like(query)
        for group in self._groups:
            picked = (part[group.columns] for part in (query, key, value))
            mixed[group.columns] = self._attend(group, *picked)
        return mixed

    def _attend(self, group: _Group, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """``[row, new, head, d_head]`` of the group's rows, all of the same count."""
        keys, values = self._held("keys", group, key), self._held("values", group, value)
        query = query.transpose(1, 2)
        seen = self._seen(group)
        at = self._at
        if f"{at}.hook_attn_scores" not in self._taps and f"{at}.hook_pattern" not in self._taps:
            causal = group.whole and seen is None
            grouped = self._weights.n_heads != self._weights.n_kv_heads
            return functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=seen, is_causal=causal, scale=self._weights.attention_scale,
                enable_gqa=grouped,
            ).transpose(1, 2)  # fmt: skip
        repeats = self._weights.n_heads // self._weights.n_kv_heads
        keys, values = keys.repeat_interleave(repeats, dim=1), values.repeat_interleave(repeats, dim=1)
        scores = query @ keys.transpose(2, 3) * self._weights.attention_scale
        hidden = ~self._mask(group)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        scores = self._taps.map(f"{at}.hook_attn_scores", scores, group.rows)
        pattern = scores.float().softmax(dim=-1).to(query.dtype)
        pattern = self._taps.map(f"{at}.hook_pattern", pattern, group.rows)
        return (pattern @ values).transpose(1, 2)

    def _held(self, which: str, group: _Group, new: Tensor) -> Tensor:
        """Store ``[row, new, kv_head, d_head]``; all that the rows hold now, ``[row, kv_head, width, d_head]``."""
        store = self._store
        held = (store.keys if which == "keys" else store.values)[self._layer]
        for index, (row, past) in enumerate(zip(group.rows, group.past, strict=True)):
            first = past - store.base
            held[row, :, first : first + new.shape[1]] = new[index].transpose(0, 1)
        own = held[group.index, :, : group.width - store.base]
        if store.shared is None:
            return own
        before = store.shared.keys if which == "keys" else store.shared.values
        shared = before[self._layer, store.shared.row, :, : store.base].expand(len(group.rows), -1, -1, -1)
        return torch.cat([shared, own], dim=2)

    def _mask(self, group: _Group) -> Tensor:
        """``[row, 1, new, width]``: true where a query may look."""
        columns = torch.arange(group.width, device=group.positions.device)
        queries = group.positions[:, None, :, None]
        seen = columns <= queries
        window = self._weights.window[self._layer]
        return seen & (columns > queries - window) if window else seen

    def _seen(self, group: _Group) -> Tensor | None:
        """The mask, or None where torch's own causal one says the same."""
        window = self._weights.window[self._layer]
        if group.whole and (not window or group.width <= window):
            return None
        return self._mask(group)


def _square(value: Tensor, group: _Group) -> Tensor:
    """``[column, …]`` as ``[row, new, …]``, without a copy."""
    return value.view(*group.columns.shape, *value.shape[1:])
