"""One writer to a directory at a time."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import WorkbenchError

__all__ = ["LOCK", "hold"]

LOCK = ".lock"
"""Stays behind, empty: whoever waits for it must find the same file."""


def hold(directory: Path, refused: type[WorkbenchError], writer: str) -> FileLock:
    """The right to write to ``directory``, until it is released or this process ends, however it ends.

    :raises WorkbenchError: of the type ``refused``: another ``writer``, here or in another process, holds it.
    :raises OSError: the directory can't be written.
    """
    lock = FileLock(directory / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise refused(f"another {writer} is writing to {directory}: wait for it, or choose another directory") from None
    return lock
