"""Where the data that comes with the workbench lies: in the repository's ``data``, or inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

__all__ = ["bundled"]

_HERE = Path(__file__).resolve().parent
_PLACES = (_HERE / "data", _HERE.parent / "data")
"""As a wheel has it, and as the repository has it."""


def bundled(name: str) -> Path:
    """The path of a bundled file or directory, such as ``collection/passages.json``. Read it, never write it.

    :raises FileNotFoundError: nothing of that name comes with the workbench.
    """
    for place in _PLACES:
        if (place / name).exists():
            return place / name
    raise FileNotFoundError(f"no bundled data {name!r}; it was looked for in {' and '.join(map(str, _PLACES))}")
