"""What a run must leave as it found it."""

from __future__ import annotations

import signal
import threading
from typing import Any

import torch

__all__ = ["traces_of_use"]


def traces_of_use(model: Any) -> dict[str, Any]:
    """Whatever a run could leave changed: hooks, the Ctrl-C handler, random state, switches of torch."""
    return {
        "hooks": {name: list(point._forward_hooks) for name, point in model._points.items()},
        "handler": signal.getsignal(signal.SIGINT),
        "random": torch.get_rng_state().tolist(),
        "inference": torch.is_inference_mode_enabled(),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "lock is free": is_free(model.lock),
        "cache": model.cache_works,
    }


def is_free(lock: Any) -> bool:
    """Asked by another thread, since this one may take a lock twice."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(lock.acquire(blocking=False) and lock.release() is None))
    thread.start()
    thread.join()
    return found[0]
