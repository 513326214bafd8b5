"""Plotly figures in a document: their specification, their numbers as a table, the library once."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from ..errors import ReportError
from .blocks import Grid, Plot, grid_of
from .svg import DIVERGING, SEQUENTIAL

__all__ = ["plot_of", "plotly_library"]

# Okabe & Ito (2008): eight colours that every kind of colour vision tells apart; yellow and black left out.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
SCALES = {
    "sequential": [[i / 8, colour] for i, colour in enumerate(SEQUENTIAL)],
    "sequentialminus": [[i / 8, colour] for i, colour in enumerate(reversed(SEQUENTIAL))],
    "diverging": [[i / 8, colour] for i, colour in enumerate(DIVERGING)],
}
# What plotly draws with WebGL, whose compiled shaders our policy (no eval) forbids, or on maps that it would fetch.
FLAT = {"scattergl": "scatter", "heatmapgl": "heatmap", "scatterpolargl": "scatterpolar"}
REFUSED = frozenset(
    {
        "scatter3d", "surface", "mesh3d", "cone", "streamtube", "volume", "isosurface", "splom", "parcoords",
        "scattergeo", "choropleth", "choroplethmap", "choroplethmapbox", "densitymap", "densitymapbox",
        "scattermap", "scattermapbox", "image",
    }
)  # fmt: skip
FAINT = "rgba(128,128,128,0.25)"
AXIS = {"gridcolor": FAINT, "zerolinecolor": "rgba(128,128,128,0.5)", "linecolor": "rgba(128,128,128,0.5)"}
CLEAR = "rgba(0,0,0,0)"


def plot_of(figure: Any, caption: str, table: pd.DataFrame | None, file: str = "figure.csv") -> Plot:
    """A plotly figure on a transparent ground, with a table of what it shows, attached as ``file``.

    :raises ReportError: not a plotly figure, or one whose numbers can't be told without ``table``.
    """
    from plotly.basedatatypes import BaseFigure

    if not isinstance(figure, BaseFigure):
        raise ReportError(f"figure() takes a plotly figure, got {type(figure).__name__}; tables go to table()")
    spec = json.loads(figure.to_json())
    for trace in spec["data"]:
        trace["type"] = _drawable(str(trace.get("type", "scatter")))
    told = _numbers(spec["data"]) if table is None else table
    layout = {key: value for key, value in spec.get("layout", {}).items() if key != "template"}
    layout.update(paper_bgcolor=CLEAR, plot_bgcolor=CLEAR)
    layout["template"] = {"layout": {"colorway": list(COLOURS), "colorscale": SCALES, "xaxis": AXIS, "yaxis": AXIS}}
    layout["template"]["data"] = {kind: [{"autocolorscale": True}] for kind in ("heatmap", "contour", "histogram2d")}
    layout["modebar"] = {"bgcolor": CLEAR, "color": "#808080", "activecolor": "#c4561a"}
    layout.setdefault("height", 420)
    layout.setdefault("margin", {"t": 64 if "title" in layout else 36, "r": 24, "b": 56, "l": 64})
    twin: Grid = grid_of(told, f"Numbers of: {caption}", attach=file)
    return Plot(spec={"data": spec["data"], "layout": layout}, caption=caption, twin=twin)


def _drawable(kind: str) -> str:
    """The same kind of trace without WebGL; one that needs it, or a map, is refused."""
    flat = FLAT.get(kind, kind)
    if flat in REFUSED:
        raise ReportError(
            f"a {kind!r} trace can't be in a report that opens offline and runs no foreign code (it needs WebGL "
            "or a map service): draw it flat, for example as scatter, heatmap or contour"
        )
    return flat


def plotly_library() -> str:
    """The source of plotly.js as plotly ships it: nothing is fetched."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _numbers(traces: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """One row per point: trace, x, y, and z where there is one."""
    parts = []
    for index, trace in enumerate(traces):
        columns: dict[str, Any] = {name: _array(trace[name]) for name in ("x", "y", "z") if name in trace}
        if "z" in columns and columns["z"].ndim == 2:
            frame = _surface(columns)
        elif columns and len({len(column) for column in columns.values()}) == 1:
            frame = pd.DataFrame(columns)
        else:
            raise ReportError("this figure's numbers can't be told from its x, y and z: pass table=DataFrame")
        frame.insert(0, "trace", str(trace.get("name", index)))
        parts.append(frame)
    if not parts:
        raise ReportError("this figure shows nothing: it has no traces")
    return pd.concat(parts, ignore_index=True)


def _surface(columns: dict[str, Any]) -> pd.DataFrame:
    rows, width = columns["z"].shape
    xs = columns.get("x", np.arange(width))
    ys = columns.get("y", np.arange(rows))
    return pd.DataFrame({"x": np.tile(xs, rows), "y": np.repeat(ys, width), "z": columns["z"].ravel()})


def _array(value: Any) -> Any:
    """A column of a specification; plotly packs numpy arrays as base64 with dtype and shape."""
    if not isinstance(value, dict):
        return np.asarray(value)
    flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
    shape = str(value.get("shape", len(flat)))
    return flat.reshape([int(size) for size in shape.split(",")])
