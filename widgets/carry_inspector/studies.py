"""Readings that run the model again: effects of interventions, a Jacobian lens, controls, layers, gradients, a check.

Each is a plain call; the window runs them in a thread. ``ticks`` says about how often the band is entered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from workbench.carry import CarryTrace as Trace
from workbench.carry import (
    Check,
    Control,
    Do,
    Effect,
    Exit,
    JacobianLens,
    LayerReading,
    check_trace,
    decodability,
    effect_grid,
    fit_jacobian_lens,
    frozen,
    measure_controls,
    noise,
    pack,
    patched,
    scaled,
    shuffled,
    step_mean,
    step_means,
    swapped,
    zero,
)
from workbench.errors import CarryError, did_you_mean

from .subject import Row, Subject, read_token

__all__ = [
    "ABLATED_RUNS",
    "INTERVENTIONS",
    "Layers",
    "Question",
    "ablated_runs",
    "check",
    "controls",
    "effects",
    "fit_lens",
    "layers",
    "ticks",
]

INTERVENTIONS: Mapping[str, str] = {
    "zero": "zeros",
    "mean": "the mean state of that step over the rows",
    "frozen": "the state at the prompt's last token",
    "shuffle": "another row's state",
    "noise": "a random direction of the state's length",
    "gain": "gain times the state",
    "patch": "another run's state at that step",
    "swap": "the state with two tokens' coordinates exchanged",
}
"""What is handed on in the place of the state."""
ABLATED_RUNS = ("zero", "frozen", "noise")
LENS_PROMPTS = 64
"""The most prompts a lens is fitted on: all are in one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An intervention and its parameters."""

    kind: str = "zero"
    gain: float = -1.0
    donor: str = ""
    """Name of the other run whose states are patched in."""
    tokens: tuple[int, int] | None = None
    """Whose coordinates are exchanged."""
    seed: int = 0

    @classmethod
    def of(cls, subject: Subject, told: Mapping[str, Any]) -> Question:
        """From what a form says.

        :raises CarryError: an intervention that does not exist, or one that these runs and rows don't allow.
        """
        kind = str(told.get("kind", "zero"))
        if kind not in INTERVENTIONS:
            hint = did_you_mean(kind, INTERVENTIONS)
            raise CarryError(f"no intervention {kind!r}; choose from {', '.join(INTERVENTIONS)}.{hint}")
        tokens = None
        if kind == "swap":
            tokens = (read_token(subject.model, told["first"]), read_token(subject.model, told["second"]))
        donor = str(told.get("donor") or next(iter(subject.others), ""))
        if kind == "patch" and donor not in subject.others:
            raise CarryError("a patch needs another run: CarryInspector(model, trace, others={'donor': other_trace})")
        if kind in ("shuffle", "mean") and len(subject.prompts) < 2:
            raise CarryError(
                f"{kind!r} needs at least two rows: CarryInspector(model, trace, rows=[(prompt, answer), …])"
            )
        return cls(
            kind=kind, gain=float(told.get("gain", -1.0)), donor=donor, tokens=tokens, seed=int(told.get("seed", 0))
        )


def effects(subject: Subject, question: Question) -> list[Effect]:
    """The effect grid of an intervention over all rows' prompts (or the trace's own)."""
    make = _maker(subject, question)
    return effect_grid(subject.model, subject.prompts, make, settings=subject.settings)


def _maker(subject: Subject, question: Question) -> Callable[[], Do]:
    """What makes the intervention anew for every edited step, each with the same random numbers."""

    def stream() -> torch.Generator:
        return torch.Generator().manual_seed(question.seed)

    if question.kind == "mean":
        rows: list[Row] = [(prompt, ()) for prompt in subject.prompts]
        means = step_means(subject.model, rows, subject.settings)
        return lambda: step_mean(means)
    if question.kind == "frozen":
        first = _first_states(subject)
        # Not frozen() itself: edited at one step alone, it would never have seen step 0.
        return lambda: patched(first.expand(subject.trace.pauses + 1, *first.shape))
    if question.kind == "swap" and question.tokens is not None:
        first, second = (_direction(subject, token) for token in question.tokens)
        return lambda: swapped(first, second)
    ready: dict[str, Callable[[], Do]] = {
        "zero": zero,
        "shuffle": lambda: shuffled(stream()),
        "noise": lambda: noise(stream()),
        "gain": lambda: scaled(question.gain),
        "patch": lambda: patched(subject.others[question.donor].states),
    }
    return ready[question.kind]


@torch.no_grad()
def _first_states(subject: Subject) -> Tensor:
    """s_0 of every prompt, ``[batch, d_model]``."""
    model, chosen = subject.model, subject.settings
    batch = pack([(prompt, 0, ()) for prompt in subject.prompts], model.pause.id, device=model.device)
    found = model.states(batch.ids, batch.mask, batch.prompt_lengths, loops=chosen.loops, mode=chosen.mode)
    rows = torch.arange(len(subject.prompts), device=found.s.device)
    return found.s[rows, found.layout.prompt_lengths - 1]


def _direction(subject: Subject, token: int) -> Tensor:
    """The direction of the band's exit that raises a token: by the Jacobian lens, else by the logit lens."""
    exit = Exit(layer=subject.trace.band[1] - 1)
    lens = subject.jacobian
    if lens is None:
        lens = JacobianLens(matrices={exit: torch.eye(subject.model.d_model)}, samples=0)
    return lens.direction(subject.model, exit, token)


def fit_lens(subject: Subject) -> JacobianLens:
    """One Jacobian for every loop of the prompt and one for the steps, on at most 64 of the rows' prompts.

    :raises CarryError: the trace has no pauses, so steps have no Jacobian to be the mean of.
    """
    layer = subject.trace.band[1] - 1
    exits = [Exit(layer=layer, loop=loop) for loop in range(len(subject.trace.loop_s))] + [Exit(layer=layer)]
    return fit_jacobian_lens(subject.model, subject.prompts[:LENS_PROMPTS], exits, settings=subject.settings)


def controls(subject: Subject, seed: int = 0) -> list[Control]:
    """The same weights in every mode and with every ablation, over the rows."""
    return measure_controls(subject.model, subject.answered, subject.settings, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Where the answer is readable, and how its loss pulls at each state."""

    readings: tuple[LayerReading, ...]
    gradients: tuple[float, ...]
    """Mean over rows of the norm of d loss / d s_t, for the states handed on from steps 0, 1, …; nats per unit."""


def layers(subject: Subject) -> Layers:
    """The answers of the known rows read from every layer, and gradients of the rows' by step through the carry."""
    known = list(subject.known) or subject.answered
    return Layers(readings=tuple(decodability(subject.model, known)), gradients=tuple(_gradients(subject)))


def _gradients(subject: Subject) -> list[float]:
    """How far back through the steps the answer's loss reaches: what a truncated training would cut off."""
    model, chosen = subject.model, subject.settings
    if chosen.mode != "carry" or not chosen.pauses:
        return []
    spans = [(prompt, chosen.pauses, answer) for prompt, answer in subject.answered]
    batch = pack(spans, model.pause.id, device=model.device)
    leaves: dict[int, Tensor] = {}

    def do(step: int, states: Tensor) -> Tensor:
        leaves[step] = torch.zeros_like(states).requires_grad_()
        return states + leaves[step]

    with torch.enable_grad():
        logits = model.logits(batch.ids, batch.mask, batch.prompt_lengths, loops=chosen.loops, mode=chosen.mode,
                              do=do, reads=batch.reads())  # fmt: skip
        loss = functional.cross_entropy(logits, batch.targets(), reduction="sum")
        read = {step: leaf for step, leaf in leaves.items() if step < chosen.pauses}
        found = torch.autograd.grad(loss, list(read.values()), allow_unused=True)
    return [0.0 if gradient is None else float(gradient.float().norm(dim=-1).mean()) for gradient in found]


def check(subject: Subject) -> Check:
    """The whole-sequence scan on the trace's own tokens."""
    return check_trace(subject.model, subject.trace)


def ablated_runs(subject: Subject) -> dict[str, Trace]:
    """The trace's prompt again, with its states replaced: to be drawn in the same plane."""
    made: dict[str, Do] = {"zero": zero(), "frozen": frozen(), "noise": noise(torch.Generator().manual_seed(0))}
    return {f"{name} (ablated)": subject.run(do=made[name]) for name in ABLATED_RUNS}


def ticks(subject: Subject, name: str) -> int:
    """About how often a study enters the band (for a lens: how many backward passes it takes)."""
    chosen, trace = subject.settings, subject.trace
    once = chosen.loops + trace.steps
    rows = len(subject.answered)
    table = {
        "effects": (chosen.pauses + 1) * (chosen.loops + 1 + chosen.pauses),
        "lens": subject.model.d_model * (chosen.loops + 1 + chosen.pauses),
        "controls": 26 * (chosen.loops + 1 + chosen.pauses) * -(-rows // 64),
        "layers": once + 1,
        "check": 4 * once,
        "ablated": len(ABLATED_RUNS) * once,
    }
    return int(table[name])
