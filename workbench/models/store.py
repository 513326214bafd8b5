"""Directories that appear whole or not at all: a lock, a temporary build, a manifest, one rename.

An entry is a directory with a ``workbench.json`` that lists its files and their sizes. It is built
in ``<root>/.tmp`` (same file system) and renamed into place, so a kill at any moment leaves either
the old entry, the new one, or a temporary directory that a later build sweeps away.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import ModelError

__all__ = ["MANIFEST", "broken", "build", "bytes_on_disk", "locked", "read_manifest", "remove", "slug"]

MANIFEST = "workbench.json"
STALE_SECONDS = 24 * 3600
FULL = ("No space left on device", "Disk quota exceeded", "os error 28")


@contextmanager
def locked(root: Path, key: str) -> Iterator[None]:
    """Hold the lock of entry ``key``; a second process (or thread) waits here until the first is done."""
    with open_lock(root, key) as file:
        if sys.platform == "win32":  # no flock: the last rename wins
            yield
            return
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also by a kill
        yield


def open_lock(root: Path, key: str) -> IO[str]:
    """The lock file of ``key``, in a cache that must be writable."""
    try:
        (root / ".locks").mkdir(parents=True, exist_ok=True)
        return open(root / ".locks" / f"{slug(key)}.lock", "w", encoding="utf-8")
    except OSError as error:
        raise ModelError(
            f"the model cache {root} can't be written ({error}). "
            "Set WORKBENCH_CACHE to a directory of yours, or make this one writable."
        ) from error


def build(entry: Path, root: Path, fill: Callable[[Path], dict[str, Any]], *, needs: int) -> Path:
    """Fill a temporary directory, write its manifest and move it to ``entry``. Call with the lock held.

    ``fill`` gets the empty directory and returns what the manifest shall say beside the files' sizes.
    ``needs`` is how many free bytes that takes at its peak; raises ``ModelError`` when the disk has less
    or fills up on the way. Whatever happens, nothing but a whole entry stays.
    """
    sweep(root)
    work = scratch(entry, root)
    try:
        check_space(root, needs)
        facts = fill(work)
        write_manifest(work, facts)
        publish(work, entry, root)
    except Exception as error:
        if is_disk_full(error):
            raise disk_full(root, needs) from error
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return entry


def scratch(entry: Path, root: Path) -> Path:
    """A new temporary directory whose name says whose it is: entry, machine, process, chance."""
    parts = (slug(entry.name), slug(socket.gethostname()), str(os.getpid()), secrets.token_hex(4))
    path = root / ".tmp" / ".".join(parts)
    path.mkdir(parents=True)
    return path


def slug(text: str) -> str:
    """``text`` as part of a file name: no separators, and no dots, which separate the parts."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)


def check_space(root: Path, needs: int) -> None:
    """Raise before the work, not after an hour of it."""
    if shutil.disk_usage(root).free < needs:
        raise disk_full(root, needs)


def disk_full(root: Path, needs: int) -> ModelError:
    free = shutil.disk_usage(root).free
    return ModelError(
        f"not enough disk space in {root}: building this model needs about {needs / 1e6:.0f} MB there, "
        f"{free / 1e6:.0f} MB are free. Free some, or set WORKBENCH_CACHE to a directory on a larger disk."
    )


def is_disk_full(error: BaseException) -> bool:
    """Whether an error means a full disk; native code and pip only say so in their text."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return any(words in str(error) for words in FULL)


def write_manifest(work: Path, facts: dict[str, Any]) -> None:
    """Write ``workbench.json`` and force every file to the disk, so that the rename can't outrun the data."""
    files = {path.name: path.stat().st_size for path in sorted(work.iterdir())}
    manifest = work / MANIFEST
    manifest.write_text(json.dumps({**facts, "files": files}, indent=2) + "\n", encoding="utf-8")
    mode = manifest.stat().st_mode  # what the umask allows; safetensors makes its files private
    for path in work.iterdir():
        path.chmod(mode)
        flush(path)
    flush(work)


def flush(path: Path) -> None:
    """fsync a file or directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(work: Path, entry: Path, root: Path) -> None:
    """Rename ``work`` to ``entry``; a broken entry of that name is moved out of the way first."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    remove(entry, root)
    os.replace(work, entry)
    flush(entry.parent)


def remove(entry: Path, root: Path) -> None:
    """Delete an entry; a reader sees it whole or gone, since it is renamed before it is deleted."""
    if not entry.exists():
        return
    grave = scratch(entry, root)
    os.replace(entry, grave / entry.name)
    shutil.rmtree(grave, ignore_errors=True)


def sweep(root: Path) -> None:
    """Delete temporary directories whose process is dead, or which are older than a day."""
    for path in (root / ".tmp").glob("*"):
        try:
            old = time.time() - path.stat().st_mtime > STALE_SECONDS
        except FileNotFoundError:
            continue
        if old or abandoned(path.name):
            shutil.rmtree(path, ignore_errors=True)


def abandoned(name: str) -> bool:
    """Whether a temporary directory belongs to a process of this machine that no longer runs."""
    parts = name.split(".")
    if sys.platform == "win32":  # signal 0 is Ctrl+C there
        return False
    if len(parts) != 4 or parts[1] != slug(socket.gethostname()) or not parts[2].isdecimal():
        return False
    try:
        os.kill(int(parts[2]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def read_manifest(entry: Path) -> dict[str, Any]:
    """The manifest of an entry; empty when there is none that can be read."""
    try:
        manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def broken(entry: Path) -> str:
    """Why an entry can't be used, or an empty string when its files are all there, each of its size."""
    files = read_manifest(entry).get("files")
    if not isinstance(files, dict) or not files:
        return f"{MANIFEST} is missing or unreadable"
    for name, size in files.items():
        path = entry / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            return f"{name} has {'no' if found is None else found} bytes instead of {size}"
    return ""


def bytes_on_disk(entry: Path) -> int:
    """Bytes of the files of an entry, 0 when there is none."""
    return sum(path.stat().st_size for path in entry.glob("*") if path.is_file())
