"""Every view as a table: what the window draws, the calls of :class:`CarryInspector` return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from workbench.carry import (
    AttentionShares,
    CarryTrace,
    Check,
    CostPanel,
    Effect,
    Guess,
    Trajectory,
    loop_motion,
    orbit,
)
from workbench.errors import CarryError

from .studies import Layers
from .subject import Subject

__all__ = [
    "attention_frame",
    "chain_frame",
    "concept_frame",
    "cost_frame",
    "dynamics_frame",
    "effects_frame",
    "gradient_frame",
    "layers_frame",
    "loops_frame",
    "orbit_frame",
    "records_frame",
    "trajectory_frame",
]

NOW = "answer now"


def chain_frame(subject: Subject, *, k: int, exclude_mouth: bool) -> pd.DataFrame:
    """V1: ``phase, loop, step, token, source, rank, text, token_id, probability``, likeliest first."""
    rows = []
    for lens in subject.lenses:
        for reading in subject.readings(lens, exclude_mouth=exclude_mouth):
            where = {"phase": reading.phase, "loop": reading.loop, "step": reading.step, "token": reading.token}
            rows += [{**where, "source": lens, **_guess(guess)} for guess in reading.lens[:k]]
            if lens == subject.lenses[0]:
                rows += [{**where, "source": NOW, **_guess(guess)} for guess in reading.now[:k]]
    return pd.DataFrame(rows)


def _guess(guess: Guess) -> dict[str, Any]:
    return {"rank": guess.rank, "text": guess.text, "token_id": guess.token, "probability": guess.probability}


def trajectory_frame(found: Sequence[Trajectory]) -> pd.DataFrame:
    """V2: one row per token and column: ``text, token_id, phase, loop, step, rank, probability, first, flip``.

    ``first`` marks the step at which the token first is the likeliest, ``flip`` steps where the likeliest changes.
    """
    rows = []
    for one in found:
        last = len(one.loops) - 1
        places = [("loop", loop, 0, guess) for loop, guess in enumerate(one.loops)]
        places += [("step", 0, step, guess) for step, guess in enumerate(one.steps) if step]
        for index, (phase, loop, step, guess) in enumerate(places):
            settled = index >= last
            rows.append(
                {
                    "text": one.text, "token_id": one.token, "phase": phase, "loop": loop, "step": step,
                    "rank": guess.rank, "probability": guess.probability,
                    "first": settled and step == one.first_decodable, "flip": settled and step in one.flips,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def concept_frame(subject: Subject, lens: str) -> pd.DataFrame:
    """V3: lens probability, one row per step, one column per concept."""
    texts = [subject.text(token) for token in subject.concepts]
    index = pd.RangeIndex(subject.trace.steps, name="step")
    return pd.DataFrame(subject.step_concepts(lens).numpy(), index=index, columns=texts)


def dynamics_frame(trace: CarryTrace) -> pd.DataFrame:
    """V4: ``CarryTrace.rows()``; ``cosine_first`` is that with s_0, the state at the prompt's last token."""
    return pd.DataFrame(trace.rows())


def loops_frame(trace: CarryTrace) -> pd.DataFrame:
    """V4: how far each prompt position moves in each loop: ``position, token, loop, move, second_difference``."""
    motion = loop_motion(trace)
    rows = []
    for loop, moves in enumerate(motion.residual.tolist(), start=1):
        bends = motion.second_difference[loop - 2].tolist() if loop > 1 else [None] * len(moves)
        rows += [
            {
                "position": position,
                "token": trace.texts[position],
                "loop": loop,
                "move": move,
                "second_difference": bend,
            }
            for position, (move, bend) in enumerate(zip(moves, bends, strict=True))
        ]
    return pd.DataFrame(rows, columns=["position", "token", "loop", "move", "second_difference"])


def orbit_frame(traces: Mapping[str, CarryTrace]) -> pd.DataFrame:
    """V5: ``run, step, x, y`` in the plane of the first run's states; ``attrs`` tell the variance and the basis.

    :raises CarryError: fewer than three states.
    """
    found = orbit(list(traces.values()))
    rows = [
        {"run": name, "step": step, "x": x, "y": y}
        for name, points in zip(traces, found.points, strict=True)
        for step, (x, y) in enumerate(points.tolist())
    ]
    frame = pd.DataFrame(rows)
    frame.attrs.update(explained=list(found.explained), basis_of=found.basis_of)
    return frame


def attention_frame(found: AttentionShares, layer: int | None, head: int | None) -> pd.DataFrame:
    """V6: share of each step's attention by group, the mean over layers or heads where none is named.

    One row per step, one column per group, and ``sees_from``: the first position inside the sliding window (the
    latest over the layers that are averaged).

    :raises CarryError: no such layer or head.
    """
    heads = found.shares.shape[2]
    if layer is not None and layer not in found.layers:
        raise CarryError(f"attention is kept for layers {found.layers[0]}..{found.layers[-1]}, not for {layer}")
    if head is not None and not 0 <= head < heads:
        raise CarryError(f"heads go from 0 to {heads - 1}, got {head}")
    at = slice(None) if layer is None else slice(found.layers.index(layer), found.layers.index(layer) + 1)
    of = slice(None) if head is None else slice(head, head + 1)
    shares = found.shares[:, at, of].mean((1, 2))
    frame = pd.DataFrame(shares.numpy(), columns=list(found.groups), index=pd.RangeIndex(len(shares), name="step"))
    frame["sees_from"] = found.first_visible[:, at].max(1).values.numpy()
    return frame


def records_frame(records: Sequence[Any]) -> pd.DataFrame:
    """Frozen records, one row each."""
    return pd.DataFrame([asdict(record) for record in records])


def effects_frame(found: Sequence[Effect]) -> pd.DataFrame:
    """V7: ``edited, read, n, kl, kl_error, flip_rate, low, high``."""
    return records_frame(found)


def layers_frame(found: Layers) -> pd.DataFrame:
    """V9: ``layer, n, lens_accuracy, lens_rank, probe_accuracy, chance``."""
    return records_frame(found.readings)


def gradient_frame(found: Layers) -> pd.DataFrame:
    """V9: ``step, gradient``."""
    return pd.DataFrame({"step": range(len(found.gradients)), "gradient": found.gradients})


def cost_frame(panel: CostPanel, check: Check | None) -> pd.DataFrame:
    """V10: ``what, value, unit``; the check's lines once it was run."""
    rows = [
        ("token-layers, incremental, teacher-forced", panel.cost.fast, "blocks × positions"),
        ("token-layers, whole-sequence, teacher-forced", panel.cost.naive, "blocks × positions"),
        ("ratio, teacher-forced", panel.cost.ratio, "times"),
        ("token-layers, incremental, generating", panel.generating.fast, "blocks × positions"),
        ("token-layers, whole-sequence, generating", panel.generating.naive, "blocks × positions"),
        ("ratio, generating", panel.generating.ratio, "times"),
        ("keys and values at the end", panel.cache_bytes, "bytes"),
        ("floating-point operations, incremental", panel.flops, "operations"),
    ]
    if check is not None:
        rows += [
            ("largest difference of a state's channel", check.states, ""),
            ("largest difference of a logit", check.logits, ""),
            ("largest logit", check.largest_logit, ""),
            ("difference of a logit, of the largest", check.relative, "share"),
        ]
    return pd.DataFrame(rows, columns=["what", "value", "unit"])
