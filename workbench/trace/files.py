"""A trace on disk: ``run.json``, numbered parquet parts of records, safetensors parts of activations.

Each part is written under another name and then renamed, activations before the records that point to
them, so a run that is killed leaves a trace without its last seconds and nothing half-written. Nothing in
these files is executed or unpickled when read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..errors import TraceError
from .record import Record, readable

if TYPE_CHECKING:
    from .trace import Trace

__all__ = ["FORMAT", "TraceWriter", "load_trace", "save_trace"]

FORMAT = 1
FLUSH_RECORDS = 1024
FLUSH_SECONDS = 2.0
PART = re.compile(r"records-(\d{5})\.parquet")

SCHEMA = pa.schema(
    [
        ("run_id", pa.string()), ("request_id", pa.string()), ("seq", pa.int64()), ("step", pa.int64()),
        ("position", pa.int64()), ("kind", pa.string()), ("mod", pa.string()), ("action", pa.string()),
        ("tokens", pa.list_(pa.int64())), ("text", pa.string()), ("origin", pa.string()),
        ("logprob", pa.float64()), ("raw_logprob", pa.float64()), ("entropy", pa.float64()),
        ("top_ids", pa.list_(pa.int64())), ("top_logprobs", pa.list_(pa.float64())),
        ("status", pa.string()), ("duration_ns", pa.int64()), ("data", pa.string()),
    ]
)  # fmt: skip


class TraceWriter:
    """A sink that keeps a run on disk while it goes: at most two seconds or 1024 records behind.

    :raises TraceError: the directory is taken, or can't be written (disk full, read-only).
    """

    def __init__(self, directory: str | Path, run: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.directory = Path(directory)
        self._part = 0
        self._pending: list[Record] = []
        self._warned = False
        self._flushed = time.monotonic()
        with _explained(self.directory):
            _claim(self.directory, overwrite)
            self._write_manifest(run, "running")

    def __call__(self, record: Record) -> None:
        self._pending.append(record)
        if len(self._pending) >= FLUSH_RECORDS or time.monotonic() - self._flushed > FLUSH_SECONDS:
            try:
                self.flush()
            except TraceError as error:
                # A full disk must not end a run: keep what is pending and try again later.
                if not self._warned:
                    warnings.warn(str(error), stacklevel=2)
                self._warned = True
                self._flushed = time.monotonic()

    def flush(self) -> None:
        """Write what is pending as one more part.

        :raises TraceError: it can't be written; it stays pending.
        """
        if self._pending:
            with _explained(self.directory):
                _write_part(self.directory, self._part, self._pending)
            self._part += 1
            self._pending = []
        self._flushed = time.monotonic()

    def close(self, run: Mapping[str, Any], status: str = "finished") -> None:
        """Write the rest and the final manifest."""
        self.flush()
        with _explained(self.directory):
            self._write_manifest(run, status)

    def _write_manifest(self, run: Mapping[str, Any], status: str) -> None:
        text = json.dumps({"format": FORMAT, "status": status, **run}, indent=1, ensure_ascii=True, sort_keys=True)
        _replace(self.directory / "run.json", text.encode())


def save_trace(trace: Trace, directory: Path, *, overwrite: bool = False) -> Path:
    """Write a whole trace beside its destination, then move it there in one step."""
    with _explained(directory):
        if directory.exists() and any(directory.iterdir()) and not overwrite:
            raise TraceError(f"{directory} already holds files: choose another directory or pass overwrite=True")
        directory.parent.mkdir(parents=True, exist_ok=True)
        building = directory.with_name(f".{directory.name}.{os.getpid()}.part")
        try:
            writer = TraceWriter(building, trace.run, overwrite=True)
            for record in trace.records:
                writer(record)
            writer.close(trace.run, str(trace.run.get("status", "finished")))
            if directory.exists():
                _clear(directory)
                directory.rmdir()
            os.replace(building, directory)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return directory


def load_trace(directory: Path) -> tuple[dict[str, Any], list[Record]]:
    """The manifest and the records of a saved trace."""
    manifest = directory / "run.json"
    if not manifest.is_file():
        raise TraceError(f"{directory} holds no trace: there is no run.json in it")
    try:
        run = json.loads(manifest.read_text())
        version = run.pop("format")
        known = isinstance(run.get("requests"), dict) and isinstance(run.get("model"), dict)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{manifest} is damaged: {error!r}") from error
    if version != FORMAT:
        raise TraceError(f"{directory} has trace format {version!r}; this version reads format {FORMAT}")
    if not known:
        raise TraceError(f"{manifest} is damaged: it names no model or no requests")
    # The manifest's names are sorted as text, which puts r10 before r2; a batch has an order that replay depends on.
    run["requests"] = dict(sorted(run["requests"].items(), key=lambda named: (len(named[0]), named[0])))
    records: list[Record] = []
    for path in sorted(path for path in directory.iterdir() if PART.fullmatch(path.name)):
        records.extend(_read_part(path, run))
    return run, records


def _claim(directory: Path, overwrite: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        if not overwrite:
            raise TraceError(f"{directory} already holds files: choose another directory or pass overwrite=True")
        _clear(directory)


def _clear(directory: Path) -> None:
    """Remove an old trace, and only a trace: anything else in the directory is somebody's work."""
    ours = re.compile(r"run\.json|(records|activations)-\d{5}\.(parquet|safetensors)|\..*\.tmp")
    strangers = [path.name for path in directory.iterdir() if not ours.fullmatch(path.name)]
    if strangers:
        raise TraceError(f"{directory} holds files that are not a trace ({strangers[0]!r}…): not overwritten")
    for path in directory.iterdir():
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


def _replace(path: Path, content: bytes) -> None:
    building = path.with_name(f".{path.name}.tmp")
    with building.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(building, path)


def _write_part(directory: Path, part: int, records: Sequence[Record]) -> None:
    tensors = _pack(records)
    if tensors:
        _replace(directory / f"activations-{part:05}.safetensors", save(tensors))
    plain = [name for name in SCHEMA.names if not name.startswith(("top", "data"))]
    columns = {name: [readable(getattr(r, name)) for r in records] for name in plain}
    columns["tokens"] = [list(r.tokens) for r in records]
    columns["top_ids"] = [[token for token, _ in r.top] for r in records]
    columns["top_logprobs"] = [[value for _, value in r.top] for r in records]
    columns["data"] = [json.dumps(dict(r.data), ensure_ascii=True) for r in records]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=SCHEMA), sink, compression="zstd")
    _replace(directory / f"records-{part:05}.parquet", sink.getvalue().to_pybytes())


def _pack(records: Sequence[Record]) -> dict[str, Tensor]:
    """Activations by hook: passes of one shape joined, ragged ones (attention maps) under their row."""
    chunks: dict[str, list[tuple[int, Tensor]]] = {}
    for record in records:
        for hook, value in (record.activations or {}).items():
            chunks.setdefault(hook, []).append((int(record.data["row"]), value.cpu()))
    packed = {}
    for hook, parts in chunks.items():
        if len({value.shape[1:] for _, value in parts}) == 1:
            packed[hook] = torch.cat([value for _, value in parts]).contiguous()
        else:
            packed.update({f"{hook}@{row}": value.clone().contiguous() for row, value in parts})
    return packed


def _read_part(path: Path, run: Mapping[str, Any]) -> list[Record]:
    try:
        table = pq.read_table(path, schema=SCHEMA).to_pylist()
        tensors = _read_tensors(path)
        records = []
        offsets: dict[str, int] = {}
        for line in table:
            data = json.loads(line.pop("data"))
            top = tuple(zip(line.pop("top_ids"), line.pop("top_logprobs"), strict=True))
            tokens = tuple(line.pop("tokens"))
            hooks = run["requests"][line["request_id"]]["capture"] if "row" in data else ()
            held = _unpack(tensors, offsets, hooks, data) if hooks else None
            records.append(Record(**line, data=data, top=top, tokens=tokens, activations=held))
    except (pa.ArrowException, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path} is damaged or not part of a trace: {error}") from error
    return records


def _read_tensors(path: Path) -> dict[str, Tensor]:
    beside = path.with_name(path.name.replace("records", "activations").replace("parquet", "safetensors"))
    return load_file(beside) if beside.is_file() else {}


def _unpack(
    tensors: Mapping[str, Tensor], offsets: dict[str, int], hooks: Sequence[str], data: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The activations of one pass; ``offsets`` walks through the joined tensors, hook by hook."""
    row, fed, found = int(data["row"]), int(data["fed"]), {}
    for hook in hooks:
        if f"{hook}@{row}" in tensors:
            found[hook] = tensors[f"{hook}@{row}"]
        elif hook in tensors:
            start = offsets.get(hook, 0)
            found[hook] = tensors[hook][start : start + fed]
            offsets[hook] = start + fed
    return found
