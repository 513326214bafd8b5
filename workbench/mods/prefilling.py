"""Mods that act before the model sees a token: another prompt, or no model at all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..engine import ActionBuilder, Answer, Event, FunctionMod, Prefilled, mod
from ..errors import PromptError
from ..models import Message, Tokenizer

__all__ = ["canned_output", "replace_prefill"]


def replace_prefill(
    text: str | None = None,
    *,
    messages: Sequence[Message] | None = None,
    system: str | None = None,
    max_new_tokens: int | None = None,
) -> FunctionMod:
    """A mod that puts another prompt in place of the one given.

    Exactly one of ``text`` (raw), ``messages`` (through the model's chat template) and ``system`` (the chat
    as given, with this system message in front, instead of its own if it has one).

    :raises ValueError: none or several are given, or an empty one.
    :raises PromptError: while running, ``system`` with a prompt that is no chat.
    """
    given = {"text": text, "messages": messages, "system": system}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1 or not given[chosen[0]]:
        raise ValueError(
            f"replace_prefill() needs exactly one of text, messages and system, and not an empty one; got "
            f"{', '.join(f'{name}={given[name]!r}' for name in chosen) or 'none of them'}"
        )
    value: Any = given[chosen[0]] if messages is None else [dict(message) for message in messages]

    @mod(name="replace_prefill", params={chosen[0]: value, "max_new_tokens": max_new_tokens})
    def put_prompt(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        if not isinstance(event, Prefilled):
            return None
        if text is not None:
            return actions.adjust_prefill(tokenizer.prompt(text), max_new_tokens)
        chat = value if system is None else _with_system(system, event.conversation)
        return actions.adjust_prefill(tokenizer.chat(chat), max_new_tokens)

    return put_prompt


def _with_system(system: str, conversation: Sequence[Message]) -> list[Mapping[str, Any]]:
    if not conversation:
        raise PromptError(
            "replace_prefill(system=…) needs a chat, but the prompt is raw text or token ids: give the prompt "
            "as [{'role': 'user', 'content': …}], or use replace_prefill(text=…)"
        )
    return [{"role": "system", "content": system}, *(m for m in conversation if m.get("role") != "system")]


def canned_output(text: str, when: str | None = None) -> FunctionMod:
    """A mod that answers with ``text`` and never runs the model.

    ``when`` is a regular expression: only prompts whose text (chat template and all) it is found in are
    answered so.

    :raises ValueError: ``when`` is not a regular expression.
    """
    try:
        wanted = re.compile(when or "")
    except re.error as error:
        raise ValueError(f"canned_output(when={when!r}) is not a regular expression: {error}") from None

    @mod(name="canned_output", params={"text": text, "when": when})
    def answer_at_once(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        if isinstance(event, Prefilled) and wanted.search(event.text):
            return actions.force_output(tokenizer.encode(text))
        return None

    return answer_at_once
