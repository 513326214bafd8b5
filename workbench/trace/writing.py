"""A trace goes to disk: as it grows, or as a whole.

Each part is written under another name and then renamed, activations before the records that point to
them, so a run that is killed leaves a trace without its last seconds and nothing half-written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from filelock import FileLock
from safetensors.torch import save
from torch import Tensor, cat

from ..errors import TraceError
from .files import FORMAT, SCHEMA
from .one_writer import LOCK, hold
from .record import Record, data_texts, readable
from .whole_files import replace_file, replace_table

if TYPE_CHECKING:
    from .trace import Trace

__all__ = ["TraceWriter", "save_trace"]

FLUSH_RECORDS = 1024
FLUSH_SECONDS = 1.0
"""Half of the two seconds that a killed run may lose: writing takes its time too."""
WRITER = "run"
OURS = re.compile(rf"run\.json|(records|activations)-\d{{5}}\.(parquet|safetensors)|\..*\.tmp|{re.escape(LOCK)}")


class TraceWriter:
    """A sink that keeps a run on disk while it goes: at most two seconds or 1024 records behind.

    A thread of its own sees to the seconds, so that they hold too while a long pass or a waiting mod keeps the
    run from saying anything. One writer holds a directory at a time.

    :raises TraceError: the directory is taken, or can't be written (disk full, read-only).
    """

    def __init__(self, directory: str | Path, run: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self._parts = _Parts(Path(directory), run, overwrite=overwrite)
        self._untold: TraceError | None = None
        """Why the thread could not write, until the run's own thread says it."""
        self._warned = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="trace-writer", daemon=True)
        self._thread.start()

    @property
    def directory(self) -> Path:
        return self._parts.directory

    def __call__(self, record: Record) -> None:
        if self._parts.add(record) >= FLUSH_RECORDS:
            self._try_to_flush()
        if self._untold is not None and not self._warned:
            # A full disk must not end a run: what is pending is kept and tried again later.
            self._warned = True
            warnings.warn(str(self._untold), stacklevel=2)

    def flush(self) -> None:
        """Write what is pending as one more part.

        :raises TraceError: it can't be written; it stays pending.
        """
        self._parts.flush()

    def close(self, run: Mapping[str, Any], status: str = "finished") -> None:
        """Write the rest and the final manifest; the directory is free for others after that, come what may."""
        self._ending.set()
        try:
            self._thread.join()
        finally:
            self._parts.close(run, status)

    def _keep_up(self) -> None:
        while not self._ending.wait(FLUSH_SECONDS):
            self._try_to_flush()

    def _try_to_flush(self) -> None:
        try:
            self._parts.flush()
        except TraceError as error:
            self._untold = error


class _Parts:
    """The numbered files of a trace being written, and the records that are in none of them yet."""

    def __init__(self, directory: Path, run: Mapping[str, Any], *, overwrite: bool) -> None:
        self.directory = directory
        self._next = 0
        self._pending: list[Record] = []
        self._writing = threading.Lock()
        with _explained(directory):
            self._held = _claim(directory, overwrite)
            try:
                self._write_manifest(run, "running")
            except BaseException:
                self._held.release()
                raise

    def add(self, record: Record) -> int:
        """Take a record; how many are pending."""
        self._pending.append(record)
        return len(self._pending)

    def flush(self) -> None:
        with self._writing:
            # The run may add to the list meanwhile; what it adds is the next part's.
            if count := len(self._pending):
                with _explained(self.directory):
                    _write_part(self.directory, self._next, self._pending[:count])
                self._next += 1
                del self._pending[:count]

    def close(self, run: Mapping[str, Any], status: str) -> None:
        try:
            self.flush()
            with _explained(self.directory):
                self._write_manifest(run, status)
        finally:
            self._held.release()

    def _write_manifest(self, run: Mapping[str, Any], status: str) -> None:
        text = json.dumps({"format": FORMAT, "status": status, **run}, indent=1, ensure_ascii=True, sort_keys=True)
        replace_file(self.directory / "run.json", text.encode())


def save_trace(trace: Trace, directory: Path, *, overwrite: bool = False) -> Path:
    """Write a whole trace beside its destination, then move it there in one step."""
    with _explained(directory):
        _check(directory, overwrite)
        directory.parent.mkdir(parents=True, exist_ok=True)
        building = directory.with_name(f".{directory.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            parts = _Parts(building, trace.run, overwrite=True)
            for record in trace.records:
                if parts.add(record) >= FLUSH_RECORDS:
                    parts.flush()
            parts.close(trace.run, str(trace.run.get("status", "finished")))
            if directory.exists():
                with hold(directory, TraceError, WRITER):
                    _clear(directory)
                shutil.rmtree(directory)  # the lock's file was in it
            os.replace(building, directory)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return directory


def _claim(directory: Path, overwrite: bool) -> FileLock:
    """Make the directory an empty one of ours, that nobody else writes to."""
    directory.mkdir(parents=True, exist_ok=True)
    _check(directory, overwrite)  # before the lock, which is a file in what may be somebody else's directory
    held = hold(directory, TraceError, WRITER)
    try:
        _check(directory, overwrite)
        _clear(directory)
    except BaseException:
        held.release()
        raise
    return held


def _check(directory: Path, overwrite: bool) -> None:
    """Whether a trace may be written there: anything but a trace is somebody's work."""
    found = [path.name for path in directory.iterdir() if path.name != LOCK] if directory.exists() else []
    if found and not overwrite:
        raise TraceError(f"{directory} already holds files: choose another directory or pass overwrite=True")
    strangers = [name for name in found if not OURS.fullmatch(name)]
    if strangers:
        raise TraceError(f"{directory} holds files that are not a trace ({strangers[0]!r}…): not overwritten")


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name != LOCK:
            path.unlink()


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """Turn an operating system error into one that says which trace and what to do."""
    try:
        yield
    except OSError as error:
        raise TraceError(
            f"can't write the trace to {directory}: {error.strerror or error}. The trace is still in memory: "
            "free some space or save it somewhere else."
        ) from error


def _write_part(directory: Path, part: int, records: Sequence[Record]) -> None:
    tensors = _pack(records)
    if tensors:
        replace_file(directory / f"activations-{part:05}.safetensors", save(tensors))
    plain = [name for name in SCHEMA.names if not name.startswith(("top", "data"))]
    columns = {name: [readable(getattr(r, name)) for r in records] for name in plain}
    columns["tokens"] = [list(r.tokens) for r in records]
    columns["top_ids"] = [[token for token, _ in r.top] for r in records]
    columns["top_logprobs"] = [[value for _, value in r.top] for r in records]
    columns["data"] = data_texts(records)
    replace_table(directory / f"records-{part:05}.parquet", pa.table(columns, schema=SCHEMA))


def _pack(records: Sequence[Record]) -> dict[str, Tensor]:
    """Activations by hook: passes of one shape joined, ragged ones (attention maps) under their row."""
    chunks: dict[str, list[tuple[int, Tensor]]] = {}
    for record in records:
        for hook, value in (record.activations or {}).items():
            chunks.setdefault(hook, []).append((int(record.data["row"]), value.cpu()))
    packed = {}
    for hook, parts in chunks.items():
        if len({value.shape[1:] for _, value in parts}) == 1:
            packed[hook] = cat([value for _, value in parts]).contiguous()
        else:
            packed.update({f"{hook}@{row}": value.clone().contiguous() for row, value in parts})
    return packed
