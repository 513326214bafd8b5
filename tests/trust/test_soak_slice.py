"""A slice of the soak in every run of the tests; ``make soak`` does all of it."""

from __future__ import annotations

import signal
import sys
from collections import Counter

import pytest
from interrupts import interrupted
from kills import killed
from long_runs import flat
from random_runs import drawn, holds
from soak_scale import scaled

from workbench.models.kv_rows import KVRows

posix = pytest.mark.skipif(sys.platform == "win32", reason="forks and timers of POSIX")


@pytest.mark.slow
def test_any_run_is_exact_complete_and_repeatable() -> None:
    counted = sum((holds(drawn(number)) for number in range(scaled(60))), Counter())
    assert counted["scripts"] > counted["runs ended by a mod"] > 0
    assert counted["tokens taken back"] > 0


def test_the_soak_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that forgets to rewind is caught: the checks are not empty."""
    monkeypatch.setattr(KVRows, "rewind", lambda self, row, n: None)
    number = next(n for n in range(1000) if (run := drawn(n)).companion == "nobody" and run.backend == "bridge"
                  and any(kind == 2 and size for script in run.scripts for kind, size, _ in script))  # fmt: skip
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        holds(drawn(number))


@pytest.mark.slow
@posix
def test_a_killed_run_loads_lacks_two_seconds_at_most_and_can_be_made_whole() -> None:
    counted = sum((killed(number) for number in range(scaled(12))), Counter())
    assert counted["kills"] == scaled(12)
    assert counted["records kept"] > 0


@pytest.mark.slow
@posix
# Where Ctrl-C lands in a finaliser Python itself drops it, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_moment_loses_nothing() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    counted = sum((interrupted(number) for number in range(scaled(40))), Counter())
    assert counted["in the run"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_many_requests_leave_nothing_behind() -> None:
    counted = flat(scaled(120))
    assert counted["tokens"] > 50 * counted["requests"]
