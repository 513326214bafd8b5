"""Threads that stand ready to run the same function at once, and where compiled code is kept between sessions."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..checkpoints import cache_dir

__all__ = ["Crew", "keep_compiled"]

SOURCES = ("atomics.py", "attention.py", "kernels.py", "layout.py", "products.py")
Job = tuple[Callable[..., Any], tuple[Any, ...], threading.Event]


class Crew:
    """Runs a function, which must release the GIL, in this thread and some helpers at once.

    The function must come to its end in every thread whenever one of them has done all the work, so that nobody needs
    to be waited for: helpers that wake up late find nothing left to do.
    """

    def __init__(self) -> None:
        self._queues: list[SimpleQueue[Job]] = []
        self._process = os.getpid()

    def run(self, n_threads: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Call ``function(*arguments)`` in ``n_threads`` threads; back when the call in this thread is."""
        self._grow(n_threads - 1)
        finished: list[threading.Event] = []
        try:
            for queue in self._queues[: n_threads - 1]:
                finished.append(threading.Event())
                queue.put((function, arguments, finished[-1]))
            function(*arguments)
        except BaseException:
            # Interrupted half-way: helpers finish the work, which must not go on in memory that is used again.
            for event in finished:
                event.wait()
            raise

    def _grow(self, n_helpers: int) -> None:
        if self._process != os.getpid():  # a fork has the queues but not the threads
            self._queues, self._process = [], os.getpid()
        while len(self._queues) < n_helpers:
            queue: SimpleQueue[Job] = SimpleQueue()
            threading.Thread(target=_work, args=(queue,), name="lean-helper", daemon=True).start()
            self._queues.append(queue)


def _work(queue: SimpleQueue[Job]) -> None:
    while True:
        function, arguments, finished = queue.get()
        try:
            function(*arguments)
        finally:
            finished.set()
        del function, arguments  # a model that is dropped must not be held by an idle thread


def keep_compiled(dispatcher: Any) -> None:
    """Have numba keep what it compiles in the workbench's cache directory, under a digest of the kernels' sources.

    numba looks at one file's date only; the digest covers the functions that are compiled into it as well. Where the
    directory can't be written, nothing is kept and every process compiles anew.
    """
    from numba import config

    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join((here / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_dir() / "compiled" / digest)
    try:
        dispatcher.enable_caching()
    except RuntimeError:
        pass
    finally:
        config.CACHE_DIR = before
