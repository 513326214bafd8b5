"""The three scalars of each position from its logits: the fast everyday twin of the kernel.

Long rows on a CPU are read by compiled code, :func:`workbench.models.read_rows`. The rest is plain torch, one row at a
time (more only where they are short), so that what one step wrote is still in the processor's cache when the next one
reads it. Either way there is one exp a number: where ``1 / tau`` is 2 or 4 the proposal's weights are those of tau 1
squared once or twice. In torch ``softmax`` gives p, ``lse_1`` follows from the likeliest token, ``max - log p_max``,
and ``lse_tau`` from the sum of ``p**(1/tau)``: neither can overflow, and what underflows is below 1e-18 of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..errors import ChainError, ModelError
from ..models import read_rows, reads_compiled, weigh_rows
from .target import Scalars

__all__ = ["Scorer"]

PIECE = 256
"""Width of the pieces among which a token is searched: first the piece, then the token in it."""
NUMBERS_AT_ONCE = 1 << 16
"""256 KiB: within the second-level cache of common processors."""
SQUARINGS = {1.0: 0, 2.0: 1, 4.0: 2}


class Scorer:
    """Draws tokens from ``q = softmax(logits / tau)`` and gives their scalars, ``[rows, 3]`` float64.

    Keeps one buffer of 256 KiB, or of one row where that is more. Not for several threads at once. ``kernel`` says
    whether the scalars come from the Triton kernel; by default on a CUDA device where triton is installed.
    ``compiled=False`` leaves long rows on the CPU to torch as well.
    """

    def __init__(self, tau: float, *, kernel: bool | None = None, compiled: bool = True) -> None:
        self.tau = tau
        self._kernel = kernel
        self._compiled = compiled
        self._squarings = SQUARINGS.get(1.0 / tau)
        self._weights = torch.empty(0, 0)
        self._vocab = 0

    def draw(self, logits: Tensor, uniforms: ArrayLike) -> tuple[list[int], Scalars]:
        """One token per row of ``logits [rows, vocab]`` (float32) at its number in [0, 1), and their scalars.

        :raises ModelError: a row has a NaN or ``+inf``, or nothing but ``-inf``.
        """
        given = torch.as_tensor(np.asarray(uniforms, dtype=np.float64), device=logits.device)
        tokens: list[Tensor] = []
        sums: list[Any] = []
        compiled = self._uses_compiled(logits)
        for first, part in self._parts(logits):
            sums.append(self._read(part) if compiled else self._sums(part))
            weights = self._room(part) if compiled else self._powers(part)
            tokens.append(_search(weights, given[first : first + len(part)]))
        drawn = torch.cat(tokens)
        if self._uses_kernel(logits):
            return drawn.tolist(), _by_kernel(logits, drawn, self.tau)
        if compiled:
            chosen = logits.gather(1, drawn[:, None]).numpy()
            return drawn.tolist(), _finite(np.column_stack([chosen, np.concatenate(sums)[:, 1:3]]))
        return drawn.tolist(), _finite(self._scalars(logits, drawn, sums))

    def score(self, logits: Tensor, tokens: ArrayLike) -> Scalars:
        """The scalars of given tokens ``[rows]`` under ``logits [rows, vocab]`` (float32).

        :raises ModelError: a row has a NaN or ``+inf``, or nothing but ``-inf``.
        :raises ChainError: a token's logit is ``-inf``, so that no text with it has a probability.
        """
        given = np.asarray(tokens, dtype=np.int64)
        if self._uses_kernel(logits):
            return _by_kernel(logits, torch.as_tensor(given, device=logits.device), self.tau)
        if self._uses_compiled(logits):
            scalars: Scalars = read_rows(logits, given, self.tau).take((4, 1, 2), axis=1)
        else:
            drawn = torch.as_tensor(given, device=logits.device)
            scalars = self._scalars(logits, drawn, [self._sums(part) for _, part in self._parts(logits)])
        if not math.isfinite(scalars.sum()) and _finite(scalars)[:, 0].min() == -math.inf:
            row = int(scalars[:, 0].argmin())
            raise ChainError(f"row {row}: the logit of token {int(given[row])} is -inf: it can't stand in a text here")
        return scalars

    def _uses_kernel(self, logits: Tensor) -> bool:
        return (logits.is_cuda and triton_is_installed()) if self._kernel is None else self._kernel

    def _uses_compiled(self, logits: Tensor) -> bool:
        return self._compiled and reads_compiled(logits)

    def _read(self, logits: Tensor) -> NDArray[np.float64]:
        """What compiled code reads; leaves the proposal's weights, not normalised, in the buffer."""
        found = read_rows(logits, np.zeros(len(logits), dtype=np.int64), self.tau)
        weigh_rows(logits, found, self.tau, self._room(logits)[:, : logits.shape[1]])
        return found

    def _parts(self, logits: Tensor) -> Iterator[tuple[int, Tensor]]:
        rows, vocab = logits.shape
        # What fits a processor's cache would leave most of another device idle.
        step = max(NUMBERS_AT_ONCE // vocab, 1) if logits.device.type == "cpu" else rows
        for first in range(0, rows, step):
            yield first, logits[first : first + step]

    def _sums(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By row: the largest logit, its probability, and the sum of the proposal's weights.

        Leaves p (or q, where ``1 / tau`` is no power that is squared) in the buffer, as far as ``_powers`` needs it.
        """
        weights = self._room(logits)
        inside = weights[:, : logits.shape[1]]
        torch.softmax(logits, dim=-1, out=inside)
        top, p_top = logits.amax(-1), inside.amax(-1)
        if self._squarings is None:
            torch.softmax(logits / self.tau, dim=-1, out=inside)
            return top, p_top, inside.amax(-1)
        if self._squarings == 2:
            weights.square_()
        if not self._squarings:
            return top, p_top, weights.sum(-1)
        row = weights[0]  # of a single row `dot` is the faster one
        return top, p_top, torch.dot(row, row)[None] if len(weights) == 1 else torch.linalg.vecdot(weights, weights)

    def _powers(self, logits: Tensor) -> Tensor:
        """The proposal's weights ``[rows, width]``, not normalised, from what ``_sums`` left in the buffer."""
        weights = self._room(logits)
        return weights.square_() if self._squarings else weights

    def _scalars(self, logits: Tensor, tokens: Tensor, sums: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Scalars:
        """Put together ``[rows, 3]``: one transfer, also from a GPU, and the rest in float64."""
        columns = sums[0] if len(sums) == 1 else [torch.cat(column) for column in zip(*sums, strict=True)]
        chosen = logits.gather(1, tokens[:, None])[:, 0]
        table = torch.stack([*columns, chosen]).cpu().numpy().astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):  # reported below
            logs = np.log(table[1:3])
        scalars = np.empty((len(tokens), 3))
        scalars[:, 0] = table[3]
        scalars[:, 1] = table[0] - logs[0]
        scalars[:, 2] = table[0] / self.tau - logs[1] if self._squarings is None else scalars[:, 1] / self.tau + logs[1]
        return scalars

    def _room(self, logits: Tensor) -> Tensor:
        """The buffer ``[rows, width]``, zero behind the vocabulary."""
        rows, vocab = logits.shape
        fits = self._weights.device == logits.device and self._vocab == vocab and len(self._weights) >= rows
        if not fits:
            self._weights = logits.new_zeros(rows, -(-vocab // PIECE) * PIECE, dtype=torch.float32)
            self._vocab = vocab
        return self._weights[:rows]


def triton_is_installed() -> bool:
    """Whether the optional library of the kernel is there; it is not imported for that."""
    return find_spec("triton") is not None


def _by_kernel(logits: Tensor, tokens: Tensor, tau: float) -> Scalars:
    from .kernel import row_stats

    stats = row_stats(logits, tokens, tau).stats.double().cpu().numpy()
    return _finite(np.ascontiguousarray(stats[:, [3, 1, 2]]))


def _finite(scalars: Scalars) -> Scalars:
    """:raises ModelError: one of the two logsumexp is not finite."""
    if not math.isfinite(scalars[:, 1:].sum()):
        row = int(np.argmin(np.isfinite(scalars[:, 1:]).all(axis=1)))
        raise ModelError(
            f"row {row} of the logits has a NaN or +inf, or nothing but -inf: the model's numbers overflowed. "
            "Use dtype=torch.float32, or steer less strongly."
        )
    return scalars


def _search(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token at which the cumulative sum of ``weights [rows, width]`` passes ``uniform * total``, by row."""
    pieces = weights.view(len(weights), -1, PIECE).sum(-1).double()
    ends = pieces.cumsum(-1)
    wanted = uniforms[:, None] * ends[:, -1:]
    piece = _first_above(ends, wanted)
    before = ends.gather(1, piece) - pieces.gather(1, piece)
    width = weights.view(len(weights), -1, PIECE)
    within = width.gather(1, piece[:, :, None].expand(-1, -1, PIECE))[:, 0].double().cumsum(-1)
    return (piece * PIECE + _first_above(within, wanted - before))[:, 0]


def _first_above(sums: Tensor, wanted: Tensor) -> Tensor:
    """Index ``[rows, 1]`` of the first of growing ``sums [rows, n]`` above ``wanted [rows, 1]``.

    Rounding can put ``wanted`` at or beyond the end: then it is the last one that has a weight of its own.
    """
    last = (sums < sums[:, -1:]).sum(-1, keepdim=True)
    return torch.minimum(torch.searchsorted(sums, wanted, right=True), last)
