"""Keeping words or token ids out of the output, by masking the tokens that would write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..engine import ActionBuilder, Answer, Event, ForwardPass, FunctionMod, mod
from ..models import Tokenizer
from .texts import TokenMasks, tail_text

__all__ = ["ban_tokens"]


def ban_tokens(words: str | Sequence[str] = (), tokens: Sequence[int] = ()) -> FunctionMod:
    """A mod that never lets the model draw certain words or token ids.

    A word is banned as a whole word, however its letters are cut into tokens: the token that would complete
    it is masked. Written in lower case it is banned in every case (``cat`` bans ``Cat`` and ``CAT``), else
    as written. Since the token that completes a word is masked before the next one is known, a longer word
    that continues it token by token (``cat`` + ``egory``) is banned too. Forced tokens are not drawn, so not
    affected.

    :raises ValueError: nothing to ban, an empty word, something that is no token id; while running, an id
        outside the vocabulary, or a ban that leaves no token to draw.
    """
    banned = [words] if isinstance(words, str) else list(words)
    ids = [int(token) for token in tokens]
    if not (banned or ids) or not all(isinstance(w, str) and w.strip() for w in banned) or min(ids, default=0) < 0:
        raise ValueError(
            f"ban_tokens(words={words!r}, tokens={tokens!r}): give at least one word that is not blank, or a "
            "token id of 0 or more"
        )
    bans = [_Ban(word.strip()) for word in banned]

    @mod(name="ban_tokens", params={"words": banned, "tokens": ids})
    def mask(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        if not isinstance(event, ForwardPass):
            return None
        generated = event.request.generated
        logits = _without(ids, event.logits)
        for ban in bans:
            logits = ban.apply(logits, generated, tokenizer)
        if not bool((logits[: len(tokenizer)] > -torch.inf).any()):
            raise ValueError("ban_tokens leaves no token to draw: ban fewer words or tokens")
        return actions.adjust_logits(logits)

    return mask


def _without(ids: Sequence[int], logits: Tensor) -> Tensor:
    if ids and max(ids) >= len(logits):
        raise ValueError(f"ban_tokens: token id {max(ids)} is outside the vocabulary 0..{len(logits) - 1}")
    masked = logits.clone()
    masked[list(ids)] = -torch.inf
    return masked


class _Ban:
    """One word: which tokens complete it, given how much of it the text ends with."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.flags = re.IGNORECASE if word.islower() else 0
        self.begin = r"(?<!\w)" if re.match(r"\w", word) else ""
        self.end = r"(?!\w)" if re.search(r"\w$", word) else ""
        whole = re.compile(self.begin + re.escape(word) + self.end, self.flags)
        self.whole = TokenMasks(lambda text: not whole.search(text))
        self.rests: dict[int, TokenMasks] = {}

    def apply(self, logits: Tensor, generated: Sequence[int], tokenizer: Tokenizer) -> Tensor:
        masked = self.whole.apply(logits, tokenizer)
        text = tail_text(generated, tokenizer, len(self.word) + 1)
        for written in self._written(text):
            masked = self._rest(written).apply(masked, tokenizer)
        lasts = list(self._last_tokens(generated, tokenizer))
        masked[lasts] = -torch.inf
        return masked

    def _written(self, text: str) -> Iterator[int]:
        """How many characters of the word the text may already end with."""
        for count in range(1, len(self.word)):
            if re.search(self.begin + re.escape(self.word[:count]) + r"\Z", text, self.flags):
                yield count

    def _rest(self, written: int) -> TokenMasks:
        """Masks for the tokens that complete the word after ``written`` characters of it."""
        if written not in self.rests:
            rest = re.compile(re.escape(self.word[written:]) + self.end, self.flags)
            self.rests[written] = TokenMasks(lambda text: not rest.match(text))
        return self.rests[written]

    def _last_tokens(self, generated: Sequence[int], tokenizer: Tokenizer) -> Iterator[int]:
        """Tokens that complete the word in its usual spelling, where tokens are parts of characters."""
        if self.word.isascii():
            return
        for spelling in dict.fromkeys([self.word, " " + self.word, self.word.capitalize(), self.word.upper()]):
            *rest, last = tokenizer.encode(spelling)
            start = len(generated) - len(rest)
            if start < 0 or list(generated[start:]) != rest:
                continue
            before = tail_text(generated[:start], tokenizer, 1) if self.begin and spelling[0] != " " else ""
            if not re.search(r"\w\Z", before):
                yield last
