"""The table of a sweep on disk: parquet parts, one line per run, written by one process."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import SweepError
from ..trace import Allowance, Trace, file_within, read_json, read_table, replace_file, replace_table
from .cell import Row
from .plan import Sweep

__all__ = ["ResultWriter", "SweepResult", "load_sweep"]

PLAN = "sweep.json"
RESULTS = "results"
FAILURES = "failures.json"
SCHEMA = pa.schema(
    [
        ("model", pa.string()), ("prompt", pa.string()), ("mods", pa.string()), ("seed", pa.int64()),
        ("text", pa.string()), ("reason", pa.string()), ("tokens", pa.list_(pa.int64())),
        ("prompt_tokens", pa.int64()), ("log_p", pa.float64()), ("by_mods", pa.int64()), ("taken_back", pa.int64()),
        ("forward_tokens", pa.int64()), ("warnings", pa.int64()), ("error", pa.string()), ("tool_calls", pa.string()),
        ("backend", pa.string()), ("trace", pa.string()), ("seconds", pa.float64()), ("digest", pa.string()),
    ]
)  # fmt: skip
MOST_BYTES = 256 << 20
"""Of a plan, and of the list of failures."""
MOST_ROWS = 256
MOST_SECONDS = 2.0
"""A part is written once it holds so many rows, or the last one is so old: what a kill may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The runs of a sweep that are done, and those that could not be made."""

    directory: Path
    plan: Sweep
    rows: pa.Table = field(repr=False)
    """In the order of the plan's cells."""
    failures: tuple[Mapping[str, Any], ...] = field(repr=False)
    """Model, prompt, mods, seed and the error in words; tried again by the next call."""

    @property
    def finished(self) -> bool:
        return len(self) == len(self.plan)

    def table(self) -> pa.Table:
        """One row per run."""
        return self.rows

    def frame(self) -> Any:
        """The same as a pandas data frame."""
        return self.rows.to_pandas()

    def trace(self, *, prompt: str, mods: str, seed: int, model: str | None = None) -> Trace:
        """The trace of one run.

        :raises SweepError: no such run, or none whose trace was kept.
        """
        wanted = {"prompt": prompt, "mods": mods, "seed": seed, **({} if model is None else {"model": model})}
        found = [row for row in self.rows.to_pylist() if all(row[name] == value for name, value in wanted.items())]
        if len(found) != 1:
            raise SweepError(f"{len(found)} runs are {wanted}; name one of {len(self)} (see frame())")
        if found[0]["trace"] is None:
            raise SweepError("the sweep kept no traces: set keep_traces=True")
        return Trace.load(self.directory / found[0]["trace"])

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<SweepResult {len(self)} of {len(self.plan)} runs{failed} in {self.directory}>"

    def _repr_html_(self) -> str:
        names = ("model", "prompt", "mods", "seed", "reason", "text")
        head = "".join(f"<th>{name}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(str(row[name]))}</td>' for name in names)}</tr>"
            for row in self.rows.select(names).slice(0, 50).to_pylist()
        )
        return f"<table><caption>{escape(repr(self))}</caption><tr>{head}</tr>{body}</table>"


def load_sweep(directory: str | Path) -> SweepResult:
    """What a sweep has left in its directory so far.

    :raises SweepError: there is no sweep, or a damaged one.
    """
    directory = Path(directory)
    try:
        place = file_within(directory, PLAN)
        if place.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        plan = Sweep.from_json(place.read_text("utf-8"))
    except SweepError:
        raise
    except (OSError, ValueError) as error:
        raise SweepError(f"{directory} holds no sweep: {PLAN} can't be read ({error})") from None
    return result_of(directory, plan)


def result_of(directory: Path, plan: Sweep) -> SweepResult:
    """The rows that belong to ``plan``; the directory may hold those of earlier plans too."""
    place = {cell.digest: index for index, cell in enumerate(plan.cells())}
    table = _read(directory)
    held = [(place[digest], row) for row, digest in enumerate(table["digest"].to_pylist()) if digest in place]
    first = dict(sorted(held, reverse=True))  # a run that stands in two parts is told once
    rows = table.take(pa.array([first[index] for index in sorted(first)], pa.int64()))
    failures = [each for each in _failures(directory) if each["digest"] in place.keys() - {*rows["digest"].to_pylist()}]
    return SweepResult(directory=directory, plan=plan, rows=rows, failures=tuple(failures))


def _read(directory: Path) -> pa.Table:
    folder, allowance = directory / RESULTS, Allowance()
    parts = sorted(path.name for path in folder.glob("part-*.parquet"))
    try:
        tables = [read_table(file_within(folder, part), SCHEMA, allowance) for part in parts]
        table = pa.concat_tables([SCHEMA.empty_table(), *tables])
        for trace in table["trace"].unique().drop_null().to_pylist():
            if Path(trace).is_absolute() or not set(Path(trace).parts).isdisjoint({".."}) or "\0" in trace:
                raise ValueError(f"the trace {trace[:80]!r} does not lie in it")
        return table
    except (ValueError, OSError) as error:
        raise SweepError(f"the table in {directory / RESULTS} is damaged: {error}") from None


def _failures(directory: Path) -> list[dict[str, Any]]:
    try:
        told = read_json(file_within(directory, FAILURES), MOST_BYTES)
        return [{name: each[name] for name in ("model", "prompt", "mods", "seed", "digest", "failed")} for each in told]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise SweepError(f"{directory / FAILURES} is damaged: {error!r}; delete it to try its runs again") from None


class ResultWriter:
    """Keeps rows as they come, many in one part."""

    def __init__(self, directory: Path, plan: Sweep) -> None:
        self.directory = directory
        (directory / RESULTS).mkdir(parents=True, exist_ok=True)
        with _explained(directory / PLAN):
            replace_file(directory / PLAN, plan.to_json().encode())
        self.failures: list[Row] = []
        self._rows: list[Row] = []
        self._written = time.monotonic()

    def add(self, row: Row) -> None:
        if "failed" in row:
            self.failures.append(row)
            return
        self._rows.append(row)
        if len(self._rows) >= MOST_ROWS:
            self.flush()

    def flush_old(self) -> None:
        """Write what is held if the last part is some seconds old."""
        if time.monotonic() - self._written >= MOST_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is held. A part is named by the runs in it, so that no two ever differ under one name."""
        if self._rows:
            name = hashlib.sha256("".join(row["digest"] for row in self._rows).encode()).hexdigest()[:16]
            with _explained(part := self.directory / RESULTS / f"part-{name}.parquet"):
                replace_table(part, pa.Table.from_pylist(self._rows, schema=SCHEMA))
            self._rows = []
        self._written = time.monotonic()

    def close(self) -> None:
        self.flush()
        failures = sorted(self.failures, key=lambda row: str(row["digest"]))
        with _explained(self.directory / FAILURES):
            replace_file(self.directory / FAILURES, (json.dumps(failures, indent=2) + "\n").encode())


def done_in(directory: Path) -> set[str]:
    """Digests of the runs that have a row; a run whose trace was lost is not done."""
    table = _read(directory)
    there = pc.if_else(pc.is_null(table["trace"]), True, _exist(directory, table["trace"].to_pylist()))
    return set(table["digest"].filter(there).to_pylist())


def _exist(directory: Path, traces: Iterable[str | None]) -> pa.Array:
    return pa.array([trace is None or (directory / trace / "run.json").is_file() for trace in traces], pa.bool_())


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SweepError(f"can't write {path}: {error.strerror or error}. What was written before is kept.") from error
