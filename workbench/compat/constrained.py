"""The older form of a self-prompt: a prompt, the allowed responses, and what to erase, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import CompatError
from .adapter import ModCallable
from .self_prompt import EraseMode, self_prompt_mod
from .strategy_constructor import ChoicesStrat

__all__ = ["self_prompt_constrained_mod"]

ERASED = {None: EraseMode.NONE, "none": EraseMode.NONE, "prompt_only": EraseMode.PROMPT, "all": EraseMode.ALL}


def self_prompt_constrained_mod(
    prompt_text: str | None = None,
    allowed_responses: Sequence[str] = (),
    *,
    prompt_tokens: Sequence[int] | None = None,
    mask_value: float = -1e9,
    tokenizer: Any = None,
    completion_text: str | None = "\n",
    erase_after_complete: str | None = None,
) -> ModCallable:
    """A mod that asks once and takes one of ``allowed_responses``.

    ``tokenizer`` is not needed: the run's own is used.

    :raises CompatError: not exactly one form of prompt, no responses, or no such ``erase_after_complete``.
    """
    if (prompt_text is None) == (prompt_tokens is None):
        raise CompatError("give the prompt either as prompt_text=… or as prompt_tokens=…")
    if erase_after_complete not in ERASED:
        raise CompatError(f"erase_after_complete is None, 'prompt_only' or 'all', got {erase_after_complete!r}")
    prompt = {"text": prompt_text} if prompt_tokens is None else {"tokens": list(prompt_tokens)}
    return self_prompt_mod(
        prompt=prompt,
        strategy=ChoicesStrat(list(allowed_responses)),
        completion=completion_text,
        erase=ERASED[erase_after_complete],
        mask_value=mask_value,
    )
