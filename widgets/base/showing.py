"""Whether windows are shown live or as plain HTML."""

from __future__ import annotations

import os

__all__ = ["STATIC_VARIABLE", "display", "is_static"]

STATIC_VARIABLE = "WORKBENCH_STATIC"
_chosen: dict[str, bool] = {}


def display(*, static: bool | None) -> None:
    """Show windows from now on as plain HTML (``True``), live (``False``), or as the surroundings allow (``None``).

    Static windows need no widget manager, no network and no kernel: for exports, and for front ends that draw
    nothing. The environment variable ``WORKBENCH_STATIC=1`` does the same from outside.
    """
    if static is None:
        _chosen.pop("static", None)
    else:
        _chosen["static"] = bool(static)


def is_static() -> bool:
    """What :func:`display` said, else the environment variable, else false."""
    if "static" in _chosen:
        return _chosen["static"]
    return os.environ.get(STATIC_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}
