"""Changes of activations that mods ask for: made callable, checked at every use, watched for effect."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import InvalidActionError, ModError
from .actions import EditActivation, Steer
from .request import ActiveEdit, BoundMod

__all__ = ["make_edit"]


def make_edit(action: Steer | EditActivation, label: str, owner: BoundMod, device: torch.device) -> ActiveEdit:
    """The edit that an action asks for; ``label`` names it in the trace."""
    edit = ActiveEdit(label, action.hook, None, owner)
    edit.fn = _guarded(_adder(action, device) if isinstance(action, Steer) else action.fn, edit)
    return edit


def _adder(action: Steer, device: torch.device) -> Callable[[Tensor], Tensor]:
    shift = action.vector.to(device) * action.scale
    return lambda value: value + shift.to(value.dtype)


def _guarded(fn: Callable[[Tensor], Tensor], edit: ActiveEdit) -> Callable[[Tensor], Tensor]:
    """The edit, checked for shape and finiteness, its errors naming the mod; notes whether it ever acts."""

    def guarded(value: Tensor) -> Tensor:
        edit.used = edit.failed = True  # until it proved otherwise
        try:
            result = fn(value)
        except Exception as error:  # why: user code inside a forward pass; name it and stop the pass
            raise ModError(
                f"edit {edit.label} of mod {edit.owner.mod.name!r} at {edit.hook} raised {error!r}"
            ) from error
        if not isinstance(result, Tensor) or result.shape != value.shape:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InvalidActionError(
                f"edit {edit.label} of mod {edit.owner.mod.name!r} at {edit.hook} returned {got}; "
                f"it must be a tensor of the shape it was given, {tuple(value.shape)}"
            )
        if not bool(torch.isfinite(result).all()):
            raise InvalidActionError(
                f"edit {edit.label} of mod {edit.owner.mod.name!r} at {edit.hook} gave NaN or infinity"
            )
        edit.failed = False
        if not edit.changed:
            edit.changed = not torch.equal(result, value)
        return result

    return guarded
