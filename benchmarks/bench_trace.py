"""A trace of many records as a data frame: seconds in all, and as a multiple of reading every field once.

    python benchmarks/bench_trace.py [--records 1000000] [--rounds 5]

The first round in a process also pays for the memory that it gets from the system, so it is shown by itself.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from workbench.trace import Record, Trace

FIELDS = tuple(name for name in Record.__dataclass_fields__ if name != "activations")
KINDS = ("forward_pass", "sampled", "added", "action")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    trace = Trace({"run_id": "bench", "requests": {}})
    trace.records.extend(map(record, range(chosen.records)))
    framed, read = [], []
    for _ in range(chosen.rounds):
        framed.append(seconds(trace.frame))
        read.append(seconds(lambda: [list(map(attrgetter(name), trace.records)) for name in FIELDS]))
    ratios = [one / other for one, other in zip(framed, read, strict=True)]
    print(f"{chosen.records:,} records to a data frame, processor time")
    print(f"first  {framed[0]:5.2f} s   {ratios[0]:4.1f} times reading every field")
    print(f"median {statistics.median(framed):5.2f} s   {statistics.median(ratios):4.1f}")
    print(f"best   {min(framed):5.2f} s   {min(ratios):4.1f}")


def record(number: int) -> Record:
    """One of four, as a plain run leaves them."""
    data: list[dict[str, Any]] = [
        {"fed_start": number, "fed": 1, "way": "lean"}, {"removed_mass": 0.0}, {}, {"note": "for the benchmark"},
    ]  # fmt: skip
    of = number % 4
    return Record(
        run_id="bench", request_id="r0", seq=number, step=number // 4, position=number // 4, kind=KINDS[of],
        tokens=(number % 300,), text=" word", logprob=-1.5, raw_logprob=-1.7, entropy=2.0,
        top=tuple((token, -float(token)) for token in range(5)), duration_ns=1000, data=data[of],
    )  # fmt: skip


def seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
