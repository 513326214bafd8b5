"""What a run cost, and whether it is right: token-layers, cache bytes, and a comparison with the slow scan."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .cost import Cost, token_layers
from .model import CarryModel
from .reference import reference_logits, reference_states
from .trace import CarryTrace

__all__ = ["Check", "CostPanel", "check_trace", "cost_panel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPanel:
    """Work and memory of one trace."""

    cost: Cost
    """Token-layers of a teacher-forced pass over the trace's tokens."""
    generating: Cost
    """The same of generating its answer."""
    cache_bytes: int
    """Keys and values of all layers at its last position."""
    flops: float
    """Floating-point operations of the fast pass: 2 per weight of a block and token, attention and head left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How far the incremental scan is from the slow one on the same input."""

    states: float
    """Largest difference of a state's channel."""
    logits: float
    """Largest difference of a logit."""
    largest_logit: float

    @property
    def relative(self) -> float:
        return self.logits / max(self.largest_logit, 1e-12)


def cost_panel(model: CarryModel, trace: CarryTrace) -> CostPanel:
    """Count what the trace took, from its shape."""
    answer = len(trace.ids) - trace.prompt_length - trace.pauses
    loops = len(trace.loop_s) - 1

    def work(fed: int, *, training: bool) -> Cost:
        return token_layers(
            model.n_layers, trace.band, prompt=trace.prompt_length, pauses=trace.pauses, answer=fed, loops=loops,
            training=training,
        )  # fmt: skip

    cost = work(answer, training=True)
    block = sum(parameter.numel() for parameter in model.blocks.layers[0].parameters())
    row = torch.tensor([list(trace.ids)], device=model.device)
    with torch.no_grad():
        found = model.states(row, torch.ones_like(row), torch.tensor([trace.prompt_length]), loops=0, mode="plain")
    per_layer = found.band.bytes() / (trace.band[1] - trace.band[0])
    return CostPanel(
        cost=cost,
        generating=work(max(answer - 1, 0), training=False),
        cache_bytes=round(per_layer * model.n_layers),
        flops=2.0 * block * cost.fast,
    )


@torch.no_grad()
def check_trace(model: CarryModel, trace: CarryTrace) -> Check:
    """Run the slow scan over the trace's tokens and compare. A trace with an intervention is compared without it."""
    loops, mode = int(trace.config["loops"]), str(trace.config["mode"])
    ids = torch.tensor([list(trace.ids)], device=model.device)
    mask, lengths = torch.ones_like(ids), torch.tensor([trace.prompt_length], device=model.device)
    fast = model.logits(ids, mask, lengths, loops=loops, mode=mode)
    states = model.states(ids, mask, lengths, loops=loops, mode=mode).s
    args = (model.blocks, model.adapter, ids, mask, lengths)
    slow = reference_logits(*args, band=trace.band, loops=loops, mode=mode)
    _, slow_states, _ = reference_states(*args, band=trace.band, loops=loops, mode=mode)
    return Check(
        states=float((states - slow_states).abs().max()),
        logits=float((fast - slow).abs().max()),
        largest_logit=float(slow.abs().max()),
    )
