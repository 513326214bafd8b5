"""One request of a trace as a sequence to look at: the prompt, what stayed, and at its place what was taken back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from workbench.errors import ReportError
from workbench.models import HookedModel
from workbench.reports import Words, checked_model
from workbench.trace import ACTION, History, Record, TokenLife, Trace

__all__ = ["PROMPT", "Branching", "Item", "Reading"]

TAKES_BACK = frozenset({"backtrack", "force_output"})
"""Actions that remove tokens."""

PROMPT = "prompt"
"""Origin of the prompt's tokens, beside those that a trace knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A token at its place in the display. Prompt tokens have negative uids: -1 is the last of them."""

    life: TokenLife
    branch: int | None = None
    """Number of the branch it was taken back with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branching:
    """Tokens that were taken back together, with where they hung."""

    step: int
    mod: str | None
    lives: tuple[TokenLife, ...]
    position: int
    """Where the sequence ended afterwards."""
    anchor: int
    """How many visible tokens stand before it in the display."""


class Reading:
    """One request of a trace, read once. A trace that grows is read again by a new one.

    :raises TraceError: no such request, or several and none named.
    :raises ReportError: the model is not the one that made the trace.
    """

    def __init__(self, trace: Trace, request_id: str | None = None, model: HookedModel | None = None) -> None:
        if model is not None:
            checked_model(model, trace)
        self.trace = trace
        self.model = model
        self.history: History = trace.history(request_id)
        self.request_id = self.history.request_id
        self.words = Words(trace, model)
        self.records = [record for record in trace.records if record.request_id == self.request_id]
        self.parents, self.branches = self._fold()
        self.items = tuple(self._ordered())
        self.index = {item.life.uid: place for place, item in enumerate(self.items)}

    # Order -------------------------------------------------------------------------------------------------

    def _fold(self) -> tuple[dict[int, int | None], tuple[Branching, ...]]:
        """Each token's predecessor when it was committed, and the removals in order."""
        parents: dict[int, int | None] = {}
        live: list[TokenLife] = []
        removals: list[tuple[Record, tuple[TokenLife, ...], int | None]] = []
        added = 0
        every = self.history.every
        for record in self.records:
            if record.kind == "added":
                for life in every[added : added + len(record.tokens)]:
                    parents[life.uid] = live[-1].uid if live else None
                    live.append(life)
                added += len(record.tokens)
            elif record.kind == "removed":
                kept = len(live) - len(record.tokens)
                removals.append((record, tuple(live[kept:]), live[kept - 1].uid if kept else None))
                del live[kept:]
        places = {life.uid: place + 1 for place, life in enumerate(live)}
        return parents, tuple(
            Branching(
                step=record.step, mod=record.mod, lives=lives, position=record.position,
                anchor=self._anchor(parent, parents, places),
            )
            for record, lives, parent in removals
        )  # fmt: skip

    @staticmethod
    def _anchor(uid: int | None, parents: dict[int, int | None], places: dict[int, int]) -> int:
        """The place after the nearest predecessor that is still there: a branch may hang on one taken back later."""
        while uid is not None and uid not in places:
            uid = parents[uid]
        return 0 if uid is None else places[uid]

    def _ordered(self) -> Iterable[Item]:
        yield from (Item(life=life) for life in self.prompt)
        by_anchor: dict[int, list[int]] = {}
        for number, branch in enumerate(self.branches):
            by_anchor.setdefault(branch.anchor, []).append(number)
        for place in range(len(self.history.live) + 1):
            for number in by_anchor.get(place, ()):
                yield from (Item(life=life, branch=number) for life in self.branches[number].lives)
            if place < len(self.history.live):
                yield Item(life=self.history.live[place])

    @cached_property
    def prompt(self) -> tuple[TokenLife, ...]:
        """The prompt's tokens as lives, so that whatever reads a life reads them too."""
        tokens, rows = self.history.prompt, self.history.rows
        return tuple(
            TokenLife(
                request_id=self.request_id, uid=position - len(tokens), position=position, token=token,
                text=self.words.of(token), origin=PROMPT, added_step=0, added_by=None,
                source_row=rows.get(position - 1),
            )
            for position, token in enumerate(tokens)
        )  # fmt: skip

    # Looking up ----------------------------------------------------------------------------------------------

    def life(self, uid: int) -> TokenLife:
        """The token of that number.

        :raises ReportError: there is none.
        """
        if uid not in self.index:
            prompt, made = len(self.prompt), len(self.history.every)
            raise ReportError(
                f"no token number {uid} in request {self.request_id}; uids go from {-prompt} (the prompt's first) "
                f"to {made - 1}"
            )
        return self.items[self.index[uid]].life

    def context(self, life: TokenLife) -> list[TokenLife]:
        """The tokens before ``life`` as they stood when it was chosen, also where they were taken back since."""
        if life.uid < 0:
            return list(self.prompt[: life.position])
        found: list[TokenLife] = []
        uid = self.parents[life.uid]
        while uid is not None:
            found.append(self.history.every[uid])
            uid = self.parents[uid]
        return [*self.prompt, *reversed(found)]

    @cached_property
    def by_step(self) -> dict[int, list[Record]]:
        """The records of each step, in order."""
        found: dict[int, list[Record]] = {}
        for record in self.records:
            found.setdefault(record.step, []).append(record)
        return found

    def records_of(self, life: TokenLife) -> list[Record]:
        """The records of the step that brought a token, and of its removal if that came in a later step."""
        if life.uid < 0:
            return [record for record in self.by_step.get(0, ()) if record.kind in ("prefilled", ACTION)]
        found = list(self.by_step.get(life.added_step, ()))
        if life.removed_step is not None and life.removed_step != life.added_step:
            found += [
                record
                for record in self.by_step.get(life.removed_step, ())
                if record.mod == life.removed_by and (record.kind == "removed" or record.action in TAKES_BACK)
            ]
        return found

    # The table -----------------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """One row per token in the order of display: what the strip shows.

        ``uid, position, token, text, origin, by, step, visible, removed_step, removed_by, probability``
        (under the distribution it was drawn from), ``model_probability`` (under the model's own), ``entropy``.
        """
        lives = [item.life for item in self.items]
        frame = pd.DataFrame(
            {
                "uid": [life.uid for life in lives],
                "position": [life.position for life in lives],
                "token": [life.token for life in lives],
                "text": _objects([life.text for life in lives]),
                "origin": _objects([life.origin for life in lives]),
                "by": _objects([life.added_by for life in lives]),
                "step": [life.added_step for life in lives],
                "visible": [life.visible for life in lives],
                "removed_step": pd.array([life.removed_step for life in lives], dtype="Int64"),
                "removed_by": _objects([life.removed_by for life in lives]),
            }
        )
        frame["probability"] = [probability(life.logprob) for life in lives]
        frame["model_probability"] = [probability(life.raw_logprob) for life in lives]
        frame["entropy"] = [math.nan if life.entropy is None else life.entropy for life in lives]
        return frame


def _objects(values: Sequence[object]) -> pd.Series[Any]:
    """A column that may hold anything: pandas' own string type refuses lone surrogates."""
    return pd.Series(list(values), dtype=object)


def probability(logprob: float | None) -> float:
    """A log-probability as a probability; NaN where it is not known."""
    return math.nan if logprob is None else math.exp(logprob)
