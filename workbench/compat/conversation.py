"""Chat messages and tool schemas of the request whose mod is being called, under the SDK's names."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

from ..engine import tool_call_pairs as all_pairs
from ..errors import CompatError
from .remembering import remember

__all__ = [
    "clear_conversation",
    "get_conversation",
    "get_schemas",
    "pop_request_context",
    "push_request_context",
    "request_context",
    "set_conversation",
    "set_schemas",
    "tool_call_pairs",
]

_active: ContextVar[str | None] = ContextVar("request whose mod is being called", default=None)
_conversations: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
_schemas: OrderedDict[str, list[Any]] = OrderedDict()
_lock = threading.Lock()


def set_conversation(request_id: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Keep a copy of a request's messages until ``clear_conversation``.

    :raises CompatError: they are no list of messages.
    """
    kept = [copy.deepcopy(dict(message)) for message in _messages(messages)]
    with _lock:
        remember(_conversations, request_id, kept)  # a request that failed is never cleared


def get_conversation(request_id: str | None = None) -> list[dict[str, Any]]:
    """A copy of the active request's messages; an empty list for a raw prompt, or outside a mod.

    :raises PermissionError: another request's messages were asked for.
    """
    wanted = _checked(request_id)
    with _lock:
        return copy.deepcopy(_conversations.get(wanted or "", []))


def clear_conversation(request_id: str) -> None:
    """Forget a request's messages and schemas."""
    with _lock:
        _conversations.pop(request_id, None)
        _schemas.pop(request_id, None)


def set_schemas(request_id: str, schemas: Sequence[Any]) -> None:
    """Keep the JSON Schemas that a request's mods may ask for: nothing here sets them, so a program of yours does."""
    with _lock:
        remember(_schemas, request_id, copy.deepcopy(list(schemas)))


def get_schemas(request_id: str | None = None) -> list[Any]:
    """The active request's schemas, or an empty list.

    :raises PermissionError: another request's schemas were asked for.
    """
    wanted = _checked(request_id)
    with _lock:
        return copy.deepcopy(_schemas.get(wanted or "", []))


def push_request_context(request_id: str) -> Token[str | None]:
    """Make a request the active one; give what comes back to ``pop_request_context``."""
    return _active.set(request_id)


def pop_request_context(token: Token[str | None]) -> None:
    """Make the request active that was before."""
    _active.reset(token)


@contextmanager
def request_context(request_id: str) -> Iterator[None]:
    """A request is the active one inside this."""
    token = push_request_context(request_id)
    try:
        yield
    finally:
        pop_request_context(token)


def tool_call_pairs(messages: Sequence[Mapping[str, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Each tool call of ``messages`` (the active request's, if None) with the tool message that answers it.

    Calls that nobody answered are left out.

    :raises CompatError: ``messages`` is no list of messages.
    """
    found = all_pairs(get_conversation() if messages is None else _messages(messages))
    return [(call, reply) for call, reply in found if reply is not None]


def _messages(messages: Any) -> Sequence[Mapping[str, Any]]:
    listed = isinstance(messages, Sequence) and not isinstance(messages, str)
    if not listed or not all(isinstance(message, Mapping) for message in messages):
        raise CompatError(
            f'a conversation is a list of messages such as {{"role": "user", "content": "…"}}, got {messages!r:.60}'
        )
    given: Sequence[Mapping[str, Any]] = messages
    return given


def _checked(request_id: str | None) -> str | None:
    active = _active.get()
    if request_id is not None and active is not None and request_id != active:
        raise PermissionError(f"the mod of request {active!r} may not read the conversation of {request_id!r}")
    return active if request_id is None else request_id
