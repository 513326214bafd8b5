"""What a row of logits says in a few numbers: its logsumexp, the entropy of its softmax, the likeliest tokens.

Long rows on a CPU are read by compiled code (``row_kernels.py``), all others by plain torch, the twin. A row's numbers
depend on nothing but the row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .compiled_code import keep_compiled

__all__ = ["RowSummary", "read_rows", "reads_compiled", "summarize_row", "weigh_rows"]

LONG = 4096
"""Numbers in a row from which on compiled code is faster by more than starting it costs."""
SQUARINGS = {1.0: 0, 2.0: 1, 4.0: 2}
"""Powers ``1 / tau`` that squaring gives from an exponential."""
SOURCES = tuple(Path(__file__).parent / name for name in ("row_kernels.py", "lean/exponential.py", "lean/atomics.py"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSummary:
    """Of one row of logits, which need not be normalised."""

    log_total: float
    """``logsumexp``: a logit less this is a log-probability in nats. NaN where the logits are no distribution."""
    entropy: float
    """Of the softmax, in nats."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens that are possible at all, best first, with their log-probabilities."""


def reads_compiled(logits: Tensor) -> bool:
    """Whether compiled code reads such rows: float32 on the CPU, long, the numbers of a row side by side."""
    return (
        logits.device.type == "cpu"
        and logits.dtype == torch.float32
        and logits.shape[-1] >= LONG
        and logits.stride(-1) == 1
    )


def summarize_row(logits: Tensor, count: int) -> RowSummary:
    """Summary of one row ``[vocab]``, with its ``count`` likeliest tokens."""
    if not reads_compiled(logits):
        return _summarize_plainly(logits, count)
    _, log_total, _, entropy, _ = read_rows(logits[None], [0], 1.0)[0].tolist()
    tokens, values = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.float32)
    _kernels().likeliest(_flat(logits[None]).view(np.int32), tokens, values)
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    top = tuple((token, value - log_total) for token, value in pairs if value > -math.inf)
    return RowSummary(log_total=log_total, entropy=entropy, top=top)


def read_rows(logits: Tensor, tokens: ArrayLike, tau: float) -> NDArray[np.float64]:
    """Of each row of ``logits [row, vocab]``, with a token of its own: ``[row, 5]`` float64.

    The columns are the maximum, the logsumexp, the logsumexp of the logits over ``tau``, the entropy of the softmax in
    nats, and the token's logit. The three in the middle are NaN where a row has a NaN or ``+inf``, or nothing but
    ``-inf``. For rows that :func:`reads_compiled`.
    """
    (count, size), given = logits.shape, np.asarray(tokens, dtype=np.int64)
    listed = given.tolist()  # of few numbers, as here, plain Python finds the extremes sooner
    if given.shape != (count,) or not (count == 0 or 0 <= min(listed) <= max(listed) < size):
        raise ValueError(f"each of {count} rows needs a token below {size}, got {given}")
    found, numbers, squarings = np.empty((count, 5)), _flat(logits), SQUARINGS.get(1 / tau, -1)
    _kernels().read_rows(
        numbers, numbers.view(np.int32), logits.stride(0), size, given, float(tau), squarings, found
    )  # fmt: skip
    return found


def weigh_rows(logits: Tensor, found: NDArray[np.float64], tau: float, weights: Tensor) -> None:
    """Write ``exp((logit - maximum) / tau)`` of all ``logits [row, vocab]`` into ``weights``, of the same shape.

    ``found`` is what :func:`read_rows` gave; its logsumexp at ``tau`` is that of these weights.
    """
    stride, size, squarings = logits.stride(0), logits.shape[1], SQUARINGS.get(1 / tau, -1)
    _kernels().weigh_rows(
        _flat(logits), stride, size, found, float(tau), squarings, _flat(weights), weights.stride(0)
    )  # fmt: skip


def _flat(rows: Tensor) -> NDArray[np.float32]:
    """The memory from the first number of ``rows [row, vocab]`` to the last one, whatever lies between the rows.

    Compiled code is made anew for every layout of an array: so there is one, and it gives the same bits for all.
    """
    array: NDArray[np.float32]
    if rows.is_contiguous():
        array = rows.detach().numpy().reshape(-1)
    else:
        length = (len(rows) - 1) * rows.stride(0) + rows.shape[1] if len(rows) else 0
        array = rows.detach().as_strided((length,), (1,)).numpy()
    return array


@cache
def _kernels() -> ModuleType:
    """The compiled functions; numba is imported when they are first needed."""
    from . import row_kernels

    for function in (row_kernels.read_rows, row_kernels.weigh_rows, row_kernels.likeliest):
        keep_compiled(function, SOURCES)
    return row_kernels


def _summarize_plainly(logits: Tensor, count: int) -> RowSummary:
    """The same by torch, for any device and dtype."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    values, tokens = logprobs.topk(min(count, len(logits)))
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return RowSummary(
        log_total=float(torch.logsumexp(logits.float(), dim=-1)),
        entropy=float(torch.special.entr(logprobs.exp()).sum()),
        top=tuple((token, value) for token, value in pairs if value > -math.inf),
    )
