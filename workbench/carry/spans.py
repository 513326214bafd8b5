"""Where a row's prompt, pauses and answer lie, whichever side it is padded on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CarryError

__all__ = ["Batch", "Layout", "pack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Token ids ``[batch, pos]`` int64, their mask (True where real), and each row's spans ``[batch]`` int64.

    A row is ``prompt_lengths`` prompt tokens, then ``pauses`` pause tokens, then its answer.
    """

    ids: Tensor
    mask: Tensor
    prompt_lengths: Tensor
    pauses: Tensor

    def reads(self) -> Tensor:
        """True at positions whose logits predict an answer token: the last pause (or prompt token) and on."""
        layout = Layout.of(self.mask, self.prompt_lengths)
        first = (self.prompt_lengths + self.pauses - 1)[:, None]
        return self.mask & (layout.positions >= first) & (layout.positions < layout.lengths[:, None] - 1)

    def targets(self) -> Tensor:
        """The tokens that :meth:`reads` positions should predict, in the order of ``mask[reads]``, ``[read]``."""
        return torch.roll(self.ids, -1, dims=1)[self.reads()]

    def rows(self) -> Tensor:
        """The row of each read position, ``[read]``."""
        reads = self.reads()
        return torch.arange(len(reads), device=reads.device)[:, None].expand_as(reads)[reads]


def pack(
    rows: Sequence[tuple[Sequence[int], int, Sequence[int]]],
    pause: int,
    *,
    pad: int = 0,
    left: bool = False,
    device: torch.device | str = "cpu",
) -> Batch:
    """A batch of ``(prompt, pauses, answer)`` rows, padded on the right or the left with ``pad``.

    :raises CarryError: no rows, an empty prompt, or a negative number of pauses.
    """
    if not rows:
        raise CarryError("a batch needs at least one row")
    for index, (prompt, pauses, _) in enumerate(rows):
        if not len(prompt) or pauses < 0:
            raise CarryError(
                f"row {index} has a prompt of {len(prompt)} tokens and {pauses} pauses: a prompt needs at least one "
                "token (its last state is what is carried first), pauses 0 or more"
            )
    whole = [[*prompt, *[pause] * pauses, *answer] for prompt, pauses, answer in rows]
    width = max(map(len, whole))
    ids = torch.full((len(whole), width), pad)
    mask = torch.zeros(len(whole), width, dtype=torch.bool)
    for index, tokens in enumerate(whole):
        span = slice(width - len(tokens), width) if left else slice(0, len(tokens))
        ids[index, span] = torch.tensor(tokens)
        mask[index, span] = True
    return Batch(
        ids=ids.to(device),
        mask=mask.to(device),
        prompt_lengths=torch.tensor([len(prompt) for prompt, _, _ in rows], device=device),
        pauses=torch.tensor([pauses for _, pauses, _ in rows], device=device),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How rows lie in a padded rectangle. All tensors int64 but ``mask``."""

    mask: Tensor
    """``[batch, pos]``, True where a token is real: one span per row, at either end."""
    positions: Tensor
    """``[batch, pos]``: a token's place in its own row, from 0; 0 at padding."""
    lengths: Tensor
    starts: Tensor
    """Column of each row's first token."""
    prompt_lengths: Tensor
    ends: tuple[int, ...]
    """``lengths`` as Python numbers, so that a scan of many steps never waits for a device."""
    prompts: tuple[int, ...]
    """``prompt_lengths`` as Python numbers."""

    @classmethod
    def of(cls, mask: Tensor, prompt_lengths: Tensor) -> Layout:
        """Read the spans from a mask.

        :raises CarryError: a row is empty or has holes, or its prompt is empty or longer than the row.
        """
        real = mask.bool()
        if real.ndim != 2 or prompt_lengths.shape != real.shape[:1]:
            raise CarryError(
                f"the mask must be [batch, pos] and prompt_lengths [batch]; got {tuple(mask.shape)} and "
                f"{tuple(prompt_lengths.shape)}"
            )
        lengths = real.sum(-1)
        positions = (real.long().cumsum(-1) - 1).clamp(min=0)
        starts = real.long().argmax(-1)
        width = torch.arange(real.shape[1], device=real.device)
        whole = (width >= starts[:, None]) & (width < (starts + lengths)[:, None])
        prompt_lengths = prompt_lengths.to(real.device)
        if not bool((whole == real).all()):
            raise CarryError("each row of the mask must be one span of ones: padding belongs at an end, not between")
        if bool(((prompt_lengths < 1) | (prompt_lengths > lengths)).any()):
            raise CarryError(
                f"prompt lengths must be 1 up to the row's length, got {prompt_lengths.tolist()} for rows of "
                f"{lengths.tolist()} tokens: the state of the prompt's last token is what is carried first"
            )
        return cls(
            mask=real,
            positions=positions,
            lengths=lengths,
            starts=starts,
            prompt_lengths=prompt_lengths,
            ends=tuple(lengths.tolist()),
            prompts=tuple(prompt_lengths.tolist()),
        )

    @property
    def steps(self) -> int:
        """Positions after the prompt, in the row that has most."""
        return max(end - prompt for end, prompt in zip(self.ends, self.prompts, strict=True))

    def front(self) -> Layout:
        """The layout of the same rows once they are moved to the front."""
        return Layout.of(self.front_mask(), self.prompt_lengths)

    def to_front(self, value: Tensor) -> Tensor:
        """``[batch, pos, ...]`` with each row moved so that column and position agree; zeros behind its end."""
        columns = torch.arange(value.shape[1], device=value.device) + self.starts[:, None]
        moved = _pick(value, columns.clamp(max=value.shape[1] - 1))
        return _zero_where(~self.front_mask(), moved)

    def back(self, value: Tensor) -> Tensor:
        """The inverse of :meth:`to_front`, zeros at padding."""
        return _zero_where(~self.mask, _pick(value, self.positions))

    def front_mask(self) -> Tensor:
        """The mask once rows are moved to the front."""
        return torch.arange(self.mask.shape[1], device=self.mask.device) < self.lengths[:, None]


def _pick(value: Tensor, columns: Tensor) -> Tensor:
    """``value[b, columns[b, j]]`` for ``[batch, pos, ...]``."""
    rows = torch.arange(value.shape[0], device=value.device)[:, None]
    return value[rows, columns]


def _zero_where(hidden: Tensor, value: Tensor) -> Tensor:
    """Zeros, also in the gradient, where ``hidden``: padding may hold anything, NaN too."""
    return value.masked_fill(hidden.reshape(*hidden.shape, *[1] * (value.ndim - 2)), 0)
