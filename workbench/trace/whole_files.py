"""Writing a file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["replace_file", "replace_table"]


def replace_file(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path``, onto the disk, and move it there in one step.

    A reader, or a process that is killed, finds the old file or the new one. Where it fails nothing is left behind.

    :raises OSError: it can't be written.
    """
    building = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with building.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(building, path)
    finally:
        building.unlink(missing_ok=True)


def replace_table(path: Path, table: pa.Table) -> None:
    """Write a table as parquet, whole or not at all.

    :raises OSError: it can't be written.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    replace_file(path, sink.getvalue().to_pybytes())
