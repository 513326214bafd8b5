"""A document to a file, whole or not at all, in the format that the file's ending names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import ReportError
from .blocks import Block
from .markdown import Markdown
from .page import render
from .printing import pdf_of

__all__ = ["write", "write_bytes"]

HTML, MARKDOWN, PDF = (".html", ".htm", ""), (".md", ".markdown"), (".pdf",)


def write(title: str, blocks: Sequence[Block], target: Path) -> Path:
    """Write a document.

    :raises ReportError: an ending that names no format, or it can't be written.
    """
    ending = target.suffix.lower()
    if ending in HTML:
        return write_bytes(target, render(title, blocks).encode())
    if ending in PDF:
        return write_bytes(target, pdf_of(render(title, blocks)))
    if ending in MARKDOWN:
        document = Markdown(f"{target.stem}_files")
        text = document.render(title, blocks)
        for name, content in document.files.items():
            write_bytes(target.parent / name, content)
        return write_bytes(target, text.encode("utf-8", "backslashreplace"))
    raise ReportError(f"can't tell what to write from {target.name!r}: the ending may be .html, .md or .pdf")


def write_bytes(target: Path, content: bytes) -> Path:
    """Write a file under another name and move it into its place.

    :raises ReportError: it can't be written (disk full, read-only, a directory).
    """
    building = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            building.write_bytes(content)
            os.replace(building, target)
        finally:
            building.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(
            f"can't write the report to {target}: {error.strerror or error}. Choose another path; "
            "the report is still here."
        ) from error
    return target
