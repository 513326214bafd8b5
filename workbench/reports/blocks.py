"""The parts a report is made of, as data: a writer (HTML today) turns them into a document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, TypeAlias

import pandas as pd
from markupsafe import Markup

__all__ = [
    "Alert",
    "Attachment",
    "Block",
    "Facts",
    "Fold",
    "Grid",
    "Heading",
    "Note",
    "Picture",
    "Plot",
    "Verbatim",
    "frame_csv",
    "grid_of",
    "number",
]

SHOWN_ROWS = 300
CELL_LENGTH = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    kind: ClassVar[str] = "heading"
    text: str
    level: int = 2
    """2 or 3; the title is the only 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Prose in the small Markdown subset of :mod:`.markup`."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One sentence that must not be overlooked."""

    kind: ClassVar[str] = "alert"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbatim:
    """Text with its line breaks."""

    kind: ClassVar[str] = "verbatim"
    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file inside the document, kept as text."""

    kind: ClassVar[str] = "attachment"
    name: str
    text: str
    media_type: str = "text/csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table. ``total`` is the number of rows there are; ``rows`` may be the first of them."""

    kind: ClassVar[str] = "grid"
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    total: int
    attachment: Attachment | None = None
    grouped: bool = False
    """Draw a line where the first column changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing made of our own markup, with a table of the same numbers where it is a chart."""

    kind: ClassVar[str] = "picture"
    html: Markup
    caption: str
    twin: Grid | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """An interactive plotly figure as a JSON-able specification, and the same numbers as a table."""

    kind: ClassVar[str] = "plot"
    spec: dict[str, Any]
    caption: str
    twin: Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Parts that open on demand."""

    kind: ClassVar[str] = "fold"
    summary: str
    blocks: tuple[Block, ...]


Block: TypeAlias = Heading | Note | Alert | Facts | Verbatim | Attachment | Grid | Picture | Plot | Fold


def number(value: Any) -> str:
    """A number as tables show it: whole ones whole, others to four significant digits, a dash for none."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "–"
    whole = isinstance(value, Integral) or (float(value).is_integer() and abs(value) < 1e15)
    return str(int(value)) if whole else f"{float(value):.4g}"


def grid_of(
    frame: pd.DataFrame,
    caption: str,
    *,
    shown: int = SHOWN_ROWS,
    attach: str | None = None,
    index: bool = False,
) -> Grid:
    """A data frame as a table of its first ``shown`` rows; ``attach`` names a CSV file with all of them."""
    told = _with_index(frame) if index else frame
    columns = tuple(_heading(name) for name in told.columns)
    numeric = tuple(_is_real(kind) for kind in told.dtypes)
    head = told.head(shown)
    cells = [_cells(head.iloc[:, i], is_number) for i, is_number in enumerate(numeric)]
    return Grid(
        caption=caption,
        columns=columns,
        rows=tuple(zip(*cells, strict=True)),
        numeric=numeric,
        total=len(frame),
        attachment=None if attach is None else Attachment(name=attach, text=frame_csv(told)),
    )


def _with_index(frame: pd.DataFrame) -> pd.DataFrame:
    """The index as columns of its own; reset_index refuses a name that is taken and text it can't encode."""
    levels = [frame.index.get_level_values(i) for i in range(frame.index.nlevels)]
    columns = [pd.Series(level, dtype=level.dtype, name=i) for i, level in enumerate(levels)]
    names = ["index" if name is None else name for name in frame.index.names]
    joined = pd.concat([*columns, frame.reset_index(drop=True)], axis=1)
    joined.columns = pd.Index([*names, *frame.columns], dtype=object, tupleize_cols=False)
    return joined


def frame_csv(frame: pd.DataFrame) -> str:
    """All rows as CSV; nine digits, which give every float32 back exactly."""
    return frame.to_csv(index=False, float_format="%.9g", lineterminator="\n")


def _is_real(kind: Any) -> bool:
    types = pd.api.types
    return types.is_numeric_dtype(kind) and not types.is_bool_dtype(kind) and not types.is_complex_dtype(kind)


def _heading(name: Any) -> str:
    return " / ".join(map(str, name)) if isinstance(name, tuple) else str(name)


def _cells(column: Iterable[Any], is_number: bool) -> Sequence[str]:
    if is_number:
        return [number(value) for value in column]
    return [_text(value) for value in column]


def _text(value: Any) -> str:
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return number(value)
    text = str(value)
    return text if len(text) <= CELL_LENGTH else f"{text[:CELL_LENGTH]}… (+{len(text) - CELL_LENGTH:,})"
