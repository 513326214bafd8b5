"""``kill -9`` at a random moment of a run that is kept on disk, and what is found there afterwards."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from eventful_mods import having_second_thoughts
from forks import forked
from scripted_runs import tiny

from workbench import ForwardPass, Result, Session, Trace, mod, replay
from workbench.errors import ChainError
from workbench.flows import FlowEngine, FlowQuestion
from workbench.mcmc import Chains, PowerSampler, load_chains, resume
from workbench.mcmc import store as chain_store
from workbench.trace import Record

__all__ = ["KINDS", "killed"]

LOST_SECONDS = 2.0
"""What a killed run may lack, as the writer promises."""
TOKENS = 120
PROMPT = "Once"


@dataclass(frozen=True, slots=True)
class Setting:
    """One kind of run to kill."""

    mods: Callable[[], list[Any]]
    capture: str | None
    wait: float
    """At one token the run stands still for so many seconds, as if it waited for a person."""


def _flow() -> list[Any]:
    first = FlowQuestion(name="a", prompt=" a?", responses=["x", "yy"], erase_mode="all")
    return [FlowEngine(first.then(FlowQuestion(name="b", prompt=" b?", responses=["1", "22"]))).as_mod()]


KINDS = {
    "plain": Setting(list, "blocks.*.hook_resid_post", 0.0),
    "mods": Setting(lambda: [having_second_thoughts("no", "so")], "blocks.1.hook_resid_post", 0.0),
    "flow": Setting(_flow, None, 0.0),
    "waiting": Setting(list, None, 6.0),
}
"""Beside them there is a run of chains, which is kept by another writer."""


def killed(number: int) -> Counter[str]:
    """Kill the run of that number and check what is left.

    :raises AssertionError: something did not hold.
    """
    random = np.random.default_rng((number, 3))
    kind = str(random.choice([*KINDS, "chains"]))
    seconds = float(random.uniform(0.0, 4.0))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        if kind == "chains":
            _chains()  # the whole run and the model are there before the fork
            _kill_after(seconds, lambda: _make_chains(place))
            return _chains_left(place)
        _whole(kind)
        at = _kill_after(seconds, lambda: _make_run(kind, place))
        return _trace_left(kind, place, at)


def _kill_after(seconds: float, work: Callable[[], None]) -> float:
    """Do ``work`` in a forked process and kill that after so many seconds; when that was, on the monotonic clock."""
    child = forked(work)
    time.sleep(seconds)
    at = time.monotonic()
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the run failed before it was killed"
    return at


# A trace ---------------------------------------------------------------------------------------------------------


def _session(kind: str, *, pace: float, wait: float) -> Session:
    @mod(name="pace")
    def paced(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass):
            time.sleep(wait if event.step == TOKENS // 4 else pace)

    return Session(tiny("llama", "lean"), [paced, *KINDS[kind].mods()], capture=KINDS[kind].capture)


@cache
def _whole(kind: str) -> Result:
    result: Result = _session(kind, pace=0, wait=0).generate(PROMPT, max_new_tokens=TOKENS, seed=5)
    return result


def _make_run(kind: str, place: Path) -> None:
    log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def noted(record: Record) -> None:
        os.write(log, f"{record.seq} {time.monotonic()}\n".encode())

    def beating() -> None:
        while True:
            os.write(log, f"-1 {time.monotonic()}\n".encode())
            time.sleep(0.05)

    threading.Thread(target=beating, daemon=True).start()
    session = _session(kind, pace=0.02, wait=KINDS[kind].wait)
    session.sinks = (noted,)
    session.generate(PROMPT, max_new_tokens=TOKENS, seed=5, save=place / "run")


def _trace_left(kind: str, place: Path, at: float) -> Counter[str]:
    log = [(int(seq), float(when)) for seq, when in map(str.split, _lines(place / "log"))]
    said = {seq: when for seq, when in log if seq >= 0}
    if not (place / "run" / "run.json").exists():
        assert not said or min(said.values()) > at - LOST_SECONDS - _stall(log, at)
        return Counter({"kills": 1, "before anything was written": 1})
    trace = Trace.load(place / "run")
    assert [record.seq for record in trace.records] == list(range(len(trace)))
    lost = [when for seq, when in said.items() if seq >= len(trace)]
    if lost:
        assert min(lost) > at - LOST_SECONDS - _stall(log, at)
    _is_the_beginning(kind, trace)
    _place_is_free(place / "run", trace)
    return Counter({
        "kills": 1, kind: 1, "records kept": len(trace), "records lost": len(lost),
        "finished": int(trace.run["status"] == "finished"),
    })  # fmt: skip


def _lines(log: Path) -> list[str]:
    """Whole lines only."""
    text = log.read_text() if log.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _stall(log: list[tuple[int, float]], at: float) -> float:
    """The longest time that the machine gave this process nothing: no promise of ours covers that."""
    times = [*sorted(when for _, when in log), at]
    return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


def _is_the_beginning(kind: str, trace: Trace) -> None:
    """Going on is making it again: it agrees as far as it went, and ends as the run that nobody killed."""
    if not trace.records:
        return
    whole = _whole(kind)
    mods = _session(kind, pace=0, wait=0).mods
    again = replay(trace, tiny("llama", "lean"), mods)
    assert again.agrees, str(again)
    assert again.trace.history().tokens == [*whole.prompt_tokens, *whole.tokens]
    assert again.trace.history().reason == whole.reason


def _place_is_free(place: Path, trace: Trace) -> None:
    """The dead hold nothing: the directory can be written again."""
    trace.save(place, overwrite=True)
    assert len(Trace.load(place)) == len(trace)


# Chains ----------------------------------------------------------------------------------------------------------

CHAINS: dict[str, Any] = {"alpha": 2.0, "block_size": 8, "n_mcmc": 8, "max_tokens": 32, "seed": 3, "chains": 2}


@cache
def _chains() -> Chains:
    return PowerSampler(tiny("llama", "lean"), PROMPT, **CHAINS).run()


def _make_chains(place: Path) -> None:
    chain_store.SECONDS_BETWEEN = 0.05
    for _ in PowerSampler(tiny("llama", "lean"), PROMPT, save=place / "run", **CHAINS).steps():
        time.sleep(0.02)


def _chains_left(place: Path) -> Counter[str]:
    try:
        kept = load_chains(place / "run")
    except ChainError:
        assert not (place / "run" / "chain.json").exists()
        return Counter({"kills": 1, "before anything was written": 1})
    done = resume(place / "run", tiny("llama", "lean")).run()
    assert done == _chains()
    return Counter({"kills": 1, "chains": 1, "decisions kept": len(kept.decisions), "finished": int(kept.finished)})
