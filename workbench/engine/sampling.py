"""How a token is drawn from logits."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import RowSummary, summarize_row

__all__ = ["TOP_K", "Drawn", "SamplingParams", "Stream", "draw", "draw_token", "warp"]

TOP_K = 5
"""How many of the likeliest tokens a trace keeps per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. ``temperature=0`` takes the likeliest; the filters are off by default.

    ``top_k`` keeps the k likeliest (0: all); ``top_p`` the smallest set with that mass (Holtzman et al.
    2020); ``min_p`` those with at least that share of the likeliest's probability. They apply in this
    order, after the temperature. ``stop`` are strings that end the output once they appear in it (they
    stay in it). ``seed`` is used when ``generate`` gets none.

    :raises ValueError: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: object = self.stop
        stop = (given,) if isinstance(given, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        checks = {
            "temperature": (
                self.temperature,
                self.temperature >= 0 and math.isfinite(self.temperature),
                ">= 0",
            ),
            "top_k": (self.top_k, self.top_k >= 0, ">= 0 (0 keeps all)"),
            "top_p": (self.top_p, 0 < self.top_p <= 1, "in (0, 1]"),
            "min_p": (self.min_p, 0 <= self.min_p < 1, "in [0, 1)"),
            "stop": (stop, all(isinstance(s, str) and s for s in stop), "non-empty strings"),
        }
        for name, (value, good, wanted) in checks.items():
            if not good:
                raise ValueError(f"SamplingParams.{name} must be {wanted}, got {value!r}")

    @property
    def filters(self) -> bool:
        """Whether any token can be left out of the draw."""
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A token and the distribution it was drawn from."""

    token: int
    logprob: float
    entropy: float
    """In nats."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens that are possible at all, best first, with their log-probabilities."""


def draw_token(
    logits: Tensor, params: SamplingParams, token_temp: float | None, stream: Stream, seen: RowSummary | None
) -> Drawn:
    """Draw from ``logits [vocab]``. ``seen`` is their summary where it is known: nothing is then computed twice."""
    temperature = params.temperature if token_temp is None else token_temp
    if temperature == 0:
        token = int(logits.argmax())
        return Drawn(token=token, logprob=0.0, entropy=0.0, top=((token, 0.0),))
    logprobs = warp(logits, params, token_temp)
    token = draw(logprobs, stream.uniform())
    if seen is not None and temperature == 1 and not params.filters:
        return Drawn(
            token=token, logprob=float(logits[token]) - seen.log_total, entropy=seen.entropy, top=seen.top
        )  # fmt: skip
    warped = summarize_row(logprobs, TOP_K)
    return Drawn(token=token, logprob=float(logprobs[token]), entropy=warped.entropy, top=warped.top)


class Stream:
    """The random numbers of request ``index`` of a run: a function of (seed, index, turn) and nothing else.

    ``turn`` counts resumptions, so that a run that goes on does not draw its first half's numbers again. ``taken``
    numbers have been drawn before: a run that was interrupted goes on behind them.
    """

    __slots__ = ("_generator", "taken", "turn")

    def __init__(self, seed: int, index: int, turn: int = 0, taken: int = 0) -> None:
        self.turn, self.taken = turn, 0
        digest = hashlib.blake2b(f"{seed}:{index}:{turn}".encode(), digest_size=8).digest()
        self._generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        for _ in range(taken):
            self.uniform()

    def uniform(self) -> float:
        """The next number, in [0, 1)."""
        self.taken += 1
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))


def warp(logits: Tensor, params: SamplingParams, token_temp: float | None = None) -> Tensor:
    """Log-probabilities ``[vocab]`` of the distribution that a token is drawn from.

    At temperature 0 all mass is on the argmax (the first of equals).
    """
    temperature = params.temperature if token_temp is None else token_temp
    if temperature == 0:
        point = torch.full_like(logits, -math.inf)
        point[logits.argmax()] = 0.0
        return point
    if temperature != 1:
        # Subtract the maximum first: dividing by a tiny temperature must not overflow.
        logits = (logits - logits.max()) / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    if params.top_k and params.top_k < len(logprobs):
        kth = logprobs.topk(params.top_k).values[-1]
        logprobs = torch.log_softmax(logprobs.masked_fill(logprobs < kth, -math.inf), dim=-1)
    if params.top_p < 1:
        ordered, order = _likeliest(logprobs, params.top_p)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        kept = order[before < params.top_p]
        chosen = torch.full_like(logprobs, -math.inf)
        chosen[kept] = logprobs[kept]
        logprobs = torch.log_softmax(chosen, dim=-1)
    if params.min_p > 0:
        floor = logprobs.max() + math.log(params.min_p)
        logprobs = torch.log_softmax(logprobs.masked_fill(logprobs < floor, -math.inf), dim=-1)
    return logprobs


def _likeliest(logprobs: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """The likeliest tokens, best first, enough of them to hold ``mass``; sorting a whole vocabulary is slow."""
    size = len(logprobs)
    for k in (256, 4096):
        if k < size:
            values, tokens = logprobs.topk(k)
            if float(values.exp().sum()) > mass:
                return values, tokens
    return logprobs.sort(descending=True)


def draw(logprobs: Tensor, uniform: float) -> int:
    """Draw a token by inverting the cumulative distribution at one uniform number: one per token for any vocabulary."""
    # On the CPU: a parallel sum elsewhere may differ from run to run, and MPS has no float64.
    cumulative = logprobs.cpu().double().exp().cumsum(-1)
    token = int(torch.searchsorted(cumulative, cumulative[-1] * uniform, right=True))
    if token >= len(cumulative):  # the product may round up to the total
        token = int((logprobs > -math.inf).nonzero()[-1])
    return token
