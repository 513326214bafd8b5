"""Several threads at once on one model: windows, sessions and buttons; every trace is that of a run of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from eventful_mods import having_second_thoughts
from random_runs import complete
from scripted_runs import MODELS, tiny
from soak_scale import scaled

from widgets import LiveRun
from workbench import Session
from workbench.errors import ReportError
from workbench.trace import first_difference

WAIT = 60.0


@pytest.fixture
def windows() -> Iterator[list[LiveRun]]:
    """Two on one model."""
    model = tiny("llama", "bridge")
    both = [LiveRun(model), LiveRun(model)]
    yield both
    for window in both:
        window.close()


def at_once(works: list[Callable[[], None]]) -> None:
    """All of them from one moment on; what one raises is raised here."""
    start, failed = threading.Barrier(len(works)), []

    def begin(work: Callable[[], None]) -> None:
        start.wait(WAIT)
        try:
            work()
        except Exception as error:  # noqa: BLE001  # why: it is raised again, in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_two_windows_on_one_model_do_what_each_does_alone(windows: list[LiveRun]) -> None:
    alone = [
        Session(window.model).generate(f"Hello {n}", max_new_tokens=40, seed=n) for n, window in enumerate(windows)
    ]
    at_once([
        lambda window=window, n=n: window.run(f"Hello {n}", max_new_tokens=40, seed=n)  # type: ignore[misc]
        for n, window in enumerate(windows)
    ])  # fmt: skip
    for window, expected in zip(windows, alone, strict=True):
        assert window.wait(WAIT)
        result = window.runs[0].result
        assert result is not None
        assert result.tokens == expected.tokens
        complete(result.trace)


def test_run_pressed_many_times_at_once_runs_once(windows: list[LiveRun]) -> None:
    began: list[bool] = []
    at_once([lambda: began.append(windows[0].run("Hello", max_new_tokens=60, seed=1))] * 8)
    assert windows[0].wait(WAIT)
    assert began.count(True) == len(windows[0].runs)
    assert began.count(True) + began.count(False) == 8
    for run in windows[0].runs:
        assert run.result is not None
        assert len(run.result.tokens) == 60
        complete(run.result.trace)


def test_buttons_of_two_windows_from_random_threads_leave_whole_traces(windows: list[LiveRun]) -> None:
    random = np.random.default_rng(0)
    choices = random.integers(0, 7, size=(12, 12)).tolist()

    def press(window: LiveRun, buttons: list[int]) -> None:
        presses: list[Callable[[], Any]] = [
            window.pause, window.step, window.resume, lambda: window.force("a"), lambda: window.backtrack(1),
            lambda: window.run("Hello", max_new_tokens=30, seed=2), window.stop,
        ]  # fmt: skip
        for button in buttons:
            try:
                presses[button]()
            except ReportError:  # nothing runs, or nothing is there to take back: said, and nothing done
                continue
            time.sleep(0.001)

    at_once([
        lambda number=number: press(windows[number % 2], choices[number])  # type: ignore[misc]
        for number in range(len(choices))
    ])  # fmt: skip
    for window in windows:
        window.stop()
        assert window.wait(WAIT)
        for run in window.runs:
            assert run.result is not None
            complete(run.result.trace)
            assert run.trace.history().tokens[len(run.result.prompt_tokens) :] == list(run.result.tokens)


@pytest.mark.parametrize(("family", "backend"), MODELS)
def test_sessions_in_threads_draw_what_each_draws_alone(family: str, backend: str) -> None:
    model = tiny(family, backend)

    def run(seed: int) -> Any:
        session = Session(model, [having_second_thoughts("no", "so")], capture="blocks.1.hook_resid_post")
        return session.generate([[5, 6, 7], [8]], max_new_tokens=10, seed=seed)[0].trace

    seeds = range(scaled(4))
    alone = [run(seed) for seed in seeds]
    together: dict[int, Any] = {}
    at_once([lambda seed=seed: together.__setitem__(seed, run(seed)) for seed in seeds])  # type: ignore[misc]
    for seed, expected in zip(seeds, alone, strict=True):
        assert first_difference(expected, together[seed]) is None
