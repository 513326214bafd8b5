"""What the tests of hostile input share: a saved trace to edit, and a process of bounded memory to open bombs in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.trace.files import SCHEMA

MEGABYTE = 1 << 20
PART = "records-00000.parquet"
BOUNDED = """
import resource, sys
import torch; torch.set_num_threads(1)
import workbench.trace, workbench.models, workbench.mcmc, workbench.sweeps
from workbench.errors import WorkbenchError
def held(kind):
    return int(next(line for line in open("/proc/self/status") if line.startswith(kind)).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (held("VmSize") + int(sys.argv[1]),) * 2)
before = held("VmHWM")
try:
    exec(sys.argv[2])
    print("read")
except WorkbenchError as error:
    print(f"refused: {error}")
print(held("VmHWM") - before)
"""


def outcome_within(megabytes: int, program: str, seconds: float = 60) -> tuple[str, float]:
    """What a program says of a file (``read`` or ``refused: …``) and the megabytes that it took, given so many more.

    The program is the test's own text. A ``MemoryError``, a signal or the time limit fails the test.
    """
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(megabytes * MEGABYTE), program],
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said, taken = done.stdout.rsplit("\n", 2)[0], done.stdout.split()[-1]
    return said, int(taken) / MEGABYTE


def copied(saved: Path, target: Path) -> Path:
    """A copy of a saved trace to be edited."""
    return Path(shutil.copytree(saved, target))


def with_rows(run: Path, change: Callable[[list[dict[str, Any]]], Any], schema: pa.Schema = SCHEMA) -> Path:
    """A saved trace whose records were changed by hand."""
    rows = pq.read_table(run / PART).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), run / PART)
    return run


def with_data(run: Path, kind: str, change: Callable[[dict[str, Any]], Any], which: int = 0) -> Path:
    """A saved trace in which the data of one record was changed; what ``change`` gives as text replaces it."""

    def edit(rows: list[dict[str, Any]]) -> None:
        row = [row for row in rows if row["kind"] == kind][which]
        data = json.loads(row["data"])
        changed = change(data)
        row["data"] = changed if isinstance(changed, str) else json.dumps(data)

    return with_rows(run, edit)


def with_manifest(run: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A saved trace whose manifest was changed by hand."""
    told = json.loads((run / "run.json").read_text("utf-8"))
    change(told)
    (run / "run.json").write_text(json.dumps(told), "utf-8")
    return run
