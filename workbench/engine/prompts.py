"""Prompts as people give them: text, chat messages, token ids, or a batch of those."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from ..errors import PromptError
from ..models import HookedModel, Message

__all__ = ["Prompt", "TokenisedPrompt", "split_batch", "tokenised"]

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Raw text, token ids, or chat messages for the model's own template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedPrompt:
    tokens: list[int]
    conversation: tuple[Message, ...] = ()


def split_batch(prompt: Any) -> tuple[list[Prompt], bool]:
    """The prompts, and whether several were given (so that several results are wanted).

    :raises PromptError: nothing, or something that is no prompt.
    """
    if isinstance(prompt, (torch.Tensor, np.ndarray)):
        prompt = prompt.tolist()
    if isinstance(prompt, str):
        return [prompt], False
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise PromptError(
            f"a prompt is text, a list of chat messages, a list of token ids, or a list of those; got "
            f"{type(prompt).__name__}"
        )
    if not prompt:
        raise PromptError("the prompt is empty: give some text, chat messages or token ids")
    if isinstance(prompt[0], (int, np.integer, Mapping)):
        return [prompt], False
    return list(prompt), True


def tokenised(prompt: Any, model: HookedModel) -> TokenisedPrompt:
    """Token ids of one prompt, checked against vocabulary and context.

    :raises PromptError: empty, mixed, too long, or with ids outside the vocabulary.
    """
    if isinstance(prompt, (torch.Tensor, np.ndarray)):
        prompt = prompt.tolist()
    if not isinstance(prompt, (str, Sequence)):
        raise PromptError(
            f"in a batch every prompt is text, chat messages or token ids; one is {type(prompt).__name__} {prompt!r}"
        )
    if isinstance(prompt, str):
        found = TokenisedPrompt(tokens=model.tokenizer.prompt(prompt))
    elif not prompt:
        raise PromptError("one of the prompts is empty: give some text, chat messages or token ids")
    elif all(isinstance(item, Mapping) for item in prompt):
        messages = tuple(item for item in prompt if isinstance(item, Mapping))
        try:
            json.dumps([dict(message) for message in messages])
        except (TypeError, ValueError) as error:
            raise PromptError(f"chat messages must be plain data, JSON-able: {error}") from None
        found = TokenisedPrompt(tokens=model.tokenizer.chat(messages), conversation=messages)
    elif all(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in prompt):
        found = TokenisedPrompt(tokens=[int(item) for item in prompt if not isinstance(item, Mapping)])
    else:
        kinds = sorted({type(item).__name__ for item in prompt})
        raise PromptError(f"a prompt must be all token ids or all chat messages, got a list of {', '.join(kinds)}")
    _check(found.tokens, model)
    return found


def _check(tokens: Sequence[int], model: HookedModel) -> None:
    if not tokens:
        raise PromptError("the prompt has no tokens")
    if len(tokens) >= model.n_ctx:
        raise PromptError(
            f"the prompt has {len(tokens)} tokens; {model.name} holds n_ctx={model.n_ctx}, and at least one must "
            "be left for the output. Shorten the prompt."
        )
    for token in tokens:
        if not 0 <= token < model.vocab_size:
            raise PromptError(f"token id {token} in the prompt is outside the vocabulary 0..{model.vocab_size - 1}")
