"""Data frames as plain tables of a static form."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.reports import label, legible, number

from .window import table_html

__all__ = ["SHOWN_ROWS", "frame_html"]

SHOWN_ROWS = 60
"""Rows of a table."""
TOKENS = ("token", "text")
"""Columns that hold tokens, whose spaces are to be seen."""


def frame_html(caption: str, frame: pd.DataFrame, *, last: bool = False) -> str:
    """The first rows of a frame, or the ``last``; the caption says so where there are more."""
    kept = frame.tail(SHOWN_ROWS) if last else frame.head(SHOWN_ROWS)
    which = "last" if last else "first"
    cut = f" (the {which} {SHOWN_ROWS} of {len(frame)} rows)" if len(frame) > SHOWN_ROWS else ""
    names = [str(name) for name in kept.columns]
    rows = [
        [_shown(value, token=name in TOKENS) for name, value in zip(names, row, strict=True)]
        for row in kept.itertuples(index=False, name=None)
    ]
    return table_html(caption + cut, [legible(name) for name in names], rows)


def _shown(value: Any, *, token: bool) -> str:
    if isinstance(value, str):
        return label(value) if token else legible(value)
    return "–" if value is None or pd.isna(value) else number(value)
