"""Keeping something per request, the latest ones only."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

__all__ = ["KEPT_REQUESTS", "remember"]

Kept = TypeVar("Kept")
Key = TypeVar("Key")
KEPT_REQUESTS = 4096
"""More than run at once: the state of a request that still runs must not be forgotten."""


def remember(states: OrderedDict[Key, Kept], key: Key, state: Kept, most: int = KEPT_REQUESTS) -> Kept:
    """Keep something under a key, and forget the oldest of more than ``most``."""
    states[key] = state
    while len(states) > most:
        states.popitem(last=False)
    return state
