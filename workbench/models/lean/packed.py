"""Weights that stay as the GGUF file has them: its blocks, put in the order in which the compiled pass reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UnsupportedModelError
from ..compiled_code import keep_compiled
from ..gguf_header import GgufTensor, read_header
from .blocks import FORMATS, Fields, take_apart
from .layout import GROUP, LANES, Packed

__all__ = ["BlockFile", "PackedMatrices"]

PARTS = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip
"""Hugging Face's names of a layer's linear modules, and GGUF's."""
TILE = 4096
"""Rows that are decoded at once where a whole matrix would be too large."""


class PackedMatrices:
    """Matrices ``[layer, out, in]`` of equal shape, packed; one of them is decoded where torch needs it."""

    def __init__(self, matrices: Sequence[Sequence[Fields]]) -> None:
        """``matrices`` are, by layer, the parts that are stacked into one matrix.

        All are brought to the most bits and the smallest blocks among them.
        """
        parts = [part for layer in matrices for part in layer]
        bits, block = max(part.bits for part in parts), min(part.block for part in parts)
        words = np.stack([_arrange(layer, bits, block) for layer in matrices])
        self.packed = Packed(words=words, numbers=words.view(np.float32), bits=bits)
        self.shape = (len(matrices), sum(len(part.fields) for part in matrices[0]), parts[0].fields.shape[1])

    @property
    def nbytes(self) -> int:
        return self.packed.words.nbytes

    def __getitem__(self, layer: int) -> Tensor:
        """One matrix as float32 ``[out, in]``, decoded now."""
        return self._tile(layer, 0, self.shape[1])

    def rows(self, rows: NDArray[np.int64], layer: int = 0) -> Tensor:
        """Some rows of one matrix, float32 ``[len(rows), in]``."""
        decoded = np.empty((len(rows), self.shape[2]), dtype=np.float32)
        _decoders().decode_rows(self.packed, layer, np.ascontiguousarray(rows, dtype=np.int64), decoded)
        return torch.from_numpy(decoded)

    def times(self, given: Tensor, layer: int = 0) -> Tensor:
        """``given [..., in]`` times the transpose of one matrix, a tile of rows at a time."""
        firsts = range(0, self.shape[1], TILE)
        tiles = (self._tile(layer, first, min(first + TILE, self.shape[1])) for first in firsts)
        return torch.cat([given @ tile.T for tile in tiles], dim=-1)

    def _tile(self, layer: int, first: int, stop: int) -> Tensor:
        """Rows ``first``, where a group begins, to ``stop``, ``[stop - first, in]``."""
        decoded = np.empty((self.shape[2], -(-(stop - first) // GROUP) * GROUP), dtype=np.float32)
        _decoders().decode_groups(self.packed, layer, first // GROUP, decoded)
        return torch.from_numpy(decoded)[:, : stop - first].T


def _arrange(parts: Sequence[Fields], bits: int, block: int) -> NDArray[np.int32]:
    """One layer's words ``[group, block, vector, word, lane]``, rows behind the last one zero."""
    fields = _whole_groups(np.concatenate([part.fields for part in parts]))
    n_blocks, in_word = fields.shape[1] // block, 32 // bits
    by_lane = fields.reshape(-1, GROUP // LANES, LANES, n_blocks, block // in_word, in_word)
    words = np.zeros((*by_lane.shape[:4], by_lane.shape[4] + 2), dtype=np.uint32)
    for index in range(in_word):
        words[..., :-2] |= by_lane[..., index].astype(np.uint32) << np.uint32(bits * index)
    for place, which in ((-2, [part.scales for part in parts]), (-1, [part.minima for part in parts])):
        by_block = np.concatenate([np.repeat(part, n_blocks // part.shape[1], axis=1) for part in which])
        words[..., place] = _whole_groups(by_block).view(np.uint32).reshape(words.shape[:4])
    return np.ascontiguousarray(words.transpose(0, 3, 1, 4, 2)).view(np.int32)


def _whole_groups(rows: NDArray[Any]) -> NDArray[Any]:
    """With rows of zeros behind the last one, up to a whole group."""
    return np.pad(rows, ((0, -len(rows) % GROUP), (0, 0)))


@cache
def _decoders() -> ModuleType:
    from . import decoding

    sources = [Path(__file__).with_name(name) for name in ("atomics.py", "decoding.py", "layout.py")]
    for function in (decoding.decode_rows, decoding.decode_groups):
        keep_compiled(function, sources)
    return decoding


class BlockFile:
    """The quantized tensors of a GGUF file, under the names that Hugging Face gives their modules."""

    def __init__(self, path: Path, config: Any) -> None:
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in read_header(path).tensors}
        self._config = config

    def part(self, layer: int, name: str) -> Fields:
        """A linear module of a layer, such as ``q_proj``."""
        fields = self._fields(f"blk.{layer}.{PARTS[name]}.weight")
        if self._config.model_type == "llama" and name in ("q_proj", "k_proj"):
            heads = self._config.num_attention_heads if name == "q_proj" else self._config.num_key_value_heads
            return _unturned(fields, heads)
        return fields

    def embedding(self) -> Fields:
        return self._fields("token_embd.weight")

    def unembedding(self) -> Fields | None:
        """None where the embedding is used."""
        return self._fields("output.weight") if "output.weight" in self._tensors else None

    def _fields(self, name: str) -> Fields:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise UnsupportedModelError(f"{self._path.name} has no tensor {name!r}: load it without packed=True.")
        out, width = self._shape(tensor)
        with open(self._path, "rb") as file:
            file.seek(tensor.start)
            raw = np.frombuffer(file.read(tensor.size), dtype=np.uint8)
        return take_apart(raw, tensor.type_name, (out, width))

    def _shape(self, tensor: GgufTensor) -> tuple[int, int]:
        """Rows and columns, if the compiled pass can read such blocks.

        :raises UnsupportedModelError: it can't.
        """
        width, out = tensor.shape
        if tensor.type_name not in FORMATS:
            raise UnsupportedModelError(
                f"{tensor.name} of {self._path.name} is {tensor.type_name}; packed weights are read in the formats "
                f"{', '.join(FORMATS)}. Load it without packed=True."
            )
        if out % GROUP and not tensor.name.startswith(("token_embd", "output")):
            raise UnsupportedModelError(
                f"{tensor.name} of {self._path.name} has {out} rows; packed weights need a multiple of {GROUP}. "
                "Load it without packed=True."
            )
        return out, width


def _unturned(given: Fields, n_heads: int) -> Fields:
    """Rows in the order of Hugging Face's rotary embedding: llama.cpp keeps a pair's two coordinates side by side."""
    rows = np.arange(len(given.fields)).reshape(n_heads, -1, 2).swapaxes(1, 2).ravel()
    return Fields(fields=given.fields[rows], scales=given.scales[rows], minima=given.minima[rows], bits=given.bits)
