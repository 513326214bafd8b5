"""Finding the answer to a finite question: whole strings, compared by the model's own probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..engine import ForwardPass, Scored
from ..models import Tokenizer
from .constraint import Constraint, check_spelling
from .strategies import ChoicesStrat

__all__ = ["Decided", "decide_whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """An answer chosen from whole strings."""

    answer: str
    tokens: tuple[int, ...]
    probs: dict[str, float]
    """Probability of every choice, normalised over the choices."""


def decide_whole(event: ForwardPass, choices: Sequence[str], tokenizer: Tokenizer) -> Decided:
    """Score every choice as a whole and draw one: at temperature 0 the likeliest.

    The probability of a choice is that of its canonical tokens, times, where a longer choice continues it,
    that of not going on as any longer one. Both forms, with a leading space and without, are scored; the form
    that the model gives more to overall is the one that counts.
    """
    forms = [[lead + choice for choice in choices] for lead in ("", " ")]
    tails = [tokenizer.encode(text) for form in forms for text in form]
    check_spelling(choices, tokenizer)
    scored = event.request.score(tails)
    size = len(choices)
    totals = []
    for number, lead in enumerate((False, True)):
        part = slice(number * size, (number + 1) * size)
        ends = _endings(choices, tails[part], scored[part], tokenizer, len(event.logits), lead)
        totals.append([float(s.logprobs.sum()) + end for s, end in zip(scored[part], ends, strict=True)])
    best = max((0, 1), key=lambda number: _logsumexp(totals[number]))
    whole = _logsumexp(totals[best])
    probs = [math.exp(total - whole) for total in totals[best]]
    picked = _pick(event, probs)
    return Decided(
        answer=choices[picked],
        tokens=tuple(tails[best * size + picked]),
        probs=dict(zip(choices, probs, strict=True)),
    )


def _endings(
    choices: Sequence[str],
    tails: Sequence[Sequence[int]],
    scored: Sequence[Scored],
    tokenizer: Tokenizer,
    vocab_size: int,
    leading_space: bool,
) -> list[float]:
    """Log-probability that each choice ends where it ends: 0 unless another choice goes on from it."""
    if not any(other != choice and other.startswith(choice) for choice in choices for other in choices):
        return [0.0] * len(choices)
    constraint = Constraint(ChoicesStrat(tuple(choices)), tokenizer, vocab_size, leading_space=leading_space)
    found = []
    for tail, score in zip(tails, scored, strict=True):
        matcher = constraint.start()
        matcher.advance_all(tail)
        going_on = 0.0 if matcher.finished else float(score.after.exp()[matcher.mask().to(score.after.device)].sum())
        found.append(math.log(max(1.0 - going_on, 1e-30)))
    return found


def _pick(event: ForwardPass, probs: Sequence[float]) -> int:
    if event.request.temperature == 0:
        return max(range(len(probs)), key=probs.__getitem__)
    cumulative = torch.tensor(probs, dtype=torch.float64).cumsum(0)
    place = torch.searchsorted(cumulative, event.request.uniform() * float(cumulative[-1]), right=True)
    return min(int(place), len(probs) - 1)


def _logsumexp(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).logsumexp(0))
