"""Reads the header of a GGUF file with bounded work, so that a broken file fails here and says why.

The format: magic, version, counts; then key-value metadata; then one record per tensor; then, aligned,
the tensor data (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Every count and length is
compared with the bytes that are left before it is believed.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import ModelFileError, UnsupportedModelError
from .bounded_reader import ADVICE, BoundedReader

__all__ = ["GgufHeader", "GgufTensor", "read_header"]

VERSIONS = (2, 3)
MAX_RECORDS = 1 << 16
"""Most metadata keys, and most tensors, that are read; the largest real files have a few thousand."""
MAX_STRINGS = 1 << 22
"""Most elements of one string array; the largest real vocabularies have about 2**18 tokens."""
MAX_NAME = 1 << 16
MAX_AXES = 4
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
NEEDED_KEYS = ("block_count", "embedding_length")
SIZE_KEYS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "embedding_length",
    "expert_count",
    "feed_forward_length",
    "rope.dimension_count",
    "vocab_size",
)
"""Metadata of an architecture that can't exceed the longest axis of any tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """Where one tensor lies. ``shape`` is in ggml's order: the fastest axis first."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    start: int
    """Byte position in the file."""
    size: int
    """Length in bytes."""

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What a GGUF file says about itself; arrays are left out of ``metadata``."""

    version: int
    architecture: str
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    def text(self, key: str) -> str:
        """The string stored under ``key``, or an empty one."""
        value = self.metadata.get(key, "")
        return value if isinstance(value, str) else ""


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of the GGUF file at ``path``; the tensor data itself is not read.

    Raises ``ModelFileError`` when the file is truncated, corrupt or no GGUF, ``UnsupportedModelError``
    when it is sound but of a version, byte order or tensor type that is not supported.
    """
    size = path.stat().st_size
    if size < 24:
        raise ModelFileError(f"{path} has {size} bytes, too few for a GGUF header (24). {ADVICE}")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = BoundedReader(path, data, size)
        version, tensor_count, key_count = read_preamble(reader)
        metadata = read_metadata(reader, key_count)
        records = [read_record(reader) for _ in range(tensor_count)]
        tensors = place_tensors(reader, records, alignment(reader, metadata))
    header = GgufHeader(
        version=version, architecture=architecture_of(path, metadata), metadata=metadata, tensors=tensors
    )
    check_whole_model(path, header)
    return header


def read_preamble(reader: BoundedReader) -> tuple[int, int, int]:
    """Check magic and version; return version, tensor count and key count."""
    magic = bytes(reader.data[:4])
    if magic != b"GGUF":
        raise ModelFileError(f"{reader.path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'. {ADVICE}")
    reader.position = 4
    version = reader.number("I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        what = "is big-endian" if swapped else f"has GGUF version {version}"
        raise UnsupportedModelError(
            f"{reader.path} {what}; little-endian versions {VERSIONS} are supported. "
            "Convert the model again with a current llama.cpp."
        )
    counts = reader.number("Q", "the tensor count"), reader.number("Q", "the key count")
    for what, count, least in (("tensors", counts[0], 24), ("metadata keys", counts[1], 13)):
        if count > min(MAX_RECORDS, (reader.size - reader.position) // least):
            raise reader.broken(f"its header claims {count} {what}, which a file of {reader.size} bytes can't hold")
    return version, *counts


def read_metadata(reader: BoundedReader, count: int) -> dict[str, Any]:
    """The scalar and string values by key; arrays are stepped over and checked."""
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = reader.string("a metadata key", MAX_NAME)
        if key in metadata:
            raise reader.broken(f"the metadata key {key!r} appears twice")
        kind = reader.number("I", f"the type of {key!r}")
        metadata[key] = read_value(reader, kind, key)
    return {key: value for key, value in metadata.items() if value is not None}


def read_value(reader: BoundedReader, kind: int, key: str) -> Any:
    """One metadata value; ``None`` for an array."""
    if kind in SCALARS:
        return reader.number(SCALARS[kind], repr(key))
    if kind == STRING:
        return reader.string(repr(key), 1 << 24)
    if kind != ARRAY:
        raise reader.broken(f"the value of {key!r} has type {kind}; types 0 to 12 exist")
    element, count = reader.number("I", repr(key)), reader.number("Q", repr(key))
    if element in SCALARS:
        width = count * struct.calcsize("<" + SCALARS[element])
        reader.need(width, f"the array {key!r}")
        reader.position += width
    elif element == STRING:
        skip_strings(reader, count, key)
    else:
        raise reader.broken(f"the array {key!r} has elements of type {element}; numbers or strings are expected")
    return None


def skip_strings(reader: BoundedReader, count: int, key: str) -> None:
    """Step over an array of strings, each a length and its UTF-8 bytes."""
    reader.need(8 * count, f"the array {key!r}")
    if count > MAX_STRINGS:
        raise reader.broken(f"the array {key!r} claims {count} strings, more than the {MAX_STRINGS} allowed")
    data, size, position = reader.data, reader.size, reader.position
    length_at = struct.Struct("<Q").unpack_from
    for index in range(count):  # a tight loop: real vocabularies with merges have half a million of these
        start = position + 8
        position = start + length_at(data, position)[0] if start <= size else size + 1
        if position > size:
            reader.need(position - reader.position, f"the array {key!r}")
        try:
            data[start:position].decode("utf-8")
        except UnicodeDecodeError as error:
            raise reader.broken(f"string {index} of the array {key!r} is not UTF-8") from error
    reader.position = position


def read_record(reader: BoundedReader) -> tuple[str, tuple[int, ...], int, int]:
    """One tensor's name, shape, type number and offset into the data."""
    name = reader.string("a tensor name", MAX_NAME)
    axes = reader.number("I", f"the shape of {name!r}")
    if not 1 <= axes <= MAX_AXES:
        raise reader.broken(f"tensor {name!r} has {axes} axes; 1 to {MAX_AXES} are allowed")
    shape = tuple(reader.number("Q", f"the shape of {name!r}") for _ in range(axes))
    return (
        name,
        shape,
        reader.number("I", f"the type of {name!r}"),
        reader.number("Q", f"the offset of {name!r}"),
    )


def alignment(reader: BoundedReader, metadata: dict[str, Any]) -> int:
    """The step, in bytes, on which the data and each tensor start."""
    step = metadata.get("general.alignment", 32)
    if not isinstance(step, int) or step not in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        raise reader.broken(f"general.alignment is {step!r}; a power of two from 8 to 4096 is allowed")
    return step


def place_tensors(
    reader: BoundedReader, records: list[tuple[str, tuple[int, ...], int, int]], step: int
) -> tuple[GgufTensor, ...]:
    """Turn offsets into positions; every tensor must lie inside the file, on the step, and alone."""
    data_start = -(-reader.position // step) * step
    tensors = []
    for name, shape, type_number, offset in records:
        type_name, size = tensor_size(reader, name, shape, type_number)
        if offset % step:
            raise reader.broken(f"tensor {name!r} starts at offset {offset}, not a multiple of {step}")
        reader.position = data_start + offset
        reader.need(size, f"tensor {name!r}")
        tensors.append(GgufTensor(name=name, shape=shape, type_name=type_name, start=reader.position, size=size))
    in_order = sorted(tensors, key=lambda tensor: tensor.start)
    for first, second in pairwise(in_order):
        if first.start + first.size > second.start:
            raise reader.broken(f"tensors {first.name!r} and {second.name!r} overlap")
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise reader.broken("two tensors have the same name")
    return tuple(tensors)


def tensor_size(reader: BoundedReader, name: str, shape: tuple[int, ...], type_number: int) -> tuple[str, int]:
    """The type's name and the tensor's length in bytes."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(type_number)
    except ValueError as error:
        raise UnsupportedModelError(
            f"{reader.path}: tensor {name!r} has type {type_number}, unknown to the installed gguf package. "
            "Use a file in a common format such as Q8_0, Q4_K or F16."
        ) from error
    block, width = GGML_QUANT_SIZES[kind]
    count = math.prod(shape)
    if count == 0 or shape[0] % block:
        raise reader.broken(f"tensor {name!r} has shape {shape}, which {kind.name} blocks of {block} can't fill")
    return str(kind.name), count // block * width


def architecture_of(path: Path, metadata: dict[str, Any]) -> str:
    architecture = metadata.get("general.architecture")
    if isinstance(architecture, str) and architecture:
        return architecture
    raise ModelFileError(f"{path} has no general.architecture in its metadata, so it is not a model. {ADVICE}")


def check_whole_model(path: Path, header: GgufHeader) -> None:
    """Raise unless the file is a whole model whose stated sizes its tensors can back."""
    if isinstance(header.metadata.get("split.count"), int) and header.metadata["split.count"] > 1:
        raise UnsupportedModelError(
            f"{path} is one of {header.metadata['split.count']} parts. "
            "Merge them first with `llama-gguf-split --merge` and load the result."
        )
    if not header.tensors:
        raise ModelFileError(f"{path} has no tensors: it is a vocabulary or an empty file, not a model. {ADVICE}")
    check_sizes(path, header)


def check_sizes(path: Path, header: GgufHeader) -> None:
    """Raise unless the sizes in the metadata are there and can be those of the tensors."""
    for key in NEEDED_KEYS:
        if f"{header.architecture}.{key}" not in header.metadata:
            # transformers would take another model's size as the default
            raise ModelFileError(f"{path} is corrupt: {header.architecture}.{key} is not in its metadata. {ADVICE}")
    largest = max(max(tensor.shape) for tensor in header.tensors)
    limits = {f"{header.architecture}.{key}": largest for key in SIZE_KEYS}
    limits[f"{header.architecture}.block_count"] = len(header.tensors)
    for key, limit in limits.items():
        value = header.metadata.get(key, 0)
        if isinstance(value, int) and not 0 <= value <= limit:
            raise ModelFileError(
                f"{path} is corrupt: {key} is {value}, but its tensors allow at most {limit}. {ADVICE}"
            )
