"""What a strategy is to a self-prompt: a walk over tokens that says which may come next and whether it may end."""

from __future__ import annotations

import abc
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol, runtime_checkable

from .remembering import remember
from .tokenizer import tokenize

__all__ = [
    "Literal",
    "OpenEnded",
    "RuntimeState",
    "Strategy",
    "Vocabulary",
    "decode_token",
    "require_token_ids",
    "tokenize_str",
    "vocabulary",
]


class RuntimeState:
    """Where an answer stands; each strategy has a subclass or an object of its own."""


@runtime_checkable
class Strategy(Protocol):
    """What the SDK asks of a strategy; users write their own too.

    A strategy of ours is an ``OpenEnded`` as well, which knows answers that may end or go on.
    """

    def start(self, tokenizer: Any) -> Any:
        """The state of a new answer."""
        ...

    def allowed_tokens(self, state: Any, tokenizer: Any) -> AbstractSet[int]:
        """Tokens that may come next; an empty set says nothing."""
        ...

    def disallowed_tokens(self, state: Any, tokenizer: Any) -> AbstractSet[int]:
        """Tokens that may not come next."""
        ...

    def step(self, state: Any, token_id: int, tokenizer: Any) -> Any:
        """Take the next token."""
        ...

    def is_complete(self, state: Any) -> bool:
        """Whether the answer is one."""
        ...


class OpenEnded(abc.ABC):
    """A strategy of ours: it says where an answer may end though it could go on, and leaves what is not answer out."""

    @abc.abstractmethod
    def start(self, tokenizer: Any) -> Any:
        """The state of a new answer."""

    @abc.abstractmethod
    def allowed_tokens(self, state: Any, tokenizer: Any) -> AbstractSet[int]:
        """Tokens with which the answer may go on."""

    @abc.abstractmethod
    def step(self, state: Any, token_id: int, tokenizer: Any) -> None:
        """Take the next token.

        :raises CompatError: it is not allowed here.
        """

    @abc.abstractmethod
    def is_complete(self, state: Any) -> bool:
        """Whether the answer is one."""

    @abc.abstractmethod
    def may_end(self, state: Any) -> bool:
        """Whether the answer could end here, though more may follow."""

    def disallowed_tokens(self, state: Any, tokenizer: Any) -> AbstractSet[int]:
        return set()

    def trim_answer(self, answer: str) -> str:
        """The answer without what only marks its end."""
        return answer


def tokenize_str(text: str | None, tokenizer: Any) -> list[int]:
    """The tokens of a text, none for None or an empty one."""
    return tokenize(text, tokenizer)


def decode_token(tokenizer: Any, token_id: int) -> str:
    """The text of one token; an empty text for a mark of the format."""
    return str(tokenizer.decode([int(token_id)], skip_special_tokens=True))


def require_token_ids(tokenizer: Any) -> set[int]:
    """Every token id of a tokenizer: those of its ``get_vocab()``, or as many as its length says."""
    listed = getattr(tokenizer, "get_vocab", None)  # a tokenizer of the user's own may lack it
    return set(range(len(tokenizer))) if listed is None else {int(token) for token in listed().values()}


KEPT_VOCABULARIES = 4
KEPT_STOPS = 32


class Vocabulary:
    """The texts of a tokenizer's tokens, read once; marks of the format have none and are left out."""

    def __init__(self, tokenizer: Any) -> None:
        end = getattr(tokenizer, "eos_token_id", None)  # a tokenizer of the user's own may lack it
        self.texts = {
            token: text
            for token in sorted(require_token_ids(tokenizer))
            if token != end and (text := decode_token(tokenizer, token))
        }
        self.all = frozenset(self.texts)
        self._lengths: dict[str, dict[int, int]] = {}
        self._stops: OrderedDict[tuple[str, str], tuple[frozenset[int], dict[int, str]]] = OrderedDict()

    def lengths(self, name: str, accepts: Callable[[str], bool]) -> dict[int, int]:
        """Characters of each token that consists of a kind of character; ``name`` is what it is remembered by."""
        if name not in self._lengths:
            self._lengths[name] = {token: len(text) for token, text in self.texts.items() if accepts(text)}
        return self._lengths[name]

    def before(self, stop: str, name: str, accepts: Callable[[str], bool]) -> tuple[frozenset[int], dict[int, str]]:
        """Tokens of a kind of character that do not hold ``stop``, and those that end with it after such characters.

        The second maps each to its characters. ``name`` is what the kind is remembered by.
        """
        if (name, stop) in self._stops:
            return self._stops[name, stop]
        plain = frozenset(token for token in self.lengths(name, accepts) if stop not in self.texts[token])
        enders = {}
        for token, text in self.texts.items():
            body = text.removesuffix(stop)
            if body and len(body) < len(text) and stop not in body and accepts(body):
                enders[token] = body
        return remember(self._stops, (name, stop), (plain, enders), KEPT_STOPS)


_vocabularies: OrderedDict[int, tuple[Any, Vocabulary]] = OrderedDict()
"""By the identity of a tokenizer, which is kept too, so that no other can take that identity."""
_lock = threading.Lock()


def vocabulary(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a tokenizer; the last few are remembered."""
    with _lock:
        if id(tokenizer) not in _vocabularies:
            remember(_vocabularies, id(tokenizer), (tokenizer, Vocabulary(tokenizer)), KEPT_VOCABULARIES)
        _vocabularies.move_to_end(id(tokenizer))
        return _vocabularies[id(tokenizer)][1]


class Literal:
    """Some texts, one of which must come, as the token sequences in which the tokenizer writes them."""

    def __init__(self, texts: Iterable[str], tokenizer: Any) -> None:
        self.sequences = tuple(dict.fromkeys(tuple(tokenize(text, tokenizer)) for text in texts))

    def next(self, so_far: Sequence[int]) -> set[int]:
        """Tokens that may follow ``so_far``."""
        n, begun = len(so_far), tuple(so_far)
        return {one[n] for one in self.sequences if len(one) > n and one[:n] == begun}

    def whole(self, so_far: Sequence[int]) -> bool:
        """Whether ``so_far`` is one of them."""
        return tuple(so_far) in self.sequences
