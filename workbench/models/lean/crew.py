"""Threads that stand ready to run the same function at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["Crew"]

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
