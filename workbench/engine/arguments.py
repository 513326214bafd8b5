"""The arguments of a call to generate, made uniform: mods and seeds per prompt, a cache to go on from."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeAlias

from ..errors import PromptError
from ..models import Cache
from .mod import Mod
from .request import Request
from .result import Result

__all__ = ["Mods", "adopt", "checked_mods", "mods_per_prompt", "seeds_for"]

Mods: TypeAlias = Sequence[Mod] | Sequence[Sequence[Mod]]
"""One list of mods for all prompts, or one list for each."""


def checked_mods(mods: Sequence[Mod]) -> tuple[Mod, ...]:
    for mod in mods:
        if not isinstance(mod, Mod):
            raise TypeError(
                f"{mod!r} is not a mod: decorate its handler(event, actions, tokenizer) with @mod; a factory "
                "such as calculator needs its brackets: calculator()"
            )
    return tuple(mods)


def mods_per_prompt(mods: Mods, count: int) -> list[tuple[Mod, ...]]:
    """One tuple of mods per prompt: the same for all, or as given."""
    nested = [own for own in mods if isinstance(own, (list, tuple))]
    if not nested:
        return [checked_mods(mods)] * count  # type: ignore[arg-type]
    if len(nested) != len(mods) or len(nested) != count:
        raise ValueError(f"mods must be one list for all prompts, or one list for each of the {count} prompts")
    return [checked_mods(own) for own in nested]


def seeds_for(seed: int | Sequence[int] | None, count: int) -> list[tuple[int, int]]:
    """(seed, index) per request. Without a seed one is drawn and recorded, so that a run can be repeated."""
    if seed is None:
        seed = secrets.randbits(31)
    if isinstance(seed, int):
        return [(seed, index) for index in range(count)]
    if len(seed) != count:
        raise ValueError(f"got {len(seed)} seeds for {count} prompts")
    return [(int(value), 0) for value in seed]


def adopt(after: Result, request: Request) -> Cache:
    """Go on in the row of an earlier request, keeping what its cache holds of the shared beginning."""
    before, cache = after.request, after.cache
    if before is None or cache is None:
        raise PromptError("this result holds no cache: it was loaded, not generated here")
    same = 0
    while same < min(len(before.tokens), len(request.tokens)) and before.tokens[same] == request.tokens[same]:
        same += 1
    request.row = before.row
    request.valid = min(same, before.valid)
    request.computed = before.computed[: request.valid]
    return cache
