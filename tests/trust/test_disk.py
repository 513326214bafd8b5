"""Disks that are full, directories that may not be written, two writers at once, clocks that go wrong."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import REFUSED, forked
from scripted_runs import tiny

from workbench import Session, Trace
from workbench.errors import ChainError, SweepError, TraceError
from workbench.mcmc import PowerSampler
from workbench.sweeps import Sweep, sweep
from workbench.trace import TraceWriter

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks, limits and users of POSIX")

NOBODY = 65534
CHAINS: dict[str, Any] = {"alpha": 2.0, "block_size": 4, "n_mcmc": 2, "max_tokens": 8, "seed": 3}


def generate(save: Path, **more: Any) -> Any:
    session = Session(tiny("llama", "bridge"), capture="blocks.*.hook_resid_post")
    return session.generate("Hello", max_new_tokens=40, seed=1, save=save, **more)


def in_a_process(work: Callable[[], None]) -> None:
    """Do ``work`` in a forked process, which may give up rights that this one needs.

    :raises AssertionError: it raised there; what, is on standard error.
    """
    _, status = os.waitpid(forked(work), 0)
    assert os.WIFEXITED(status)
    assert os.WEXITSTATUS(status) == 0


def without_rights() -> None:
    if os.getuid() == 0:  # for whom no directory is read-only
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def limited_to(size: int) -> None:
    """From here on the system lets this process write no file of more bytes, as a full disk would."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_directory_that_may_not_be_written_is_named_before_anything_runs(tmp_path: Path) -> None:
    tiny("llama", "bridge")
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    plan = Sweep(models=["tiny-llama"], prompts={"hi": "Hi"}, seeds=(0,), max_new_tokens=2)

    def work() -> None:
        without_rights()
        for place in (locked, locked / "below"):
            with pytest.raises(TraceError, match=r"can't write the trace to .*locked.*: Permission denied"):
                generate(place)
            with pytest.raises(ChainError, match=r"can't write the chains to .*locked.*: Permission denied"):
                PowerSampler(tiny("llama", "bridge"), "Hi", save=place, **CHAINS)
            with pytest.raises(SweepError, match=r"can't write to .*locked.*: Permission denied"):
                sweep(plan, place, workers=0, progress=False)

    for parent in [tmp_path, *tmp_path.parents]:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    in_a_process(work)
    assert list(locked.iterdir()) == []


def test_a_disk_that_is_full_costs_no_result_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    whole = generate(tmp_path / "whole")

    def full_from_the_start() -> None:
        limited_to(0)
        with pytest.raises(TraceError, match=r"File too large. The trace is still in memory"):
            generate(tmp_path / "never")

    def full_later() -> None:
        limited_to(3_000)  # enough for the manifest
        with pytest.warns(UserWarning, match=r"File too large. The trace is still in memory"):
            result = generate(tmp_path / "run")
        assert result.tokens == whole.tokens

    in_a_process(full_from_the_start)
    in_a_process(full_later)
    for place in (tmp_path / "never", tmp_path / "run"):
        assert not list(place.glob(".*.tmp"))
    assert not (tmp_path / "never" / "run.json").exists()
    assert Trace.load(tmp_path / "run").run["status"] == "running"


def test_the_second_of_two_writers_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    about = {"requests": {}, "model": {}}
    first = TraceWriter(tmp_path / "run", about)

    def second() -> None:
        with pytest.raises(TraceError, match="already holds files"):
            generate(tmp_path / "run")
        with pytest.raises(TraceError, match=r"another run is writing to .*: wait for it, or choose another directory"):
            generate(tmp_path / "run", overwrite=True)
        trace = Session(tiny("llama", "bridge")).generate("Hello", max_new_tokens=3).trace
        with pytest.raises(TraceError, match="another run is writing to"):
            trace.save(tmp_path / "run", overwrite=True)

    second()  # of this process
    in_a_process(second)
    first.close(about)
    assert len(Trace.load(tmp_path / "run")) == 0
    generate(tmp_path / "run", overwrite=True)
    assert Trace.load(tmp_path / "run").history().reason == "max_tokens"


def test_of_many_that_begin_at_once_one_writes(tmp_path: Path) -> None:
    tiny("llama", "bridge")
    start = time.monotonic() + 0.2

    def work() -> None:
        time.sleep(max(start - time.monotonic(), 0))
        generate(tmp_path / "run")

    children = [forked(work, foreseen=(TraceError,)) for _ in range(6)]
    codes = [os.WEXITSTATUS(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, *[REFUSED] * 5]
    trace = Trace.load(tmp_path / "run")
    assert trace.run["status"] == "finished"
    assert [record.seq for record in trace.records] == list(range(len(trace)))


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generate(tmp_path / "before")
    clock = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    result = generate(tmp_path / "run")
    assert result.tokens == expected.tokens
    loaded = Trace.load(tmp_path / "run")
    assert [record.seq for record in loaded.records] == list(range(len(expected.trace)))
    for path in (tmp_path / "run").iterdir():
        os.utime(path, (4e9, 4e9))  # as if written in another century
    assert len(Trace.load(tmp_path / "run")) == len(loaded)
