"""What the demonstration compares: the carry and its controls, each a way to run and train the same small adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import CarryError, did_you_mean
from .adapters import Adapter, make_adapter
from .model import CarryModel
from .optimise import Plan
from .scan import Do, Scan
from .spans import Batch, Layout
from .toy import REPEATS

__all__ = ["FURTHER", "SYSTEMS", "System", "TwoLayerMerge", "make_merge", "read_logits"]

ADAPTER_PLAN = Plan(steps=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One row of the table of controls."""

    title: str
    mode: str = "carry"
    """How the scan uses the adapter; see :data:`workbench.carry.scan.MODES`."""
    loops: int | None = 0
    """How often the band is looped; None: once per pause, so that the hops are matched."""
    pauses: bool = True
    """Whether the pause tokens are there; without them the query is read, and only ``loops`` tells the hops."""
    query_looped: bool = False
    """Whether the query token belongs to what ``depth_tail`` loops; else the first pause is the first that does."""
    adapter: str = "linear_add"
    plan: Plan | None = ADAPTER_PLAN
    """How it is trained; None: not at all."""
    max_pauses: int = 4
    """The most pauses it is trained on."""
    curriculum: bool = True
    """Whether training begins with one pause and reaches ``max_pauses`` half-way, or draws from all at once."""
    base_repeats: int = REPEATS
    """Pauses after which the base under it was trained to repeat its one-hop answer."""
    train_base: bool = False
    """Whether all weights of the base train too."""

    def loops_at(self, pauses: int) -> int:
        return pauses if self.loops is None else self.loops

    def shown_at(self, pauses: int) -> int:
        """How many pause tokens stand in a row that needs ``pauses``."""
        return pauses if self.pauses else 0

    def arrange(self, batch: Batch) -> Batch:
        """The batch with its prompt ending where the system wants it to."""
        if not self.query_looped:
            return batch
        return replace(batch, prompt_lengths=batch.prompt_lengths - 1, pauses=batch.pauses + 1)

    def pauses_at(self, step: int, generator: torch.Generator) -> int:
        """How many pauses a training step gives its batch: uniform from 1 to the most allowed by then."""
        most = self.max_pauses
        if self.curriculum and self.plan is not None:
            most = min(most, 1 + 2 * (self.max_pauses - 1) * step // self.plan.steps)
        return int(torch.randint(1, most + 1, (1,), generator=generator))


SYSTEMS: Mapping[str, System] = {
    "base": System(title="base alone, pauses but no adapter", mode="plain", plan=None),
    "carry": System(title="carry"),
    "feedforward": System(title="feed-forward control, merge(e, e)", mode="feedforward"),
    "feedforward_all": System(
        title="feed-forward, all weights of the base trained too",
        mode="feedforward",
        train_base=True,
        plan=Plan(steps=1000, learning_rate=1e-3),
    ),
    "depth": System(title="depth loop, k = p", mode="depth", loops=None),
    "depth_tail": System(title="depth loop, k = p, prompt kept", mode="depth_tail", loops=None),
    "no_pauses": System(title="depth loop, k = p, no pauses", mode="depth", loops=None, pauses=False),
    "query_loop": System(
        title="depth loop, k = p, no pauses, prompt kept",
        mode="depth_tail",
        loops=None,
        pauses=False,
        query_looped=True,
    ),
    "depth_fixed": System(title="depth loop, k = 4 whatever p", mode="depth", loops=4, plan=Plan(steps=600)),
    "prompt_loops": System(title="prompt looped k = p, then feed-forward pauses", mode="prompt_loops", loops=None),
    "carry_all_at_once": System(title="carry, no curriculum", curriculum=False),
    "carry_two_layer": System(title="carry, two-layer merge", adapter="two_layer"),
    "base_wide": System(
        title="base that repeats its answer for 8 pauses, alone", mode="plain", plan=None, base_repeats=8
    ),
    "carry_wide": System(title="carry on that base", base_repeats=8),
    "depth_wide": System(title="depth loop, k = p, on that base", mode="depth", loops=None, base_repeats=8),
    "depth_more": System(title="depth loop, k = p, trained to 5 pauses", mode="depth", loops=None, max_pauses=5),
}
"""Every system by its name, in the order of the table."""
FURTHER = ("base_wide", "carry_wide", "depth_wide", "depth_more")
"""Those that only ask why the depth loop fails; all others are the controls."""


class TwoLayerMerge(Adapter):
    """``x = e + B gelu(A [e; rms(s)] + a) + b``, B = b = 0 at the start, A normal by ``seed``: a merge with an MLP."""

    kind = "two_layer"

    def __init__(self, d_model: int, *, seed: int = 0, gain: float = 1.0, rescale: bool = False) -> None:
        super().__init__(d_model, gain=gain, rescale=rescale)
        width = 2 * d_model
        stream = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(width, width, generator=stream) * width**-0.5)
        self.first_bias = nn.Parameter(torch.zeros(width))
        self.second = nn.Parameter(torch.zeros(d_model, width))
        self.second_bias = nn.Parameter(torch.zeros(d_model))

    def merge(self, e: Tensor, s: Tensor) -> Tensor:
        weights = [weight.to(e.dtype) for weight in (self.first, self.first_bias, self.second, self.second_bias)]
        inner = functional.gelu(functional.linear(torch.cat([e, s], dim=-1), weights[0], weights[1]))
        return e + functional.linear(inner, weights[2], weights[3])


def make_merge(system: System, d_model: int) -> Adapter:
    """The system's adapter with fresh weights."""
    return TwoLayerMerge(d_model) if system.adapter == TwoLayerMerge.kind else make_adapter(system.adapter, d_model)


def system_named(name: str) -> System:
    """A system of :data:`SYSTEMS`.

    :raises CarryError: there is none of that name.
    """
    if name not in SYSTEMS:
        raise CarryError(f"no system {name!r}; choose from {', '.join(SYSTEMS)}.{did_you_mean(name, SYSTEMS)}")
    return SYSTEMS[name]


def shortened(system: System, steps: int) -> System:
    """The same system trained for ``steps`` steps, if it is trained at all."""
    return system if system.plan is None else replace(system, plan=replace(system.plan, steps=steps))


def read_logits(
    model: CarryModel,
    batch: Batch,
    *,
    mode: str,
    loops: int,
    do: Do | None = None,
) -> tuple[Tensor, Scan]:
    """Logits ``[read, vocab]`` at the positions that predict answer tokens, and the scan they come from.

    A row's last token is never fed: nothing that is read depends on it.
    """
    whole = Layout.of(batch.mask, batch.prompt_lengths)
    fed = batch.mask & (whole.positions < whole.lengths[:, None] - 1)
    used = fed.any(0)
    fed, reads = fed[:, used], batch.reads()[:, used]
    found = model.states(batch.ids[:, used], fed, batch.prompt_lengths, loops=loops, mode=mode, do=do)
    final = model.residuals(found)[Layout.of(fed, batch.prompt_lengths).to_front(reads)]
    return model.blocks.unembed(model.blocks.norm(final)), found
