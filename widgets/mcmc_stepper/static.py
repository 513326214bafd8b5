"""The stepper as HTML without script, style or kernel: the timeline, and its last decision in full."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from workbench.errors import ChainError
from workbench.reports import legible, number

from ..base import frame_html
from .tracks import Track

if TYPE_CHECKING:
    from .widget import MCMCStepper

__all__ = ["stepper_html"]

LONGEST_PROMPT = 600
TIMELINE = ("chain", "block", "iteration", "kind", "pivot", "old", "new", "log_a", "log_u", "log_p")


def stepper_html(window: MCMCStepper) -> str:
    """All tracks; of each the decisions and, of its last one, terms, tokens, verdict and cache."""
    parts = [f"<p><b>{escape(repr(window))}</b></p>"]
    if window.texts.tokenizer is None:
        parts.append("<p>No model was given: tokens stand as their ids.</p>")
    else:
        prompt = window.texts.tokenizer.decode(list(window.tracks[0].chains.settings.prompt))
        parts.append(f"<p>Prompt:</p><pre>{escape(legible(prompt)[:LONGEST_PROMPT])}</pre>")
    for track in window.tracks:
        parts += _track(window, track)
    return "".join(parts)


def _track(window: MCMCStepper, track: Track) -> list[str]:
    settings = track.chains.settings
    told = (
        f"{track.told}: alpha {settings.target.alpha:g}, tau {settings.target.temperature:g}, blocks of "
        f"{settings.target.block_size}, {settings.target.n_mcmc} proposals each, seed {settings.seed}; "
        f"{track.shown} of {track.total} decisions."
    )
    parts = [f"<p>{escape(told)}</p>", *(f"<p><b>{escape(warning)}</b></p>" for warning in track.warnings)]
    parts += [
        f"<p>Chain {text.chain} stands at (nothing in it is settled):</p><pre>{escape(legible(text.text)[:600])}</pre>"
        for text in track.chains.texts[:8]
    ]
    if not track.shown:
        return [*parts, "<p>No decision yet: step() makes one.</p>"]
    frame = window.frame(track.number)
    timeline = frame[list(TIMELINE)].reset_index(names="decision")
    parts.append(frame_html(f"Decisions of {track.told}", timeline, last=True))
    return [*parts, *_decision(window, track)]


def _decision(window: MCMCStepper, track: Track) -> list[str]:
    index = track.shown - 1
    decision, verdict = track.decision(index), window.verdict(index, track.number)
    sign = "&lt;" if decision.log_u < decision.log_a else "&ge;"
    words = ", ".join(
        f"{name} {' '.join(f'{word:08x}' for word in verdict[name])}" for name in ("key", "counter", "random")
    )
    parts = [
        f"<p>Decision {index} of {escape(track.told)}: <b>{decision.kind}</b>, pivot {decision.pivot}. "
        f"log u = {number(decision.log_u)} {sign} log A = {number(decision.log_a)}; u = {number(decision.u)}.</p>",
        f"<p>Philox: {words}.</p>",
        _axis(decision.log_u, decision.log_a),
        frame_html("Terms of log A", window.terms(index, track.number)),
    ]
    tokens = window.tokens(index, track.number).drop(columns=["row", "token", "alpha_log_p"])
    parts.append(frame_html("Old and new suffix, and what each token adds to log A", tokens))
    programs = window.programs(index, track.number)[["program", "side", "position", "x_tok", "lse_1", "lse_tau"]]
    parts.append(frame_html("Inside the kernel: one program a row", programs))
    try:
        parts.append(frame_html("Keys and values, in positions", window.cache(index, track.number)))
    except ChainError as error:
        parts.append(f"<p>{escape(str(error))}</p>")
    return parts


def _axis(log_u: float, log_a: float) -> str:
    """log u and log A on one axis; left of log A is accepted."""
    low, high = min(log_u, log_a, -1.0) - 0.5, max(log_a, 0.0) + 0.5
    wide, left = 420, 10

    def x(value: float) -> float:
        return left + (wide - 2 * left) * (value - low) / (high - low)

    told = f"log u {number(log_u)} and log A {number(log_a)} on one axis"
    return (
        f'<svg width="{wide}" height="58" role="img" aria-label="{escape(told)}" font-family="sans-serif" '
        'font-size="11" fill="currentColor" stroke="currentColor">'
        f'<line x1="{left}" y1="30" x2="{wide - left}" y2="30" stroke-width="1"/>'
        f'<line x1="{left}" y1="30" x2="{x(log_a):.1f}" y2="30" stroke-width="5" stroke-opacity="0.35"/>'
        f'<path d="M{x(log_u):.1f} 30l-5 -9h10z"/><path d="M{x(log_a):.1f} 30l-5 9h10z" fill="none"/>'
        f'<g stroke="none"><text x="{min(x(log_u) + 7, wide - 90):.1f}" y="18">log u {number(log_u)}</text>'
        f'<text x="{min(x(log_a) + 7, wide - 90):.1f}" y="52">log A {number(log_a)}</text></g></svg>'
    )
