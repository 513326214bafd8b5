"""A mod that only looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..engine import ActionBuilder, Answer, Event, FunctionMod, mod
from ..models import Tokenizer

__all__ = ["watch"]


def watch(fn: Callable[[Any], object], *, capture: str | Sequence[str] = ()) -> FunctionMod:
    """A mod that calls ``fn(event)`` on every event and never acts: ``watch(print)``, ``watch(events.append)``.

    ``capture`` are hooks whose activations ForwardPass events shall carry. It holds a function, so it can't
    be rebuilt from a trace.
    """
    if not callable(fn):
        raise TypeError(f"watch() needs a function of an event, got {fn!r}")

    @mod(name="watch", capture=capture)
    def look(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        fn(event)
        return None

    return look
