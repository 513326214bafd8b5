"""How a function that a flow leads to wants to be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import FlowError

__all__ = ["arity"]


def arity(fn: Callable[..., Any]) -> int:
    """1 for ``fn(state)``, 3 for ``fn(state, actions, tokenizer)``; further parameters with defaults don't count.

    :raises FlowError: it can be called in neither way.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        raise FlowError(f"{fn!r} does not tell its parameters: wrap it in a function of (state)") from None
    names = [parameter.name for parameter in signature.parameters.values()]
    ways = [count for count in (1, 3) if _takes(signature, count)]
    if not ways:
        raise FlowError(
            f"a function that a flow leads to takes (state) or (state, actions, tokenizer); "
            f"{getattr(fn, '__qualname__', fn)}{signature} takes neither"
        )
    return 3 if ways == [3] or (3 in ways and names[1:3] == ["actions", "tokenizer"]) else 1


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True
