"""The functions that a flow may name, as a person chooses among them."""

from __future__ import annotations

import inspect
from typing import Any

from workbench.flows import registered_functions

__all__ = ["offered_functions"]


def offered_functions() -> list[dict[str, str]]:
    """The registered functions, each with its parameters and the first sentence about it."""
    return [{"name": name, "takes": _takes(fn), "said": _said(fn)} for name, fn in registered_functions().items()]


def _takes(fn: Any) -> str:
    try:
        return ", ".join(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # of what is written in C
        return "…"


def _said(fn: Any) -> str:
    return (inspect.getdoc(fn) or "").split("\n\n")[0].replace("\n", " ")[:200]
