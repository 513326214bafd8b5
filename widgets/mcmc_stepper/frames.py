"""Every view as a table: what the window draws, the calls of :class:`MCMCStepper` return.

Terms, verdicts and random words are those of the kernel's arithmetic (``workbench.mcmc.reference`` on the CPU), made
again from the three scalars that the run kept of each position.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from workbench.errors import ChainError
from workbench.mcmc import Contrast, Decision, RowRecord, decided_again, philox, walk_back

from .tracks import TokenTexts, Track

__all__ = [
    "cache_frame",
    "compare_frame",
    "contrast_frame",
    "decisions_frame",
    "kernel_frame",
    "programs_frame",
    "terms_frame",
    "tokens_frame",
    "verdict_of",
    "with_scalars",
]

PLAIN = ("chain", "block", "iteration", "kind", "accepted", "pivot", "log_a", "u", "log_u", "margin", "flagged",
         "alpha", "tau", "tries", "forwarded", "length", "log_p")  # fmt: skip
LAYER = re.compile(r"blocks\.(\d+)\.")


def decisions_frame(track: Track) -> pd.DataFrame:
    """The timeline: one row per decision, in the order in which they were made."""
    rows = [
        {**{name: getattr(decision, name) for name in PLAIN}, "old": len(decision.old_tokens),
         "new": len(decision.new_tokens)}
        for decision in track.decisions
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=[*PLAIN, "old", "new"])


def tokens_frame(track: Track, index: int, texts: TokenTexts) -> pd.DataFrame:
    """Both suffixes, a row per token: ``side, row, position, token, text, log_p, log_q, alpha_log_p, share, sum``.

    ``share`` is what the token adds to log A (nats): alpha log p - log q of a new token, and the same taken away of an
    old one. ``sum`` runs along its suffix.
    """
    decision = track.decision(index)
    decided = decided_again(decision, track.chains.settings.seed)
    parts = []
    for side, sign, ids, terms in (
        ("old", -1, decision.old_tokens, decided.old_terms), ("new", 1, decision.new_tokens, decided.new_terms),
    ):  # fmt: skip
        share = sign * (terms[:, 0] - terms[:, 1]).numpy()
        rows = np.arange(len(ids))
        parts.append(
            pd.DataFrame(
                {
                    "side": side, "row": rows, "position": decision.pivot + rows, "token": ids,
                    "text": [texts.of(token) for token in ids], "log_p": terms[:, 0].numpy() / decision.alpha,
                    "log_q": terms[:, 1].numpy(), "alpha_log_p": terms[:, 0].numpy(), "share": share,
                    "sum": share.cumsum(),
                }
            )
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def terms_frame(track: Track, index: int) -> pd.DataFrame:
    """The parts of log A: ``term, value, added``, and their sum as the last row. ``added`` has its sign in log A."""
    decision = track.decision(index)
    decided = decided_again(decision, track.chains.settings.seed)
    new_p, old_p, new_q, old_q, pivot = decided.sums[0].tolist()
    rows = [
        ("alpha log p(new)", new_p, new_p), ("alpha log p(old)", old_p, -old_p), ("log q(old)", old_q, old_q),
        ("log q(new)", new_q, -new_q), ("pivot", pivot, pivot),
        ("log A", float(decided.log_a[0]), float(decided.log_a[0])),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["term", "value", "added"])


def verdict_of(track: Track, index: int) -> dict[str, Any]:
    """u, log u, log A, the margin and the verdict; key, counter and output of Philox as 32-bit words."""
    decision = track.decision(index)
    seed = track.chains.settings.seed
    decided = decided_again(decision, seed)
    counter = philox.counter_of(
        chain=decision.chain, block=decision.block, iteration=decision.iteration, purpose=philox.Purpose.ACCEPT
    )
    return {
        "kind": decision.kind, "accepted": decision.accepted, "flagged": decision.flagged,
        "u": float(decided.u[0]), "log_u": float(decided.log_u[0]), "log_a": decision.log_a,
        "margin": decision.margin, "recomputed_log_a": float(decided.log_a[0]),
        "key": philox.key_of(seed).tolist(), "counter": counter.tolist(), "random": decided.random[0].tolist(),
        "tries": decision.tries,
    }  # fmt: skip


def with_scalars(decision: Decision, tokens: pd.DataFrame) -> pd.DataFrame:
    """The ``tokens_frame`` of a decision with the three scalars that the run kept of each row."""
    scalars = np.concatenate([decision.old_scalars, decision.new_scalars])
    return tokens.assign(x_tok=scalars[:, 0], lse_1=scalars[:, 1], lse_tau=scalars[:, 2])


def programs_frame(track: Track, index: int, texts: TokenTexts) -> pd.DataFrame:
    """``row_stats`` has a program per row: here what each gave, ``program, side, row, …, x_tok, lse_1, lse_tau``."""
    found = with_scalars(track.decision(index), tokens_frame(track, index, texts))
    columns = ["side", "row", "position", "token", "text", "x_tok", "lse_1", "lse_tau", "alpha_log_p", "log_q"]
    frame = found[columns].copy()
    frame.insert(0, "program", range(len(frame)))
    return frame


def kernel_frame(found: RowRecord) -> pd.DataFrame:
    """One program tile by tile; ``attrs`` hold what it gave, what the run kept, and the largest distance of the two."""
    firsts = np.arange(len(found.trace)) * found.tile
    frame = pd.DataFrame(
        {
            "tile": range(len(found.trace)), "first": firsts,
            "last": np.minimum(firsts + found.tile, found.vocab) - 1,
            "rescale_1": found.rescales[:, 0].tolist(), "rescale_tau": found.rescales[:, 1].tolist(),
            "max": found.trace[:, 0].tolist(), "sum_1": found.trace[:, 1].tolist(),
            "sum_tau": found.trace[:, 2].tolist(),
        }
    )  # fmt: skip
    top, lse_1, lse_tau, x_tok = found.stats.tolist()
    frame.attrs.update(
        max=top, lse_1=lse_1, lse_tau=lse_tau, x_tok=x_tok, kept=found.kept.tolist(), difference=found.difference,
        side=found.side, row=found.row, position=found.position, token=found.token, tile=found.tile,
        vocab=found.vocab, path="workbench.mcmc.reference, float32 on the CPU",
    )  # fmt: skip
    return frame


def cache_frame(track: Track, index: int) -> pd.DataFrame:
    """What the decision did to its chain's row of keys and values: ``what, positions``.

    :raises ChainError: nothing was recorded.
    """
    move = track.decision(index).cache
    if move is None:
        raise ChainError("this run was kept by an older version, which recorded nothing of keys and values")
    shared = track.chains.prefilled
    rows = [
        ("shared with all chains (prompt)", shared), ("kept: this chain's, before the pivot", move.kept - shared),
        ("set aside: the old suffix", move.taken), ("computed for the proposal", move.fed),
        ("forgotten of those computed", move.dropped), ("put back of those set aside", move.restored),
        ("in the row after the decision", move.after),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["what", "positions"])


def contrast_frame(found: Contrast) -> pd.DataFrame:
    """Old against new token, hook by hook: ``hook, layer, norm_old, norm_new, difference, relative, cosine``.

    ``difference`` is the norm of new less old, ``relative`` that over the old one's norm.
    """
    rows = []
    for hook, old in found.old.items():
        first, second = old.float().flatten(), found.new[hook].float().flatten()
        apart, norm = float(found.difference(hook).norm()), float(first.norm())
        layer = LAYER.search(hook)
        rows.append(
            {
                "hook": hook, "layer": -1 if layer is None else int(layer[1]), "norm_old": norm,
                "norm_new": float(second.norm()), "difference": apart, "relative": apart / max(norm, 1e-30),
                "cosine": float(first @ second) / max(norm * float(second.norm()), 1e-30),
            }
        )  # fmt: skip
    frame = pd.DataFrame(rows)
    frame.attrs.update(position=found.position, old_token=found.old_token, new_token=found.new_token)
    return frame


def compare_frame(parent: Track, branch: Track) -> pd.DataFrame:
    """A branch beside the chain it left, by block and iteration: verdicts, log A, log p, and whether the texts agree.

    Either half is empty where that chain has made no such decision (yet).
    """
    assert branch.at is not None
    left = parent.decision(branch.at)
    place = (left.block, left.iteration)
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for name, track, chain in (("run", parent, left.chain), ("branch", branch, 0)):
        for index, decision in enumerate(track.decisions):
            if decision.chain == chain and (decision.block, decision.iteration) > place:
                row = found.setdefault((decision.block, decision.iteration), {})
                row |= {f"{field}_{name}": value for field, value in _compared(decision, index).items()}
    rows = [{"block": block, "iteration": iteration, **found[block, iteration]} for block, iteration in sorted(found)]
    columns = [f"{field}_{name}" for name in ("run", "branch") for field in ("index", "kind", "log_a", "log_p")]
    frame = pd.DataFrame(rows, columns=["block", "iteration", *columns])
    texts = [_texts(parent, left.chain), _texts(branch, 0)]
    frame["same_text"] = [
        None if None in (pair := [each.get(place) for each in texts]) else pair[0] == pair[1]
        for place in zip(frame.block, frame.iteration, strict=True)
    ]
    return frame


def _texts(track: Track, chain: int) -> dict[tuple[int, int], int]:
    """By block and iteration a hash of the text that the chain stood at after it."""
    made = set(map(id, track.decisions))
    return {
        (decision.block, decision.iteration): hash(state.tokens)
        for decision, state in walk_back(track.chains, chain)
        if id(decision) in made
    }


def _compared(decision: Decision, index: int) -> dict[str, Any]:
    return {"index": index, "kind": decision.kind, "log_a": decision.log_a, "log_p": decision.log_p}
