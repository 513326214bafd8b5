"""Many requests after another in one process: what they leave behind in memory, hooks, threads and open files."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
import threading
from collections import Counter
from ctypes.util import find_library
from pathlib import Path

from eventful_mods import having_second_thoughts
from scripted_runs import tiny
from unchanged import traces_of_use

from workbench import Session
from workbench.flows import FlowEngine, FlowQuestion

__all__ = ["flat"]

TOKENS = 120
BATCH = 4
MOST_GROWTH = 0.02
WARM = 0.3
"""The share of the requests after which memory must stand still: caches and allocators are filled by then."""


def flat(requests: int) -> Counter[str]:
    """That many requests of up to 120 tokens each, under mods and a flow, captured; every tenth batch is kept on disk.

    :raises AssertionError: memory grew by more than 2 %, or a hook, a thread or an open file stayed behind.
    """
    model = tiny("llama", "lean")
    before, threads, files, steady = traces_of_use(model), 0, 0, 0
    rounds = max(requests // BATCH, 5)
    tokens = 0
    for number in range(rounds):
        tokens += _one(model, number)
        if number == max(round(rounds * WARM), 1):
            threads, files, steady = threading.active_count(), _open_files(), _resident()
    assert traces_of_use(model) == before
    assert threading.active_count() <= threads
    assert _open_files() <= files
    growth = _resident() / steady - 1
    assert growth < MOST_GROWTH, f"memory grew by {growth:.1%} from {steady / 2**20:.0f} MiB"
    return Counter({"requests": rounds * BATCH, "tokens": tokens, "growth in KiB": (_resident() - steady) >> 10})


def _one(model: object, number: int) -> int:
    flow = FlowQuestion(name="a", prompt=" a?", responses=["x", "yy"], erase_mode="all")
    mods = [having_second_thoughts("no", "so"), FlowEngine(flow).as_mod()]
    session = Session(model, mods, capture="blocks.1.hook_resid_post")  # type: ignore[arg-type]
    prompts = [[72, 101, 108, 108, 111 + row] for row in range(BATCH)]
    with tempfile.TemporaryDirectory() as directory:
        save = Path(directory) / "run" if number % 10 == 0 else None
        results = session.generate(prompts, max_new_tokens=TOKENS, seed=number, save=save)
    return sum(len(result.tokens) for result in results)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident() -> int:
    """Bytes of memory that this process holds, without what the allocator keeps for later."""
    gc.collect()
    if libc := find_library("c"):
        ctypes.CDLL(libc).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
