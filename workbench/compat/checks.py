"""Checks of what a user's mod gives, each of which says what was got, what is allowed and what to do."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, TypeVar

from ..errors import CompatError

__all__ = ["callable_given", "member", "text_given", "token_ids"]

Kind = TypeVar("Kind", bound=StrEnum)
Given = TypeVar("Given")


def token_ids(tokens: Iterable[Any], what: str, error: type[ValueError] = CompatError) -> list[int]:
    """Token ids as plain whole numbers; NumPy's are taken too.

    :raises CompatError: (or ``error``) a text, something that is no list, or an entry that is no whole number.
    """
    try:
        return [operator.index(token) for token in tokens]
    except TypeError:
        raise error(
            f"{what} takes a list of token ids (whole numbers), got {repr(tokens)[:60]}: make them of a text with "
            "tokenizer.encode(text, add_special_tokens=False)"
        ) from None


def member(kind: type[Kind], value: Any, what: str) -> Kind:
    """A member of an enumeration, from itself or from its value.

    :raises CompatError: it has no such member.
    """
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(f"{kind.__name__}.{one.name}" for one in kind)
        raise CompatError(f"{what} is one of {allowed}, got {value!r}") from None


def callable_given(fn: Given, what: str) -> Given:
    """``fn``, which can be called.

    :raises CompatError: it can't.
    """
    if not callable(fn):
        raise CompatError(f"{what}, got {fn!r}")
    return fn


def text_given(text: Any, what: str) -> str:
    """``text``, which is one.

    :raises CompatError: it is not.
    """
    if not isinstance(text, str):
        raise CompatError(f"{what} is a text, got {text!r}")
    return text
