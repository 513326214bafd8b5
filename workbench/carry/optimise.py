"""The optimiser loop: AdamW with a cosine schedule, resumable bit for bit from one safetensors file.

Batches come from a stream named by (seed, step), so a step's batch needs no history: weights, moments and the number
of steps done are the whole state.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from ..errors import CarryError

__all__ = ["STATE_FILE", "Plan", "Training", "optimise"]

STATE_FILE = "training.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How weights are trained. JSON-able: ``Plan(**asdict(plan))`` is equal to ``plan``.

    ``clip`` bounds the norm of the whole gradient. The learning rate falls from ``learning_rate`` to 0 along half a
    cosine over ``steps``.

    :raises CarryError: a number is out of range.
    """

    steps: int
    batch: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("batch", 1), ("weight_decay", 0)):
            if getattr(self, name) < low:
                raise CarryError(f"{name} must be {low} or more, got {getattr(self, name)}")
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise CarryError(f"{name} must be a finite number above 0, got {getattr(self, name)}")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a training gave: the loss of each step in nats, and the processor seconds over all calls."""

    losses: tuple[float, ...]
    seconds: float

    def last_loss(self, steps: int = 100) -> float:
        """Mean loss of the last ``steps`` steps."""
        last = self.losses[-steps:]
        return sum(last) / len(last)


def optimise(
    weights: Mapping[str, nn.Parameter],
    loss_at: Callable[[int], Tensor],
    plan: Plan,
    *,
    folder: Path | None = None,
    label: str = "train",
    save_every: int = 100,
    limit: int | None = None,
    progress: bool = True,
) -> Training:
    """Train ``weights`` in place on ``loss_at(step)``.

    With a ``folder`` the state is written there every ``save_every`` steps and at the end, and a later call with the
    same plan goes on from it. ``limit`` stops after that many steps in this call.

    :raises CarryError: nothing is trainable, the loss is not finite, or the folder holds another training.
    """
    if not any(weight.requires_grad for weight in weights.values()):
        raise CarryError("nothing to train: none of the weights requires a gradient. 'replace' has no weights.")
    optimiser = torch.optim.AdamW(weights.values(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
    losses, before = ([], 0.0) if folder is None else _resume(folder / STATE_FILE, weights, optimiser, plan)
    started = time.process_time()
    stop = plan.steps if limit is None else min(plan.steps, len(losses) + limit)
    bar = tqdm(total=plan.steps, initial=len(losses), desc=label, disable=not progress, mininterval=1.0)
    with bar:
        while len(losses) < stop:
            losses.append(_step(weights, optimiser, loss_at, plan, len(losses)))
            bar.update()
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            if folder is not None and (len(losses) % save_every == 0 or len(losses) == stop):
                seconds = before + time.process_time() - started
                _save(folder / STATE_FILE, weights, optimiser, plan, Training(losses=tuple(losses), seconds=seconds))
    return Training(losses=tuple(losses), seconds=before + time.process_time() - started)


def _step(
    weights: Mapping[str, nn.Parameter],
    optimiser: torch.optim.AdamW,
    loss_at: Callable[[int], Tensor],
    plan: Plan,
    step: int,
) -> float:
    for group in optimiser.param_groups:
        group["lr"] = plan.rate(step)
    optimiser.zero_grad()
    loss = loss_at(step)
    value = loss.item()
    if not math.isfinite(value):
        raise CarryError(
            f"the loss is {value} at step {step}: lower learning_rate={plan.learning_rate} or clip={plan.clip}"
        )
    if not loss.requires_grad:
        raise CarryError(
            "the loss does not depend on the weights that train: give pauses or loops, so that they are used"
        )
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(weights.values(), plan.clip)
    optimiser.step()
    return value


def _save(
    path: Path, weights: Mapping[str, nn.Parameter], optimiser: torch.optim.AdamW, plan: Plan, so_far: Training
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.tensor(getattr(so_far, name), dtype=torch.float64) for name in ("losses", "seconds")}
    for name, weight in weights.items():
        tensors[f"{name}/weight"] = weight.detach()
        tensors |= {
            f"{name}/{moment}": optimiser.state[weight][moment] for moment in MOMENTS if optimiser.state[weight]
        }
    new = path.with_suffix(".new")
    save_file(tensors, new, metadata={"plan": json.dumps(asdict(plan), sort_keys=True)})
    new.replace(path)


def _resume(
    path: Path, weights: Mapping[str, nn.Parameter], optimiser: torch.optim.AdamW, plan: Plan
) -> tuple[list[float], float]:
    """Take up the state in ``path`` if it is there; losses and processor seconds so far."""
    if not path.is_file():
        return [], 0.0
    tensors, told = _read(path)
    if told != asdict(plan):
        raise CarryError(
            f"{path} holds a training by another plan, {told}; this one is {asdict(plan)}: use another folder"
        )
    shapes = {f"{name}/weight": tuple(weight.shape) for name, weight in weights.items()}
    found = {name: tuple(value.shape) for name, value in tensors.items() if name.endswith("/weight")}
    if shapes != found:
        raise CarryError(f"{path} holds the training of other weights ({sorted(found)[:3]}…): use another folder")
    losses: list[float] = tensors["losses"].tolist()
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[f"{name}/weight"])
            if f"{name}/{MOMENTS[0]}" in tensors:
                optimiser.state[weight] = {moment: tensors[f"{name}/{moment}"] for moment in MOMENTS}
    return losses, float(tensors["seconds"])


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            told = json.loads((file.metadata() or {}).get("plan", "{}"))
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise CarryError(f"{path} can't be read as a training's state: {error}. Remove it to start anew.") from error
    return tensors, told
