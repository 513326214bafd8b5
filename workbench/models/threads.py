"""How many threads torch should use on a CPU: asked of the machine, since two can be slower than one.

A second thread spins while it waits; on a box whose cores are busy that makes every step many times slower
(1.2 s against 0.07 s a token, measured on two shared cores).
"""

from __future__ import annotations

import os
import time

import torch

from .protocol import Cache, HookedModel

__all__ = ["settle_threads"]


def settle_threads(model: HookedModel, wanted: int | None) -> None:
    """Set torch's thread count to ``wanted``, or to what decodes a token faster: one or the present number.

    Nothing is measured on other devices, or where ``OMP_NUM_THREADS`` says what somebody wants.
    """
    if wanted is not None:
        torch.set_num_threads(wanted)
        return
    present = torch.get_num_threads()
    if present == 1 or model.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return
    cache = model.new_cache()
    model.forward([[0] * 8], cache)
    times = {}
    for count in (1, present):
        torch.set_num_threads(count)
        times[count] = min(_step(model, cache) for _ in range(3))
    torch.set_num_threads(min(times, key=times.__getitem__))


def _step(model: HookedModel, cache: Cache) -> float:
    started = time.perf_counter()
    model.forward([[0]], cache)
    return time.perf_counter() - started
