"""Messages to the browser, ten a second at most, each of what is new since the last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["INTERVAL", "Outbox"]

INTERVAL = 0.1
"""Shortest time between two messages, seconds."""
COST_SHARE = 4.0
"""A message that takes t to make is followed by a pause of this times t: the run comes first."""
MOST_PAUSE = 2.0
"""But never of more seconds: on a busy machine the window must still tell that a run has ended."""


class Outbox:
    """Calls ``send`` for many touches once, and never more often than every ``INTERVAL`` seconds.

    A touch that comes too early is not lost: a timer sends it when it is due.
    """

    def __init__(self, send: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._due = 0.0
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._timer: threading.Timer | None = None
        self._closed = False

    def touch(self) -> None:
        """Something changed."""
        with self._lock:
            if self._closed or self._timer is not None:
                return
            wait = self._due - self._clock()
            self._timer = threading.Timer(max(wait, 0.0), self._flush)
            self._timer.daemon = True
            self._timer.start()

    def _flush(self) -> None:
        with self._sending:
            with self._lock:
                self._timer = None
                if self._closed:
                    return
            began = self._clock()
            self._due = began + INTERVAL
            self._send()
            self._due = began + max(INTERVAL, min(COST_SHARE * (self._clock() - began), MOST_PAUSE))

    def close(self) -> None:
        """Send nothing more, and wait for what is being sent."""
        with self._lock:
            self._closed = True
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        with self._sending:
            self._send = _nothing  # a kernel may remember the timer's thread for long: not the window along with it


def _nothing() -> None:
    """What a closed outbox sends."""
