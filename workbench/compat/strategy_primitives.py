"""Three of the SDK's strategies: one of some choices, text up to a mark, characters of a kind.

Token sequences are the ones in which the tokenizer itself writes a text, so an answer is never split in a way
the model has not seen. Where an answer ends is seen in its text, so a token that holds the end and more ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import regex

from ..errors import CompatError
from ..flows import CharsMode
from .strategy_base import Literal, OpenEnded, RuntimeState, decode_token, vocabulary

__all__ = ["CharsMode", "CharsStrategy", "ChoicesStrategy", "UntilEndType", "UntilStrategy", "refuse"]

FLOAT = regex.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
LOOKED_BACK = 64
"""Tokens at an answer's end in which its closing mark is looked for."""


class UntilEndType(StrEnum):
    """``TAG``: one text ends the answer; ``ANYCHAR``: each of some characters does; ``NEWLINE``: a line break."""

    TAG = "tag"
    ANYCHAR = "anychar"
    NEWLINE = "newline"


def refuse(token: int, tokenizer: Any) -> CompatError:
    """The error of a token that is not allowed."""
    return CompatError(f"token {token} ({decode_token(tokenizer, token)!r}) is not allowed here by the strategy")


@dataclass(slots=True)
class ChoiceState(RuntimeState):
    choices: Literal
    tokens: list[int] = field(default_factory=list)


class ChoicesStrategy(OpenEnded):
    """Exactly one of some texts. One that begins another may end there or go on."""

    def __init__(self, choices: Sequence[str]) -> None:
        self.choices = tuple(choices)

    def start(self, tokenizer: Any) -> ChoiceState:
        return ChoiceState(Literal(self.choices, tokenizer))

    def allowed_tokens(self, state: ChoiceState, tokenizer: Any) -> AbstractSet[int]:
        return state.choices.next(state.tokens)

    def step(self, state: ChoiceState, token_id: int, tokenizer: Any) -> None:
        if token_id not in self.allowed_tokens(state, tokenizer):
            raise refuse(token_id, tokenizer)
        state.tokens.append(token_id)

    def is_complete(self, state: ChoiceState) -> bool:
        return state.choices.whole(state.tokens)

    def may_end(self, state: ChoiceState) -> bool:
        return self.is_complete(state)


@dataclass(slots=True)
class UntilState(RuntimeState):
    opening: list[int]
    """Tokens of the start that are still to come."""
    tokens: list[int] = field(default_factory=list)
    done: bool = False


class UntilStrategy(OpenEnded):
    """Text that begins with ``start`` and ends where, after it, its closing mark first appears."""

    def __init__(self, start: str, end_type: UntilEndType, end: str) -> None:
        self.opening = start
        self.marks = (end,) if end_type is UntilEndType.TAG else tuple(end)

    def start(self, tokenizer: Any) -> UntilState:
        sequences = Literal([self.opening], tokenizer).sequences
        return UntilState(opening=list(sequences[0]))

    def allowed_tokens(self, state: UntilState, tokenizer: Any) -> AbstractSet[int]:
        if state.opening:
            return {state.opening[0]}
        return frozenset() if state.done else vocabulary(tokenizer).all

    def step(self, state: UntilState, token_id: int, tokenizer: Any) -> None:
        if token_id not in self.allowed_tokens(state, tokenizer):
            raise refuse(token_id, tokenizer)
        if state.opening:
            del state.opening[0]
            return
        state.tokens.append(token_id)
        text = str(tokenizer.decode(state.tokens[-LOOKED_BACK:]))
        state.done = any(mark in text for mark in self.marks)

    def is_complete(self, state: UntilState) -> bool:
        return state.done

    def may_end(self, state: UntilState) -> bool:
        return state.done

    def trim_answer(self, answer: str) -> str:
        """The answer up to its closing mark, which belongs to it; what the same token held behind it does not."""
        body = answer[len(self.opening) :]
        ends = [body.index(mark) + len(mark) for mark in self.marks if mark in body]
        return self.opening + body[: min(ends)] if ends else answer


@dataclass(slots=True)
class CharsState(RuntimeState):
    text: str = ""
    count: int = 0
    stopping: list[int] = field(default_factory=list)
    """Tokens of the stop text so far, where it is written in tokens of its own."""
    enders: Mapping[int, str] = field(default_factory=dict)
    """Tokens that hold characters and the stop text behind them, with the characters."""
    plain: AbstractSet[int] = frozenset()
    """Tokens of the kind that do not hold the stop text."""
    done: bool = False


class CharsStrategy(OpenEnded):
    """Characters of one kind: at most ``stop`` of them, or up to the first time that the text ``stop`` appears.

    With a number and no minimum the answer has exactly ``stop`` characters; with a minimum it may end from there on.
    A stop text is generated and does not belong to the answer.
    """

    def __init__(self, mode: CharsMode, stop: int | str, min_chars: int = 0) -> None:
        self.mode = CharsMode(mode)
        self.stop = stop
        self.least = min_chars

    def start(self, tokenizer: Any) -> CharsState:
        if isinstance(self.stop, int):
            return CharsState()
        plain, enders = vocabulary(tokenizer).before(self.stop, self.mode, self._is_kind)
        return CharsState(plain=plain, enders=enders)

    def allowed_tokens(self, state: CharsState, tokenizer: Any) -> AbstractSet[int]:
        if state.done:
            return frozenset()
        ending = self._ending(state, tokenizer)
        if state.stopping:
            return ending
        fitting = state.plain
        if isinstance(self.stop, int):
            lengths = vocabulary(tokenizer).lengths(self.mode, self._is_kind)
            fitting = {token for token, size in lengths.items() if size <= self.stop - state.count}
        if self.mode is CharsMode.JS_FLOAT:
            texts = vocabulary(tokenizer).texts
            fitting = {token for token in fitting if FLOAT.fullmatch(state.text + texts[token], partial=True)}
        return fitting | ending if ending else fitting

    def _ending(self, state: CharsState, tokenizer: Any) -> set[int]:
        """Tokens that bring the stop text, or its next part."""
        if isinstance(self.stop, int):
            return set()
        enough = self._enough(state.text, state.count)
        found = Literal([self.stop], tokenizer).next(state.stopping) if enough else set()
        if not state.stopping:
            for token, body in state.enders.items():
                if self._enough(state.text + body, state.count + len(body)):
                    found.add(token)
        return found

    def _enough(self, text: str, count: int) -> bool:
        return count >= self.least and (self.mode is not CharsMode.JS_FLOAT or FLOAT.fullmatch(text) is not None)

    def _is_kind(self, text: str) -> bool:
        match self.mode:
            case CharsMode.ALPHA:
                return text.isalpha()
            case CharsMode.NUMERIC:
                return text.isascii() and text.isdigit()
            case CharsMode.ALPHANUMERIC:
                return all(one.isalpha() or (one.isascii() and one.isdigit()) for one in text)
            case CharsMode.JS_FLOAT:
                return set(text) <= set("0123456789+-.eE")
            case _:
                return True

    def step(self, state: CharsState, token_id: int, tokenizer: Any) -> None:
        if token_id not in self.allowed_tokens(state, tokenizer):
            raise refuse(token_id, tokenizer)
        text = decode_token(tokenizer, token_id)
        if self._is_kind(text) and not state.stopping:
            state.count += len(text)
        else:
            state.stopping.append(token_id)
        state.text += text
        state.done = state.count >= self.stop if isinstance(self.stop, int) else self.stop in state.text

    def is_complete(self, state: CharsState) -> bool:
        return state.done

    def may_end(self, state: CharsState) -> bool:
        if state.done:
            return True
        return isinstance(self.stop, int) and self.least > 0 and self._enough(state.text, state.count)

    def trim_answer(self, answer: str) -> str:
        return answer.partition(self.stop)[0] if isinstance(self.stop, str) else answer
