"""One heavy reading at a time in a worker thread: started, counted, stopped between two blocks of the model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor

from workbench.carry import CarryModel
from workbench.models import hooks_on

from ..base import Background, Task

__all__ = ["Stopped", "Watch", "Worker"]

INTERVAL = 0.1
"""Shortest time between two reports of progress, seconds."""


class Stopped(Exception):
    """Raised inside a pass of the model to unwind a reading that was stopped; hooks and locks are let go on its way."""


class Watch:
    """Counts how often the band is entered (and left by a backward pass), and raises :class:`Stopped` at the next block
    once a stop was asked for.

    It hangs on hooks of the model while a reading runs, so that readings need not know of it. Only passes of the
    watched thread count: others may use the model meanwhile.
    """

    def __init__(self, ticked: Callable[[], None]) -> None:
        self.done = 0
        self._ticked = ticked
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None

    def stop(self) -> None:
        self._asked.set()

    @contextmanager
    def on(self, model: CarryModel) -> Iterator[None]:
        """Watch what this thread runs on the model while the block lasts."""
        self._thread = threading.current_thread()
        first, last = model.settings.band
        final = model.n_layers - 1
        watched = {*range(first, last), final}
        hooks = {f"blocks.{layer}.hook_resid_post": self._passed(layer == first, layer == final) for layer in watched}
        with hooks_on(model.base, hooks):
            yield

    def _passed(self, forward: bool, backward: bool) -> Callable[[Tensor], None]:
        """A hook that counts its passes in either direction, or only looks whether a stop was asked for."""

        def passed(value: Tensor) -> None:
            if threading.current_thread() is not self._thread:
                return
            self._tick(forward)
            if value.requires_grad:
                # A backward pass runs no block again: without this a Jacobian could neither be counted nor stopped.
                value.register_hook(lambda _gradient: self._tick(backward))  # type: ignore[no-untyped-call]

        return passed

    def _tick(self, counts: bool) -> None:
        if self._asked.is_set():
            raise Stopped
        self.done += counts
        self._ticked()


class Worker(Background):
    """Readings of one model. ``changed`` is also called while one runs, ten times a second at most."""

    def __init__(self, model: CarryModel, changed: Callable[[], None], warned: Callable[[str], None]) -> None:
        super().__init__(changed, warned)
        self.model = model
        self.name = ""
        self.total = 0
        """About how often the band will be entered."""
        self.error = ""
        self._watch: Watch | None = None
        self._told = 0.0

    @property
    def done(self) -> int:
        return 0 if self._watch is None else self._watch.done

    def start(self, name: str, total: int, work: Callable[[], Any], finished: Callable[[Any], None]) -> bool:
        """Begin ``work``, and hand what it gives to ``finished`` in its thread; false while something else runs."""
        return self.begin(lambda: self._prepare(name, total, work, finished))

    def _prepare(self, name: str, total: int, work: Callable[[], Any], finished: Callable[[Any], None]) -> Task:
        self.name, self.total, self.error = name, max(total, 1), ""
        self._watch = watch = Watch(self._ticked)

        def run() -> None:
            with suppress(Stopped):
                with watch.on(self.model):
                    made = work()
                finished(made)

        def ended(error: str) -> None:
            self.error = error

        return Task(name=f"workbench-carry-{name}", work=run, stop=watch.stop, ended=ended)

    def _ticked(self) -> None:
        if (now := time.monotonic()) - self._told >= INTERVAL:
            self._told = now
            self._changed()
