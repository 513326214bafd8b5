"""Decisions of chains as parts of a report: every one in a table and a file, chosen ones with every number."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..mcmc import Chains, Decision, token_terms
from .blocks import Attachment, Block, Facts, Fold, Grid, Heading, Verbatim, grid_of
from .legible import label
from .words import Words

__all__ = ["chosen_decisions", "decision_blocks", "decision_lines"]

SUFFIX_SHOWN = 80
"""Characters of a suffix in the table of decisions; a decision in full has all of it."""
DECISION_FIELDS = (
    "chain", "block", "iteration", "kind", "accepted", "pivot", "log_a", "u", "margin", "flagged", "alpha", "tau",
    "tries", "forwarded", "length", "log_p",
)  # fmt: skip
SHOWN_FIELDS = ("chain", "block", "iteration", "pivot", "kind", "log_a", "log_u", "log_p", "length", "forwarded")


def decision_blocks(chains: Chains, words: Words, file: str, chosen: Sequence[Decision] | None) -> Iterator[Block]:
    """The table of all decisions with the file ``file`` of them, then each of ``chosen`` in full."""
    yield Heading(text="Decisions", level=3)
    yield _grid(chains, words, file)
    for decision in chosen_decisions(chains) if chosen is None else chosen:
        yield _in_full(decision, words)


def chosen_decisions(chains: Chains) -> list[Decision]:
    """Up to four that are worth reading: the closest call, the largest accepted gain, the surest refusal, the longest.

    Proposals that equal what stood are left out.
    """
    real = [decision for decision in chains.decisions if decision.kind != "null"]
    accepted = [decision for decision in real if decision.accepted]
    refused = [decision for decision in real if not decision.accepted and math.isfinite(decision.log_a)]
    found = [
        *sorted(real, key=lambda decision: abs(decision.margin))[:1],
        *sorted(accepted, key=lambda decision: -decision.log_a)[:1],
        *sorted(refused, key=lambda decision: decision.log_a)[:1],
        *sorted(real, key=lambda decision: -len(decision.new_tokens))[:1],
    ]
    return list({id(decision): decision for decision in found}.values())


def decision_lines(chains: Chains) -> str:
    """Every decision as a line of JSON, with its suffixes and terms; scores of single tokens are left out."""
    return "".join(json.dumps(_told(decision), ensure_ascii=True) + "\n" for decision in chains.decisions)


def _told(decision: Decision) -> dict[str, Any]:
    terms = {name: float(getattr(decision.terms, name)) for name in decision.terms.__dataclass_fields__}
    plain = {name: getattr(decision, name) for name in DECISION_FIELDS}
    return {**plain, "terms": terms, "old_tokens": decision.old_tokens, "new_tokens": decision.new_tokens}


def _grid(chains: Chains, words: Words, file: str) -> Grid:
    frame = pd.DataFrame([{name: getattr(one, name) for name in SHOWN_FIELDS} for one in chains.decisions])
    frame["flagged"] = pd.Series(["yes" if one.flagged else "no" for one in chains.decisions], dtype=object)
    for side in ("old", "new"):
        told = [words.text(getattr(decision, f"{side}_tokens")) for decision in chains.decisions]
        frame[side] = pd.Series([label(text, SUFFIX_SHOWN) for text in told], dtype=object)
    frame.columns = frame.columns.str.replace("_", " ").str.replace("log a", "log A")
    caption = "Every decision: log A and log p in nats; accepted where log u < log A; old and new are suffixes"
    attached = Attachment(name=file, text=decision_lines(chains), media_type="application/jsonl")
    return replace(grid_of(frame, caption), attachment=attached)


def _in_full(decision: Decision, words: Words) -> Fold:
    """One decision with every number that made it."""
    terms = decision.terms
    facts = Facts(
        pairs=(
            ("log A", f"{decision.log_a:.9g}"),
            ("log u", f"{decision.log_u:.9g}"),
            ("Margin", f"{decision.margin:.9g}"),
            *((f"Term {name.replace('_', ' ')}", f"{getattr(terms, name):.9g}") for name in terms.__dataclass_fields__),
            ("Log p of the text after it", f"{decision.log_p:.9g}"),
            ("Tokens forwarded", str(decision.forwarded)),
            ("Tries", str(decision.tries)),
        )
    )
    where = (
        f"chain {decision.chain}, block {decision.block}, proposal {decision.iteration}, from token {decision.pivot}"
    )
    return Fold(
        summary=f"In full: {decision.kind}, {where}",
        blocks=(
            facts,
            Verbatim(label="Old suffix", text=f"old: {words.text(decision.old_tokens)}"),
            Verbatim(label="New suffix", text=f"new: {words.text(decision.new_tokens)}"),
            grid_of(_tokens(decision, words), f"Token by token, {where}; power · log p − log q is a token's share"),
        ),
    )


def _tokens(decision: Decision, words: Words) -> pd.DataFrame:
    parts = []
    for side in ("old", "new"):
        tokens = getattr(decision, f"{side}_tokens")
        told = token_terms(getattr(decision, f"{side}_scalars"), decision.alpha, decision.tau)
        parts.append(
            pd.DataFrame(
                {
                    "suffix": side,
                    "position": np.arange(len(tokens)) + decision.pivot,
                    "token": pd.Series([label(words.of(token)) for token in tokens], dtype=object),
                    "power · log p": told[:, 0],
                    "log q": told[:, 1],
                    "share": told[:, 0] - told[:, 1],
                }
            )
        )
    return pd.concat(parts, ignore_index=True)
