"""Whole runs drawn from a number: model, batch, scripts, other mods and settings; and all that must hold of each.

A failure names its number; ``python tests/trust/soak.py --only NUMBER`` makes that one run again.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scripted_runs import MODELS, Move, Script, agrees, tiny
from unchanged import traces_of_use

from workbench import Result, SamplingParams, Session, mod, replay
from workbench.engine import Mod
from workbench.errors import ModError
from workbench.flows import FlowEngine, FlowQuestion
from workbench.mcmc import reasoning_with_sampling
from workbench.trace import Trace

__all__ = ["RandomRun", "complete", "drawn", "holds"]

COMPANIONS = ("nobody", "unruly", "flow", "chain")
KEPT_ONE_IN = 8
"""Of so many runs one is also written to disk and read back; the disk is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRun:
    """What decides a run, all drawn from ``number``."""

    number: int
    family: str
    backend: str
    prompts: tuple[tuple[int, ...], ...] = field(repr=False)
    scripts: tuple[tuple[Move, ...], ...] = field(repr=False)
    steer: bool
    companion: str
    on_mod_error: str
    max_new_tokens: int

    @property
    def batch(self) -> int:
        return len(self.prompts)


def drawn(number: int) -> RandomRun:
    """The run of that number, always the same."""
    random = np.random.default_rng(number)
    family, backend = MODELS[random.integers(len(MODELS))]
    batch = int(random.choice([1, 2, 3, 4], p=[0.05, 0.1, 0.2, 0.65]))  # a pass costs the same for all its rows
    companion = str(random.choice(COMPANIONS, p=[0.54, 0.2, 0.18, 0.08]))
    lengths = random.integers(1, 10, size=batch)
    longest = int(random.choice((8, 24)))  # half of the runs are short, so that there are many
    # A chain draws every token itself: beside it the script only watches.
    moves = [0 if companion == "chain" else int(random.integers(0, longest)) for _ in range(batch)]
    return RandomRun(
        number=number,
        family=family,
        backend=backend,
        prompts=tuple(tuple(int(t) for t in random.integers(4, 254, size=n)) for n in lengths),
        scripts=tuple(
            tuple((int(a), int(b), int(c)) for a, b, c in random.integers(0, (7, 6, 10), size=(n, 3))) for n in moves
        ),
        steer=bool(random.random() < 0.3) and companion != "chain",
        companion=companion,
        on_mod_error=str(random.choice(("raise", "disable"))),
        max_new_tokens=int(random.integers(3, 9)),
    )


def holds(run: RandomRun) -> Counter[str]:
    """Make the run and check it; what happened in it is counted.

    :raises AssertionError: something did not hold.
    """
    model = tiny(run.family, run.backend)
    before = traces_of_use(model)
    scripts, results, error = _made(run, model)
    complete(results[0].trace)
    for script, result in zip(scripts, results, strict=True):
        if result.trace.history(result.request_id).tokens:  # else a mod ended the batch before this one began
            agrees(script, result, steered=run.steer)
    if error is None:
        assert all(result.reason != "error" for result in results)
    assert traces_of_use(model) == before
    _repeats(run, model, results[0].trace)
    if run.number % KEPT_ONE_IN == 0:
        _comes_back(results[0].trace)
    return _counted(scripts, results, error)


def _made(run: RandomRun, model: Any) -> tuple[list[Script], list[Result], ModError | None]:
    scripts, mods = _mods(run, model)
    session = Session(
        model, capture="blocks.*.hook_resid_post", on_mod_error=run.on_mod_error, sinks=[s.listen for s in scripts]
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*edits active at once")  # the script does not mind
        warnings.filterwarnings("ignore", message=".*(unruly|disabled)")
        try:
            results = session.generate(
                [list(prompt) for prompt in run.prompts], max_new_tokens=run.max_new_tokens, seed=run.number, mods=mods,
                sampling=SamplingParams(), max_forward_tokens=200,
            )  # fmt: skip
        except ModError as error:
            return scripts, session.last_results, error
    return scripts, results, None


def _mods(run: RandomRun, model: Any) -> tuple[list[Script], list[list[Mod]]]:
    random = np.random.default_rng((run.number, 1))
    scripts = [Script(model, moves, f"r{row}", steer=run.steer) for row, moves in enumerate(run.scripts)]
    mods: list[list[Mod]] = []
    for script in scripts:
        own: list[Mod] = [script, *_companion(run, random)]
        mods.append(own if random.random() < 0.5 else own[::-1])
    return scripts, mods


def _companion(run: RandomRun, random: np.random.Generator) -> list[Mod]:
    match run.companion:
        case "unruly":
            return [unruly(int(random.integers(1, 20)))]
        case "flow":
            first = FlowQuestion(name="a", prompt=" a?", responses=["x", "yy"], erase_mode="all")
            second = FlowQuestion(name="b", prompt=" b?", responses=["1", "22"], erase_mode="prompt")
            return [FlowEngine(first.then(second)).as_mod()]
        case "chain":
            return [reasoning_with_sampling(2.0, block_size=3, n_mcmc=2, seed=run.number)]
    return []


def unruly(events: int) -> Mod:
    """A mod that raises at the event of that number."""

    @mod(name="unruly")
    def raises(event: Any, actions: Any, tokenizer: Any) -> Any:
        event.state["heard"] = event.state.get("heard", 0) + 1
        if event.state["heard"] == events:
            raise ZeroDivisionError("unruly as it is")

    return raises


def complete(trace: Trace) -> None:
    """The trace says everything once: numbered without a gap, begun and ended once, every token added exactly once."""
    assert [record.seq for record in trace.records] == list(range(len(trace.records)))
    for request_id, history in trace.histories.items():
        own = [record for record in trace.records if record.request_id == request_id]
        kinds = Counter(record.kind for record in own)
        assert kinds["prefilled"] <= 1
        assert kinds["finished"] == 1
        assert all(a.step <= b.step for a, b in itertools.pairwise(own))
        added = [token for record in own if record.kind == "added" for token in record.tokens]
        assert [life.token for life in history.every] == added
        removed = sum(len(record.tokens) for record in own if record.kind == "removed")
        assert len(history.live) == len(added) - removed


def _repeats(run: RandomRun, model: Any, trace: Trace) -> None:
    _, mods = _mods(run, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = replay(trace, model, mods)
    assert again.agrees, str(again)


def _comes_back(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        loaded = Trace.load(trace.save(Path(directory) / "run"))
    assert loaded.histories.keys() == trace.histories.keys()
    assert len(loaded) == len(trace)
    for before, after in zip(trace.records, loaded.records, strict=True):
        assert replace(before, activations=None, data={}) == replace(after, activations=None, data={})
        assert json.dumps(dict(before.data)) == json.dumps(dict(after.data))
        assert (before.activations or {}).keys() == (after.activations or {}).keys()


def _counted(scripts: Sequence[Script], results: Sequence[Result], error: ModError | None) -> Counter[str]:
    kinds = Counter(record.kind for record in results[0].trace.records)
    told = {
        "scripts": len(scripts), "passes": kinds["forward_pass"], "records": len(results[0].trace.records),
        "tokens added": sum(len(r.tokens) for r in results[0].trace.records if r.kind == "added"),
        "tokens taken back": sum(len(r.tokens) for r in results[0].trace.records if r.kind == "removed"),
        "runs ended by a mod": int(error is not None),
    }  # fmt: skip
    return Counter(told)
