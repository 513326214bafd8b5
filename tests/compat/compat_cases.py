"""A tokenizer of single characters, plain logits, and a hand that drives a flow as an engine would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;!?<>/[]()\"'-+_=\n"
SIZE = 128


class Letters:
    """One token a character; its id is the character's code. It has no end token."""

    def get_vocab(self) -> dict[str, int]:
        return {letter: ord(letter) for letter in LETTERS}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens, "nothing here may ask for special tokens"
        return [ord(letter) for letter in text]

    def decode(self, tokens: Iterable[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, tokens))


class Flat:
    """Logits in one plain row, of a class of the user's own."""

    def __init__(self, row: Any) -> None:
        self.row = np.asarray(row, dtype=np.float32)

    @classmethod
    def from_numpy(cls, row: Any) -> Flat:
        return cls(row)

    def to_numpy(self) -> Any:
        return self.row


def level(best: str = "") -> Flat:
    """Logits that are all the same, but for the likeliest character if one is named."""
    row = np.zeros(SIZE)
    if best:
        row[ord(best)] = 5.0
    return Flat(row)


def open_letters(logits: Any) -> str:
    """The characters that a mask leaves, in order."""
    row = np.asarray(logits.to_numpy()).reshape(-1)
    return "".join(chr(place) for place in np.flatnonzero(row > -1e8))


class Hand:
    """Feeds a mod events one by one. ``text`` is what stands after every action was carried out."""

    def __init__(self, mod: Any, request_id: str = "r", *, tokenizer: Any = None) -> None:
        from quote_mod_sdk import Prefilled

        self.mod, self.request_id = mod, request_id
        self.tokenizer = tokenizer or Letters()
        self.text = ""
        self.actions: list[Any] = []
        self._answer(Prefilled(request_id, 0, 100))

    def look(self, best: str = "") -> Any:
        """One forward pass; what it gives is carried out. Returns the action."""
        from quote_mod_sdk import ForwardPass

        return self._answer(ForwardPass(self.request_id, 0, level(best)))

    def draw(self, letter: str) -> Any:
        """One forward pass, and a drawn character behind it if nothing else was done. Returns the last action."""
        from quote_mod_sdk import AdjustedLogits, Noop

        action = self.look(letter)
        if isinstance(action, AdjustedLogits):
            assert letter in open_letters(action.logits), f"{letter!r} is masked"
        if isinstance(action, (AdjustedLogits, Noop)):
            action = self.add([ord(letter)], forced=False)
        return action

    def say(self, letters: str) -> Any:
        for letter in letters:
            action = self.draw(letter)
        return action

    def add(self, tokens: Sequence[int], *, forced: bool) -> Any:
        from quote_mod_sdk import Added

        self.text += self.tokenizer.decode(tokens)
        return self._answer(Added(self.request_id, 0, list(tokens), forced))

    def _answer(self, event: Any) -> Any:
        from quote_mod_sdk import Backtrack, ForceTokens

        action = self.mod(event, self.tokenizer)
        self.actions.append(action)
        if isinstance(action, ForceTokens):
            self.add(action.tokens, forced=True)
        if isinstance(action, Backtrack):
            assert action.n <= len(self.text), "more is taken back than was ever said"
            self.text = self.text[: len(self.text) - action.n]
            if action.tokens:
                self.add(action.tokens, forced=True)
        return action


def walk(constructor: Any, letters: str) -> tuple[Any, Any]:
    """A strategy and its state after some characters, each of which it must allow."""
    tokenizer = Letters()
    strategy = constructor.into_strategy(tokenizer)
    state = strategy.start(tokenizer)
    for letter in letters:
        assert ord(letter) in strategy.allowed_tokens(state, tokenizer), f"{letter!r} is not allowed in {letters!r}"
        strategy.step(state, ord(letter), tokenizer)
    return strategy, state


def may_follow(constructor: Any, letters: str) -> str:
    """The characters that may follow some others, in order."""
    strategy, state = walk(constructor, letters)
    return "".join(map(chr, sorted(strategy.allowed_tokens(state, Letters()))))
