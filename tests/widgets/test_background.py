"""Work in a thread: one at a time, stopped once, its errors and warnings told to the window and to nobody else."""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from widgets.base import Background, Task
from workbench.errors import ReportError

WAIT = 20.0


class Told:
    """What a background says, in order, and ready-made tasks for it."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.warned: list[str] = []
        self.errors: list[str] = []
        self.stops = 0
        self.free = threading.Event()
        self.background = Background(lambda: self.states.append(self.background.state), self.warned.append)

    def task(self, work: Callable[[], Any]) -> Callable[[], Task]:
        return lambda: Task(name="workbench-test", work=work, stop=self._stop, ended=self.errors.append)

    def _stop(self) -> None:
        self.stops += 1
        self.free.set()

    def run(self, work: Callable[[], Any]) -> None:
        assert self.background.begin(self.task(work))
        assert self.background.wait(WAIT)


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told()
    yield told
    told.free.set()
    told.background.close()


def test_one_task_at_a_time_and_stop_asks_once(told: Told) -> None:
    background = told.background
    assert background.begin(told.task(lambda: told.free.wait(WAIT)))
    assert not background.begin(lambda: pytest.fail("prepared while something runs"))
    assert not background.wait(0.01)
    background.stop()
    background.stop()
    assert background.wait(WAIT)
    assert (told.stops, told.errors, background.state) == (1, [""], "idle")
    assert told.states[-1] == "idle"
    assert "stopping" in told.states


def test_waiting_while_the_thread_is_being_started_waits_for_its_end(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of the browser may come in a thread beside the one that begins."""
    real, starting = threading.Thread.start, threading.Event()

    def slow(thread: threading.Thread) -> None:
        if thread.name == "workbench-test":
            starting.set()
            time.sleep(0.1)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    began = threading.Thread(target=told.background.begin, args=(told.task(lambda: None),))
    began.start()
    assert starting.wait(WAIT)
    assert told.background.wait(WAIT)
    assert (told.errors, told.background.state) == ([""], "idle")
    began.join()


def test_what_can_not_be_prepared_raises_and_begins_nothing(told: Told) -> None:
    def refuse() -> Task:
        raise ReportError("no")

    with pytest.raises(ReportError, match="no"):
        told.background.begin(refuse)
    assert (told.background.state, told.background.wait()) == ("idle", True)


def test_an_error_ends_in_failed_with_what_was_noted_and_the_next_task_runs(told: Told) -> None:
    def fail() -> None:
        error = ReportError("it went wrong")
        error.add_note("in question 'first'")
        raise error

    told.run(fail)
    assert told.background.state == "failed"
    told.run(lambda: 1 / 0)
    told.run(lambda: None)
    assert told.errors == ["it went wrong (in question 'first')", "ZeroDivisionError: division by zero", ""]
    assert told.background.state == "idle"


def test_the_state_changes_after_everything_was_put_in_place(told: Told) -> None:
    seen: list[str] = []

    def ended(error: str) -> None:
        time.sleep(0.05)
        seen.append(told.background.state)

    told.background.begin(lambda: Task(name="x", work=lambda: None, stop=lambda: None, ended=ended))
    told.background.wait(WAIT)
    assert seen == ["running"]


def test_warnings_of_the_thread_are_told_and_kept_out_of_the_cell(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def work() -> None:
        warnings.warn("request r0: a mod never fired", stacklevel=1)
        began.set()
        go_on.wait(WAIT)
        warnings.warn("another", stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        usual: list[str] = []
        warnings.showwarning = lambda message, *where, **more: usual.append(str(message))
        mine = warnings.showwarning
        told.background.begin(told.task(work))
        assert began.wait(WAIT)
        warnings.warn("of the cell", stacklevel=1)  # this thread's own warnings go where they ever went
        go_on.set()
        told.background.wait(WAIT)
        assert warnings.showwarning is mine
    assert told.warned == ["a mod never fired", "another"]
    assert usual == ["of the cell"]
    assert capsys.readouterr().err == ""


def test_a_closed_background_is_remembered_by_nothing() -> None:
    class Owner:
        """Stands for the window: what its background calls back."""

        def heard(self, *_: object) -> None:
            """Nothing."""

    owner = Owner()
    background = Background(owner.heard, owner.heard)
    free = threading.Event()
    background.begin(lambda: Task(name="y", work=lambda: free.wait(WAIT), stop=free.set, ended=owner.heard))
    thread = next(each for each in threading.enumerate() if each.name == "y")
    background.close()
    assert not thread.is_alive()
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is None
