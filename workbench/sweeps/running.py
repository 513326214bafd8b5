"""Running what a sweep still lacks: in this process, in a pool of processes, or on a Ray cluster."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tqdm.auto import tqdm

from ..errors import SweepError
from ..trace import hold
from .cell import Row, run_cell
from .plan import Cell, Sweep
from .results import ResultWriter, SweepResult, done_in, result_of

__all__ = ["sweep"]

MOMENT = 0.5
"""Seconds."""
IN_FLIGHT = 2
"""Runs that wait at each worker, so that none stands idle; more would only be lost at Ctrl-C."""


def sweep(
    plan: Sweep,
    directory: str | Path,
    *,
    workers: int | None = None,
    ray: str | bool = False,
    progress: bool = True,
) -> SweepResult:
    """Run what ``plan`` asks for and ``directory`` does not hold yet; give all of it.

    ``workers`` processes of their own (0: this one; None: one for every two cores) each hold one model. ``ray=True``
    runs the same on a Ray cluster: the one this process is connected to, or a local one; a text is its address.
    There the models, and the directory where traces are kept, must be reachable from every node.

    A run is known by a digest of all that decides it: what is done is not done again, whatever plan asked for it. A run
    that the workbench refuses (a mod that raised, a prompt too long) is a failure in the result, and is tried again by
    the next call. Ctrl-C keeps what is done, the runs in progress included, and is raised again.

    :raises SweepError: another process writes there, a worker died, the disk is full, or Ray is not installed.
    """
    if not isinstance(plan, Sweep):
        raise SweepError(f"plan must be a Sweep, got {type(plan).__name__}; Sweep.from_json reads a document")
    if workers is not None and (not isinstance(workers, int) or workers < 0):
        raise SweepError(f"workers must be a whole number from 0 on, got {workers!r}")
    directory = Path(directory)
    with _held(directory):
        done = done_in(directory)
        left = [cell for cell in plan.cells() if cell.digest not in done]
        writer = ResultWriter(directory, plan)
        try:
            _run(left, writer, workers, ray, tqdm(total=len(plan), initial=len(plan) - len(left), unit="run",
                 mininterval=0.2, disable=None if progress else True, leave=False))  # fmt: skip
        finally:
            writer.close()
        return result_of(directory, plan)


def _run(cells: Sequence[Cell], writer: ResultWriter, workers: int | None, ray: str | bool, bar: Any) -> None:
    with bar:
        if not cells:
            return
        pool = _pool(writer.directory, len(cells), workers, ray)
        try:
            for rows in _ended(cells, pool):
                for row in rows:
                    writer.add(row)
                writer.flush_old()
                bar.set_postfix(failed=len(writer.failures), refresh=False)
                bar.update(len(rows))
        except KeyboardInterrupt:
            for row in pool.rest():
                writer.add(row)
            raise
        finally:
            pool.close()


class Pool(Protocol):
    """Somewhere that runs are made."""

    room: int
    """How many may be under way."""

    def submit(self, cell: str) -> None: ...

    def next_rows(self) -> list[Row]:
        """Wait until a run ends, a moment at most; give what has ended."""
        ...

    def rest(self) -> list[Row]:
        """After Ctrl-C: begin no other, wait for those in progress, give them."""
        ...

    def close(self) -> None: ...


def _pool(directory: Path, cells: int, workers: int | None, ray: str | bool) -> Pool:
    if ray is not False:
        return RayPool(directory, None if ray is True else ray)
    cores = os.cpu_count() or 1
    wanted = max(1, cores // 2) if workers is None else workers
    return ProcessPool(directory, min(wanted, cells), cores) if wanted else OwnProcess(directory)


def _ended(cells: Sequence[Cell], pool: Pool) -> Iterator[list[Row]]:
    """The rows of all cells, as they end."""
    left = iter(cells)
    under_way = 0
    while True:
        for cell in itertools.islice(left, pool.room - under_way):
            pool.submit(cell.to_json())
            under_way += 1
        if not under_way:
            return
        ended = pool.next_rows()
        under_way -= len(ended)
        yield ended


class OwnProcess:
    """One run after the other, here."""

    room = 1

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._cell: str | None = None

    def submit(self, cell: str) -> None:
        self._cell = cell

    def next_rows(self) -> list[Row]:
        assert self._cell is not None
        return [run_cell(self._cell, str(self.directory))]

    def rest(self) -> list[Row]:
        return []

    def close(self) -> None:
        pass


class ProcessPool:
    """Processes that start afresh (``spawn``): a copy of one that has threads may hang."""

    def __init__(self, directory: Path, workers: int, cores: int) -> None:
        self.directory = directory
        self.room = workers * IN_FLIGHT
        self._threads = max(1, cores // workers)
        self._pending: set[Future[Row]] = set()
        self._processes = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_interrupts
        )

    def submit(self, cell: str) -> None:
        self._pending.add(self._processes.submit(run_cell, cell, str(self.directory), self._threads))

    def next_rows(self) -> list[Row]:
        ended, self._pending = wait(self._pending, timeout=MOMENT, return_when=FIRST_COMPLETED)
        try:
            return [future.result() for future in ended]
        except BrokenProcessPool:
            raise SweepError(
                "a worker process died (out of memory, or killed). What was done is kept: call again, with fewer "
                "workers"
            ) from None

    def rest(self) -> list[Row]:
        self._processes.shutdown(wait=True, cancel_futures=True)
        return [each.result() for each in self._pending if not each.cancelled() and each.exception() is None]

    def close(self) -> None:
        self._processes.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl-C at a terminal reaches every process; the first one alone decides what becomes of the runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class RayPool:
    """Tasks on a Ray cluster, which comes with the extra ``ray``."""

    def __init__(self, directory: Path, address: str | None) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError:
            raise SweepError("Ray is not installed: pip install 'interp-workbench[ray]', or leave out ray=") from None
        self.directory = directory.resolve()
        self._started = not self._ray.is_initialized()
        if self._started:
            self._ray.init(address=address, include_dashboard=False, log_to_driver=False)
        self.room = max(1, int(self._ray.cluster_resources().get("CPU", 1))) * IN_FLIGHT
        self._task = self._ray.remote(run_cell)
        self._pending: list[Any] = []

    def submit(self, cell: str) -> None:
        self._pending.append(self._task.remote(cell, str(self.directory), 1))

    def next_rows(self) -> list[Row]:
        ended, self._pending = self._ray.wait(self._pending, num_returns=1, timeout=MOMENT)
        return list(self._ray.get(ended))

    def rest(self) -> list[Row]:
        for task in self._pending:
            self._ray.cancel(task)
        ended, _ = self._ray.wait(self._pending, num_returns=len(self._pending), timeout=0)
        return [row for task in ended for row in self._got(task)]

    def _got(self, task: Any) -> list[Row]:
        try:
            return [self._ray.get(task)]
        except self._ray.exceptions.RayError:
            return []

    def close(self) -> None:
        if self._started:
            self._ray.shutdown()


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Nobody else writes there meanwhile; the system frees the lock when a process ends, however it ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with hold(directory, SweepError, "sweep"):
            yield
    except FileExistsError:
        raise SweepError(f"{directory} is a file: a sweep needs a directory") from None
    except PermissionError as error:
        raise SweepError(f"can't write to {directory}: {error.strerror}") from None
