"""From a name or path to a local directory in Hugging Face format.

::

    known name ─ fetch ─ GGUF ─┐
    path of a .gguf file ──────┴─ convert ─ cache entry ─┐
    path of a directory ─────────────────────── check ───┼─> directory
    hub name ───────────────────────────────── snapshot ─┘
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelFileError, UnknownModelError
from . import store
from .entries import ConvertedEntry, KnownEntry, converted_directories, flaw
from .hub import hub_snapshot, is_hub_name
from .model_dir import check_model_dir
from .registry import KNOWN, unknown_model

__all__ = ["ModelStatus", "cache_dir", "cached", "listing", "path", "remove"]

CACHE_VARIABLE = "WORKBENCH_CACHE"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One line of ``workbench models``."""

    name: str
    """A known name, or the path of the converted GGUF file."""
    cached: bool
    bytes_on_disk: int
    licence: str
    summary: str
    path: Path
    """Where the entry is, or would be."""


def cache_dir() -> Path:
    """``$WORKBENCH_CACHE``, else ``$XDG_CACHE_HOME/interp-workbench``, else ``~/.cache/interp-workbench``."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "interp-workbench"


def path(name_or_path: str | os.PathLike[str], *, accept_terms: bool = False, progress: bool = True) -> Path:
    """Return the local Hugging Face directory of a model, building it in the cache when needed.

    ``name_or_path`` is a known name, a Hugging Face directory, a GGUF file or a hub name (``owner/name``).
    A directory is checked and returned as it is. The first use of a known model downloads it; every
    later one touches no network.

    Raises ``UnknownModelError``, ``ModelFileError`` (a broken file), ``FetchError`` (no network, wrong
    sha256, or terms not accepted), ``UnsupportedModelError``, or ``ModelError`` (disk full).
    """
    name = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and name in KNOWN:
        entry = KnownEntry(root=cache_dir(), model=KNOWN[name], accept_terms=accept_terms)
        return entry.path(progress=progress)
    local = Path(name).expanduser()
    if name and local.is_dir():
        return check_model_dir(local)
    if name and local.is_file():
        if local.suffix in WEIGHT_SUFFIXES:
            raise ModelFileError(
                f"{name!r} is a weight file; give the directory that holds it, with its config and tokenizer."
            )
        return ConvertedEntry.of(cache_dir(), local).path(progress=progress)
    if isinstance(name_or_path, str) and is_hub_name(name):
        return check_model_dir(hub_snapshot(name, progress=progress))
    if looks_like_path(name_or_path, name):
        raise UnknownModelError(f"there is no file or directory {name!r} (looked in {Path.cwd()}). Check the path.")
    raise unknown_model(name)


def looks_like_path(given: str | os.PathLike[str], name: str) -> bool:
    """Whether the user meant a path, so that the error should speak of one."""
    return not isinstance(given, str) or name.startswith((".", "~")) or name.endswith(".gguf") or os.sep in name


def cached(name: str) -> bool:
    """Whether ``path(name)`` finds a whole cache entry; ``name`` is a known name or a GGUF file's path."""
    return any(status.cached for status in listing() if status.name in (name, resolved(name)))


def listing() -> list[ModelStatus]:
    """Every known model, cached or not, then every converted GGUF file."""
    root = cache_dir()
    known = [KnownEntry(root=root, model=model) for model in KNOWN.values()]
    return [
        ModelStatus(
            name=entry.model.name,
            cached=not entry.flaw(),
            bytes_on_disk=store.bytes_on_disk(entry.directory),
            licence=entry.model.licence,
            summary=entry.model.summary,
            path=entry.directory,
        )
        for entry in known
    ] + [converted_status(directory) for directory in converted_directories(root)]


def converted_status(directory: Path) -> ModelStatus:
    """The line of a converted GGUF file, from its manifest."""
    manifest = store.read_manifest(directory)
    return ModelStatus(
        name=str(manifest.get("name", directory.name)),
        cached=not flaw(directory),
        bytes_on_disk=store.bytes_on_disk(directory),
        licence=str(manifest.get("licence", "unknown")),
        summary="converted from a local GGUF file",
        path=directory,
    )


def remove(name: str) -> int:
    """Delete what is cached of a model; return the bytes freed (0 if nothing was there).

    ``name`` is a known name, or the path of a converted GGUF file, which itself stays. Raises
    ``UnknownModelError`` for any other name.
    """
    root = cache_dir()
    found = [status for status in listing() if status.name in (name, resolved(name))]
    if not found:
        raise unknown_model(name)
    for status in found:
        with store.locked(root, status.path.name):
            store.remove(status.path, root)
    return sum(status.bytes_on_disk for status in found)


def resolved(name: str) -> str:
    """A path as the manifest of a converted file spells it."""
    return str(Path(name).expanduser().resolve())
