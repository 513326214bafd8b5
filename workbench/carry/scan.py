"""The incremental scan: every position is run through the band once (the prompt once per loop), and never again.

Why it equals the whole-sequence scan: the band is causal, and step t changes the band's input at one position only,
from values that are final. By induction everything before that position is final too, and nothing after it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CarryError
from .runner import BandRunner, Columns, Growing, Kept, Watcher, Where
from .spans import Layout

__all__ = ["MODES", "Do", "Scan", "as_do", "carry_step", "scan"]

Do = Callable[[int, Tensor], Tensor]
"""Changes what is handed on: gets the step t and the states s_t ``[batch, d_model]``, gives what step t + 1 merges."""
Merge = Callable[[Tensor, Tensor], Tensor]

MODES = ("carry", "feedforward", "depth", "depth_tail", "prompt_loops", "plain")
"""What the adapter is used for.

``carry``: the prompt is looped, then each position merges the state of the one before.
``feedforward``: merge(e, e) at every position, one pass. ``depth``: all positions looped, nothing carried.
``depth_tail``: positions after the prompt looped, the prompt (and its keys and values) as the plain model has it.
``prompt_loops``: the prompt looped, then merge(e, e) at the positions after it. ``plain``: no adapter.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a scan found, rows moved to the front (column = position), ``[batch, pos, d_model]``."""

    layout: Layout
    e: Tensor
    """Residual entering the band, zeros at padding."""
    x: Tensor
    """What the band was given."""
    s: Tensor
    """Residual leaving the band."""
    band: Kept
    prefix: Kept
    carried: Tensor | None
    """The last state of each row, handed to the position that would follow, ``[batch, d_model]``; None if no carry."""


def as_do(do: Do | Mapping[int, Callable[[Tensor], Tensor]] | None) -> Do | None:
    """An intervention as one function; a mapping ``{t: fn}`` acts on step t only."""
    if do is None or callable(do):
        return do
    table = dict(do)
    for step, fn in table.items():
        if step < 0 or not callable(fn):
            raise CarryError(f"do maps steps t >= 0 to functions of the state, got {step!r}: {fn!r}")
    return lambda step, state: table[step](state) if step in table else state


def scan(
    runner: BandRunner,
    merge: Merge,
    ids: Tensor,
    layout: Layout,
    *,
    loops: int,
    mode: str = "carry",
    do: Do | None = None,
    watcher: Watcher | None = None,
) -> Scan:
    """Prefix and band over ``ids`` ``[batch, pos]``, already moved to the front of their rows."""
    if mode not in MODES:
        raise CarryError(f"no mode {mode!r}; choose from {', '.join(MODES)}")
    if loops < 0:
        raise CarryError(f"loops must be 0 or more, got {loops}")
    width = ids.shape[1]
    whole = _columns(0, width, layout.lengths, layout.ends)
    prefix = Growing(None, whole)
    e = runner.prefix(ids, whole, prefix, watcher)
    if mode in {"feedforward", "depth", "plain"}:
        x, s, band = _block(runner, merge, e, whole, None, _rule(mode, loops), 0, watcher)
        return Scan(layout=layout, e=e, x=x, s=s, band=band, prefix=prefix.close(), carried=None)
    longest = max(layout.prompts)
    prompt = _columns(0, longest, layout.prompt_lengths, layout.prompts)
    rule = _Rule(loops=0 if mode == "depth_tail" else loops)
    x, s, band = _block(runner, merge, e[:, :longest], prompt, None, rule, 0, watcher)
    steps = layout.steps
    tail_e = _tail(e, layout, steps)
    carried: Tensor | None
    if mode == "carry":
        carried = _last(s, layout.prompt_lengths)
        tail_x, tail_s, band, carried = _carry(runner, merge, tail_e, carried, layout, band, do, watcher)
    else:
        rule = _rule("feedforward" if mode == "prompt_loops" else "depth", loops)
        columns = tail_columns(layout, 0, steps)
        if steps:
            tail_x, tail_s, band = _block(runner, merge, tail_e, columns, band, rule, longest, watcher)
        else:
            tail_x, tail_s = tail_e, tail_e
        carried = None
    return Scan(
        layout=layout,
        e=e,
        x=_joined(x, tail_x, layout, width),
        s=_joined(s, tail_s, layout, width),
        band=band,
        prefix=prefix.close(),
        carried=carried,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """How a block of positions is run at once."""

    loops: int = 0
    feedforward: bool = False


def _rule(mode: str, loops: int) -> _Rule:
    return _Rule(loops=loops if mode == "depth" else 0, feedforward=mode == "feedforward")


def _block(
    runner: BandRunner,
    merge: Merge,
    e: Tensor,
    columns: Columns,
    kept: Kept | None,
    rule: _Rule,
    first: int,
    watcher: Watcher | None,
) -> tuple[Tensor, Tensor, Kept]:
    """Positions side by side: ``loops`` times merged with their own state. Only the last loop's keys are kept."""
    phase = "step" if kept is not None else "prompt"
    x = merge(e, e).masked_fill(~columns.real[..., None], 0) if rule.feedforward else e
    for loop in range(rule.loops + 1):
        past = Growing(kept, columns)
        where = Where(phase=phase, loop=loop, step=0, first=first, count=e.shape[1])
        s = runner.through_band(x, columns, past, where, watcher)
        if loop < rule.loops:
            x = merge(e, s).masked_fill(~columns.real[..., None], 0)
    return x, s, past.close()


def carry_step(
    runner: BandRunner,
    merge: Merge,
    e: Tensor,
    state: Tensor,
    columns: Columns,
    past: Growing,
    where: Where,
    watcher: Watcher | None = None,
) -> tuple[Tensor, Tensor]:
    """One position of each row: ``e`` and the state handed to it ``[batch, d_model]``; its x and s."""
    x = merge(e, state)[:, None].masked_fill(~columns.real[..., None], 0)
    return x[:, 0], runner.through_band(x, columns, past, where, watcher)[:, 0]


def _carry(
    runner: BandRunner,
    merge: Merge,
    tail_e: Tensor,
    state: Tensor,
    layout: Layout,
    kept: Kept,
    do: Do | None,
    watcher: Watcher | None,
) -> tuple[Tensor, Tensor, Kept, Tensor]:
    """Position after position, each merged with the state of the one before."""
    inputs, outputs, longest = [], [], kept.length
    for step in range(tail_e.shape[1]):
        columns = tail_columns(layout, step, 1)
        past = Growing(kept, columns)
        where = Where(phase="step", loop=0, step=step + 1, first=longest + step, count=1)
        handed = state if do is None else do(step, state)
        x, s = carry_step(runner, merge, tail_e[:, step], handed, columns, past, where, watcher)
        kept = past.close()
        state = torch.where(columns.real, s, state)
        inputs.append(x)
        outputs.append(s)
    if not inputs:
        return tail_e, tail_e, kept, state
    return torch.stack(inputs, 1), torch.stack(outputs, 1), kept, state


def _columns(first: int, count: int, ends: Tensor, held: tuple[int, ...]) -> Columns:
    """Columns ``[first, first + count)`` of rows that end at ``ends`` (``held``, as Python numbers)."""
    positions = torch.arange(first, first + count, device=ends.device).expand(len(ends), count)
    tokens = sum(min(max(end - first, 0), count) for end in held)
    return Columns(positions=positions, real=positions < ends[:, None], tokens=tokens)


def tail_columns(layout: Layout, step: int, count: int) -> Columns:
    """The columns after the prompt: column j of row b holds position ``prompt_lengths[b] + j``."""
    offsets = torch.arange(step, step + count, device=layout.lengths.device)
    positions = layout.prompt_lengths[:, None] + offsets
    pairs = zip(layout.ends, layout.prompts, strict=True)
    tokens = sum(min(max(end - prompt - step, 0), count) for end, prompt in pairs)
    return Columns(positions=positions, real=positions < layout.lengths[:, None], tokens=tokens)


def _tail(value: Tensor, layout: Layout, steps: int) -> Tensor:
    """The rows' tails side by side, ``[batch, steps, d_model]``, zeros behind a row's end."""
    columns = tail_columns(layout, 0, steps)
    rows = torch.arange(len(value), device=value.device)[:, None]
    picked = value[rows, columns.positions.clamp(max=value.shape[1] - 1)]
    return picked.masked_fill(~columns.real[..., None], 0)


def _joined(prompt: Tensor, tail: Tensor, layout: Layout, width: int) -> Tensor:
    """Prompt and tail of each row in one ``[batch, width, d_model]``, column = position."""
    positions = torch.arange(width, device=prompt.device).expand(len(prompt), width)
    place = positions - layout.prompt_lengths[:, None]
    in_tail, real = place >= 0, positions < layout.lengths[:, None]
    source = torch.cat([prompt, tail], 1)
    column = torch.where(in_tail, prompt.shape[1] + place.clamp(min=0), positions)
    rows = torch.arange(len(prompt), device=prompt.device)[:, None]
    joined = source[rows, column.clamp(max=source.shape[1] - 1)]
    return joined.masked_fill(~real[..., None], 0)


def _last(value: Tensor, lengths: Tensor) -> Tensor:
    """Each row's value at its last position, ``[batch, d_model]``."""
    return value[torch.arange(len(value), device=value.device), lengths - 1]
