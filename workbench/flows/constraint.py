"""Which tokens may come next: a strategy's grammar run over a tokenizer by llguidance.

A token is judged by its bytes, so answers of several tokens, leading spaces and tags that merge under BPE
need no care. Tokens that are marks of the format never count as text, and whether an answer ends is the
caller's decision: masks hold no end-of-text token.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.hf import from_tokenizer

from ..errors import FlowError
from ..models import Tokenizer
from ..shapes import Mask
from .strategies import ChoicesStrat, Strategy, grammar_of

__all__ = ["Constraint", "Matcher", "check_spelling"]

Value = TypeVar("Value")


class _Recent(Generic[Value]):
    """The last few things made, by key; safe between threads, and nothing is made twice at once."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[object, Value] = OrderedDict()

    def get(self, key: object, make: Callable[[], Value]) -> Value:
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)
            return self._values[key]

    def forget(self, key: object) -> None:
        with self._lock:
            self._values.pop(key, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """llguidance's view of a tokenizer, and which of its tokens are text."""

    ll: Any
    is_text: Mask


_vocabularies: _Recent[_Vocabulary] = _Recent(4)
_compiled: _Recent[Any] = _Recent(64)
"""Matchers at their start, by tokenizer and grammar; those in use are copies and share its automaton."""


class Constraint:
    """A strategy compiled for a tokenizer. Cheap to make again: grammars and vocabularies are remembered.

    ``vocab_size`` is the model's: masks are that long, and ids the tokenizer has no text for are never allowed.
    ``leading_space`` lets one space come before the answer, or not.

    :raises FlowError: the grammar is too large, or this tokenizer can't spell any answer (or one of the choices).
    """

    def __init__(
        self, strategy: Strategy, tokenizer: Tokenizer, vocab_size: int, *, leading_space: bool = False
    ) -> None:
        self.strategy = strategy
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        vocabulary = _vocabularies.get(tokenizer.fingerprint, lambda: _read(tokenizer))
        size = min(vocab_size, len(vocabulary.is_text))
        self._is_text = torch.zeros(vocab_size, dtype=torch.bool)
        self._is_text[:size] = vocabulary.is_text[:size]
        self._ll = vocabulary.ll
        self._grammar = grammar_of(strategy, leading_space=leading_space)
        if isinstance(strategy, ChoicesStrat):
            check_spelling(strategy.choices, tokenizer)
        if not self.start().can_continue:
            raise FlowError(f"no token can begin an answer to {_named(strategy)}: nothing fits it but an empty text")

    def start(self) -> Matcher:
        """A fresh matcher: one for each request and visit."""
        return Matcher(self, self._fresh(), ())

    def _fresh(self) -> Any:
        key = (self.tokenizer.fingerprint, self._grammar)
        return _compiled.get(key, lambda: _compile(self._ll, self._grammar)).deep_copy()

    def _forget(self) -> None:
        """Compile anew next time: copies share an automaton, which stays broken once it went beyond a limit."""
        _compiled.forget((self.tokenizer.fingerprint, self._grammar))


class Matcher:
    """One answer in the making. Made by :meth:`Constraint.start`."""

    def __init__(self, constraint: Constraint, ll: Any, tokens: Sequence[int]) -> None:
        self._constraint = constraint
        self._ll = ll
        self._tokens = list(tokens)
        self._allowed: Mask | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The answer's tokens so far."""
        return tuple(self._tokens)

    @property
    def complete(self) -> bool:
        """The answer may end here."""
        return bool(self._ll.is_accepting())

    @property
    def can_continue(self) -> bool:
        """Some token may follow."""
        return bool(self._mask().any())

    @property
    def finished(self) -> bool:
        """The answer must end here: it may, and nothing can follow."""
        return self.complete and not self.can_continue

    def mask(self) -> Mask:
        """True for each token that may come next, on the CPU; never for the end of the text. The caller's to keep.

        :raises FlowError: no token may follow, and yet the answer can't end: the tokenizer lacks a needed byte.
        """
        if not self.can_continue and not self.complete:
            raise FlowError(
                f"no token can follow {self._text()!r} in an answer to {_named(self._constraint.strategy)}, which is "
                "not complete there: this tokenizer has no text token for what must come next"
            )
        return self._mask().clone()

    def allowed_count(self) -> int:
        """How many tokens may come next."""
        return int(self._mask().sum())

    def forced(self) -> list[int]:
        """Tokens that must come next, canonically split, where the text is certain; often none."""
        size, is_text = self._constraint.vocab_size, self._constraint._is_text
        tokens: list[int] = self._ll.compute_ff_tokens()
        certain = next((i for i, token in enumerate(tokens) if token >= size or not is_text[token]), len(tokens))
        return tokens[:certain]

    def advance(self, token: int) -> None:
        """Take the next token.

        :raises FlowError: it is not allowed here; the matcher stays as it was.
        """
        allowed = 0 <= token < self._constraint.vocab_size and bool(self._constraint._is_text[token])
        if not (allowed and self._ll.try_consume_tokens([token]) == 1):
            self._raise_if_broken()
            raise FlowError(self._not_allowed(token))
        self._raise_if_broken()
        self._tokens.append(token)
        self._allowed = None

    def advance_all(self, tokens: Sequence[int]) -> None:
        """Take several tokens, all or none.

        :raises FlowError: one of them is not allowed.
        """
        before = len(self._tokens)
        try:
            for token in tokens:
                self.advance(token)
        except FlowError:
            self.rollback(len(self._tokens) - before)
            raise

    def rollback(self, n: int) -> None:
        """Take back the last ``n`` tokens.

        :raises FlowError: fewer were taken.
        """
        if not 0 <= n <= len(self._tokens):
            raise FlowError(f"can't take back {n} tokens of an answer: it has {len(self._tokens)}")
        if n == 0:
            return
        del self._tokens[-n:]
        if not self._ll.rollback(n):  # some options of a grammar forbid it, and a broken matcher too: walk again
            self._constraint._forget()
            self._ll = self._constraint._fresh()
            self._ll.try_consume_tokens(self._tokens)
            self._raise_if_broken()
        self._allowed = None

    def copy(self) -> Matcher:
        """The same answer so far, going its own way from here."""
        return Matcher(self._constraint, self._ll.deep_copy(), self._tokens)

    def _mask(self) -> Mask:
        if self._allowed is None:
            is_text = self._constraint._is_text
            packed = np.frombuffer(self._ll.compute_bitmask(), dtype=np.uint8)
            self._raise_if_broken()
            bits = torch.from_numpy(np.unpackbits(packed, bitorder="little").view(np.bool_))[: len(is_text)]
            mask = torch.zeros_like(is_text)
            torch.logical_and(bits, is_text[: len(bits)], out=mask[: len(bits)])
            self._allowed = mask
        return self._allowed

    def _raise_if_broken(self) -> None:
        if self._ll.is_error():
            self._constraint._forget()
            raise FlowError(
                f"the grammar of {_named(self._constraint.strategy)} went beyond llguidance's limits after "
                f"{self._text()!r}: {_first_line(self._ll.get_error())}"
            )

    def _not_allowed(self, token: int) -> str:
        tokenizer = self._constraint.tokenizer
        known = 0 <= token < len(tokenizer)
        shown = f"{token} ({tokenizer.token_text(token)!r})" if known else f"{token} (no such token)"
        state = "complete and can't go on" if self.finished else f"open to {self.allowed_count():,} other tokens"
        return f"token {shown} can't follow {self._text()!r}: the answer is {state}"

    def _text(self) -> str:
        text = self._constraint.tokenizer.decode(self._tokens)
        return text if len(text) <= 80 else "…" + text[-79:]


def _read(tokenizer: Tokenizer) -> _Vocabulary:
    size = len(tokenizer)
    ll = from_tokenizer(tokenizer.hf, n_vocab=size)
    marks = [token for token in range(size) if tokenizer.is_special(token) or token in tokenizer.eos_token_ids]
    mistaken = set(tokenizer.hf.added_tokens_decoder) - set(marks)
    if any(ll.is_special_token(token) for token in mistaken):
        ll = _reread(tokenizer, ll, marks)
    is_text = torch.ones(size, dtype=torch.bool)
    is_text[marks] = False
    return _Vocabulary(ll=ll, is_text=is_text)


def _reread(tokenizer: Tokenizer, ll: Any, marks: list[int]) -> Any:
    """llguidance takes Gemma's ``<table>`` for a mark, which is text there: tell it what is text, token by token."""

    class Words:
        eos_token_id = tokenizer.hf.eos_token_id
        bos_token_id = tokenizer.hf.bos_token_id
        tokens = [ll.decode_bytes([token]) for token in range(len(tokenizer))]  # noqa: RUF012
        special_token_ids = marks

        def __call__(self, text: str) -> list[int]:
            return tokenizer.encode(text)

    return LLTokenizer(TokenizerWrapper(Words()), n_vocab=len(tokenizer))


def _compile(ll: Any, grammar: str) -> Any:
    matcher = LLMatcher(ll, LLMatcher.grammar_from_lark(grammar), log_level=0)
    if matcher.is_error():
        raise FlowError(f"llguidance can't compile this answer's grammar: {_first_line(matcher.get_error())}")
    return matcher


def check_spelling(choices: Sequence[str], tokenizer: Tokenizer) -> None:
    """Look whether the tokenizer reads every choice as text.

    :raises FlowError: one holds a mark such as ``<eos>``, or bytes that no token has.
    """
    vocabulary = _vocabularies.get(tokenizer.fingerprint, lambda: _read(tokenizer))
    for choice in choices:
        tokens = tokenizer.encode(choice)
        if marks := [token for token in tokens if not vocabulary.is_text[token]]:
            raise FlowError(
                f"this tokenizer does not read the choice {choice!r} as text: it finds "
                f"{tokenizer.token_text(marks[0])!r} in it, a mark of the format. Choose other words"
            )
        if vocabulary.ll.decode_bytes(tokens) != choice.encode():
            raise FlowError(f"this tokenizer can't spell the choice {choice!r}: it has no token for some of its bytes")


def _named(strategy: Strategy) -> str:
    text = repr(strategy)
    return text if len(text) <= 120 else text[:117] + "..."


def _first_line(error: str) -> str:
    return error.strip().split("\n", 1)[0] or "no reason given"
