"""Whether a checkpoint's configs ask for what its weights can back, before transformers builds anything from them.

A config is somebody's input. transformers makes as many layers as it says, before it looks for their weights; and a
name of an attention implementation can be an address on a hub, from where code would be fetched and run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelFileError

__all__ = ["check_config", "check_tokenizer_data"]

COUNTS = frozenset(
    ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_experts",
     "num_local_experts", "n_routed_experts", "n_shared_experts", "num_nextn_predict_layers")
)  # fmt: skip
LAYERS = frozenset(("num_hidden_layers", "num_layers", "n_layer", "n_layers"))
"""Those of the counts that are 1 at least."""
MOST_DEPTH = 16
MOST_NUMBER = 2**40
"""Largest whole number of a config, such as the length of a context."""
MOST_CHARSMAP = 4_000_000
"""Characters of a table of replacements; real ones have a third of a million."""
MOST_GROWTH = 1000
"""How much longer a tokenizer's replacements, one after the other, may make a text."""


def check_config(path: Path, config: Mapping[str, Any], *, tensors: int, longest: int) -> None:
    """Compare a config with its weights: how many tensors there are, and the longest axis of any.

    :raises ModelFileError: it asks for more layers or experts than there are weights, or for code from elsewhere.
    """
    for key, value in _entries(path, config):
        least, most = (1, tensors) if key in LAYERS else (0, max(tensors, longest))
        if key in COUNTS and _is_whole(value) and not least <= value <= most:
            raise ModelFileError(f"{path} says {key}={str(value)[:40]}, but its weights allow {least} to {most}")
        if _is_whole(value) and abs(value) > MOST_NUMBER:
            raise ModelFileError(f"{path} says {key[:40]}={str(value)[:40]}; numbers up to {MOST_NUMBER:,} are read")
        if key.endswith("_implementation") and isinstance(value, str) and not value.replace("_", "").isalnum():
            raise ModelFileError(
                f"{path} says {key[:40]}={value[:80]!r}, which is an address: code is not fetched on a config's word. "
                "Take the entry out."
            )


def check_tokenizer_data(path: Path, data: Mapping[str, Any]) -> None:
    """:raises ModelFileError: the replacements in a ``tokenizer.json`` could turn a short text into gigabytes."""
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1
        for key, value in _entries(path, {part: data.get(part)}):
            if key == "precompiled_charsmap" and isinstance(value, str) and len(value) > MOST_CHARSMAP:
                raise ModelFileError(f"the {part} in {path} has a table of {len(value):,} characters")
            if key in ("content", "prepend", "replacement") and isinstance(value, str):
                growth *= max(len(value.encode("utf-8", "surrogatepass")), 1)
            if growth > MOST_GROWTH:
                raise ModelFileError(
                    f"the {part} in {path} can make a text {growth:,} times as long; up to {MOST_GROWTH:,} is read"
                )


def _entries(path: Path, data: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth; those within a list have the list's key."""
    waiting: list[tuple[str, Any, int]] = [("", data, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise ModelFileError(f"{path} is nested deeper than {MOST_DEPTH} levels")
        if isinstance(value, Mapping):
            waiting.extend((str(name), inner, depth + 1) for name, inner in value.items())
        elif isinstance(value, list):
            waiting.extend((key, inner, depth + 1) for inner in value)
        yield key, value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
