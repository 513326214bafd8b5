"""How much the tests of trust do: a little in every run of the tests, a lot in ``make soak``."""

from __future__ import annotations

import os

__all__ = ["scaled"]

VARIABLE = "WORKBENCH_SOAK"


def scaled(count: int) -> int:
    """``count`` times the factor in ``WORKBENCH_SOAK`` (1 if it is not set), and at least 1.

    :raises ValueError: the variable is no number above 0.
    """
    told = os.environ.get(VARIABLE, "1")
    factor = float(told)
    if not 0 < factor < float("inf"):
        raise ValueError(f"{VARIABLE} is a factor above 0, got {told!r}")
    return max(round(count * factor), 1)
