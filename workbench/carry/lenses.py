"""Lenses: a state read as if it were the model's last residual, with or without what later blocks do to it.

The logit lens takes a state as it is. The Jacobian lens (arXiv 2607.15495) first moves it by the mean derivative of
the last residual: ``lens(h) = unembed(J h)``, J the mean over positions and prompts of d h_final / d h at the same
position. What a lens reads is what is decodable, not what the model uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import CarryError
from ..models import HookedModel, hooks_on
from .runner import Where
from .settings import CarrySettings
from .spans import pack

if TYPE_CHECKING:
    from .model import CarryModel

__all__ = ["Exit", "JacobianLens", "Lens", "LogitLens", "fit_jacobian_lens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """A place where a state leaves: a layer, in a loop of the prompt or at the steps after it."""

    layer: int
    loop: int | None = None
    """Loop of the prompt, from 0; None for the steps."""

    def __str__(self) -> str:
        return f"layer {self.layer}, " + ("steps" if self.loop is None else f"loop {self.loop}")


class Lens(Protocol):
    """From states ``[..., d_model]`` that left at ``exit`` to logits ``[..., vocab]``."""

    @property
    def name(self) -> str: ...

    def logits(self, model: HookedModel, states: Tensor, exit: Exit) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LogitLens:
    """The state through the final norm and the unembedding (nostalgebraist 2020)."""

    name: str = "logit lens"

    def logits(self, model: HookedModel, states: Tensor, exit: Exit) -> Tensor:
        return model.unembed(states).cpu()


@dataclass(frozen=True, slots=True, kw_only=True)
class JacobianLens:
    """``unembed(J h)`` with one J ``[d_model, d_model]`` per exit, fitted by :func:`fit_jacobian_lens`."""

    matrices: Mapping[Exit, Tensor]
    samples: int
    """States that each J is the mean over; the fewest, where exits differ."""
    name: str = "Jacobian lens"

    def logits(self, model: HookedModel, states: Tensor, exit: Exit) -> Tensor:
        """:raises CarryError: no J was fitted for this exit."""
        if exit not in self.matrices:
            raise CarryError(
                f"no Jacobian was fitted for {exit}; there is one for {'; '.join(map(str, self.matrices))}"
            )
        return model.unembed(states.cpu().float() @ self.matrices[exit].T).cpu()

    def direction(self, model: CarryModel, exit: Exit, token: int) -> Tensor:
        """The direction of a state at ``exit`` along which ``token``'s logit grows, final norm aside: ``[d_model]``."""
        row: Tensor = model.blocks.whole.get_output_embeddings().weight[token].detach().cpu().float()
        return row @ self.matrices[exit]

    def shuffled(self, seed: int = 0) -> JacobianLens:
        """The baseline: every J with its input channels permuted. What it still reads is no merit of the lens."""
        stream = torch.Generator().manual_seed(seed)
        mixed = {exit: j[:, torch.randperm(j.shape[1], generator=stream)] for exit, j in self.matrices.items()}
        return replace(self, matrices=mixed, name="shuffled Jacobian lens")

    def save(self, path: str | Path) -> Path:
        """Write the matrices to one ``.safetensors`` file."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        told = [[exit.layer, exit.loop] for exit in self.matrices]
        tensors = {str(index): j.contiguous().clone() for index, j in enumerate(self.matrices.values())}
        save_file(tensors, target, metadata={"exits": json.dumps(told), "samples": str(self.samples)})
        return target

    @classmethod
    def load(cls, path: str | Path) -> JacobianLens:
        """Read what :meth:`save` wrote.

        :raises CarryError: the file is missing, damaged or something else.
        """
        try:
            with safe_open(str(path), framework="pt") as file:
                about = file.metadata() or {}
                exits = [Exit(layer=layer, loop=loop) for layer, loop in json.loads(about["exits"])]
                matrices = {exit: file.get_tensor(str(index)) for index, exit in enumerate(exits)}
                return cls(matrices=matrices, samples=int(about["samples"]))
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
            raise CarryError(f"{path} can't be read as a Jacobian lens: {error!r}") from error


def fit_jacobian_lens(
    model: CarryModel,
    prompts: Sequence[Sequence[int]],
    exits: Sequence[Exit],
    *,
    settings: CarrySettings | None = None,
) -> JacobianLens:
    """Fit J for each exit on prompts (token ids, all in one batch).

    For a loop of the prompt the derivative is taken at the prompt's last token, through all later loops; for the
    steps at every pause, each through the suffix of its own position. Costs ``d_model`` backward passes per exit and
    pause: seconds on the toy, minutes on a model of 576 channels. Give at least some dozens of prompts.

    :raises CarryError: an exit that does not exist, or steps without pauses.
    """
    chosen = model.settings if settings is None else settings
    first, last = chosen.band
    matrices: dict[Exit, Tensor] = {}
    samples: list[int] = []
    for exit in exits:
        if not first <= exit.layer < model.n_layers or not 0 <= (exit.loop or 0) <= chosen.loops:
            raise CarryError(f"exits are layers {first}..{model.n_layers - 1} and loops 0..{chosen.loops}, got {exit}")
        if exit.loop is not None and exit.layer >= last:
            raise CarryError(f"layer {exit.layer} lies behind the band {first}:{last}, which alone is looped")
        steps = [0] if exit.loop is not None else list(range(1, chosen.pauses + 1))
        if not steps:
            raise CarryError("a lens for the steps needs at least one pause")
        found = [_mean_jacobian(model, prompts, chosen, exit, step) for step in steps]
        matrices[exit] = torch.stack(found).mean(0)
        samples.append(len(prompts) * len(steps))
    return JacobianLens(matrices=matrices, samples=min(samples, default=0))


class _Probe:
    """Adds a zero to one layer's output at one place, so that the derivative by it can be taken there."""

    def __init__(self, exit: Exit, step: int, zero: Tensor, columns: Tensor) -> None:
        self._exit, self._step, self._zero, self._columns = exit, step, zero, columns
        self._where = Where(phase="prefix", loop=0, step=0, first=0, count=0)

    def enter(self, where: Where, x: Tensor) -> None:
        self._where = where

    def left_block(self, layer: int, x: Tensor) -> None:
        """Nothing: the value is changed by the model's own hook."""

    def hook(self, value: Tensor) -> Tensor | None:
        where, exit = self._where, self._exit
        rows = torch.arange(len(value), device=value.device)
        if where.phase == "suffix":
            columns = self._columns  # every position stands where it belongs
        elif exit.loop is not None and where.phase == "prompt" and where.loop == exit.loop:
            columns = self._columns
        elif exit.loop is None and where.phase == "step" and where.step == self._step:
            columns = torch.zeros_like(self._columns)
        else:
            return None
        return value.index_put((rows, columns), value[rows, columns] + self._zero.to(value.dtype))


def _mean_jacobian(
    model: CarryModel, prompts: Sequence[Sequence[int]], settings: CarrySettings, exit: Exit, step: int
) -> Tensor:
    """The mean of d h_final / d h over rows, ``[d_model out, d_model in]`` float32, at one step."""
    batch = pack([(prompt, settings.pauses, ()) for prompt in prompts], model.pause.id, device=model.device)
    zero = torch.zeros(len(prompts), model.d_model, device=model.device, requires_grad=True)
    columns = batch.prompt_lengths - 1 + step
    probe = _Probe(exit, step, zero, columns)
    with model.blocks.lock, torch.enable_grad():
        with hooks_on(model.base, {f"blocks.{exit.layer}.hook_resid_post": probe.hook}):
            found = model.states(
                batch.ids, batch.mask, batch.prompt_lengths, loops=settings.loops, mode=settings.mode, watcher=probe
            )
            final = model.residuals(found, probe)
        rows = torch.arange(len(prompts), device=final.device)
        total = final[rows, columns].float().sum(0)
        jacobian = [
            torch.autograd.grad(total[channel], zero, retain_graph=True)[0].mean(0) for channel in range(model.d_model)
        ]
    return torch.stack(jacobian).detach().cpu()
