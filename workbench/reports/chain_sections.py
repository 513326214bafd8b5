"""A run of chains to the parts of a report: texts, timeline, acceptance, log A, diagnostics, chosen decisions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from ..mcmc import (
    Chains,
    Decision,
    acceptance_by_pivot,
    effective_sample_size,
    log_a_histogram,
    running_mean,
    split_r_hat,
    tokens_per_move,
)
from .blocks import Alert, Block, Facts, Grid, Heading, Note, Picture, grid_of, number
from .decisions import decision_blocks
from .legible import legible, shortened
from .panels import Line, bars, line_panels
from .words import Words

__all__ = ["chain_blocks"]

MOST_PANELS = 24
TEXT_SHOWN = 4000
UNSETTLED = 1.1
"""Split R-hat above which chains are said not to agree (Gelman et al., Bayesian Data Analysis, 11.5)."""


def chain_blocks(chains: Chains, words: Words, file: str, chosen: Sequence[Decision] | None) -> Iterator[Block]:
    """The parts of one run of chains; ``file`` names the attached decisions, ``words`` tells tokens' texts."""
    yield Heading(text=f"Chains towards p(text)^{chains.settings.target.alpha:g}")
    yield _summary(chains)
    yield from _warnings(chains)
    yield _texts(chains)
    if not chains.decisions:
        yield Note(text="No decision was made: each text is a draw at the proposal's temperature.")
        return
    yield from _timeline(chains)
    yield from _acceptance(chains)
    yield from _diagnostics(chains)
    yield from decision_blocks(chains, words, file, chosen)


# What was asked and what came ----------------------------------------------------------------------------------


def _summary(chains: Chains) -> Facts:
    settings, target = chains.settings, chains.settings.target
    kinds = [decision.kind for decision in chains.decisions]
    cost = tokens_per_move(chains.decisions)
    return Facts(
        pairs=(
            ("Power", number(target.alpha)),
            ("Temperature of proposals", number(target.temperature)),
            ("Block size (tokens)", str(target.block_size)),
            ("Proposals per block", str(target.n_mcmc)),
            ("Longest text (tokens)", str(target.max_tokens)),
            ("Chains", str(settings.chains)),
            ("Tries per proposal", str(settings.tries)),
            ("Ladder of powers", "none" if settings.ladder is None else ", ".join(map(number, settings.ladder))),
            ("Seed", str(settings.seed)),
            ("Prompt tokens", str(len(settings.prompt))),
            ("Decisions", f"{len(kinds):,}"),
            ("Accepted", number(chains.acceptance)),
            ("Accepted and different", f"{kinds.count('accepted'):,}"),
            ("Proposal was what stood", f"{kinds.count('null'):,}"),
            ("Tokens forwarded", f"{chains.forwarded:,} behind {chains.prefilled:,} of the prompt"),
            ("Tokens per move", "no move" if math.isinf(cost) else number(cost)),
        )
    )


def _warnings(chains: Chains) -> Iterator[Alert]:
    if not chains.finished:
        yield Alert(text="The run is not finished: what follows is what it had when it was last kept.")
    flagged = sum(decision.flagged for decision in chains.decisions)
    if flagged:
        yield Alert(
            text=f"{flagged} of {len(chains.decisions)} decisions were too close to call: in another precision they "
            "might have gone the other way."
        )
    if chains.decisions and not any(decision.kind == "accepted" for decision in chains.decisions):
        yield Alert(text="No accepted proposal changed a text: the chains did not move.")


def _texts(chains: Chains) -> Grid:
    frame = pd.DataFrame(
        {
            "chain": [text.chain for text in chains],
            "power": [text.alpha for text in chains],
            "tokens": [len(text.tokens) for text in chains],
            "log p": [text.log_p for text in chains],
            "text": pd.Series([legible(shortened(text.text, TEXT_SHOWN)) for text in chains], dtype=object),
        }
    )
    return grid_of(frame, "Where each chain stands; log p in nats, at temperature 1")


# Timeline and acceptance ---------------------------------------------------------------------------------------


def _timeline(chains: Chains) -> Iterator[Block]:
    yield Heading(text="Timeline", level=3)
    paths = [path for path in chains.log_p_paths() if len(path)]
    shares = [
        running_mean([decision.accepted for decision in own]) for own in map(chains.of, range(len(chains))) if own
    ]
    length = max(map(len, paths))
    left = "" if len(paths) <= MOST_PANELS else f" The first {MOST_PANELS} of {len(paths)} chains are drawn."
    for name, series, told in (
        (
            "log p",
            paths,
            "log p (nats) of each chain's text after each of its decisions. Level pieces are refusals, or proposals "
            "equal to what stood.",
        ),
        ("share accepted", shares, "Share of a chain's decisions accepted so far."),
    ):
        columns = {f"chain {chain}": _padded(values, length) for chain, values in enumerate(series)}
        lines = [Line(title=title, values=tuple(values)) for title, values in columns.items()][:MOST_PANELS]
        yield Picture(
            html=line_panels(
                lines,
                range(1, length + 1),
                alternative=f"{name} by decision, {len(lines)} chains; the table has the numbers",
                logarithmic=False,
            ),
            caption=f"{told} All panels have one scale.{left}",
            twin=grid_of(pd.DataFrame({"decision": range(1, length + 1), **columns}), f"{name} by decision"),
        )


def _padded(values: Any, length: int) -> list[float]:
    return [*map(float, values), *[math.nan] * (length - len(values))]


def _acceptance(chains: Chains) -> Iterator[Block]:
    yield Heading(text="Acceptance and log A", level=3)
    stretches = acceptance_by_pivot(chains.decisions)
    spans = [f"{one.first}–{one.last}" if one.last > one.first else str(one.first) for one in stretches]
    names = [f"pivot {span} ({one.proposed} made)" for span, one in zip(spans, stretches, strict=True)]
    rows = [(one.first, one.last, one.proposed, one.accepted, one.rate) for one in stretches]
    yield Picture(
        html=bars(
            names,
            [one.rate for one in stretches],
            most=1.0,
            alternative="Share of proposals accepted by where they cut",
        ),
        caption="Share of proposals accepted, by the position that they redrew the text from. Late pivots change "
        "little and are taken more easily; proposals equal to what stood count as accepted.",
        twin=grid_of(
            pd.DataFrame(rows, columns=["first pivot", "last pivot", "proposed", "accepted", "share"]),
            "Acceptance by pivot",
        ),
    )
    yield _spread(chains)


def _spread(chains: Chains) -> Picture | Alert:
    """How log A is spread over the decisions."""
    if not any(math.isfinite(decision.log_a) for decision in chains.decisions):
        return Alert(text="No decision has a finite log A, so there is no histogram of it.")
    spread = log_a_histogram(chains.decisions, bins=12)
    edges = list(zip(spread.edges[:-1], spread.edges[1:], strict=True))
    infinite = f" {spread.infinite} more are not finite." if spread.infinite else ""
    return Picture(
        html=bars(
            [f"{low:.3g} to {high:.3g}" for low, high in edges],
            [float(count) for count in spread.counts],
            alternative="Histogram of log A over all decisions",
        ),
        caption="How log A (nats) is spread. A proposal is accepted where log u < log A: mass far below 0 had no "
        f"chance.{infinite}",
        twin=grid_of(
            pd.DataFrame(
                [(*edge, n) for edge, n in zip(edges, spread.counts, strict=True)], columns=["from", "to", "n"]
            ),
            "log A, histogram",
        ),
    )


def _diagnostics(chains: Chains) -> Iterator[Block]:
    yield Heading(text="Diagnostics", level=3)
    paths = chains.log_p_paths()
    rows = []
    for text, path in zip(chains, paths, strict=True):
        own = chains.of(text.chain)
        moved = sum(decision.kind == "accepted" for decision in own)
        size = effective_sample_size(path) if len(path) else math.nan
        rows.append((text.chain, len(own), sum(d.accepted for d in own), moved, size))
    columns = ["chain", "decisions", "accepted", "moved", "effective sample size of log p"]
    yield grid_of(pd.DataFrame(rows, columns=columns), "Has each chain moved?")
    r_hat = split_r_hat(paths) if min(map(len, paths)) >= 4 else None
    swaps = [swap.accepted for swap in chains.swaps]
    yield Facts(
        pairs=(
            ("Split R-hat of log p", "needs four decisions a chain" if r_hat is None else number(r_hat)),
            ("Exchanges between powers", f"{sum(swaps)} of {len(swaps)} taken" if swaps else "none offered"),
        )
    )
    if r_hat is not None and not math.isnan(r_hat) and r_hat > UNSETTLED:
        yield Alert(text=f"Split R-hat of log p is {number(r_hat)}: the chains do not agree yet.")
    yield Note(
        text="None of these can show that a chain has mixed; they can show that it has not. The target grows with each "
        "block, so log p falls while the text grows: that is no drift."
    )
