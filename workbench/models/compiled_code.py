"""Where compiled code is kept between sessions: in the workbench's cache, under a digest of what it was made from."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .checkpoints import cache_dir

__all__ = ["keep_compiled"]

UNUSED_SECONDS = 30 * 24 * 3600
"""How long the code of other sources is kept: another installation may still use it."""


def keep_compiled(dispatcher: Any, sources: Sequence[Path]) -> None:
    """Have numba keep what it compiles in the workbench's cache directory, under a digest of ``sources``.

    numba looks at one file's date only; the digest covers the functions that are compiled into it as well. Code that
    nobody used for a month is deleted. Where the directory can't be written, nothing is kept and every process
    compiles anew.
    """
    from numba import config

    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    directory = cache_dir() / "compiled" / digest
    before = config.CACHE_DIR
    config.CACHE_DIR = str(directory)
    try:
        dispatcher.enable_caching()
        _used_now(directory)
    except (RuntimeError, OSError):
        pass
    finally:
        config.CACHE_DIR = before


def _used_now(directory: Path) -> None:
    """Set the date of ``directory``, and delete its neighbours whose date is old."""
    directory.mkdir(parents=True, exist_ok=True)
    os.utime(directory)
    for other in directory.parent.iterdir():
        if other != directory and time.time() - other.stat().st_mtime > UNUSED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
