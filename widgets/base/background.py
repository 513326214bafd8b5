"""A window's long work in a thread of its own: begun, stopped, waited for, its errors and warnings told."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError

__all__ = ["JOIN_SECONDS", "Background", "Task"]

JOIN_SECONDS = 10.0
"""How long closing waits for a thread that was asked to stop."""
_REQUEST = re.compile(r"^request \S+: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One piece of work, and how to end it early."""

    name: str
    """Of its thread."""
    work: Callable[[], None]
    stop: Callable[[], None]
    """Asks the work to end soon; called from another thread, once."""
    ended: Callable[[str], None]
    """Called at the end, in the thread of the work and before ``state`` changes, with the error as text or ``""``."""


class Background:
    """The state machine idle → running → stopping → idle or failed, and the thread behind it.

    ``changed`` is called at every change of state, from either thread; it must be quick. ``warned`` gets each Python
    warning of the work's thread as text: printed, it would land in whichever cell ran last.
    """

    def __init__(self, changed: Callable[[], None], warned: Callable[[str], None]) -> None:
        self.state = "idle"
        """``idle``, ``running``, ``stopping`` or ``failed``."""
        self._changed = changed
        self._warned = warned
        self._task: Task | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        return self.state in ("running", "stopping")

    @property
    def stopping(self) -> bool:
        return self.state == "stopping"

    def begin(self, prepare: Callable[[], Task]) -> bool:
        """Begin what ``prepare`` makes; false, and nothing is made, while something runs.

        What ``prepare`` raises comes to the caller, and nothing was begun then.
        """
        with self._lock:
            if self.busy:
                return False
            task = prepare()
            self._task, self.state = task, "running"
            self._thread = threading.Thread(target=self._work, args=(task,), name=task.name, daemon=True)
            self._thread.start()
        self._changed()
        return True

    def stop(self) -> None:
        """Ask what runs to end; what it made before stays. Twice does no harm."""
        with self._lock:
            if self.state != "running" or self._task is None:
                return
            self.state = "stopping"
            self._task.stop()
        self._changed()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end; false if it still goes after so many seconds."""
        with self._lock:  # not while one is being started in another thread, as messages of the browser may do
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(seconds)
        return not thread.is_alive()

    def close(self) -> None:
        """Stop, wait for the thread and let go of everything: a kernel may remember a thread for long."""
        self.stop()
        self.wait(JOIN_SECONDS)
        self._thread = self._task = None
        self._changed, self._warned = _nothing, _nothing

    def _work(self, task: Task) -> None:
        error = ""
        try:
            with _heard_by(self._warn):
                task.work()
        except WorkbenchError as problem:
            error = _told(problem)
        except Exception as problem:  # why: it would end with the thread, unseen; the window shows it  # noqa: BLE001
            error = f"{type(problem).__name__}: {_told(problem)}"
        finally:
            try:
                task.ended(error)
            finally:
                with self._lock:
                    self.state, self._task = ("failed" if error else "idle"), None
                self._changed()

    def _warn(self, text: str) -> None:
        # A window shows one request at a time: which one is no news, and the trace has the sentence without it.
        self._warned(_REQUEST.sub("", text))


def _nothing(*_told: object) -> None:
    """What is told to a window that was closed."""


def _told(error: BaseException) -> str:
    """An error with what was noted on it and on its cause, such as in which question's function it was raised."""
    notes = [*getattr(error, "__notes__", ()), *getattr(error.__cause__, "__notes__", ())]
    return " ".join([str(error), *(f"({note})" for note in notes)])


# Warnings of one thread ---------------------------------------------------------------------------------------------

_ears: dict[int, Callable[[str], None]] = {}
"""By thread. Python has one place where all threads' warnings go, so while any thread is here that place is ours."""
_ears_lock = threading.Lock()
_usual: list[Callable[..., Any]] = []
"""What showed warnings before."""


@contextmanager
def _heard_by(ear: Callable[[str], None]) -> Iterator[None]:
    """Hand the warnings of this thread to ``ear``; those of other threads are shown as ever."""
    here = threading.get_ident()
    with _ears_lock:
        if not _ears and warnings.showwarning is not _show:
            _usual[:] = [warnings.showwarning]
            warnings.showwarning = _show
        _ears[here] = ear
    try:
        yield
    finally:
        with _ears_lock:
            del _ears[here]
            # Not if somebody has put something else there meanwhile: it may hold on to ours, which does no harm.
            if not _ears and warnings.showwarning is _show:
                warnings.showwarning = _usual[0]


def _show(message: Warning | str, *where: Any, **more: Any) -> None:
    ear = _ears.get(threading.get_ident())
    if ear is None:
        _usual[0](message, *where, **more)
    else:
        ear(str(message))
