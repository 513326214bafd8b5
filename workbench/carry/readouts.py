"""What a trace's states say: tokens by a lens and by the rest of the model, over loops and then steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CarryError
from ..models import HookedModel
from .lenses import Exit, Lens, LogitLens
from .trace import CarryTrace

__all__ = ["Guess", "Reading", "Trajectory", "readings", "step_concepts", "table_text", "trajectories"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """One token that a readout gives."""

    token: int
    text: str
    probability: float
    rank: int
    """0 is the likeliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one state says. Loops of the prompt are read at its last token."""

    phase: str
    loop: int
    step: int
    token: str
    """The token that stands at this position."""
    lens: tuple[Guess, ...]
    """The likeliest tokens by the lens, from the state that left the band."""
    now: tuple[Guess, ...]
    """The likeliest by the model's own later blocks: what it would answer here. Empty for the loops but the last."""
    watched: tuple[Guess, ...]
    """The tokens asked for, by the lens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Rank and probability of one token by a lens, over loops and then steps."""

    token: int
    text: str
    loops: tuple[Guess, ...]
    steps: tuple[Guess, ...]
    first_decodable: int | None
    """The first step at which it is the lens's likeliest token; None if it never is."""
    flips: tuple[int, ...]
    """Steps at which the likeliest token is another one than a step before."""


def readings(
    model: HookedModel,
    trace: CarryTrace,
    *,
    k: int = 5,
    watch: Sequence[int] = (),
    lens: Lens | None = None,
    exclude_mouth: bool = False,
) -> list[Reading]:
    """One reading per loop at the prompt's last token, then one per step after it.

    ``exclude_mouth`` leaves the token that the model is about to say out of the lens's list, so that what else the
    state holds shows.
    """
    if k < 1:
        raise CarryError(f"k must be 1 or more, got {k}")
    loops, steps = _lens_logits(model, trace, lens or LogitLens())
    now = model.unembed(trace.final).cpu()
    mouth = now.argmax(-1)
    found, last = [], len(loops) - 1
    for loop, logits in enumerate(loops):
        said = [now[0]] if loop == last else []
        hidden = int(mouth[0]) if exclude_mouth else None
        found.append(_reading(model, trace, loop, 0, logits, said, k, watch, hidden))
    for step in range(1, trace.steps):
        hidden = int(mouth[step]) if exclude_mouth else None
        found.append(_reading(model, trace, 0, step, steps[step], [now[step]], k, watch, hidden))
    return found


def trajectories(
    model: HookedModel, trace: CarryTrace, tokens: Sequence[int], *, lens: Lens | None = None
) -> list[Trajectory]:
    """How chosen tokens rise and fall."""
    loops, steps = _lens_logits(model, trace, lens or LogitLens())
    best = steps.argmax(-1).tolist()
    flips = tuple(step for step in range(1, len(best)) if best[step] != best[step - 1])
    found = []
    for token in tokens:
        first = next((step for step, likeliest in enumerate(best) if likeliest == token), None)
        by_loop = tuple(_guess(model, logits, token) for logits in loops)
        by_step = tuple(_guess(model, logits, token) for logits in steps)
        found.append(
            Trajectory(
                token=token,
                text=model.tokenizer.token_text(token),
                loops=by_loop,
                steps=by_step,
                first_decodable=first,
                flips=flips,
            )
        )
    return found


def step_concepts(
    model: HookedModel, trace: CarryTrace, concepts: Sequence[int], *, lens: Lens | None = None
) -> Tensor:
    """Lens probability of each concept token at each step, ``[step, concept]``: a diagonal where step t holds t."""
    _, steps = _lens_logits(model, trace, lens or LogitLens())
    return torch.softmax(steps, -1)[:, list(concepts)]


def table_text(model: HookedModel, trace: CarryTrace, *, k: int = 5, lens: Lens | None = None) -> str:
    """The readings as plain text, a line per loop and step: for a terminal."""
    chosen = lens or LogitLens()
    lines = [f"{'phase':<7} {'loop':>4} {'step':>4}  {'token':<14} {chosen.name:<52} answer now"]
    for reading in readings(model, trace, k=k, lens=chosen):
        guessed = "  ".join(f"{guess.text!r} {guess.probability:.2f}" for guess in reading.lens)
        now = f"{reading.now[0].text!r} {reading.now[0].probability:.2f}" if reading.now else ""
        place = f"{reading.phase:<7} {reading.loop:>4} {reading.step:>4}  {reading.token!r:<14}"
        lines.append(f"{place} {guessed:<52} {now}".rstrip())
    return "\n".join(lines)


def _lens_logits(model: HookedModel, trace: CarryTrace, lens: Lens) -> tuple[Tensor, Tensor]:
    """Logits of the prompt's last state in each loop ``[loop, vocab]``, and of each step ``[step, vocab]``.

    Step 0 is the last loop's.
    """
    layer, last = trace.band[1] - 1, trace.prompt_length - 1
    loops = torch.stack(
        [lens.logits(model, states[last], Exit(layer=layer, loop=i)) for i, states in enumerate(trace.loop_s)]
    )
    if trace.steps == 1:
        return loops, loops[-1:]
    later = lens.logits(model, trace.states[1:], Exit(layer=layer))
    return loops, torch.cat([loops[-1:], later])


def _reading(
    model: HookedModel,
    trace: CarryTrace,
    loop: int,
    step: int,
    logits: Tensor,
    now: Sequence[Tensor],
    k: int,
    watch: Sequence[int],
    hidden: int | None,
) -> Reading:
    shown = logits.clone()
    if hidden is not None:
        shown[hidden] = -torch.inf
    return Reading(
        phase=trace.phase(step),
        loop=loop,
        step=step,
        token=trace.texts[trace.prompt_length - 1 + step],
        lens=_top(model, shown, k),
        now=_top(model, now[0], k) if now else (),
        watched=tuple(_guess(model, logits, token) for token in watch),
    )


def _top(model: HookedModel, logits: Tensor, k: int) -> tuple[Guess, ...]:
    values, tokens = torch.softmax(logits.float(), -1).topk(min(k, len(logits)))
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return tuple(
        Guess(token=token, text=model.tokenizer.token_text(token), probability=value, rank=rank)
        for rank, (token, value) in enumerate(pairs)
    )


def _guess(model: HookedModel, logits: Tensor, token: int) -> Guess:
    if not 0 <= token < len(logits):
        raise CarryError(f"token {token} is outside the vocabulary 0..{len(logits) - 1}")
    return Guess(
        token=token,
        text=model.tokenizer.token_text(token),
        probability=float(torch.softmax(logits.float(), -1)[token]),
        rank=int((logits > logits[token]).sum()),
    )
