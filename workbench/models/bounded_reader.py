"""Reads numbers and strings from a mapped file and never believes a length that the file can't hold."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from ..errors import ModelFileError

__all__ = ["ADVICE", "BoundedReader"]

ADVICE = "Download the file again and compare its size and sha256 with the publisher's."


class BoundedReader:
    """A position in the mapped file that never moves past its end."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size, self.position = path, data, size, 0

    def need(self, count: int, what: str) -> None:
        """Raise unless ``count`` more bytes are there."""
        if count > self.size - self.position:
            raise ModelFileError(
                f"{self.path} is truncated or corrupt: {what} at byte {self.position} needs {count} bytes, "
                f"but the file ends at {self.size}. {ADVICE}"
            )

    def broken(self, reason: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is corrupt near byte {self.position}: {reason}. {ADVICE}")

    def number(self, code: str, what: str) -> Any:
        width = struct.calcsize("<" + code)
        self.need(width, what)
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += width
        return value

    def string(self, what: str, limit: int) -> str:
        length = self.number("Q", what)
        self.need(length, what)
        if length > limit:
            raise self.broken(f"{what} has {length} bytes, more than the {limit} allowed")
        raw = self.data[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.broken(f"{what} is not UTF-8") from error
