"""Where in the model the answer can be read: what a band must reach to carry it.

A band that ends before the answer is decodable has nothing to hand on. Decodable is not the same as used: whether a
carry needs the state is what interventions show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CarryError
from .controls import Row
from .model import CarryModel
from .spans import pack
from .tracing import ResidualRecorder

__all__ = ["LayerReading", "band_warning", "decodability"]

READABLE = 0.5
"""Below this share of the best layer's accuracy a band's last layer counts as too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReading:
    """How well the first answer token is read from the residual that leaves a layer, over ``n`` rows."""

    layer: int
    n: int
    lens_accuracy: float
    """Share of rows for which it is the logit lens's likeliest token."""
    lens_rank: float
    """Its median rank by the logit lens, 0 the likeliest."""
    probe_accuracy: float | None
    """Of a linear probe on rows that it was not fitted on (two folds); None for fewer than eight rows."""
    chance: float
    """Share of the commonest answer."""


@torch.no_grad()
def decodability(
    model: CarryModel, rows: Sequence[Row], *, pauses: int = 0, mode: str = "plain", ridge: float = 1.0
) -> list[LayerReading]:
    """Read the first answer token from every layer at the position that predicts it.

    ``mode`` is how the model is run: ``plain`` shows the base, which is what a band is chosen by.

    :raises CarryError: no rows, or a row without an answer.
    """
    if not rows or not all(len(answer) for _, answer in rows):
        raise CarryError("decodability needs (prompt, answer) rows of token ids with at least one answer token each")
    batch = pack([(prompt, pauses, ()) for prompt, _ in rows], model.pause.id, device=model.device)
    recorder = ResidualRecorder(model.n_layers)
    found = model.states(batch.ids, batch.mask, batch.prompt_lengths, mode=mode, watcher=recorder)
    model.residuals(found, recorder)
    targets = torch.tensor([answer[0] for _, answer in rows])
    _, counts = torch.unique(targets, return_counts=True)
    readings = []
    for layer in range(model.n_layers):
        states = recorder.at(layer, found.layout, pauses)
        logits = model.unembed(states).cpu()
        own = logits.gather(1, targets[:, None])
        readings.append(
            LayerReading(
                layer=layer,
                n=len(rows),
                lens_accuracy=float((logits.argmax(-1) == targets).float().mean()),
                lens_rank=float((logits > own).sum(-1).float().median()),
                probe_accuracy=_probe(states, targets, ridge) if len(rows) >= 8 else None,
                chance=float(counts.max()) / len(rows),
            )
        )
    return readings


def band_warning(readings: Sequence[LayerReading], band: tuple[int, int]) -> str | None:
    """A sentence if the answer is not readable where the band ends, None if it is."""
    best = max(readings, key=lambda reading: reading.lens_accuracy)
    end = readings[band[1] - 1]
    if end.lens_accuracy >= READABLE * best.lens_accuracy and best.lens_accuracy > 0:
        return None
    early = [reading.layer for reading in readings if reading.lens_accuracy >= READABLE * best.lens_accuracy > 0]
    advice = (
        f"it becomes readable at layer {early[0]}: try a band that ends at {early[0] + 1} or later"
        if early
        else "it is readable at no layer, so this model does not know these answers"
    )
    return (
        f"the band {band[0]}:{band[1]} ends where the answer is not readable (logit lens {end.lens_accuracy:.2f} at "
        f"layer {end.layer}, best {best.lens_accuracy:.2f}); a carry can't hand on what is not there. By the logit "
        f"lens {advice}."
    )


def _probe(states: Tensor, targets: Tensor, ridge: float) -> float:
    """Accuracy of ridge regression onto one-hot answers, fitted on half of every answer's rows, tried on the others.

    An answer that occurs once can't be learnt, and counts as wrong.
    """
    classes, labels = torch.unique(targets, return_inverse=True)
    data = states.double()
    same = labels[:, None] == labels[None]
    place = same.tril(-1).sum(-1)  # of each row among those with its answer
    hits = 0
    for fold in (0, 1):
        test = place % 2 == fold
        if bool(test.all()):
            continue
        mean, scale = data[~test].mean(0), data[~test].std(0).clamp(min=1e-6)
        train_x, test_x = ((data[part] - mean) / scale for part in (~test, test))
        goals = torch.nn.functional.one_hot(labels[~test], len(classes)).double()
        center = goals.mean(0)
        # The dual form: fewer rows than channels is the usual case here.
        gram = train_x @ train_x.T + ridge * len(train_x) * torch.eye(len(train_x), dtype=torch.float64)
        scores = test_x @ train_x.T @ torch.linalg.solve(gram, goals - center) + center
        hits += int((scores.argmax(-1) == labels[test]).sum())
    return hits / len(data)
