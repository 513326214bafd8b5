"""Work in a process of its own that has everything this one has, and may be killed or give up its rights."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

__all__ = ["REFUSED", "forked"]

REFUSED = 7
"""The exit code of a process whose work was refused as foreseen."""


def forked(work: Callable[[], None], *, foreseen: tuple[type[Exception], ...] = ()) -> int:
    """Begin ``work`` in a forked process; its number.

    It ends with 0, with ``REFUSED`` where something ``foreseen`` was raised, and with 1, after telling it on standard
    error, where anything else was.
    """
    if child := os.fork():
        return child
    code = 0
    try:
        work()
    except foreseen:
        code = REFUSED
    except BaseException:  # noqa: BLE001  # why: a forked child may not return into its parent's program
        traceback.print_exc()
        code = 1
    os._exit(code)
