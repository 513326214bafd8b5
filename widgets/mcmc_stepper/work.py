"""What needs the model, one after another in one thread: steps of a chain, branches, rows that are computed again."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..base import Background, Task

__all__ = ["Job", "Work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str
    """``run``, ``step``, ``branch`` or ``read``."""
    work: Callable[[], None]
    halt: Callable[[], None] = lambda: None
    """Asks it to end early."""


class Work:
    """A queue of jobs before a :class:`~widgets.base.Background`. Jobs begin in the order in which they came.

    A long job calls :meth:`serve` now and then, so that reading a row need not wait for the end of a run. ``changed``
    is called at every change of state, ``failed`` with each error, ``warned`` with each warning, from either thread.
    """

    def __init__(
        self, changed: Callable[[], None], failed: Callable[[str], None], warned: Callable[[str], None]
    ) -> None:
        self.model_lock = threading.RLock()
        """Held while the model runs, by whichever thread."""
        self.doing = ""
        self._changed, self._failed = changed, failed
        self._background = Background(self._went_on, warned)
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._current: Job | None = None
        self._closed = False

    @property
    def state(self) -> str:
        """``idle``, ``running``, ``stopping`` or ``failed``."""
        return self._background.state

    @property
    def stopping(self) -> bool:
        return self._background.stopping

    @property
    def busy(self) -> bool:
        return self._background.busy

    def waits(self, name: str) -> bool:
        """Whether a job of that name runs or waits."""
        with self._lock:
            current = self._current
            return any(job.name == name for job in self._jobs) or (current is not None and current.name == name)

    def submit(self, job: Job) -> None:
        with self._lock:
            if self._closed:
                return
            self._jobs.append(job)
        self._begin()

    def serve(self) -> None:
        """Do the jobs that wait now, inside the one that runs."""
        outer = self._current
        self._drain()
        self._current = outer

    def stop(self) -> None:
        """Ask what runs to end, and forget what waits."""
        with self._lock:
            self._jobs.clear()
        self._background.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing runs and nothing waits; false if something still does after so many seconds."""
        until = None if seconds is None else time.monotonic() + seconds
        while self._jobs or self.busy:
            if not self._background.wait(None if until is None else max(until - time.monotonic(), 0.0)):
                return False
        return True

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._jobs.clear()
        self._background.close()
        self._changed, self._failed = _nothing, _nothing

    # In either thread ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._background.begin(
            lambda: Task(name="workbench-chain", work=self._drain, stop=self._halt, ended=self._ended)
        )  # fmt: skip

    def _went_on(self) -> None:
        # A job that came between the last look into the queue and the end of the thread.
        if self._jobs and not self._background.busy and not self._closed:
            self._begin()
        self._changed()

    def _halt(self) -> None:
        job = self._current
        if job is not None:
            job.halt()

    def _ended(self, error: str) -> None:
        self._current, self.doing = None, ""
        if error:
            self._failed(error)

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    return
                job = self._current = self._jobs.popleft()
            self.doing = job.name
            self._changed()
            job.work()


def _nothing(*_told: object) -> None:
    """What is told to a window that was closed."""
