"""A report's file back to the data that it keeps. The file may be anybody's: it is read as data, and never run.

Nothing here parses HTML. What a report keeps lies in links of one fixed form, whose bodies hold no quote and no
bracket; they are found as text, in one pass, and decoded as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..errors import ReportError
from .kept import FORMAT

__all__ = ["KEPT_NAME", "KeptReport", "Part", "read_report"]

KEPT_NAME = "reproduce.json"
"""The attachment that says what there is to run again."""
MOST_BYTES = 128 << 20
MOST_PARTS = 64
MOST_LINES = 1_000_000
LINK = re.compile(r"<a download='([^'<>]{1,300})' href='data:[a-z/]{1,40};charset=utf-8,([^'<>]*)'>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that a report can be asked to run again. ``told`` is as it was read: nothing in it is trusted."""

    kind: str
    name: str
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptReport:
    """What a report's file keeps."""

    parts: tuple[Part, ...]
    files: Mapping[str, str]
    """Attached files by name, still percent-encoded."""

    def lines(self, name: object) -> list[dict[str, Any]]:
        """The JSON objects of an attached file, one a line.

        :raises ReportError: there is no such file, or it holds something else.
        """
        if not isinstance(name, str) or name not in self.files:
            raise ReportError(f"the report names a file {str(name)[:80]!r} that is not in it")
        rows = unquote(self.files[name], errors="replace").splitlines()
        if len(rows) > MOST_LINES:
            raise ReportError(f"{name} has {len(rows):,} lines; the limit is {MOST_LINES:,}")
        found = [_parsed(row, f"{name}, line {number}") for number, row in enumerate(rows, 1) if row.strip()]
        for number, row in enumerate(found, 1):
            if not isinstance(row, dict):
                raise ReportError(f"{name}, line {number}: an object was expected, got {type(row).__name__}")
        return found


def read_report(path: str | Path) -> KeptReport:
    """Read what a report made by :class:`Report` keeps.

    :raises ReportError: no such file, too large, not a report, or one that keeps nothing to run again.
    """
    source = Path(path)
    text = _text(source)
    files: dict[str, str] = {}
    for found in LINK.finditer(text):
        if found[1] in files:
            raise ReportError(
                f"{source} holds two files named {found[1][:80]!r}: it is damaged or was put together by hand"
            )
        files[found[1]] = found[2]
    if KEPT_NAME not in files:
        raise ReportError(
            f"{source} keeps nothing to run again: it is no HTML report of this workbench, or one without a trace, "
            "chain or carried prompt"
        )
    told = _parsed(unquote(files[KEPT_NAME], errors="replace"), KEPT_NAME)
    return KeptReport(parts=_parts(told), files=files)


def _text(source: Path) -> str:
    try:
        size = source.stat().st_size
        if size > MOST_BYTES:
            raise ReportError(
                f"{source} has {size / 1e6:,.0f} MB; a report of more than {MOST_BYTES / 1e6:,.0f} is not read"
            )
        with source.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ReportError(f"{source} can't be read: {error.strerror or error}") from error
    if len(content) > MOST_BYTES:
        raise ReportError(
            f"{source} grew while it was read: a report of more than {MOST_BYTES / 1e6:,.0f} MB is not read"
        )
    return content.decode("utf-8", "replace")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{where} is damaged: {str(error)[:200]}") from None


def _parts(told: Any) -> tuple[Part, ...]:
    if not isinstance(told, dict) or told.get("format") != FORMAT or not isinstance(told.get("parts"), list):
        version = told.get("format") if isinstance(told, dict) else None
        raise ReportError(f"the report keeps its data in format {str(version)[:40]!r}; this version reads {FORMAT}")
    if len(told["parts"]) > MOST_PARTS:
        raise ReportError(f"the report names {len(told['parts']):,} parts; the limit is {MOST_PARTS}")
    found = []
    for number, part in enumerate(told["parts"], 1):
        if not isinstance(part, dict) or not isinstance(part.get("kind"), str):
            raise ReportError(f"part {number} of the report is damaged: it says nothing of what it is")
        found.append(Part(kind=part["kind"], name=str(part.get("name", f"part {number}"))[:200], told=part))
    return tuple(found)
