"""How states move: loop residuals, orbits in their principal plane, and where attention goes. Plain numbers to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CarryError
from .trace import CarryTrace

__all__ = ["AttentionShares", "LoopMotion", "Orbit", "attention_shares", "loop_motion", "orbit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopMotion:
    """How far the prompt's states move from loop to loop."""

    residual: Tensor
    """``||s_k - s_{k-1}||``, ``[loops, prompt]``: row k is the move made by loop k + 1. Empty without loops."""
    second_difference: Tensor
    """``||s_{k+1} - 2 s_k + s_{k-1}||``, ``[loops - 1, prompt]``: small where the moves repeat."""


def loop_motion(trace: CarryTrace) -> LoopMotion:
    """Moves of every prompt position over the loops; a loop that settles has falling residuals."""
    move = trace.loop_s.diff(dim=0)
    return LoopMotion(residual=move.norm(dim=-1), second_difference=move.diff(dim=0).norm(dim=-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Orbit:
    """States of several traces in one plane."""

    points: tuple[Tensor, ...]
    """One ``[step, 2]`` per trace."""
    explained: tuple[float, float]
    """Share of the variance of the basis data along each axis."""
    basis_of: str
    """What the axes were fitted on."""


def orbit(traces: Sequence[CarryTrace], *, fit_on: Sequence[CarryTrace] | None = None) -> Orbit:
    """Principal components of the states over steps, fitted on ``fit_on`` (or on the first trace alone).

    Donor and ablated runs are drawn in the same basis; a basis fitted on all of them would follow the difference.

    :raises CarryError: fewer than three states to fit on.
    """
    basis = [traces[0]] if fit_on is None else list(fit_on)
    data = torch.cat([trace.states for trace in basis]).double()
    if len(data) < 3:
        raise CarryError(f"a plane needs at least three states to fit on, got {len(data)}: use more pauses or traces")
    mean = data.mean(0)
    _, spread, axes = torch.linalg.svd(data - mean, full_matrices=False)
    power = spread.square() / spread.square().sum().clamp(min=1e-30)
    return Orbit(
        points=tuple(((trace.states.double() - mean) @ axes[:2].T).float() for trace in traces),
        explained=(float(power[0]), float(power[1])),
        basis_of=f"{len(data)} states of {len(basis)} trace{'s' if len(basis) > 1 else ''}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShares:
    """Where each step's attention goes, ``[step, layer, head, group]``; sums to one over groups."""

    shares: Tensor
    groups: tuple[str, ...]
    """``sink`` (position 0), ``prompt`` (its rest), ``pause 1`` …, ``answer`` (earlier answer tokens), ``self``."""
    layers: tuple[int, ...]
    first_visible: Tensor
    """The first position that a sliding window leaves visible, ``[step, layer]``; 0 where all are."""


def attention_shares(trace: CarryTrace, windows: Sequence[int | None]) -> AttentionShares:
    """Attention of each step by group; ``windows`` are the sliding windows of all the model's layers (None: full).

    :raises CarryError: the trace was run without ``attention=True``.
    """
    if trace.attention is None:
        raise CarryError("this trace holds no attention: run with attention=True")
    steps, n_layers, heads, _ = trace.attention.shape
    n, p = trace.prompt_length, trace.pauses
    groups = ("sink", "prompt", *(f"pause {i + 1}" for i in range(p)), "answer", "self")
    shares = torch.zeros(steps, n_layers, heads, len(groups))
    for step in range(steps):
        here, seen = n - 1 + step, trace.attention[step]
        shares[step, ..., -1] = seen[..., here]
        spans = {"sink": (0, 1), "prompt": (1, n), "answer": (n + p, here)}
        spans |= {f"pause {i + 1}": (n + i, n + i + 1) for i in range(p)}
        for index, name in enumerate(groups[:-1]):
            begin, end = spans[name]
            shares[step, ..., index] = seen[..., begin : min(end, here)].sum(-1)
    layers = tuple(range(trace.band[0], trace.band[0] + n_layers))
    first = [
        [max(n - 1 + step - window + 1, 0) if (window := windows[layer]) else 0 for layer in layers]
        for step in range(steps)
    ]
    return AttentionShares(shares=shares, groups=groups, layers=layers, first_visible=torch.tensor(first))
