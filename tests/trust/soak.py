"""The soak: everything in this directory at scale, for ten minutes at most.

    python tests/trust/soak.py [--minutes 10] [--processes 4] [--only script:17]

``--only`` makes a single run again, by the name that its failure was told with.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SCRIPTS, KILLS, INTERRUPTS, REQUESTS = 10_000, 200, 500, 1_000


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work for one process."""

    kind: str
    numbers: range


def _units() -> Iterator[Unit]:
    """The long run first, since it is one piece; then the others mixed, so that each gets its share of the time."""
    yield Unit("requests", range(1))
    runs = 40
    rounds = max(KILLS // 4, INTERRUPTS // 10)
    for number in range(10**6):
        yield Unit("script", range(number * runs, (number + 1) * runs))
        if number < rounds:
            yield Unit("kill", range(number * 4, (number + 1) * 4))
            yield Unit("interrupt", range(number * 10, (number + 1) * 10))


def _work(kind: str) -> Callable[[int], Counter[str]]:
    import torch
    from interrupts import interrupted
    from kills import killed
    from long_runs import flat
    from random_runs import drawn, holds

    torch.set_num_threads(1)
    return {
        "script": lambda number: holds(drawn(number)),
        "kill": killed,
        "interrupt": interrupted,
        "requests": lambda _: flat(REQUESTS),
    }[kind]


def _do(unit: Unit) -> tuple[Unit, Counter[str], list[str]]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work, counted, failures = _work(unit.kind), Counter[str](), []
    for number in unit.numbers:
        try:
            counted += work(number)
        except Exception:  # noqa: BLE001  # why: a failure is told with its number, and the soak goes on
            failures.append(f"--only {unit.kind}:{number}\n{traceback.format_exc(limit=-6)}")
    return unit, counted, failures


def _soak(minutes: float, processes: int) -> int:
    began = time.monotonic()
    totals: dict[str, Counter[str]] = {}
    failures: list[str] = []
    units = _units()
    with ProcessPoolExecutor(processes) as pool:
        going = {pool.submit(_do, next(units)) for _ in range(processes)}
        while going:
            done, going = wait(going, return_when=FIRST_COMPLETED)
            for future in done:
                unit, counted, failed = future.result()
                totals.setdefault(unit.kind, Counter()).update(counted)
                failures += failed
                enough = totals.get("script", Counter())["scripts"] >= SCRIPTS and "requests" in totals
                if not enough and time.monotonic() - began < minutes * 60 - 10:
                    going.add(pool.submit(_do, next(units)))
    for kind, counted in totals.items():
        print(f"{kind:>10}: " + ", ".join(f"{count:,} {what}" for what, count in counted.items()))
    for failure in failures:
        print(failure)
    print(f"{len(failures)} failures in {(time.monotonic() - began) / 60:.1f} minutes, {processes} processes")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    # Two more than there are cores: who waits to kill uses none.
    parser.add_argument("--processes", type=int, default=(os.cpu_count() or 1) + 2)
    parser.add_argument("--only", metavar="KIND:NUMBER")
    options = parser.parse_args()
    if options.only:
        kind, _, number = options.only.partition(":")
        print(dict(_work(kind)(int(number))))
        return 0
    return _soak(options.minutes, options.processes)


if __name__ == "__main__":
    sys.exit(main())
