"""Going on with a conversation after a tool answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import PromptError
from ..models import HookedModel
from .prompts import TokenisedPrompt, tokenised
from .result import Result

__all__ = ["continued"]


def continued(
    result: Result, tool_results: str | Sequence[int] | Sequence[Mapping[str, Any]] | None, model: HookedModel
) -> TokenisedPrompt:
    """The context after ``result`` and what the tools returned; generated token ids stay as they are.

    :raises PromptError: tool messages for a run that was no chat, nothing at all, or a full context.
    """
    so_far = [*result.prompt_tokens, *result.tokens]
    if tool_results is None:
        return _checked(so_far, result.conversation, model)
    if not tool_results:
        raise PromptError("there are no tool results to go on with; to go on without any give None")
    if isinstance(tool_results, str):
        return _checked(so_far + model.tokenizer.encode(tool_results), (), model)  # no longer a chat by turns
    ids = [item for item in tool_results if isinstance(item, int)]
    if len(ids) == len(tool_results):
        return _checked(so_far + ids, (), model)
    if not result.conversation:
        raise PromptError("the run was not a chat: give the tool results as text or token ids")
    reply: dict[str, Any] = {"role": "assistant", "content": result.text}
    if result.tool_calls is not None:
        calls = result.tool_calls
        reply["tool_calls"] = [calls] if isinstance(calls, Mapping) else calls
    replies = [dict(item) for item in tool_results if isinstance(item, Mapping)]
    messages = (*result.conversation, reply, *replies)
    return _checked(so_far + _rest(result, messages, model), messages, model)


def _rest(result: Result, messages: Sequence[Mapping[str, Any]], model: HookedModel) -> list[int]:
    """What the template puts behind the generated text: the end of that turn, the tool's, the next opening.

    The generated text itself is never tokenised again; some templates strip it, so both forms are looked for.
    """
    tokenizer = model.tokenizer
    whole = tokenizer.render_chat(messages)
    begun = tokenizer.render_chat(result.conversation)
    for spoken in (result.text, result.text.rstrip(), result.text.strip()):
        if whole.startswith(begun + spoken):
            rest = whole[len(begun + spoken) :]
            break
    else:
        raise PromptError(
            "the chat template rewrites earlier turns, so the cache can't be kept: "
            "call generate() with the whole conversation instead"
        )
    if result.tokens and result.tokens[-1] in tokenizer.eos_token_ids:
        rest = rest.removeprefix(tokenizer.decode(result.tokens[-1]))
    return tokenizer.encode(rest)


def _checked(tokens: list[int], conversation: Sequence[Any], model: HookedModel) -> TokenisedPrompt:
    tokenised(tokens, model)
    return TokenisedPrompt(tokens=tokens, conversation=tuple(conversation))
