"""Files that somebody else may have written, read within bounds: JSON, parquet tables, and where they may lie.

Compressed data can stand for more than a machine holds. What a file claims is counted before it is decoded, and taken
from an allowance that all the files of one reading share.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .parquet_pages import count_pages

__all__ = ["Allowance", "file_within", "parsed_json", "read_json", "read_table"]

BATCH = 1024
"""Rows that are decoded at once."""


class Allowance:
    """How much may be read in all: ``values`` (cells and list entries of tables) and ``size`` in bytes of text."""

    def __init__(self, *, values: int = 1 << 26, size: int = 1 << 31) -> None:
        self.values = values
        self.size = size

    def take(self, *, values: int = 0, size: int = 0) -> None:
        """:raises ValueError: that is more than what is left."""
        if values > self.values or size > self.size:
            raise ValueError(
                f"it would hold {values:,} values and {size:,} bytes once decompressed; "
                f"{self.values:,} and {self.size:,} are left of what is read"
            )
        self.values -= values
        self.size -= size


def file_within(directory: Path, name: object) -> Path:
    """The ordinary file ``name`` in ``directory``: no path leads elsewhere, no link out of it, no device is opened.

    :raises ValueError: it is no plain name, or something else than a file lies there.
    :raises OSError: nothing is there.
    """
    if not isinstance(name, str) or not name or name in (".", "..") or not set("/\\\0").isdisjoint(name):
        raise ValueError(f"{str(name)[:80]!r} is not the name of a file in {directory}")
    path = directory / name
    there = path.resolve(strict=True)
    if there.parent != directory.resolve():
        raise ValueError(f"{path} is a link that leads out of {directory}: copy the file there")
    if not stat.S_ISREG(there.stat().st_mode):
        raise ValueError(f"{path} is no ordinary file")
    return path


def read_json(path: Path, most_bytes: int) -> Any:
    """The data of a JSON file of at most so many bytes, in which no object has a key twice.

    :raises ValueError: it is larger, no JSON, no UTF-8, nested too deeply, or has a key twice.
    :raises OSError: it can't be read.
    """
    with path.open("rb") as file:
        large = os.fstat(file.fileno()).st_size > most_bytes
        content = b"" if large else file.read(most_bytes + 1)
    if large or len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes, the most that is read")
    return parsed_json(content.decode("utf-8"))


def parsed_json(text: str) -> Any:
    """JSON text as data, in which no object has a key twice.

    :raises ValueError: it is no such text.
    """
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def read_table(path: Path, schema: pa.Schema, allowance: Allowance) -> pa.Table:
    """The columns of ``schema`` in a parquet file; those that it lacks are null, others are left out.

    :raises ValueError: it is no such file, or holds more than is allowed.
    :raises OSError: it can't be read.
    """
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            present = _checked_columns(file.schema_arrow, schema)
            with path.open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _take_pages(file.metadata, data, present, allowance)
        # Texts stay in dictionaries: one that stands in a million rows is held once, until it is counted.
        texts = [name for name in present if pa.types.is_string(schema.field(name).type)]
        with pq.ParquetFile(path, read_dictionary=texts, pre_buffer=False) as file:
            batches = [_plain(batch, schema, allowance) for batch in file.iter_batches(BATCH, columns=present)]
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error
    return pa.Table.from_batches(batches, schema=schema)


def _checked_columns(found: pa.Schema, wanted: pa.Schema) -> list[str]:
    """The wanted columns that are there, each of the wanted type; the schema's text columns may be dictionaries."""
    present = []
    for field in wanted:
        places = found.get_all_field_indices(field.name)
        if not places:
            continue
        kind = found.field(places[0]).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if len(places) > 1 or not plain.equals(field.type):
            raise ValueError(f"the column {field.name!r} is of type {str(kind)[:80]}, not {field.type}, or there twice")
        present.append(field.name)
    if not present:
        raise ValueError(f"it has none of the columns {', '.join(wanted.names)}")
    return present


def _take_pages(metadata: pq.FileMetaData, data: mmap.mmap, present: Sequence[str], allowance: Allowance) -> None:
    """Take from the allowance what the pages of these columns claim."""
    rows = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        rows += group.num_rows
        for place in range(group.num_columns):
            column = group.column(place)
            if column.path_in_schema.partition(".")[0] not in present:
                continue
            start = min(each for each in (column.dictionary_page_offset, column.data_page_offset) if each is not None)
            sizes = count_pages(data, start, column.total_compressed_size)
            allowance.take(values=sizes.values, size=sizes.bytes)
            if column.file_path or sizes.values < group.num_rows:
                raise ValueError(f"the column {column.path_in_schema!r} lies elsewhere, or has fewer rows than claimed")
    if rows != metadata.num_rows:
        raise ValueError("the numbers of rows contradict each other")


def _plain(batch: pa.RecordBatch, schema: pa.Schema, allowance: Allowance) -> pa.RecordBatch:
    """A batch with all columns of the schema, its texts counted and then written out."""
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        held = batch.column(field.name)
        if pa.types.is_dictionary(held.type):
            lengths = pc.take(pc.binary_length(held.dictionary), held.indices)
            allowance.take(size=pc.sum(lengths).as_py() or 0)
        columns.append(held.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
