"""What a run of chains gives: their texts, every decision, and what may be read off them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from .chain import Decision
from .target import Scalars, Target
from .tempering import Swap

__all__ = ["ChainText", "Chains", "Contrast", "Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that decides a run, beside the model."""

    target: Target
    seed: int
    chains: int
    tries: int
    ladder: tuple[float, ...] | None
    swap_every: int
    capture: tuple[str, ...]
    prompt: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        ladder = data["ladder"]
        return cls(
            target=Target(**data["target"]), seed=data["seed"], chains=data["chains"], tries=data["tries"],
            ladder=None if ladder is None else tuple(ladder), swap_every=data["swap_every"],
            capture=tuple(data["capture"]), prompt=tuple(data["prompt"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainText:
    """Where one chain stands. Nothing in it is settled: later proposals may change it from its first token on."""

    chain: int
    alpha: float
    tokens: tuple[int, ...]
    scalars: Scalars = field(repr=False, compare=False)
    """``[len(tokens), 3]`` float64: x_tok, lse_1, lse_tau."""
    text: str
    log_p: float
    """Log-probability (nats) of the text under the model, at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Activations where an accepted move first changed a token: the old one's and the new one's, at one position."""

    chain: int
    block: int
    iteration: int
    position: int
    """In the generated text, from 0."""
    old_token: int
    new_token: int
    old: Mapping[str, Tensor] = field(repr=False, compare=False)
    new: Mapping[str, Tensor] = field(repr=False, compare=False)

    def difference(self, hook: str) -> Tensor:
        """New less old at one hook, float32."""
        return self.new[hook].float() - self.old[hook].float()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """The result of a run, finished or not."""

    settings: Settings
    texts: tuple[ChainText, ...]
    decisions: tuple[Decision, ...] = field(repr=False)
    """In the order in which they were made; the chains run side by side."""
    swaps: tuple[Swap, ...] = field(repr=False)
    contrasts: tuple[Contrast, ...] = field(repr=False)
    prefilled: int
    """Tokens fed once for all chains: the prompt without its last."""
    forwarded: int
    """Tokens fed behind it, over all chains."""
    finished: bool

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[ChainText]:
        return iter(self.texts)

    def of(self, chain: int) -> list[Decision]:
        """The decisions of one chain, in its own order."""
        return [decision for decision in self.decisions if decision.chain == chain]

    @property
    def acceptance(self) -> float:
        """Share of the decisions that accepted; NaN before the first."""
        return float(np.mean([d.accepted for d in self.decisions])) if self.decisions else float("nan")

    def log_p_paths(self) -> list[NDArray[np.float64]]:
        """By chain, log p of the text after each decision: what mixing is judged by."""
        return [np.array([decision.log_p for decision in self.of(text.chain)]) for text in self.texts]

    def table(self) -> pa.Table:
        """One row per decision; ``.to_pandas()`` makes a data frame of it."""
        return decision_table(self.decisions)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the result to a directory that :func:`~workbench.mcmc.load_chains` reads.

        It holds no keys and values, so an unfinished run can't be resumed from it: pass ``save=`` to the sampler.

        :raises ChainError: something is there already.
        """
        from .store import save_chains

        return save_chains(self, Path(path), overwrite=overwrite)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "unfinished"
        return (
            f"<Chains {len(self.texts)} {state} alpha={self.settings.target.alpha:g} decisions={len(self.decisions)} "
            f"acceptance={self.acceptance:.2f} tokens forwarded={self.forwarded}>"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{text.chain}</td><td>{text.alpha:g}</td><td>{len(text.tokens)}</td><td>{text.log_p:.2f}</td>"
            f"<td style='text-align:left;white-space:pre-wrap'>{escape(text.text)}</td></tr>"
            for text in self.texts
        )
        head = "".join(f"<th>{name}</th>" for name in ("chain", "alpha", "tokens", "log p", "text"))
        return f"<table><caption>{escape(repr(self))}</caption><tr>{head}</tr>{rows}</table>"


TERMS = ("alpha_log_p_new", "alpha_log_p_old", "log_q_new", "log_q_old", "pivot")
CACHE = ("kept", "taken", "fed", "restored", "after")
NUMBERS = pa.list_(pa.float64())
SCHEMA = pa.schema(
    [
        ("chain", pa.int64()), ("block", pa.int64()), ("iteration", pa.int64()), ("kind", pa.string()),
        ("accepted", pa.bool_()), ("pivot", pa.int64()), ("log_a", pa.float64()), ("u", pa.float64()),
        ("margin", pa.float64()), ("flagged", pa.bool_()), ("alpha", pa.float64()), ("tau", pa.float64()),
        ("tries", pa.int64()), ("forwarded", pa.int64()), ("length", pa.int64()), ("log_p", pa.float64()),
        *((f"term_{name}", pa.float64()) for name in TERMS),
        ("old_tokens", pa.list_(pa.int64())), ("new_tokens", pa.list_(pa.int64())),
        ("old_scalars", NUMBERS), ("new_scalars", NUMBERS),
        *((f"cache_{name}", pa.int64()) for name in CACHE),
    ]
)  # fmt: skip
"""Scalars are flattened, three numbers a token."""
PLAIN = tuple(name for name in SCHEMA.names if not name.startswith(("term_", "old_", "new_", "cache_")))


def decision_table(decisions: Sequence[Decision]) -> pa.Table:
    """Decisions as a table of ``SCHEMA``."""
    rows = [
        {
            **{name: getattr(decision, name) for name in PLAIN},
            **{f"term_{name}": getattr(decision.terms, name) for name in TERMS},
            "old_tokens": decision.old_tokens, "new_tokens": decision.new_tokens,
            "old_scalars": decision.old_scalars.ravel(), "new_scalars": decision.new_scalars.ravel(),
            **({} if (move := decision.cache) is None else {f"cache_{name}": getattr(move, name) for name in CACHE}),
        }
        for decision in decisions
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=SCHEMA)
