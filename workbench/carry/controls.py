"""The same weights with the carry, without it, and against it: what accuracy owes to what.

Decodability of a state is one thing and its necessity another. The feed-forward control differs from the carry in
four ways at once; the depth loop with as many loops as pauses is the one that can tell carry from plain recurrence, if
the base answers at that many pauses (so run it without pauses too).
These are test-time controls of one adapter: an adapter trained for a control is trained with that ``mode``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import CarryError
from .generation import INCREMENTAL, generate
from .interventions import frozen, noise, shuffled, step_mean, zero
from .scan import Do
from .settings import CarrySettings
from .spans import Batch, pack

if TYPE_CHECKING:
    from .model import CarryModel

__all__ = ["Control", "Row", "answer_scores", "measure_controls", "step_means", "wilson"]

Row = tuple[Sequence[int], Sequence[int]]
"""A prompt and its answer, token ids."""
ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One way of running the weights over all rows."""

    name: str
    mode: str
    pauses: int
    loops: int
    ablation: str | None
    """What was done to the state that is handed on; None where nothing was."""
    n: int
    """Rows."""
    accuracy: float
    """Share of rows whose every answer token is the likeliest, each after the true ones before it."""
    low: float
    """Wilson 95 % interval of ``accuracy``."""
    high: float
    generated: float | None
    """Share of rows answered right from the model's own tokens; None where the mode can't generate."""
    nll: float
    """Mean negative log-likelihood of answer tokens, nats."""
    positions: float
    """Mean positions per row, pauses included."""
    token_layers: float
    """Mean block evaluations per row."""
    depth: int
    """Blocks on the longest path from the prompt to the first answer token."""


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share (Wilson 1927)."""
    if n < 1:
        raise CarryError("an interval needs at least one row")
    z, share = 1.959964, hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the interval reaches them exactly; rounding would miss by a hair.
    return 0.0 if hits == 0 else middle - half, 1.0 if hits == n else middle + half


@torch.no_grad()
def step_means(model: CarryModel, rows: Sequence[Row], settings: CarrySettings) -> Tensor:
    """The mean state at each step 0.., ``[step, d_model]``, over rows that reach it."""
    total: Tensor | None = None
    counts: Tensor | None = None
    longest = settings.pauses + max(len(answer) for _, answer in rows) + 1
    for batch in _batches(model, rows, settings):
        found = model.states(batch.ids, batch.mask, batch.prompt_lengths, loops=settings.loops, mode=settings.mode)
        steps = torch.arange(longest, device=found.s.device) + found.layout.prompt_lengths[:, None] - 1
        real = (steps < found.layout.lengths[:, None])[..., None]
        index = steps.clamp(max=found.s.shape[1] - 1)
        states = found.s[torch.arange(len(steps), device=steps.device)[:, None], index].float() * real
        total = states.sum(0) if total is None else total + states.sum(0)
        counts = real.sum(0) if counts is None else counts + real.sum(0)
    if total is None or counts is None:
        raise CarryError("step means need at least one row")
    return total / counts.clamp(min=1)


@torch.no_grad()
def answer_scores(
    model: CarryModel, batch: Batch, settings: CarrySettings, do: Do | None = None
) -> tuple[Tensor, Tensor]:
    """Per row, whether every answer token is the likeliest, and the summed negative log-likelihood (nats)."""
    reads, targets = batch.reads(), batch.targets()
    logits = model.logits(
        batch.ids, batch.mask, batch.prompt_lengths, loops=settings.loops, mode=settings.mode, do=do, reads=reads
    )
    logprobs = torch.log_softmax(logits, -1)
    own = logprobs.gather(1, targets[:, None])[:, 0]
    wrong = (logits.argmax(-1) != targets).float()
    rows = batch.rows()
    size = len(batch.ids)
    errors = torch.zeros(size, device=own.device).index_add(0, rows, wrong)
    return errors == 0, torch.zeros(size, device=own.device, dtype=own.dtype).index_add(0, rows, -own)


def measure_controls(
    model: CarryModel, rows: Sequence[Row], settings: CarrySettings, *, seed: int = 0
) -> list[Control]:
    """Every control on the same rows. Those that need a neighbour are left out for a single row.

    :raises CarryError: no rows, or a row without an answer.
    """
    if not rows or not all(len(answer) for _, answer in rows):
        raise CarryError("controls need (prompt, answer) rows of token ids with at least one answer token each")
    carry = replace(settings, mode="carry")
    plain, pauses = replace(settings, mode="plain"), settings.pauses
    found = [
        _measure(model, rows, "base", replace(plain, pauses=0)),
        _measure(model, rows, "base, pauses", plain),
        _measure(model, rows, "carry, no pauses", replace(carry, pauses=0)),
        _measure(model, rows, "feed-forward", replace(settings, mode="feedforward")),
        _measure(model, rows, "prompt loops, feed-forward pauses", replace(settings, mode="prompt_loops")),
        _measure(model, rows, "depth loop, k = p", replace(settings, mode="depth", loops=pauses)),
        _measure(model, rows, "depth loop after the prompt, k = p", replace(settings, mode="depth_tail", loops=pauses)),
        _measure(model, rows, "carry", carry),
    ]
    return found + [
        _measure(model, rows, f"carry, {name}", carry, name, make)
        for name, make in _ablations(model, rows, carry, seed).items()
    ]


def _ablations(model: CarryModel, rows: Sequence[Row], carry: CarrySettings, seed: int) -> dict[str, Callable[[], Do]]:
    """What is done to the state, each made anew per batch."""
    stream = torch.Generator().manual_seed(seed)
    made: dict[str, Callable[[], Do]] = {"zero": zero, "frozen at step 0": frozen, "noise": lambda: noise(stream)}
    if len(rows) > 1:
        means = step_means(model, rows, carry)
        made["step mean"] = lambda: step_mean(means)
        made["shuffled across rows"] = lambda: shuffled(stream)
    return made


def _measure(
    model: CarryModel,
    rows: Sequence[Row],
    name: str,
    settings: CarrySettings,
    ablation: str | None = None,
    make: Callable[[], Do] | None = None,
) -> Control:
    hits, nll, positions, before = 0, 0.0, 0, model.runner.token_layers
    for batch in _batches(model, rows, settings):
        right, loss = answer_scores(model, batch, settings, None if make is None else make())
        hits += int(right.sum())
        nll += float(loss.sum())
        positions += int(batch.mask.sum())
    work = model.runner.token_layers - before
    low, high = wilson(hits, len(rows))
    return Control(
        name=name,
        mode=settings.mode,
        pauses=settings.pauses,
        loops=settings.loops,
        ablation=ablation,
        n=len(rows),
        accuracy=hits / len(rows),
        low=low,
        high=high,
        generated=_generated(model, rows, settings, make),
        nll=nll / sum(len(answer) for _, answer in rows),
        positions=positions / len(rows),
        token_layers=work / len(rows),
        depth=_depth(model, settings),
    )


def _generated(
    model: CarryModel, rows: Sequence[Row], settings: CarrySettings, make: Callable[[], Do] | None
) -> float | None:
    """Share of rows answered right from the model's own tokens: teacher forcing may flatter longer answers."""
    if settings.mode not in INCREMENTAL:
        return None
    hits = 0
    for part in _parts(rows):
        longest = max(len(answer) for _, answer in part)
        do = None if make is None else make()
        made = generate(model, [prompt for prompt, _ in part], settings, max_new_tokens=longest, do=do, stop=False)
        pairs = zip(made, part, strict=True)
        hits += sum(output.tokens[: len(answer)] == tuple(answer) for output, (_, answer) in pairs)
    return hits / len(rows)


def _depth(model: CarryModel, settings: CarrySettings) -> int:
    first, last = settings.band
    inside, outside = last - first, model.n_layers - (last - first)
    passes = {
        "carry": settings.loops + 1 + settings.pauses,
        "prompt_loops": settings.loops + 1,
        "depth": settings.loops + 1,
        "depth_tail": settings.loops + 1,
    }
    return outside + inside * passes.get(settings.mode, 1)


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows in parts of about the same size, so that no part of several is a single row without a neighbour."""
    count = max(-(-len(rows) // ROWS_AT_ONCE), 1)
    size = -(-len(rows) // count)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _batches(model: CarryModel, rows: Sequence[Row], settings: CarrySettings) -> Iterator[Batch]:
    for part in _parts(rows):
        spans = [(prompt, settings.pauses, answer) for prompt, answer in part]
        yield pack(spans, model.pause.id, device=model.device)
