"""The arguments of a call to generate, checked and made uniform: one set of everything per prompt."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import PromptError
from .mod import Mod
from .request import Lane, Request
from .result import Result
from .sampling import SamplingParams

__all__ = ["Mods", "Options", "Seeds", "StreamKey", "adopt", "checked_mods", "going_on", "mods_per_prompt", "seeds_for"]

Mods: TypeAlias = Sequence[Mod] | Sequence[Sequence[Mod]]
"""One list of mods for all prompts, or one list for each."""
Seeds: TypeAlias = int | Sequence[int | tuple[int, ...]] | None
"""One seed for all prompts, or one for each: a number, or a :data:`StreamKey`, all of it or its beginning."""
StreamKey: TypeAlias = tuple[int, int, int, int]
"""(seed, index, turn, taken): what a random stream is a function of, and how many of its numbers are gone."""

WORK_PER_TOKEN = 64
"""Default bound on work: forward tokens per output token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one call generates.

    :raises ValueError: a limit that is not a whole number of at least 1.
    """

    max_new_tokens: int
    sampling: SamplingParams
    seed: Seeds
    max_forward_tokens: int | None
    save: str | Path | None
    overwrite: bool

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, SamplingParams):
            raise ValueError(f"sampling must be SamplingParams(temperature=…, …), got {self.sampling!r}")
        for name in ("max_new_tokens", "max_forward_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} must be a whole number, 1 or more, got {value!r}")

    @property
    def work(self) -> int:
        """The bound on forward tokens."""
        return self.max_forward_tokens or WORK_PER_TOKEN * self.max_new_tokens


def checked_mods(mods: Sequence[Mod]) -> tuple[Mod, ...]:
    """The mods, if they all are.

    :raises TypeError: something else, often a handler without ``@mod`` or a factory without its brackets.
    """
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


def seeds_for(seed: Any, count: int) -> list[StreamKey]:
    """A random stream per request. Without a seed one is drawn and recorded, so that a run can be repeated."""
    if seed is None:
        seed = secrets.randbits(31)
    if isinstance(seed, Sequence):
        if len(seed) != count:
            raise ValueError(f"got {len(seed)} seeds for {count} prompts")
        keys = [item if isinstance(item, tuple) else (item,) for item in seed]
    else:
        keys = [(seed, index) for index in range(count)]
    try:
        whole = [[*map(operator.index, key), 0, 0, 0][:4] for key in keys]
        return [(value, index, turn, taken) for value, index, turn, taken in whole]
    except TypeError:
        raise ValueError(f"a seed is a whole number, got {seed!r}") from None


def adopt(after: Result, request: Request) -> Lane:
    """Go on in the row of an earlier request, keeping what its cache holds of the shared beginning.

    What the row holds is what its last writer left there, which may be another continuation. Positions that
    were computed under an edit are computed again without it: edits do not outlive their run, and the new
    run must be what its own trace says.

    :raises PromptError: the cache was released, or never was there.
    """
    lane = after.lane
    if lane is None or lane.cache is None:
        raise PromptError("this result holds no cache (it was released, or not generated here): use generate()")
    writer, same = lane.writer, 0
    most = min(len(request.tokens), writer.valid, len(writer.computed))
    while same < most and writer.tokens[same] == request.tokens[same] and not writer.computed[same]:
        same += 1
    request.row = writer.row
    request.valid = same
    request.computed = writer.computed[:same]
    lane.writer = request
    lane.turn += 1
    return lane


def going_on(after: Result, lane: Lane, seed: int, *, told: int) -> StreamKey:
    """The random stream of a run that goes on after another: of its own, but where that one was interrupted its rest.

    So an interrupted run and what follows it are together the run that was not interrupted. ``told`` is how long the
    new prompt is: with anything behind the old text it is a new turn.
    """
    request = after.request
    same = told == len(after.prompt_tokens) + len(after.tokens) and seed == after.seed
    if after.reason == "interrupted" and same and request is not None:
        return (seed, after.index, request.stream.turn, request.taken)
    return (seed, after.index, lane.turn, 0)
