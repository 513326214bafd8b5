"""Ctrl-C at a random moment of a random run, and all that must hold after it."""

from __future__ import annotations

import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from eventful_mods import having_second_thoughts
from scripted_runs import MODELS, tiny
from unchanged import traces_of_use

from workbench import Result, SamplingParams, Session, Trace, replay
from workbench.trace import first_difference

__all__ = ["interrupted"]

PROMPTS = [[72, 101, 108, 108, 111], [87, 111, 114, 108, 100, 33]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run to interrupt, drawn from a number."""

    model: Any
    prompts: list[list[int]]
    mods: list[Any]
    sampling: SamplingParams
    seed: int
    max_new_tokens: int
    moment: float
    """When to interrupt, as a share of what the run takes."""

    def generate(self, session: Session, **more: Any) -> list[Result]:
        results: list[Result] = session.generate(
            self.prompts, max_new_tokens=self.max_new_tokens, sampling=self.sampling, seed=self.seed, **more
        )
        return results

    def session(self) -> Session:
        return Session(self.model, self.mods, capture="blocks.1.hook_resid_post")


def _drawn(number: int) -> Plan:
    random = np.random.default_rng((number, 2))
    family, backend = MODELS[random.integers(len(MODELS))]
    return Plan(
        model=tiny(family, backend),
        prompts=PROMPTS[: random.integers(1, 3)],
        mods=[having_second_thoughts("no", "so")] if random.random() < 0.5 else [],
        sampling=SamplingParams(temperature=float(random.choice([0.0, 1.0])), top_k=int(random.choice([0, 20]))),
        seed=number,
        max_new_tokens=int(random.integers(5, 15)),
        moment=float(random.uniform(-0.05, 1.1)),
    )


def interrupted(number: int) -> Counter[str]:
    """Interrupt the run of that number and check what is left; where it was hit is counted.

    :raises AssertionError: something did not hold.
    """
    plan = _drawn(number)
    began = time.perf_counter()
    whole = plan.generate(plan.session())
    took = time.perf_counter() - began
    before = traces_of_use(plan.model)
    session = plan.session()
    with tempfile.TemporaryDirectory() as directory:
        hit = _hit(session, plan, Path(directory) / "run", max(plan.moment * took, 1e-6))
        assert traces_of_use(plan.model) == before
        if session.last_results:
            _kept(plan, session.last_results, whole, Path(directory) / "run")
    again = plan.generate(session)  # both are usable as if nothing had been
    assert first_difference(again[0].trace, whole[0].trace) is None
    parts = session.last_results
    return Counter({"interrupts": 1, hit: 1, "tokens": sum(len(part.tokens) for part in parts)})


def _hit(session: Session, plan: Plan, directory: Path, seconds: float) -> str:
    """Run, with SIGINT after so many seconds; where it came in."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            plan.generate(session, save=directory)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        reasons = {result.reason for result in session.last_results}
        return "in the run" if "interrupted" in reasons else "at its edges"
    finally:
        signal.signal(signal.SIGALRM, before)
    return "after its end"


def _kept(plan: Plan, parts: list[Result], whole: list[Result], directory: Path) -> None:
    """What the run left is the beginning of the whole run, on disk too, and what goes on from it is the rest."""
    trace = parts[0].trace
    kept = Trace.load(directory)
    assert kept.run["status"] == trace.run["status"]
    assert [record.seq for record in kept.records] == list(range(len(trace.records)))
    assert [record.kind for record in kept.records] == [record.kind for record in trace.records]
    if all(part.reason == "interrupted" for part in parts):
        assert replay(kept, plan.model, plan.mods).agrees
    for part, full in zip(parts, whole, strict=True):
        if part.reason != "interrupted":
            assert (part.tokens, part.reason) == (full.tokens, full.reason)
        elif not plan.mods:
            assert part.tokens == full.tokens[: len(part.tokens)]
            _goes_on(plan, part, full)


def _goes_on(plan: Plan, part: Result, full: Result) -> None:
    left = plan.max_new_tokens - len(part.tokens)
    if left:
        rest = plan.session().resume(part, max_new_tokens=left)
        assert part.tokens + rest.tokens == full.tokens
        assert replay(rest.trace, plan.model).agrees
