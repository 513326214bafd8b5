"""A document to a file, whole or not at all, in the format that the file's ending names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import ReportError
from ..trace import replace_file
from .printing import pdf_of

__all__ = ["write"]

HTML, MARKDOWN = (".html", ".htm"), (".md", ".markdown")


def write(
    target: Path,
    html: Callable[[], str],
    markdown: Callable[[str], tuple[str, Mapping[str, bytes]]],
    *,
    bare: bool = False,
) -> Path:
    """Write a document. ``markdown(folder)`` gives its text and the files in ``folder`` beside it.

    ``bare``: a name without an ending is HTML too.

    :raises ReportError: an ending that names no format, or it can't be written.
    """
    ending = target.suffix.lower()
    if ending in HTML or (bare and not ending):
        return _write_bytes(target, _encoded(html()))
    if ending == ".pdf":
        return _write_bytes(target, pdf_of(html()))
    if ending in MARKDOWN:
        text, files = markdown(f"{target.stem}_files")
        for name, content in files.items():
            _write_bytes(target.parent / name, content)
        return _write_bytes(target, _encoded(text))
    raise ReportError(f"can't tell what to write from {target.name!r}: the ending may be .html, .md or .pdf")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _write_bytes(target: Path, content: bytes) -> Path:
    """Write a file, and the folder it lies in.

    :raises ReportError: it can't be written (disk full, read-only, a directory).
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, content)
    except OSError as error:
        raise ReportError(
            f"can't write the report to {target}: {error.strerror or error}. Choose another path; "
            "the report is still here."
        ) from error
    return target
