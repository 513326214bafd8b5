"""Ctrl-C at a token boundary: the first one stops the run cleanly, a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopFlag", "interrupts_set"]


class StopFlag:
    """Asked once per token; set by Ctrl-C or by another thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.by_keyboard = False
        self.in_mod = False

    def set(self) -> None:
        self._event.set()

    def __call__(self) -> bool:
        return self._event.is_set()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """While a mod runs Ctrl-C reaches it at once: it may be waiting for a person, and has changed nothing yet."""
        self.in_mod = True
        try:
            yield
        finally:
            self.in_mod = False


@contextmanager
def interrupts_set(flag: StopFlag) -> Iterator[None]:
    """While inside, the first SIGINT sets ``flag`` and restores the handler, so that a second one raises.

    Does nothing outside the main thread, or where somebody else handles SIGINT already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return

    def handler(_signum: int, _frame: FrameType | None) -> None:
        flag.by_keyboard = True
        flag.set()
        signal.signal(signal.SIGINT, before)
        if flag.in_mod:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
