"""Changes of the state that is handed on, made at test time with the same weights: what shows that a carry matters.

Each is a function ``do(t, states)`` for :meth:`CarryModel.logits` and its kin: it gets the states s_t ``[batch,
d_model]`` of all rows and gives what step t + 1 merges. What the suffix reads at t itself stays as it was.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from ..errors import CarryError
from .scan import Do

__all__ = [
    "GradientNorms",
    "detach_every",
    "frozen",
    "noise",
    "only_at",
    "patched",
    "scaled",
    "shuffled",
    "step_mean",
    "swapped",
    "together",
    "zero",
]


def only_at(do: Do, steps: Collection[int]) -> Do:
    """``do`` at some steps; at the others the state is handed on as it is."""
    chosen = frozenset(steps)
    return lambda step, states: do(step, states) if step in chosen else states


def together(*dos: Do) -> Do:
    """Several, one after the other."""

    def do(step: int, states: Tensor) -> Tensor:
        for one in dos:
            states = one(step, states)
        return states

    return do


def detach_every(n: int) -> Do:
    """Cut the gradient at every n-th step: truncated backpropagation through time. Values stay as they are.

    :raises CarryError: ``n`` is below 1.
    """
    if n < 1:
        raise CarryError(f"detach_every needs 1 or more steps, got {n}")
    return lambda step, states: states.detach() if step % n == 0 else states


class GradientNorms:
    """Changes nothing and notes, in the backward pass, how large the gradient of each handed-on state is.

    ``norms[t]`` is the norm over all rows of d loss / d s_t, once ``backward()`` was called.
    """

    def __init__(self) -> None:
        self.norms: dict[int, float] = {}

    def __call__(self, step: int, states: Tensor) -> Tensor:
        if not states.requires_grad:
            return states
        # A copy of its own, so that only what comes back through the carry is counted, not the readout at this step.
        handed = states.clone()

        def note(gradient: Tensor) -> None:
            self.norms[step] = float(gradient.norm())

        handed.register_hook(note)  # type: ignore[no-untyped-call]
        return handed


def zero() -> Do:
    """Hand on nothing: the merge sees a zero state."""
    return lambda _step, states: torch.zeros_like(states)


def scaled(gain: float) -> Do:
    """Hand on ``gain`` times the state. Adapters normalise states, so this changes direction only if negative."""
    return lambda _step, states: gain * states


def step_mean(means: Tensor) -> Do:
    """Hand on the mean state of each step, ``[step, d_model]``: what is the same for every prompt.

    Steps behind the last known one get its mean.
    """

    def do(step: int, states: Tensor) -> Tensor:
        mean = means[min(step, len(means) - 1)].to(states.device, states.dtype)
        return mean.expand_as(states)

    return do


def frozen() -> Do:
    """Hand on s_0 at every step: each pause sees the prompt's last state and no later one."""
    first: list[Tensor] = []

    def do(step: int, states: Tensor) -> Tensor:
        if step == 0:
            first[:] = [states]
        if not first:
            raise CarryError("frozen() must see step 0 first: make a new one per run")
        return first[0]

    return do


def shuffled(rng: torch.Generator) -> Do:
    """Hand every row the state of another row of its batch (a cyclic shift by a random amount at each step)."""

    def do(_step: int, states: Tensor) -> Tensor:
        if len(states) < 2:
            raise CarryError("shuffled() needs a batch of at least two rows")
        shift = int(torch.randint(1, len(states), (), generator=rng))
        return states.roll(shift, 0)

    return do


def noise(rng: torch.Generator) -> Do:
    """Hand on a random direction of the state's own length."""

    def do(_step: int, states: Tensor) -> Tensor:
        drawn = torch.randn(states.shape, generator=rng).to(states.device, states.dtype)
        lengths: Tensor = states.norm(dim=-1, keepdim=True) / drawn.norm(dim=-1, keepdim=True)
        return drawn * lengths

    return do


def patched(donor: Tensor) -> Do:
    """Hand on a donor's states, ``[step, d_model]`` or ``[step, batch, d_model]``, such as another trace's ``states``.

    :raises CarryError: a step that the donor does not have; choose steps with :func:`only_at`.
    """

    def do(step: int, states: Tensor) -> Tensor:
        if step >= len(donor):
            raise CarryError(f"the donor has states for steps 0..{len(donor) - 1}, none for {step}: use only_at()")
        return donor[step].to(states.device, states.dtype).expand_as(states)

    return do


def swapped(first: Tensor, second: Tensor) -> Do:
    """Hand on the state with its coordinates along two directions exchanged, such as those of two tokens in a lens.

    The coordinates are those of the state's projection onto the plane of ``first`` and ``second``, ``[d_model]``
    each; what lies outside the plane stays.

    :raises CarryError: the directions are parallel.
    """
    plane = torch.stack([first, second]).double()
    plane = plane / plane.norm(dim=-1, keepdim=True)
    if float(torch.linalg.det(plane @ plane.T)) < 1e-9:
        raise CarryError("swapped() needs two directions that are not parallel")
    coordinates = torch.linalg.pinv(plane)

    def do(_step: int, states: Tensor) -> Tensor:
        along = states.double() @ coordinates.to(states.device)
        moved: Tensor = (along.flip(-1) - along) @ plane.to(states.device)
        return states + moved.to(states.dtype)

    return do
