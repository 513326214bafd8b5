"""A carried run to the parts of a report: what its states say, how they move, its controls, what each does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import pandas as pd
from torch.nn import functional

from ..carry import CarryModel, CarryTrace, Control, Effect, cost_panel, loop_motion, readings
from ..errors import ReportError
from .blocks import Alert, Block, Facts, Heading, Note, Picture, Verbatim, grid_of, number
from .legible import label, shortened
from .panels import Line, bars, line_panels
from .svg import COSINE, PROBABILITY, heat_strip, sequential

__all__ = ["carry_blocks"]

MOST_STATES = 40
"""Loops and steps that are drawn; the tables and files hold all."""
MOST_CELLS = 10
"""Columns of a matrix whose numbers are written into its cells."""
GUESSES = 3
TEXT_SHOWN = 20_000
METRICS = {
    "norm_s": "length of the state",
    "x_over_e": "band input / plain",
    "share": "carry share",
    "cosine_previous": "cosine to the one before",
}


def carry_blocks(
    trace: CarryTrace,
    model: CarryModel | None,
    controls: Sequence[Control],
    effects: Sequence[Effect],
    file: str,
) -> Iterator[Block]:
    """The parts of one carried prompt; ``file`` is the stem of attached files.

    :raises ReportError: ``model`` is not the one that made the trace.
    """
    if model is not None:
        check_carry_model(model, trace)
    first, last = trace.band
    yield Heading(text=f"Carry through layers {first} to {last - 1}")
    yield _summary(trace, model)
    yield from _warnings(trace)
    yield from _texts(trace, model)
    yield Heading(text="States", level=3)
    if model is None:
        yield Note(text="Give the model along with the trace to see what its states say: `report.carry(trace, model)`.")
    else:
        yield from _readings(model, trace, file)
    yield from _motion(trace, file)
    yield from _control_blocks(controls, file)
    yield from _effect_blocks(effects, file)


def check_carry_model(model: CarryModel, trace: CarryTrace) -> None:
    """Refuse a carry that is not the one of the trace.

    :raises ReportError: another adapter, band or width.
    """
    own = {"band": list(model.settings.band), "adapter_fingerprint": model.adapter.fingerprint()}
    for name, found in own.items():
        told = trace.config.get(name)
        told = list(told) if isinstance(told, tuple) else told
        if told != found:
            raise ReportError(
                f"the carry trace was made with {name.replace('_', ' ')} {told}, but the model given has {found}: "
                "give the one that made the trace"
            )
    if trace.s.shape[-1] != model.d_model:
        raise ReportError(f"the carry trace has width {trace.s.shape[-1]}, but the model given {model.d_model}")


# What was asked and what came ----------------------------------------------------------------------------------


def _summary(trace: CarryTrace, model: CarryModel | None) -> Facts:
    config = trace.config
    adapter = config.get("adapter", {})
    pairs = [
        ("Mode", str(config.get("mode", "not recorded"))),
        ("Prompt tokens", f"{trace.prompt_length:,}"),
        ("Pauses", str(trace.pauses)),
        ("Answer tokens", str(len(trace.ids) - trace.prompt_length - trace.pauses)),
        ("Loops over the prompt", str(len(trace.loop_s) - 1)),
        ("Adapter", f"{adapter.get('kind', '?')} {config.get('adapter_fingerprint', '')}"),
        ("Pause token", label(str(config.get("pause_token", "not recorded")))),
        ("Largest carry share", number(_largest_share(trace))),
    ]
    if model is not None:
        panel = cost_panel(model, trace)
        pairs += [
            (
                "Token-layers of generating",
                f"{panel.generating.fast:,} (whole-sequence scan {panel.generating.naive:,})",
            ),
            ("Keys and values", f"{panel.cache_bytes / 2**20:.2f} MiB"),
        ]
    return Facts(pairs=tuple(pairs))


def _largest_share(trace: CarryTrace) -> float:
    return max((row["share"] for row in trace.rows() if row["share"] is not None), default=0.0)


def _warnings(trace: CarryTrace) -> Iterator[Alert]:
    if trace.config.get("intervened"):
        yield Alert(text="The states were changed on their way (an intervention): this is not the model's own course.")
    if not trace.injection.any():
        yield Alert(
            text="The adapter adds nothing (as before training): these are the base model's own states after pauses, "
            "and say nothing about what a trained carry would do."
        )


def _texts(trace: CarryTrace, model: CarryModel | None) -> Iterator[Block]:
    spans = {
        "Prompt": slice(0, trace.prompt_length),
        "Answer": slice(trace.prompt_length + trace.pauses, len(trace.ids)),
    }
    for name, span in spans.items():
        told = "".join(trace.texts[span]) if model is None else model.tokenizer.decode(list(trace.ids[span]))
        yield Heading(text=name, level=3)
        yield Verbatim(label=name, text=shortened(told, TEXT_SHOWN) if told else "(nothing)")


# What the states say and how they move -------------------------------------------------------------------------


def _names(trace: CarryTrace) -> list[str]:
    """A state by loop of the prompt, then by step after it."""
    loops = [f"loop {loop}" for loop in range(len(trace.loop_s))]
    return [*loops, *(f"step {step}" for step in range(1, trace.steps))]


def _readings(model: CarryModel, trace: CarryTrace, file: str) -> Iterator[Block]:
    found = readings(model, trace, k=5)
    rows = []
    for name, reading in zip(_names(trace), found, strict=True):
        row: dict[str, object] = {"state": name, "phase": reading.phase, "token there": label(reading.token)}
        for place, guess in enumerate(reading.lens, 1):
            row |= {f"lens {place}": label(guess.text), f"p {place}": guess.probability}
        if reading.now:
            row |= {"answer now": label(reading.now[0].text), "p now": reading.now[0].probability}
        rows.append(row)
    frame = pd.DataFrame(rows, dtype=object).infer_objects()
    for name in frame.columns:
        if name.startswith("p "):
            frame[name] = frame[name].astype("Float64")
    shown = found[:MOST_STATES]
    guesses = [[reading.lens[place] for reading in shown] for place in range(min(GUESSES, len(shown[0].lens)))][::-1]
    now = [reading.now[0] if reading.now else None for reading in shown]
    yield Picture(
        html=heat_strip(
            [*([g.probability for g in line] for line in guesses), [g.probability if g else math.nan for g in now]],
            rows=[*(f"lens {len(guesses) - i}" for i in range(len(guesses))), "now"],
            columns=_names(trace)[:MOST_STATES],
            scale=PROBABILITY,
            texts=[*([label(g.text) for g in line] for line in guesses), [label(g.text) if g else "" for g in now]],
            alternative=f"What {len(shown)} states say by the logit lens; the table has the numbers.",
        ),
        caption="What each state says: “now” is the token that the model's own later layers would answer there; below "
        "it the likeliest by the logit lens, which reads the band's exit as if it were the last layer. That a token "
        "can be read from a state does not show that the model uses it.",
        twin=grid_of(frame, "Readings by loop and step", attach=f"{file}-readings.csv"),
    )


def _motion(trace: CarryTrace, file: str) -> Iterator[Block]:
    rows = pd.DataFrame([{**row, "token": label(row["token"])} for row in trace.rows()])
    rows.insert(0, "state", _names(trace))
    for name in ("share", "cosine_previous"):
        rows[name] = rows[name].astype("Float64")
    lines = [
        Line(title=title, values=tuple(float(value) if pd.notna(value) else math.nan for value in rows[name]))
        for name, title in METRICS.items()
    ]
    shown = rows.copy()
    shown.columns = shown.columns.str.replace("_", " ")
    yield Picture(
        html=line_panels(
            lines, range(len(rows)), alternative="Lengths, shares and cosines by state", logarithmic=False, shared=False
        ),
        caption="How the states move; each panel has a scale of its own. Along: the prompt's first pass and its "
        f"{len(trace.loop_s) - 1} loops, then {trace.steps - 1} steps. Carry share: "
        "‖merge(e, s) − merge(e, 0)‖ / ‖e‖, the part of the band's input that the carried state brought. Band input / "
        "plain: ‖x‖ / ‖e‖.",
        twin=grid_of(shown, "Every state: lengths, shares and cosines", attach=f"{file}-states.csv"),
    )
    yield from _likeness(trace)
    motion = loop_motion(trace).residual.mean(-1).tolist()
    if motion:
        frame = pd.DataFrame({"loop": range(1, len(motion) + 1), "mean move": motion})
        yield grid_of(frame, "How far a loop moves the prompt's states, ‖s_k − s_(k−1)‖, mean over positions")


def _likeness(trace: CarryTrace) -> Iterator[Picture]:
    """States against each other, where there are several."""
    states = trace.states[:MOST_STATES]
    if len(states) < 2:
        return
    unit = functional.normalize(states, dim=-1)
    cosines = (unit @ unit.T).tolist()
    names = [str(step) for step in range(len(states))]
    yield Picture(
        html=heat_strip(
            cosines,
            rows=names,
            columns=names,
            scale=COSINE,
            alternative=f"Cosines between {len(states)} states",
            texts=_cells(cosines),
        ),
        caption="Cosine between the states at each two steps (0 is the prompt's last token). Where all are near 1 a "
        "step changes little of what is carried on.",
        twin=grid_of(pd.DataFrame(cosines, columns=names).assign(step=names), "Cosine between states, step by step"),
    )


def _cells(values: Sequence[Sequence[float]]) -> list[list[str]] | None:
    """The numbers themselves, where a matrix is small enough to be read cell by cell."""
    return [[number(value) for value in row] for row in values] if len(values[0]) <= MOST_CELLS else None


# Controls and effects ------------------------------------------------------------------------------------------


def _control_blocks(controls: Sequence[Control], file: str) -> Iterator[Block]:
    yield Heading(text="Controls", level=3)
    if not controls:
        yield Note(text="None were measured. `report.carry(trace, model, controls=model.controls(rows))` adds them.")
        return
    frame = pd.DataFrame([asdict(control) for control in controls])
    frame["generated"] = frame["generated"].astype("Float64")
    frame.columns = frame.columns.str.replace("_", " ")
    yield Picture(
        html=bars(
            [control.name for control in controls],
            [control.accuracy for control in controls],
            intervals=[(control.low, control.high) for control in controls],
            most=1.0,
            alternative="Accuracy of each control with its interval",
        ),
        caption=f"Share of {controls[0].n} rows answered right by the same weights, with, without and against the "
        "carry; 95 % Wilson intervals over rows.",
        twin=grid_of(frame, "Controls", attach=f"{file}-controls.csv"),
    )


def _effect_blocks(effects: Sequence[Effect], file: str) -> Iterator[Block]:
    yield Heading(text="What each state does", level=3)
    if not effects:
        yield Note(
            text="No state was edited. `report.carry(…, effects=effect_grid(model, prompts, zero))` adds a table."
        )
        return
    edited = sorted({effect.edited for effect in effects})
    reads = sorted({effect.read for effect in effects})
    by_place = {(effect.edited, effect.read): effect.kl for effect in effects}
    values = [[by_place.get((one, other), math.nan) for other in reads] for one in edited]
    yield Picture(
        html=heat_strip(
            values,
            rows=[str(one) for one in edited],
            columns=[str(other) for other in reads],
            scale=sequential([effect.kl for effect in effects], "KL divergence (nats)"),
            alternative="Effect of editing the state of one step on the answer read at another",
            texts=_cells(values),
        ),
        caption="One state edited on its way (row: the step it left), the answer read at every step (column). Steps up "
        "to the edited one can't change: their zeros check causality.",
        twin=grid_of(
            pd.DataFrame([asdict(effect) for effect in effects]),
            "Effects of editing one state",
            attach=f"{file}-effects.csv",
        ),
    )
