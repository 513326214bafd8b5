"""Adapters: how the state that left the band is merged into what enters it, ``x = merge(e, s)``.

``e`` is the residual stream that enters the band at a position, ``s`` the one that left the band at the position
before (or, in the prompt's loops, at the same position a loop before). Their scales differ, in Gemma by a factor of
hundreds, so ``s`` is always normalised first: ``rms(s)`` has a mean square of one, or with ``rescale`` that of ``e``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from ..errors import CarryError, did_you_mean

__all__ = [
    "ADAPTERS",
    "Adapter",
    "ConcatLinear",
    "GatedSum",
    "Interpolate",
    "LinearAdd",
    "LowRankInjection",
    "Replace",
    "load_adapter",
    "make_adapter",
    "rms",
    "save_adapter",
]

WIDEST_WITHOUT_WEIGHTS = 1 << 20
"""Largest width of a saved adapter that has no parameters."""
EPSILON = 1e-8
"""Added to mean squares before the root, so that a zero state stays zero instead of becoming NaN."""


def rms(value: Tensor) -> Tensor:
    """``value`` divided by the root of its mean square over the last axis (Zhang & Sennrich 2019, no weight)."""
    return value * torch.rsqrt(value.square().mean(-1, keepdim=True) + EPSILON)


class Adapter(nn.Module, ABC):
    """``forward(e, s) -> x``, all ``[..., d_model]``; the result has ``e``'s dtype.

    The state is normalised and multiplied by ``gain`` before the merge. With ``rescale`` its length becomes
    ``gain * ||e||``; without, ``gain * sqrt(d_model)``. Parameters are float32; the merge is computed in float32
    (float64 for a float64 ``e``) and cast back here and nowhere else.

    :raises CarryError: ``d_model`` or ``gain`` is out of range, or ``e`` or ``s`` is of another width.
    """

    kind: ClassVar[str]

    def __init__(self, d_model: int, *, gain: float = 1.0, rescale: bool = False) -> None:
        super().__init__()
        if d_model < 1:
            raise CarryError(f"an adapter's d_model must be 1 or more, got {d_model}")
        if not 0 <= gain < float("inf"):
            raise CarryError(f"gain must be a finite number of 0 or more (in units of ||e||), got {gain}")
        self.d_model = d_model
        self.gain = float(gain)
        self.rescale = bool(rescale)

    @abstractmethod
    def merge(self, e: Tensor, s: Tensor) -> Tensor:
        """The merge itself; ``e`` and the normalised ``s`` in one wide dtype."""

    def forward(self, e: Tensor, s: Tensor) -> Tensor:
        return self._merged(e, s).to(e.dtype)

    def injection(self, e: Tensor, s: Tensor) -> Tensor:
        """The part of ``x`` that the state brings, ``merge(e, s) - merge(e, 0)``, in the merge's dtype."""
        return self._merged(e, s) - self._merged(e, torch.zeros_like(s))

    def _merged(self, e: Tensor, s: Tensor) -> Tensor:
        for name, value in (("e", e), ("s", s)):
            if value.shape[-1:] != (self.d_model,):
                raise CarryError(
                    f"adapter {self.kind!r} has width d_model={self.d_model}, but {name} is {tuple(value.shape)}: "
                    "make the adapter with the model's d_model"
                )
        wide = torch.promote_types(e.dtype, torch.float32)
        e, s = e.to(wide), self.gain * rms(s.to(wide))
        if self.rescale:
            s = s * torch.sqrt(e.square().mean(-1, keepdim=True) + EPSILON)
        return self.merge(e, s)

    @property
    def trainable(self) -> bool:
        """Whether it has parameters to train; ``replace`` has none."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def options(self) -> dict[str, Any]:
        """Plain keyword arguments, beside ``d_model``, that make this adapter again."""
        return {"gain": self.gain, "rescale": self.rescale}

    def config(self) -> dict[str, Any]:
        """JSON-able description: ``make_adapter(**adapter.config())`` has the same form and fresh weights."""
        return {"kind": self.kind, "d_model": self.d_model, **self.options()}

    def fingerprint(self) -> str:
        """Twelve hex digits of form and weights."""
        digest = hashlib.sha256(json.dumps(self.config(), sort_keys=True).encode())
        for name, weight in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()[:12]


def _zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape))


def _map(weight: Tensor, value: Tensor) -> Tensor:
    return functional.linear(value, weight.to(value.dtype))


class LinearAdd(Adapter):
    """``x = e + E e + W (scale * rms(s))``; E = W = 0 at the start, ``scale`` is one per channel."""

    kind = "linear_add"

    def __init__(self, d_model: int, *, input_map: bool = True, gain: float = 1.0, rescale: bool = False) -> None:
        super().__init__(d_model, gain=gain, rescale=rescale)
        self.input_weight = _zeros(d_model, d_model) if input_map else None
        self.state_weight = _zeros(d_model, d_model)
        self.state_scale = nn.Parameter(torch.ones(d_model))

    def merge(self, e: Tensor, s: Tensor) -> Tensor:
        x = e + _map(self.state_weight, s * self.state_scale.to(s.dtype))
        return x if self.input_weight is None else x + _map(self.input_weight, e)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "input_map": self.input_weight is not None}


class ConcatLinear(Adapter):
    """``x = W [e; rms(s)]`` with W = [I, 0] at the start (Geiping et al. 2025 use the form, without bias)."""

    kind = "concat_linear"

    def __init__(self, d_model: int, *, gain: float = 1.0, rescale: bool = False) -> None:
        super().__init__(d_model, gain=gain, rescale=rescale)
        self.weight = nn.Parameter(torch.cat([torch.eye(d_model), torch.zeros(d_model, d_model)], dim=1))

    def merge(self, e: Tensor, s: Tensor) -> Tensor:
        return _map(self.weight, torch.cat([e, s], dim=-1))


class GatedSum(Adapter):
    """``x = e + sigmoid(g) * W rms(s)``, a gate per channel; W = 0 at the start and the gate open, never both shut.

    ``gate`` is g at the start: 0 opens it half, -4 to 0.018.
    """

    kind = "gated_sum"

    def __init__(self, d_model: int, *, gate: float = 0.0, gain: float = 1.0, rescale: bool = False) -> None:
        super().__init__(d_model, gain=gain, rescale=rescale)
        self.first_gate = float(gate)
        self.gate = nn.Parameter(torch.full((d_model,), self.first_gate))
        self.weight = _zeros(d_model, d_model)

    def merge(self, e: Tensor, s: Tensor) -> Tensor:
        return e + torch.sigmoid(self.gate.to(e.dtype)) * _map(self.weight, s)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "gate": self.first_gate}


class Interpolate(Adapter):
    """``x = e + a * (s' - e)``, ``a`` per channel and s' the state at ``e``'s length: a damped step towards it.

    ``start`` is ``a`` at the start: 0 for the identity, 0.05 for a small step without training.
    """

    kind = "interpolate"

    def __init__(self, d_model: int, *, start: float = 0.0, gain: float = 1.0, rescale: bool = True) -> None:
        super().__init__(d_model, gain=gain, rescale=rescale)
        self.start = float(start)
        self.amount = nn.Parameter(torch.full((d_model,), self.start))

    def merge(self, e: Tensor, s: Tensor) -> Tensor:
        return e + self.amount.to(e.dtype) * (s - e)

    def options(self) -> dict[str, Any]:
        return {**super().options(), "start": self.start}


class LowRankInjection(Adapter):
    """``x = e + B A rms(s)`` of rank ``rank``; B = 0 at the start, A normal with variance 1 / d_model by ``seed``."""

    kind = "low_rank"

    def __init__(
        self, d_model: int, *, rank: int = 16, seed: int = 0, gain: float = 1.0, rescale: bool = False
    ) -> None:
        super().__init__(d_model, gain=gain, rescale=rescale)
        if not 1 <= rank <= d_model:
            raise CarryError(f"rank must be 1 to d_model={d_model}, got {rank}")
        self.rank = rank
        self.seed = seed
        stream = torch.Generator().manual_seed(seed)
        self.down = nn.Parameter(torch.randn(rank, d_model, generator=stream) * d_model**-0.5)
        self.up = _zeros(d_model, rank)

    def merge(self, e: Tensor, s: Tensor) -> Tensor:
        return e + _map(self.up, _map(self.down, s))

    def options(self) -> dict[str, Any]:
        return {**super().options(), "rank": self.rank, "seed": self.seed}


class Replace(Adapter):
    """``x = s'``: the state alone, at ``e``'s length (Hao et al. 2024, Coconut). No identity start, no parameters."""

    kind = "replace"

    def __init__(self, d_model: int, *, gain: float = 1.0, rescale: bool = True) -> None:
        super().__init__(d_model, gain=gain, rescale=rescale)

    def merge(self, e: Tensor, s: Tensor) -> Tensor:
        return s + torch.zeros_like(e)


ADAPTERS: Mapping[str, type[Adapter]] = {
    adapter.kind: adapter for adapter in (LinearAdd, ConcatLinear, GatedSum, Interpolate, LowRankInjection, Replace)
}
"""Every adapter by the name it is made with."""


def make_adapter(kind: str, d_model: int, **options: Any) -> Adapter:
    """An adapter by name with fresh weights: ``make_adapter("low_rank", 576, rank=32)``.

    :raises CarryError: no adapter of that name, or an option that it does not take.
    """
    if kind not in ADAPTERS:
        raise CarryError(f"no adapter {kind!r}; choose from {', '.join(ADAPTERS)}.{did_you_mean(kind, ADAPTERS)}")
    known = set(inspect.signature(ADAPTERS[kind]).parameters) - {"d_model"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise CarryError(f"adapter {kind!r} takes {', '.join(sorted(known))}; got {unknown[0]!r}")
    return ADAPTERS[kind](d_model, **options)


def save_adapter(adapter: Adapter, path: str | Path) -> Path:
    """Write form and weights to one ``.safetensors`` file (the form is JSON in its header)."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach().cpu().contiguous() for name, weight in adapter.state_dict().items()}
    # safetensors writes no empty file, and an adapter without parameters has a form only.
    save_file(weights or {"no_weights": torch.zeros(1)}, target, metadata={"adapter": json.dumps(adapter.config())})
    return target


def load_adapter(path: str | Path) -> Adapter:
    """Read what :func:`save_adapter` wrote.

    :raises CarryError: the file is missing, damaged, or holds something else.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            told = (file.metadata() or {}).get("adapter")
            weights = {name: file.get_tensor(name) for name in file.keys() if name != "no_weights"}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CarryError(f"{path} can't be read as an adapter: {error}") from error
    if told is None:
        raise CarryError(f"{path} is a safetensors file but no adapter: its header says nothing of one")
    try:
        config = json.loads(told)
        # Before anything of that size is made: some weight has an axis of the width, unless there are none at all.
        widest = max((size for weight in weights.values() for size in weight.shape), default=WIDEST_WITHOUT_WEIGHTS)
        if not isinstance(config, dict) or not 1 <= int(config["d_model"]) <= widest:
            raise CarryError(f"{path} is no adapter: its header asks for a width that its weights do not have")
        adapter = make_adapter(**config)
        adapter.load_state_dict(weights)
    except CarryError:
        raise
    except (RuntimeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CarryError(f"{path} holds other weights than its header says: {error}") from error
    return adapter
