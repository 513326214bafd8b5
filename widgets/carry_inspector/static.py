"""The inspector as HTML without script, style or kernel: what can be read, what was measured, what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import pandas as pd

from workbench.reports import label, legible, number

from ..base import SHOWN_ROWS, frame_html, table_html
from .studies import INTERVENTIONS

if TYPE_CHECKING:
    from .widget import CarryInspector

__all__ = ["inspector_html"]


def inspector_html(window: CarryInspector) -> str:
    """Every view as a table; V3 as a shaded drawing too."""
    trace, subject = window.trace, window.subject
    text = legible(subject.model.tokenizer.decode(list(trace.ids)))
    notes = "".join(f"<p>{escape(note)}</p>" for note in window.notes)
    parts = [
        f"<p><b>{escape(repr(window))}</b></p><pre>{escape(text[:600])}</pre>{notes}",
        "<p>What can be read from the states. That they can be read this way does not show that they are needed.</p>",
        _chain(window), _concepts(window), _trajectories(window),
        frame_html("Lengths, shares and cosines of the states", window.dynamics()),
    ]  # fmt: skip
    if trace.attention is not None:
        parts.append(frame_html("Attention of each step, mean over layers and heads", window.attention().reset_index()))
    if trace.steps >= 3:
        orbit = window.orbit()
        shares = " and ".join(number(share) for share in orbit.attrs["explained"])
        caption = f"States in the plane of {orbit.attrs['basis_of']}, which holds {shares} of their variance"
        parts.append(frame_html(caption, orbit))
    parts += _measured(window)
    parts.append(frame_html("Cost", window.cost()))
    return "".join(parts)


def _chain(window: CarryInspector) -> str:
    frame = window.chain(3)
    columns = ["phase", "loop", "step", "token", *frame["source"].unique()]
    rows = []
    for where, part in frame.groupby(["phase", "loop", "step", "token"], sort=False):
        said = {
            source: ", ".join(f"{label(one.text)} {number(one.probability)}" for one in guesses.itertuples())
            for source, guesses in part.groupby("source", sort=False)
        }
        rows.append([*map(str, where[:3]), label(str(where[3])), *(said.get(source, "–") for source in columns[4:])])
    return table_html("The likeliest tokens of each state, by source", columns, rows[:SHOWN_ROWS])


def _concepts(window: CarryInspector) -> str:
    frame = window.concepts()
    expected = window.subject.concepts_given
    caption = "Probability of each concept by the logit lens, step by step"
    caption += "" if expected else ". The concepts were picked from these readings: a diagonal is no finding"
    names = [label(str(name)) for name in frame.columns]
    values = frame.to_numpy().tolist()
    rows = [[f"s_{step}", *map(number, line)] for step, line in zip(frame.index, values, strict=True)]
    return _drawing(frame, names, caption) + table_html(caption, ["state", *names], rows[:SHOWN_ROWS])


def _trajectories(window: CarryInspector) -> str:
    frame = window.trajectories()
    states = [f"loop {one.loop}" if one.phase == "loop" else f"s_{one.step}" for one in frame.itertuples()]
    wide = frame.assign(state=states).pivot(index="text", columns="state", values="probability")
    wide = wide.reindex(index=frame["text"].unique(), columns=list(dict.fromkeys(states)))
    caption = "Probability of the followed tokens by the logit lens; the last loop's state is s_0"
    return frame_html(caption, wide.reset_index())


def _drawing(frame: pd.DataFrame, names: Sequence[str], caption: str) -> str:
    """A square per state and concept, as dark as it is likely; the table beside it has the numbers."""
    side, left, top = 22, 34, 18
    steps = min(len(frame), SHOWN_ROWS)
    parts = [
        f'<text x="{left + side * column + side / 2}" y="12" text-anchor="middle">{escape(name[:2])}</text>'
        for column, name in enumerate(names)
    ]
    for step in range(steps):
        y = top + side * step
        parts.append(f'<text x="{left - 4}" y="{y + 15}" text-anchor="end">s_{step}</text>')
        for column, share in enumerate(frame.iloc[step].tolist()):
            x = left + side * column
            box = f'x="{x}" y="{y}" width="{side - 2}" height="{side - 2}"'
            parts.append(
                f'<rect {box} fill="currentColor" fill-opacity="{max(share, 0.02):.3f}" stroke="currentColor"/>'
            )
    size = f'width="{left + side * len(names) + 4}" height="{top + side * steps + 4}"'
    style = 'font-family="sans-serif" font-size="11" fill="currentColor" stroke-width="0.3"'
    return f'<svg {size} {style} role="img" aria-label="{escape(caption)}">{"".join(parts)}</svg>'


def _measured(window: CarryInspector) -> list[str]:
    """What heavy readings have given so far."""
    parts = []
    if window.found.effects is not None:
        frame, what = window.effects(), INTERVENTIONS[window.found.question.kind]
        for name, told in (("kl", "KL divergence in nats"), ("flip_rate", "share of changed answers")):
            wide = frame.pivot(index="edited", columns="read", values=name).add_prefix("read at s_").reset_index()
            caption = f"Effects of handing on {what}, {told}, over {frame['n'].iloc[0]} prompts"
            parts.append(frame_html(caption, wide))
    if window.found.results is not None:
        frame = window.results()
        wide = frame.pivot(index="system", columns="hops", values="accuracy").reindex(frame["system"].unique())
        parts.append(frame_html("Trained controls: share of right answers by hops", wide.reset_index()))
        changes = window.ablations()
        if len(changes):
            wide = changes.pivot(index="change", columns="hops", values="accuracy").reindex(changes["change"].unique())
            parts.append(frame_html("The carry's own weights with their states changed", wide.reset_index()))
    if window.found.controls is not None:
        parts.append(frame_html("The same weights with, without and against the carry", window.controls()))
    if window.found.layers is not None:
        parts.append(frame_html("The answer read from each layer of the plain model", window.layers()))
        parts.append(frame_html("Gradient of the answer's loss by the state handed on", window.gradients()))
    return parts
