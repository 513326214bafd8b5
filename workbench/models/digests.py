"""Sha256 of files, remembered for files that have not changed since."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["learn_sha256", "remembered_sha256", "sha256_of"]

INDEX = "digests.json"


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's content, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_sha256(root: Path, path: Path) -> str | None:
    """The sha256 learnt before, if path, size and modification time are still the same."""
    known = read_index(root).get(str(path))
    if isinstance(known, dict) and known.get("stamp") == stamp(path):
        return str(known.get("sha256"))
    return None


def learn_sha256(root: Path, path: Path) -> str:
    """``sha256_of(path)``, written into the index in ``root``."""
    before = stamp(path)
    digest = sha256_of(path)
    write_index(root, {**read_index(root), str(path): {"stamp": before, "sha256": digest}})
    return digest


def stamp(path: Path) -> list[int]:
    """Size and modification time in nanoseconds: what changes when the content does."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def read_index(root: Path) -> dict[str, Any]:
    """The index, empty when there is none that can be read."""
    try:
        index = json.loads((root / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return index if isinstance(index, dict) else {}


def write_index(root: Path, index: dict[str, Any]) -> None:
    """Replace the index; in a cache that can't be written, hashing again next time is all that is lost."""
    draft = root / f"{INDEX}.{os.getpid()}"
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(index, indent=1), encoding="utf-8")
        os.replace(draft, root / INDEX)
