"""What a self-prompt is made of: its prompt, its suffix, its choices; and the masking of logits."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from ..errors import CompatError
from ..flows import EraseMode
from .checks import member, text_given, token_ids
from .strategy_constructor import ChoicesStrat, ListStrat, StrategyConstructor

__all__ = ["checked_prompt", "erase_mode", "masked", "places_of", "suffix_of", "with_choices"]


def masked(logits: Any, allowed: Any, barred: Any, value: float) -> Any:
    """Logits of the same kind with ``value`` at all but the allowed tokens (all, if none are named) and at the barred.

    ``logits`` has ``to_numpy()`` and its class ``from_numpy()``; the vocabulary is the last axis.
    """
    given = np.asarray(logits.to_numpy())
    changed = np.array(given, copy=True)
    if allowed:
        places = places_of(allowed, given.shape[-1])
        changed[...] = value
        changed[..., places] = given[..., places]
    changed[..., places_of(barred, given.shape[-1])] = value
    return type(logits).from_numpy(changed)


def places_of(tokens: AbstractSet[int], size: int) -> np.ndarray[Any, Any]:
    """Token ids as an array, less those outside ``0..size-1``."""
    return _whole_vocabulary(tokens, size) if isinstance(tokens, frozenset) else _array(tokens, size)


@functools.lru_cache(maxsize=8)
def _whole_vocabulary(tokens: frozenset[int], size: int) -> np.ndarray[Any, Any]:
    """Sets that do not change are nearly all of the vocabulary, and asked for at every step."""
    return _array(tokens, size)


def _array(tokens: AbstractSet[int], size: int) -> np.ndarray[Any, Any]:
    found = np.fromiter(tokens, dtype=np.int64, count=len(tokens))
    return found[(found >= 0) & (found < size)]


def checked_prompt(prompt: Mapping[str, Any] | None) -> dict[str, Any]:
    if prompt is None:
        return {}
    if not isinstance(prompt, Mapping) or set(prompt) not in ({"text"}, {"tokens"}):
        raise CompatError(f'a prompt is {{"text": "…"}} or {{"tokens": […]}}, got {prompt!r}')
    if "tokens" in prompt:
        return {"tokens": token_ids(prompt["tokens"], "a prompt's 'tokens'")}
    return {"text": text_given(prompt["text"], "a prompt's 'text'")}


def erase_mode(erase: EraseMode | str | None) -> EraseMode:
    """What to erase; None erases nothing."""
    return EraseMode.NONE if erase is None else member(EraseMode, erase, "what to erase")


def suffix_of(completion: str | Mapping[str, Any] | None) -> str:
    if completion is None or isinstance(completion, str):
        return completion or ""
    if not isinstance(completion, Mapping) or not set(completion) <= {"suffix", "force"}:
        raise CompatError(f'a completion is a text or {{"suffix": "…", "force": bool}}, got {completion!r}')
    return str(completion.get("suffix") or "") if completion.get("force", True) else ""


def with_choices(strategy: StrategyConstructor, responses: Sequence[str], idx: int | None) -> StrategyConstructor:
    if isinstance(strategy, ChoicesStrat):
        return ChoicesStrat(responses)
    if isinstance(strategy, ListStrat):
        single = isinstance(strategy.elements, StrategyConstructor)
        elements: list[Any] = [strategy.elements] if single else list(strategy.elements)  # type: ignore[arg-type]
        place = 0 if idx is None else idx
        if 0 <= place < len(elements) and isinstance(elements[place], ChoicesStrat):
            elements[place] = ChoicesStrat(responses)
            return ListStrat(
                elements[0] if single else elements, strategy.open, strategy.close, strategy.wrap, strategy.sep,
                strategy.min, strategy.max, strategy.end_with,
            )  # fmt: skip
    raise CompatError(f"refresh_responses: {type(strategy).__name__} has no choices at {idx if idx is not None else 0}")
