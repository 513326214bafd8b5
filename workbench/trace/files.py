"""A trace on disk: ``run.json``, numbered parquet parts of records, safetensors parts of activations.

Reading one: the files may be anybody's. What they hold is bounded before it is decoded, checked before it is used, and
never executed or unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import TraceError
from .bounded_files import Allowance, file_within, parsed_json, read_json, read_table
from .checking import check_manifest, folded
from .history import History
from .record import Record

__all__ = ["FORMAT", "SCHEMA", "load_trace"]

FORMAT = 1
MANIFEST = "run.json"
MANIFEST_BYTES = 256 << 20
"""Largest manifest that is read: a batch of long prompts has a hundred megabytes."""
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


def load_trace(directory: Path) -> tuple[dict[str, Any], list[Record], dict[str, History]]:
    """The manifest, the records and the histories of a saved trace.

    Each record is checked by itself and against those before it.

    :raises TraceError: no trace is there, or it is damaged, too large, of a newer format, or contradicts itself.
    """
    if not (directory / MANIFEST).is_file():
        raise TraceError(f"{directory} holds no trace: there is no {MANIFEST} in it")
    run = _read_manifest(directory)
    records: list[Record] = []
    allowance = Allowance()
    for name in sorted(path.name for path in directory.iterdir() if PART.fullmatch(path.name)):
        records.extend(_read_part(directory, name, run, allowance))
    try:
        return run, records, folded(records, run["requests"])
    except TraceError as error:
        raise TraceError(f"{directory} is damaged: {error}") from None


def _read_manifest(directory: Path) -> dict[str, Any]:
    place = directory / MANIFEST
    try:
        run = read_json(file_within(directory, MANIFEST), MANIFEST_BYTES)
        version = run.pop("format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # A decoder's error has the whole file in its repr.
        raise TraceError(f"{place} is damaged: {type(error).__name__}: {str(error)[:300]}") from error
    if version != FORMAT:
        raise TraceError(f"{directory} has trace format {repr(version)[:40]}; this version reads format {FORMAT}")
    try:
        check_manifest(run)
    except TraceError as error:
        raise TraceError(f"{place} is damaged: {error}") from None
    # The manifest's names are sorted as text, which puts r10 before r2; a batch has an order that replay depends on.
    run["requests"] = dict(sorted(run["requests"].items(), key=lambda named: (len(named[0]), named[0])))
    return run  # type: ignore[no-any-return]


def _read_part(directory: Path, name: str, run: Mapping[str, Any], allowance: Allowance) -> list[Record]:
    path = directory / name
    try:
        table = read_table(file_within(directory, name), SCHEMA, allowance).to_pylist()
        tensors = _read_tensors(directory, name)
        records = []
        offsets: dict[str, int] = {}
        for line in table:
            data = parsed_json(line.pop("data"))
            top = tuple(zip(line.pop("top_ids"), line.pop("top_logprobs"), strict=True))
            tokens = tuple(line.pop("tokens"))
            hooks = run["requests"][line["request_id"]]["capture"] if "row" in data else ()
            held = _unpack(tensors, offsets, hooks, data) if hooks else None
            records.append(Record(**line, data=data, top=top, tokens=tokens, activations=held))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path} is damaged or not part of a trace: {str(error)[:300]}") from error
    for hook, row in offsets.items():
        if row != len(tensors[hook]):
            raise TraceError(f"{path} is damaged: it tells of {row} rows of {hook!r}, {len(tensors[hook])} are there")
    return records


def _read_tensors(directory: Path, name: str) -> dict[str, Tensor]:
    """The activations beside a part; a safetensors file holds what its header says, or it is refused."""
    beside = name.replace("records", "activations").replace("parquet", "safetensors")
    if not (directory / beside).exists():
        return {}
    tensors: dict[str, Tensor] = load_file(file_within(directory, beside))
    for hook, value in tensors.items():
        if not value.is_floating_point() or value.dim() < 2:
            raise ValueError(f"{hook[:80]!r} holds no activations by position: {value.dtype} {tuple(value.shape)}")
    return tensors


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
