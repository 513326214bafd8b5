"""The tables as the browser gets them: short lists of numbers and labels, of bounded size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from workbench.carry import Reading, Trajectory
from workbench.reports import legible

from ..base import json_safe, marked
from .frames import dynamics_frame, loops_frame
from .subject import Subject

__all__ = ["motion_told", "orbit_told", "read_told", "short", "table_told"]

MOST_COLUMNS = 200
"""Loops and steps that are drawn; the calls give all."""
MOST_CONCEPTS = 16
MOST_POSITIONS = 256
CELLS = 400
"""Guesses per lens that are sent: with many columns each has fewer."""
DIGITS = 9
"""Significant digits that are sent: more than are shown, so that nothing is rounded twice."""


def short(value: Any) -> Any:
    """Floats to nine digits, in any nesting; what JSON lacks becomes None."""
    if isinstance(value, float):
        return json_safe(float(f"{value:.{DIGITS}g}"))
    if isinstance(value, Mapping):
        return {str(key): short(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(inner) for inner in value]
    return value


class _Labels:
    """Every label once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._index: dict[str, int] = {}

    def of(self, text: str) -> int:
        if text not in self._index:
            self._index[text] = len(self.all)
            self.all.append(marked(text))
        return self._index[text]


def read_told(subject: Subject) -> dict[str, Any]:
    """V1 to V3: what can be read from the states, by every lens there is."""
    trace, labels = subject.trace, _Labels()
    loops = len(trace.loop_s)
    plain = subject.readings(subject.lenses[0])[:MOST_COLUMNS]
    k = min(max(CELLS // len(plain), 1), 5)
    last = len(plain) - loops + 1
    by_target = {name: subject.trajectories([subject.target], name)[0] for name in subject.lenses}
    shown = subject.concepts[:MOST_CONCEPTS]
    return {
        "k": k,
        "samples": None if subject.jacobian is None else subject.jacobian.samples,
        "loops": loops,
        "columns": [
            {"phase": reading.phase, "loop": reading.loop, "step": reading.step, "label": marked(reading.token)}
            for reading in plain
        ],
        "cut": max(loops - 1 + trace.steps - len(plain), 0),
        "lenses": [
            {
                "name": name,
                "cells": _cells(subject.readings(name), k, labels),
                "hidden": _cells(subject.readings(name, exclude_mouth=True), k, labels),
            }
            for name in subject.lenses
        ],
        "now": [_guesses(reading.now, k, labels) for reading in plain],
        "target": {
            "label": marked(subject.text(subject.target)),
            "lenses": [_line(one, last) for one in by_target.values()],
        },
        "series": [
            [{"label": marked(one.text), "token": one.token, **_line(one, last)} for one in found]
            for found in (subject.trajectories(subject.watched, name) for name in subject.lenses)
        ],
        "concepts": {
            "given": subject.concepts_given,
            "labels": [marked(subject.text(token)) for token in shown],
            "left": len(subject.concepts) - len(shown),
            "lenses": [short(subject.step_concepts(name)[:last, : len(shown)].tolist()) for name in subject.lenses],
        },
        "labels": labels.all,
    }


def _cells(readings: Sequence[Reading], k: int, labels: _Labels) -> list[Any]:
    return [_guesses(reading.lens, k, labels) for reading in readings[:MOST_COLUMNS]]


def _guesses(guesses: Any, k: int, labels: _Labels) -> list[list[Any]]:
    return [[labels.of(guess.text), short(guess.probability)] for guess in guesses[:k]]


def _line(one: Trajectory, steps: int) -> dict[str, Any]:
    """Over columns: the loops, then the steps from 1, since step 0 is the last loop."""
    guesses = [*one.loops, *one.steps[1:steps]]
    return {
        "p": short([guess.probability for guess in guesses]),
        "rank": [guess.rank for guess in guesses],
        "first": one.first_decodable,
        "flips": list(one.flips),
    }


def motion_told(subject: Subject) -> dict[str, Any]:
    """V4: numbers of every state, and how far the prompt moves from loop to loop."""
    frame = dynamics_frame(subject.trace).head(MOST_COLUMNS)
    moves = loops_frame(subject.trace)
    length = subject.trace.prompt_length
    first = max(length - MOST_POSITIONS, 0)
    wide = {
        name: short(
            moves.pivot(index="loop", columns="position", values=name).to_numpy(dtype=float)[:, first:].tolist()
        )
        for name in ("move", "second_difference")
    }
    return {
        "rows": {name: short(_plain(frame[name])) for name in frame.columns if name != "token"},
        "loops": {
            **(wide if len(moves) else {"move": [], "second_difference": []}),
            "labels": [marked(text) for text in subject.trace.texts[first:length]],
            "first": first,
        },
    }


def orbit_told(frame: pd.DataFrame) -> dict[str, Any]:
    """V5: points of each run, in order."""
    return {
        "runs": [
            {"name": legible(str(name)), "x": short(part["x"].tolist()), "y": short(part["y"].tolist())}
            for name, part in frame.groupby("run", sort=False)
        ],
        "explained": short(frame.attrs["explained"]),
        "basis": frame.attrs["basis_of"],
    }


def table_told(frame: pd.DataFrame) -> dict[str, Any]:
    """Any small table, by column."""
    return {str(name): short(_plain(frame[name])) for name in frame.columns}


def _plain(column: pd.Series[Any]) -> list[Any]:
    """Python's own numbers; NaN becomes None."""
    return [None if pd.isna(value) else value for value in column.tolist()]
