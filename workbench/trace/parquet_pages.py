"""What a parquet file's pages claim to hold, counted without decoding one.

The footer of a file somebody sent can say anything; what a reader allocates is told by the header of each page. The
headers are read here, in Thrift's compact protocol (https://github.com/apache/thrift/blob/master/doc/specs/
thrift-compact-protocol.md), as far as a page header needs it (PageHeader in
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

__all__ = ["PageSizes", "count_pages"]

MOST_PAGES = 1 << 16
"""Pages of one column chunk."""
MOST_DEPTH = 8
"""Structs within structs of a page header; a sound one has three."""
TRUE, FALSE, BYTE, SHORT, INTEGER, LONG, DOUBLE, BINARY, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12
DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
INNER = {DATA_PAGE: (5, 2), DICTIONARY_PAGE: (7, 2), DATA_PAGE_V2: (8, 4)}
"""By type of page: the field with its own header, and in that the field with its encoding. Field 1 has the count."""
ENCODINGS = frozenset({0, 2, 3, 4, 8})
"""PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY. The delta encodings let a few bytes stand for gigabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSizes:
    """What the pages of a column chunk hold: ``values`` in all data pages, ``bytes`` in all pages decompressed."""

    values: int
    bytes: int


def count_pages(data: mmap.mmap | bytes, start: int, length: int) -> PageSizes:
    """Add up what the pages in ``data[start : start + length]`` claim.

    :raises ValueError: the bytes are no pages, or pages of an encoding that is not read.
    """
    end, position = start + length, start
    values = total = pages = 0
    if not 0 <= start <= end <= len(data):
        raise ValueError("a column lies outside of the file")
    while position < end:
        header, position = _struct(data, position, end, MOST_DEPTH)
        kind, size, packed = (_whole(header.get(field)) for field in (1, 2, 3))
        if packed > end - position:
            raise ValueError("a page is longer than its column")
        position, total, pages = position + packed, total + size, pages + 1
        if kind != INDEX_PAGE:
            count = _count(kind, header)
            values += count if kind != DICTIONARY_PAGE else 0
        if pages > MOST_PAGES:
            raise ValueError(f"a column has more than {MOST_PAGES:,} pages")
    return PageSizes(values=values, bytes=total)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("the header of a page is damaged")
    return value


def _count(kind: int, header: dict[int, Any]) -> int:
    if kind not in INNER:
        raise ValueError(f"a page is of the unknown type {kind}")
    field, coded = INNER[kind]
    inner = header.get(field)
    if not isinstance(inner, dict):
        raise ValueError("the header of a page does not say how many values are in it")
    if inner.get(coded) not in ENCODINGS:
        raise ValueError(f"a page has the encoding {inner.get(coded)}, which is not read: write it plain or as RLE")
    return _whole(inner.get(1))


def _struct(data: mmap.mmap | bytes, position: int, end: int, depth: int) -> tuple[dict[int, Any], int]:
    """One struct by field number, and where it ends; binary fields are stepped over."""
    if not depth:
        raise ValueError("the header of a page is nested too deeply")
    found: dict[int, Any] = {}
    field = 0
    while True:
        mark, position = _byte(data, position, end)
        if not mark:
            return found, position
        if mark >> 4:
            field += mark >> 4
        else:
            field, position = _signed(data, position, end)
        kind = mark & 15
        if kind in (TRUE, FALSE):
            found[field] = kind == TRUE
        elif kind == BYTE:
            found[field], position = _byte(data, position, end)
        elif kind in (SHORT, INTEGER, LONG):
            found[field], position = _signed(data, position, end)
        elif kind == STRUCT:
            found[field], position = _struct(data, position, end, depth - 1)
        elif kind in (BINARY, DOUBLE):
            length, position = _varint(data, position, end) if kind == BINARY else (8, position)
            position += length
        else:
            raise ValueError("the header of a page holds what no page header has")


def _byte(data: mmap.mmap | bytes, position: int, end: int) -> tuple[int, int]:
    if position >= end:
        raise ValueError("the header of a page is cut off")
    return data[position], position + 1


def _varint(data: mmap.mmap | bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte, position = _byte(data, position, end)
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError("a number in the header of a page is too long")


def _signed(data: mmap.mmap | bytes, position: int, end: int) -> tuple[int, int]:
    value, position = _varint(data, position, end)
    return (value >> 1) ^ -(value & 1), position
