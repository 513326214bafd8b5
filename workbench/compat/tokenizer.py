"""The tokenizer that mods of the public SDK are handed: a Hugging Face one that hides no special tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import CompatError
from ..models import Tokenizer

__all__ = ["SdkTokenizer", "sdk_tokenizer", "tokenize"]


class SdkTokenizer:
    """The model's Hugging Face tokenizer, with one difference: nothing is put before or after a text unasked.

    ``encode(text)`` gives the text's own tokens, also where the tokenizer would put a BOS first; whoever wants that
    says ``add_special_tokens=True``. All else is the tokenizer's.
    """

    __slots__ = ("_hf", "eos_token_id", "vocab_size")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._hf = tokenizer.hf
        self.eos_token_id: int | None = next(iter(tokenizer.eos_token_ids), None)
        self.vocab_size = len(tokenizer)

    def encode(self, text: str, add_special_tokens: bool = False, **options: Any) -> list[int]:
        return [int(token) for token in self._hf.encode(text, add_special_tokens=add_special_tokens, **options)]

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False, **options: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else [int(token) for token in token_ids]
        options.setdefault("clean_up_tokenization_spaces", False)
        return str(self._hf.decode(ids, skip_special_tokens=skip_special_tokens, **options))

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._hf(*arguments, **options)

    def __len__(self) -> int:
        return self.vocab_size

    def __getattr__(self, name: str) -> Any:
        if name == "_hf":  # asked of an object that a copy is just being made into
            raise AttributeError(name)
        return getattr(self._hf, name)

    def __repr__(self) -> str:
        return f"<SdkTokenizer over {type(self._hf).__name__} of {self.vocab_size} tokens>"


_faces: WeakKeyDictionary[Tokenizer, SdkTokenizer] = WeakKeyDictionary()


def sdk_tokenizer(tokenizer: Tokenizer) -> SdkTokenizer:
    """The one face of a tokenizer of this workbench, the same for every mod."""
    if tokenizer not in _faces:
        _faces[tokenizer] = SdkTokenizer(tokenizer)
    return _faces[tokenizer]


def tokenize(text: str | None, tokenizer: Any) -> list[int]:
    """The tokens of a text alone, whichever tokenizer it is; none for an empty text.

    :raises CompatError: there is no tokenizer.
    """
    if text and tokenizer is None:
        raise CompatError(f"the text {text[:40]!r} needs a tokenizer: call the mod as mod(event, tokenizer)")
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)] if text else []
