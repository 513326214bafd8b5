"""A request's text seen from its tokens, and its tokens seen from their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..models import Tokenizer
from ..shapes import LogitsRow, Mask

__all__ = ["TokenMasks", "covering", "tail_text"]


def tail_text(tokens: Sequence[int], tokenizer: Tokenizer, characters: int) -> str:
    """The end of the text of ``tokens``: at least ``characters`` of it, special tokens left out."""
    # A character is at most four bytes and a token at least one, so this many tokens are always enough.
    return tokenizer.decode(tokens[-4 * characters :], skip_special=True)


def covering(tokens: Sequence[int], tokenizer: Tokenizer, character: int) -> tuple[int, str]:
    """Index of the token that ``character`` of the text lies in, and that token's text before it.

    The text is ``tokenizer.decode(tokens)``, special tokens included.
    """
    text = tokenizer.decode(tokens)
    for index in range(len(tokens), -1, -1):
        before = tokenizer.decode(tokens[:index])
        if len(before) <= character and text.startswith(before):
            return index, text[len(before) : character]
    return 0, text[:character]


class TokenMasks:
    """The tokens whose text fulfils ``allows``, as a mask over the vocabulary, made once per tokenizer."""

    __slots__ = ("_allows", "_known")

    def __init__(self, allows: Callable[[str], bool]) -> None:
        self._allows = allows
        self._known: WeakKeyDictionary[Tokenizer, Mask] = WeakKeyDictionary()

    def of(self, tokenizer: Tokenizer, size: int) -> Mask:
        """``[size]``: True where allowed; ids that the tokenizer has no text for are allowed."""
        known = self._known.get(tokenizer)
        if known is None or len(known) != size:
            known = torch.ones(size, dtype=torch.bool)
            count = min(len(tokenizer), size)
            known[:count] = torch.tensor([self._allows(tokenizer.token_text(i)) for i in range(count)])
            self._known[tokenizer] = known
        return known

    def apply(self, logits: LogitsRow, tokenizer: Tokenizer) -> Tensor:
        """``logits`` with ``-inf`` where not allowed."""
        return logits.masked_fill(~self.of(tokenizer, len(logits)).to(logits.device), -torch.inf)
