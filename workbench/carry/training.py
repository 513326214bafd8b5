"""Training the merge: an adapter on a frozen model, on the answer's tokens alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import CarryError
from .model import CarryModel
from .optimise import Training, optimise
from .spans import Batch
from .systems import SYSTEMS, System, read_logits
from .task import stream

__all__ = ["Task", "fit", "training_loss"]


@runtime_checkable
class Task(Protocol):
    """What a carry can be trained on: batches of prompts, pauses and answers."""

    def draw(self, size: int, pauses: int, generator: torch.Generator, *, shown: int | None = None) -> Batch:
        """``size`` rows whose answers need ``pauses`` pauses; ``shown`` stand in the rows, if other than that."""
        ...


def training_loss(model: CarryModel, batch: Batch, *, mode: str, loops: int) -> Tensor:
    """Mean cross-entropy in nats of the answers' tokens, and of nothing else."""
    logits, _ = read_logits(model, batch, mode=mode, loops=loops)
    return functional.cross_entropy(logits, batch.targets())


def fit(
    model: CarryModel,
    task: Task,
    *,
    system: System = SYSTEMS["carry"],
    seed: int = 0,
    folder: Path | None = None,
    limit: int | None = None,
    label: str = "fit",
    progress: bool = True,
) -> Training:
    """Train the model's adapter in place by the system's plan; the base is left alone unless that says otherwise.

    Every step draws its number of pauses and its batch from a stream named by (seed, step). With a ``folder`` it goes
    on where an earlier call stopped, and ends in the same weights, bit for bit. ``limit`` stops after that many steps.

    :raises CarryError: the system is not trained, nothing in it can be, or the folder holds another training.
    """
    if system.plan is None:
        raise CarryError(f"{system.title!r} is not trained: give a system with a plan")
    plan, adapter = replace(system.plan, seed=seed), model.adapter

    def loss_at(step: int) -> Tensor:
        generator = stream("fit", seed, step)
        pauses = system.pauses_at(step, generator)
        batch = task.draw(plan.batch, pauses, generator, shown=system.shown_at(pauses))
        return training_loss(model, system.arrange(batch), mode=system.mode, loops=system.loops_at(pauses))

    weights = dict(adapter.named_parameters(prefix="adapter"))
    if system.train_base:
        weights |= {f"base.{name}": weight for name, weight in model.blocks.whole.named_parameters()}
    with _training_only(weights, model):
        return optimise(weights, loss_at, plan, folder=folder, label=label, limit=limit, progress=progress)


@contextmanager
def _training_only(weights: dict[str, nn.Parameter], model: CarryModel) -> Iterator[None]:
    """Only ``weights`` ask for gradients while the block runs: a frozen model then costs no backward pass."""
    chosen = {id(weight) for weight in weights.values()}
    before = {weight: weight.requires_grad for weight in model.blocks.parameters()}
    try:
        for weight in before:
            weight.requires_grad_(id(weight) in chosen)
        yield
    finally:
        for weight, asked in before.items():
            weight.requires_grad_(asked)
