"""What a carry is configured with, and the pause token, found by name and checked both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..errors import CarryError
from ..models import Blocks, Tokenizer
from .scan import MODES

__all__ = ["CarrySettings", "PauseToken", "find_pause_token"]

VOCABULARY_PART = 8192
"""Tokens embedded at once when their lengths are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrySettings:
    """How a model carries. JSON-able: :meth:`to_dict` and :meth:`of` are inverse.

    :raises CarryError: a number below zero, or a mode that does not exist.
    """

    band: tuple[int, int]
    """Layers ``[l0, l1)`` that are the band."""
    pauses: int = 8
    """Pause tokens put after a prompt."""
    loops: int = 2
    """How often the prompt is merged with its own state and run through the band again."""
    mode: str = "carry"

    def __post_init__(self) -> None:
        if self.pauses < 0 or self.loops < 0:
            raise CarryError(f"pauses and loops must be 0 or more, got pauses={self.pauses}, loops={self.loops}")
        if self.mode not in MODES:
            raise CarryError(f"no mode {self.mode!r}; choose from {', '.join(MODES)}")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "band": list(self.band)}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> CarrySettings:
        first, last = told["band"]
        return cls(**{**told, "band": (int(first), int(last))})


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseToken:
    """The token that stands at pauses, and how its embedding compares with the others'."""

    id: int
    text: str
    norm: float
    """Length of its embedding, as it enters the first block."""
    median_norm: float
    """The same, of the vocabulary's median token."""


def find_pause_token(tokenizer: Tokenizer, wanted: str | int, blocks: Blocks) -> PauseToken:
    """The pause token by name (``<unused0>``) or id.

    A name must be one token of this tokenizer and come back from its id: an unknown name maps to some other id in
    many tokenizers, and the id of ``<unused0>`` in one is a normal word in another.

    :raises CarryError: no token of that name or id, or one that ends generation.
    """
    if isinstance(wanted, str):
        found = tokenizer.special_token(wanted)
        if found is None:
            raise CarryError(
                f"this model's tokenizer has no token {wanted!r}. Name one that it has and that text does not use "
                f"({_spare(tokenizer)}), or give a token id"
            )
    else:
        found = int(wanted)
    if not 0 <= found < blocks.vocab_size:
        raise CarryError(f"pause token id {found} is outside the vocabulary 0..{blocks.vocab_size - 1}")
    if found in tokenizer.eos_token_ids:
        raise CarryError(f"token {found} ({tokenizer.token_text(found)!r}) ends generation, so it can't be a pause")
    norms = _embedding_norms(blocks)
    return PauseToken(
        id=found, text=tokenizer.token_text(found), norm=float(norms[found]), median_norm=float(norms.median())
    )


def _embedding_norms(blocks: Blocks) -> torch.Tensor:
    """Length of every token's embedding, ``[vocab]``; a part at a time, since some vocabularies are large."""
    parts = torch.split(torch.arange(blocks.vocab_size, device=blocks.device), VOCABULARY_PART)
    with torch.no_grad():
        return torch.cat([blocks.embed(part[None])[0].float().norm(dim=-1) for part in parts])


def _spare(tokenizer: Tokenizer) -> str:
    """A few special tokens of a tokenizer that do not end generation, for an error's advice."""
    ids = (token for token in range(len(tokenizer)) if tokenizer.is_special(token))
    names = [tokenizer.token_text(token) for token in ids if token not in tokenizer.eos_token_ids]
    return "for example " + ", ".join(map(repr, names[:6])) if names else "it has no spare special token"
