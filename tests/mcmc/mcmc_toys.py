"""Toy models small enough to enumerate: the exact law of every chain, with switches that break it on purpose.

``Toy`` holds a table of logits by prefix. Without an end token all ``vocab ** longest`` texts are its states; with one,
those that end before. :class:`ToyModel` offers the same table as a model with the workbench's own cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from workbench.mcmc.target import acceptance
from workbench.models import Forward, KVRows

Text = tuple[int, ...]


@dataclass(frozen=True)
class Switches:
    """What a broken sampler does otherwise. The defaults break nothing; each law is tested with each of them."""

    without_q: bool = False
    first_pivot: int = 0
    entropy_pivots: bool = False
    rho: bool = True
    length_term: bool = True
    capped: bool = False
    scored_tau: float | None = None
    top_k: int = 0


@dataclass
class Toy:
    vocab: int = 3
    longest: int = 4
    end: int | None = None
    seed: int = 0
    scale: float = 1.5
    logits: dict[Text, np.ndarray] = field(default_factory=dict, repr=False)
    known: dict[tuple[Text, int, float], np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        prefixes = [p for n in range(self.longest) for p in itertools.product(range(self.vocab), repeat=n)]
        # float32, as a model gives them, so that both roads start from the same numbers
        self.logits = {p: random.normal(0, self.scale, self.vocab).astype(np.float32).astype(float) for p in prefixes}

    def texts(self, limit: int | None = None) -> list[Text]:
        """All complete texts: ended, or of full length."""
        return self.behind((), self.longest if limit is None else limit)

    def behind(self, prefix: Text, limit: int) -> list[Text]:
        """All complete texts that begin with ``prefix``."""
        if len(prefix) == limit or (prefix and prefix[-1] == self.end):
            return [prefix]
        return [text for token in range(self.vocab) for text in self.behind((*prefix, token), limit)]

    def scalars(self, text: Text, first: int, tau: float) -> np.ndarray:
        """``[len(text) - first, 3]`` of the tokens from ``first`` on, in float64."""
        if (text, first, tau) not in self.known:
            self.known[text, first, tau] = self._scalars(text, first, tau)
        return self.known[text, first, tau]

    def _scalars(self, text: Text, first: int, tau: float) -> np.ndarray:
        rows = [
            (row[text[at]], np.logaddexp.reduce(row), np.logaddexp.reduce(row / tau))
            for at in range(first, len(text))
            for row in [self.logits[text[:at]]]
        ]
        return np.array(rows).reshape(-1, 3)

    def log_p(self, text: Text) -> float:
        rows = self.scalars(text, 0, 1.0)
        return float((rows[:, 0] - rows[:, 1]).sum())

    def target(self, alpha: float, limit: int | None = None) -> np.ndarray:
        weights = np.array([alpha * self.log_p(text) for text in self.texts(limit)])
        weights = np.exp(weights - weights.max())
        return weights / weights.sum()

    def proposal(self, prefix: Text, tau: float, top_k: int = 0) -> np.ndarray:
        scaled = self.logits[prefix] / tau
        if top_k:
            scaled = np.where(scaled >= np.sort(scaled)[-top_k], scaled, -np.inf)
        weights = np.exp(scaled - scaled.max())
        return weights / weights.sum()

    def chance(self, text: Text, first: int, tau: float, top_k: int = 0) -> float:
        """Probability that the proposal behind ``text[:first]`` gives the rest of ``text``."""
        return math.prod(
            float(self.proposal(text[:at], tau, top_k)[text[at]]) for at in range(first, len(text))
        )  # fmt: skip

    def pivots(self, text: Text, switches: Switches) -> np.ndarray:
        """Probability of each position of ``text`` to be the pivot."""
        if switches.entropy_pivots:
            shares = []
            for at in range(len(text)):
                p = self.proposal(text[:at], 1.0)
                shares.append(-(p * np.log(p)).sum())
        else:
            shares = [float(at >= switches.first_pivot) for at in range(len(text))]
        total = sum(shares)
        return np.array(shares) / total if total else np.zeros(len(text))


def log_a(
    toy: Toy, old: Text, new: Text, pivot: int, alpha: float, tau: float, switches: Switches, score: Any = None
) -> float:
    """The production ratio, unless a switch breaks it. ``score`` replaces how scalars are computed."""
    scored = switches.scored_tau or tau
    of = toy.scalars if score is None else score
    terms = acceptance(
        of(old, pivot, scored), of(new, pivot, scored), alpha, scored, old_length=len(old), new_length=len(new)
    )
    value = terms.log_a
    if switches.without_q:
        value -= terms.log_q_old - terms.log_q_new
    if not switches.length_term:
        value -= terms.pivot
    if switches.entropy_pivots:
        value -= terms.pivot
        if switches.rho:
            rho_new, rho_old = toy.pivots(new, switches)[pivot], toy.pivots(old, switches)[pivot]
            value += math.log(rho_new / rho_old)
    return value


def transitions(
    toy: Toy,
    alpha: float,
    tau: float,
    *,
    limit: int | None = None,
    switches: Switches | None = None,
    score: Any = None,
) -> np.ndarray:
    """``P[x, x']`` of one proposal and its decision, for every text up to ``limit``."""
    broken = switches or Switches()
    limit = toy.longest if limit is None else limit
    texts = toy.texts(limit)
    place = {text: index for index, text in enumerate(texts)}
    matrix = np.zeros((len(texts), len(texts)))
    for old, row in place.items():
        for pivot, chosen in enumerate(toy.pivots(old, broken)):
            for new in toy.behind(old[:pivot], limit):
                if broken.capped and len(new) > len(old):
                    continue
                offered = chosen * toy.chance(new, pivot, tau, broken.top_k)
                ratio = log_a(toy, old, new, pivot, alpha, tau, broken, score)
                matrix[row, place[new]] += offered * math.exp(min(ratio, 0.0))
        matrix[row, row] += 1.0 - matrix[row].sum()
    return matrix


def start(toy: Toy, tau: float, limit: int | None = None) -> np.ndarray:
    """The law of a first extension."""
    return np.array([toy.chance(text, 0, tau) for text in toy.texts(limit)])


def extension(toy: Toy, tau: float, before: int, after: int) -> np.ndarray:
    """``[texts before, texts after]``: how the next block's tokens are added."""
    later = {text: index for index, text in enumerate(toy.texts(after))}
    matrix = np.zeros((len(toy.texts(before)), len(later)))
    for row, text in enumerate(toy.texts(before)):
        for longer in toy.behind(text, after):
            matrix[row, later[longer]] = toy.chance(longer, len(text), tau)
    return matrix


def law(toy: Toy, alpha: float, tau: float, blocks: Sequence[int], n: int, **how: Any) -> np.ndarray:
    """The exact law of a chain after ``n`` proposals in each block; ``blocks`` are their limits."""
    now = start(toy, tau, blocks[0])
    for index, limit in enumerate(blocks):
        if index:
            now = now @ extension(toy, tau, blocks[index - 1], limit)
        now = now @ np.linalg.matrix_power(transitions(toy, alpha, tau, limit=limit, **how), n)
    return now


def stationary(matrix: np.ndarray) -> np.ndarray:
    """The law that ``matrix`` keeps; unique where the chain is irreducible."""
    size = len(matrix)
    system = np.vstack([matrix.T - np.eye(size), np.ones(size)])
    return np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]


def imbalance(matrix: np.ndarray, target: np.ndarray) -> float:
    flow = target[:, None] * matrix
    return float(np.abs(flow - flow.T).max())


def irreducible(matrix: np.ndarray) -> bool:
    return bool((np.linalg.matrix_power((matrix > 0) + np.eye(len(matrix)), len(matrix)) > 0).all())


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Total variation."""
    return float(np.abs(one - other).sum() / 2)


def chi_square_p(counts: np.ndarray, expected: np.ndarray) -> float:
    """p-value of counts under a law; states expected fewer than five times are put together."""
    total = counts.sum()
    wanted = expected * total
    rare = wanted < 5
    seen = np.append(counts[~rare], counts[rare].sum())
    hoped = np.append(wanted[~rare], wanted[rare].sum())
    if hoped[-1] < 5:
        seen, hoped = seen[:-1], hoped[:-1] * seen[:-1].sum() / hoped[:-1].sum()
    statistic = float(((seen - hoped) ** 2 / hoped).sum())
    freedom = len(hoped) - 1
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(statistic / 2.0)))


def draws(weights: np.ndarray, u: np.ndarray) -> np.ndarray:
    """One index per row of ``weights [n, vocab]`` at ``u [n]``."""
    sums = weights.cumsum(-1)
    return np.minimum((u[:, None] * sums[:, -1:] >= sums).sum(-1), weights.shape[1] - 1)


class ToyTokenizer:
    """Just what a sampler asks of a tokenizer."""

    fingerprint = "toy"

    def __init__(self, toy: Toy) -> None:
        self.eos_token_ids = () if toy.end is None else (toy.end,)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = False) -> str:
        return "".join("abcdefgh"[t] for t in tokens if not (skip_special and t in self.eos_token_ids))


class ToyModel:
    """A toy behind the models' protocol. Its keys are the tokens themselves: what it says depends on its cache alone.

    The first token fed is a prompt of one token, which the table does not know of.
    """

    name, backend, n_layers, d_model = "toy", "toy", 1, 1
    hook_names = edit_names = ("hook_embed",)
    cache_works, device, dtype = True, torch.device("cpu"), torch.float32

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.vocab_size, self.n_ctx = toy.vocab, toy.longest + 1
        self.tokenizer = ToyTokenizer(toy)
        self.source: dict[str, Any] = {"name": "toy", "seed": toy.seed}
        self.fed = 0
        codes = sum(toy.vocab**n for n in range(toy.longest))
        self._table = torch.empty(codes, toy.vocab)
        self._first = [sum(toy.vocab**n for n in range(length)) for length in range(toy.longest)]
        for prefix, row in toy.logits.items():
            self._table[self._code(prefix)] = torch.tensor(row, dtype=torch.float32)

    def _code(self, prefix: Text) -> int:
        value = 0
        for token in prefix:
            value = value * self.toy.vocab + token
        return self._first[len(prefix)] + value

    def new_cache(self, batch: int = 1) -> KVRows:
        return KVRows(1, batch, self.n_ctx)

    def forward(self, tokens: Any, cache: KVRows, *, capture: Any = (), edits: Any = (), keep: Any = None) -> Forward:
        assert not edits
        assert len(tokens) == len(cache.lengths)
        logits = [torch.empty(0)] * len(tokens)
        shown = [torch.empty(0)] * len(tokens)
        feeding = [row for row, ids in enumerate(tokens) if ids]
        if feeding:
            assert {len(tokens[row]) for row in feeding} == {1}, "a toy is fed one token a pass"
            view = cache.begin(feeding, 1)
            new = torch.tensor([[tokens[row][0]] for row in feeding], dtype=torch.float32)[:, :, None, None]
            keys, _ = view.append(0, new, new)
            mask = view.mask(self.device)
            real = torch.ones(keys.shape[:2]) if mask is None else mask
            view.commit()
            self.fed += len(feeding)
            lengths = real.sum(-1).long()
            codes = torch.zeros(len(feeding), dtype=torch.long)
            for column in range(keys.shape[1]):
                # The first real column is the prompt's, which the table leaves out.
                inside = (real[:, column] > 0) & (real[:, :column].sum(-1) > 0)
                codes = torch.where(inside, codes * self.toy.vocab + keys[:, column, 0, 0].long(), codes)
            known = (lengths - 1).clamp(max=self.toy.longest - 1)
            rows = self._table[torch.tensor(self._first)[known] + codes.remainder(self.toy.vocab**self.toy.longest)]
            for index, row in enumerate(feeding):
                logits[row], shown[row] = rows[index : index + 1], new[index, :, 0]
        return Forward(logits=tuple(logits), activations={name: tuple(shown) for name in capture})

    def unembed(self, residual: Any) -> Any:
        raise NotImplementedError("a toy has no residual stream")
