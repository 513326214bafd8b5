"""Checks that a directory is a whole Hugging Face checkpoint before anything heavy is imported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..errors import ModelFileError
from .config_checks import check_config, check_tokenizer_data

__all__ = ["check_model_dir"]

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
ADAPTER = "adapter_config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
MAX_HEADER = 100_000_000
"""Longest safetensors header the format allows, in bytes."""
MAX_JSON = 256_000_000
"""Longest JSON file that is read, in bytes; the largest real tokenizers have some 40 million."""
MAX_AXES = 8
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 8),
}
ADVICE = "Download it again and compare its size with the publisher's."


def check_model_dir(directory: Path) -> Path:
    """Return ``directory`` if it holds a config, a tokenizer and whole safetensors weights.

    Raises ``ModelFileError`` naming the file, what is wrong with it and what to do.
    """
    config = read_json(directory / CONFIG, directory)
    if not isinstance(config.get("model_type"), str):
        raise ModelFileError(f"{directory / CONFIG} names no 'model_type', so it is not a transformers config.")
    if not any((directory / name).is_file() for name in TOKENIZERS):
        raise ModelFileError(
            f"{directory} has no tokenizer (one of {', '.join(TOKENIZERS)}). Copy the tokenizer files of the "
            "model there, or write them with tokenizer.save_pretrained(directory)."
        )
    if (directory / ADAPTER).is_file():
        raise ModelFileError(
            f"{directory} has an {ADAPTER}, which would bring in weights from elsewhere: merge the adapter into its "
            "model (merge_and_unload), save that and load it."
        )
    shapes = [shape for path in weight_files(directory) for shape in check_safetensors(path)]
    longest = max((max(shape, default=1) for shape in shapes), default=0)
    check_config(directory / CONFIG, config, tensors=len(shapes), longest=longest)
    if (directory / TOKENIZERS[0]).is_file():
        check_tokenizer_data(directory / TOKENIZERS[0], read_json(directory / TOKENIZERS[0], directory))
    return directory


def read_json(path: Path, directory: Path) -> dict[str, Any]:
    """A JSON object from a file that must be there."""
    if not path.is_file():
        raise ModelFileError(
            f"{directory} has no {path.name}, so it is not a Hugging Face model directory (it holds: "
            f"{contents(directory)}). Give the directory that holds {CONFIG} and {WEIGHTS}, or a .gguf file."
        )
    if path.stat().st_size > MAX_JSON:
        raise ModelFileError(f"{path} has {path.stat().st_size:,} bytes; up to {MAX_JSON:,} are read. {ADVICE}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}. {ADVICE}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds a JSON {type(value).__name__}, expected an object. {ADVICE}")
    return value


def contents(directory: Path) -> str:
    """A few of the names in a directory, for an error."""
    names = sorted(path.name for path in directory.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "nothing"


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, by its index when it is in several parts."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if not (directory / INDEX).is_file():
        pickles = [path.name for path in directory.iterdir() if path.suffix in (".bin", ".pt", ".pth")]
        hint = (
            f"It has {', '.join(sorted(pickles)[:3])}, but pickles can run code and are never loaded: "
            "save the model again with save_pretrained, which writes safetensors."
            if pickles
            else f"It holds: {contents(directory)}."
        )
        raise ModelFileError(f"{directory} has no weights: neither {WEIGHTS} nor {INDEX}. {hint}")
    parts = read_json(directory / INDEX, directory).get("weight_map")
    if not isinstance(parts, dict) or not parts or not all(isinstance(part, str) for part in parts.values()):
        raise ModelFileError(f"{directory / INDEX} has no usable 'weight_map'. {ADVICE}")
    paths = [directory / part for part in sorted(set(parts.values()))]
    for path in paths:
        if path.parent != directory or not path.is_file():
            raise ModelFileError(f"{directory / INDEX} lists {path.name}, which is not in {directory}. {ADVICE}")
    return paths


def check_safetensors(path: Path) -> list[list[int]]:
    """Compare a safetensors file's length with what its header promises; gives the shapes. The data is not read."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if start.startswith(b"version "):
            raise ModelFileError(f"{path} is a Git LFS pointer, not the weights. Run `git lfs pull` in its directory.")
        if len(start) < 8 or not 2 <= length <= min(MAX_HEADER, size - 8):
            raise ModelFileError(f"{path} is truncated or no safetensors file ({size} bytes). {ADVICE}")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} has an unreadable safetensors header: {error}. {ADVICE}") from error
    if not isinstance(header, dict):
        raise ModelFileError(f"{path} has a safetensors header that is no JSON object. {ADVICE}")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    end = max((span_end(path, name, entry) for name, entry in entries.items()), default=0)
    if 8 + length + end != size:
        raise ModelFileError(
            f"{path} is truncated or corrupt: its header promises {8 + length + end} bytes, it has {size}. {ADVICE}"
        )
    return [entry["shape"] for entry in entries.values()]


def span_end(path: Path, name: str, entry: Any) -> int:
    """Where a tensor's data ends; raises unless dtype, shape and offsets agree."""
    try:
        (start, end), shape, dtype = entry["data_offsets"], entry["shape"], entry["dtype"]
        whole = all(type(number) is int and 0 <= number < 2**63 for number in (start, end, *shape))
        formed = whole and isinstance(dtype, str) and isinstance(shape, list) and len(shape) <= MAX_AXES
    except (TypeError, KeyError, ValueError):
        formed = False
    if not formed:
        raise ModelFileError(f"{path}: the header's entry for tensor {name[:80]!r} is malformed. {ADVICE}")
    bits = BITS.get(dtype)
    if start > end or (bits is not None and bits * math.prod(shape) != 8 * (end - start)):
        raise ModelFileError(f"{path}: tensor {name[:80]!r} has offsets that don't fit its dtype and shape. {ADVICE}")
    return int(end)
