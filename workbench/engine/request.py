"""One prompt being continued.

The invariant: the tokens are the truth, and the cache holds a proper prefix of them. Every action edits
tokens; the next pass feeds whatever the cache lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..models import Cache, Edit, Message
from .mod import Mod
from .sampling import SamplingParams, Stream

__all__ = ["ActiveEdit", "BoundMod", "Lane", "Request", "edits_for"]


@dataclass(slots=True, eq=False)
class BoundMod:
    """A mod in one request, with its scratch space."""

    mod: Mod
    state: dict[str, Any] = field(default_factory=dict)
    disabled: bool = False


@dataclass(slots=True, eq=False)
class ActiveEdit:
    """A change of activations that a mod asked for. ``label`` names it in the trace."""

    label: str
    hook: str
    fn: Any
    owner: BoundMod
    used: bool = False
    changed: bool = False
    """Whether it ever changed a value; one that never did earns a warning."""
    failed: bool = False
    dropped: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """The state of one request. ``tokens`` is prompt and output together."""

    request_id: str
    key: str
    """What mods see as ``request_id``: unique in this process, so that dicts keyed by it never mix runs."""
    row: int
    tokens: list[int]
    prompt_length: int
    mods: list[BoundMod]
    sampling: SamplingParams
    stream: Stream
    max_new_tokens: int
    max_forward_tokens: int
    capture: tuple[str, ...] = ()
    conversation: tuple[Message, ...] = ()
    step: int = 0
    taken: int = 0
    """How many numbers of its stream went into what is settled; what an interrupted pass drew is drawn again."""
    valid: int = 0
    """How many leading positions of the cache were computed from the present tokens."""
    computed: list[tuple[ActiveEdit, ...]] = field(default_factory=list)
    """Per computed position, the edits that were active there."""
    scores: list[float | None] = field(default_factory=list)
    """Per generated token, its raw log-probability once known."""
    active: tuple[ActiveEdit, ...] = ()
    edits_made: list[ActiveEdit] = field(default_factory=list)
    warned: set[str] = field(default_factory=set)
    author: BoundMod | None = None
    """The mod whose action is being carried out; None for a drawn token."""
    scratch_owner: BoundMod | None = None
    """The mod that began what stands as scratch."""
    scratch_from: int | None = None
    """Position of the first token that a mod promised to take back; what follows it is provisional too."""
    stop_checked: int = 0
    """How many generated tokens were searched for stop strings."""
    fed: int = 0
    """Tokens fed so far, the prompt's first feeding not counted: the work that is bounded."""
    committed: int = 0
    reason: str | None = None
    tool_calls: Any = None
    error: str | None = None

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def generated_count(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def room(self) -> int:
        """How many more tokens fit under ``max_new_tokens``."""
        return self.max_new_tokens - self.generated_count

    @property
    def alive(self) -> bool:
        return self.reason is None

    # Edits of the token list -----------------------------------------------------------------------------

    def replace_prompt(self, tokens: Sequence[int]) -> None:
        """Start from another prompt. Only before the first pass."""
        self.tokens = list(tokens)
        self.prompt_length = len(self.tokens)
        self.valid = 0
        self.computed = []

    def append(self, tokens: Sequence[int], first_score: float | None = None) -> None:
        """Commit tokens at the end; ``first_score`` is the raw log-probability of the first, if known."""
        self.tokens.extend(tokens)
        self.scores.extend([first_score, *([None] * (len(tokens) - 1))] if tokens else [])
        self.committed += len(tokens)

    def take_back(self, n: int) -> tuple[int, ...]:
        """Remove the last ``n`` tokens and return them. O(n) in what is removed, the cache only forgets."""
        kept = len(self.tokens) - n
        removed = tuple(self.tokens[kept:])
        del self.tokens[kept:]
        del self.scores[kept - self.prompt_length :]
        self.valid = min(self.valid, kept)
        if self.scratch_from is not None and kept <= self.scratch_from:
            self.scratch_from = None
        self.stop_checked = min(self.stop_checked, kept - self.prompt_length)
        del self.computed[kept:]
        return removed

    # What the next pass feeds -----------------------------------------------------------------------------

    def plan(self, cache: Cache) -> int:
        """Rewind the cache to what it can keep and return the first position to feed.

        At least the last token is fed, since its logits are needed. One more is fed where the first token
        that the cache lacks was put there by a backtrack: only then is its true log-probability not known.
        """
        start = min(self.valid, cache.lengths[self.row], len(self.tokens) - 1)
        index = start - self.prompt_length
        if index >= 0 and start < len(self.tokens) and self.scores[index] is None:
            start -= 1
        cache.rewind(self.row, cache.lengths[self.row] - min(start, cache.lengths[self.row]))
        return min(start, cache.lengths[self.row])

    def keep_logits(self, start: int) -> int:
        """How many of the last positions need logits: the last one, and those before unscored tokens."""
        first = len(self.tokens) - 1
        for index in range(max(start + 1 - self.prompt_length, 0), self.generated_count):
            if self.scores[index] is None:
                first = self.prompt_length + index - 1
                break
        return len(self.tokens) - max(first, start)

    def edit_spans(self, start: int) -> list[tuple[int, int, tuple[ActiveEdit, ...]]]:
        """Spans ``[begin, end)`` of the positions to feed, with the edits to apply there.

        A position that was computed before is computed again as it was; new ones, and the last one (whose
        logits are asked for now), get the edits that are active now.
        """
        spans: list[tuple[int, int, tuple[ActiveEdit, ...]]] = []
        for position in range(start, len(self.tokens)):
            again = position < min(len(self.computed), len(self.tokens) - 1)
            edits = self.computed[position] if again else self.active
            if spans and spans[-1][2] == edits:
                spans[-1] = (spans[-1][0], position + 1, edits)
            else:
                spans.append((position, position + 1, edits))
        return spans

    def fed_until_end(
        self, start: int, spans: Sequence[tuple[int, int, tuple[ActiveEdit, ...]]], *, cached: bool
    ) -> None:
        """Note a pass that succeeded: the cache now holds everything."""
        already = 0 if self.step else self.prompt_length
        # Without a working cache whole rows are fed again; only what is new to it counts as work then.
        begin = start if cached else max(start, min(self.valid, len(self.tokens) - 1))
        self.fed += max(len(self.tokens) - begin - already, 0)
        del self.computed[start:]
        for begin, end, edits in spans:
            self.computed.extend([edits] * (end - begin))
        self.valid = len(self.tokens)

    def drop_failed_edits(self) -> list[ActiveEdit]:
        """Forget edits whose function failed, so that the pass can be tried again without them."""
        failed = [edit for edit in self.edits_made if edit.failed and not edit.dropped]
        for edit in failed:
            edit.dropped = True
        self.active = tuple(edit for edit in self.active if not edit.failed)
        for position, edits in enumerate(self.computed):
            if any(edit.failed for edit in edits):  # to be computed again without it, and all that follows
                self.valid = min(self.valid, position)
                self.computed[position] = tuple(edit for edit in edits if not edit.failed)
        return failed

    def score(self, start: int, logits: Tensor) -> dict[int, float]:
        """Log-probabilities of tokens not scored yet, from the logits of the last fed positions.

        ``logits`` is ``[keep, vocab]``; its last row predicts the token that is not there yet.
        """
        first = len(self.tokens) - len(logits)
        found: dict[int, float] = {}
        for position in range(max(first + 1, self.prompt_length), len(self.tokens)):
            index = position - self.prompt_length
            if self.scores[index] is None:
                row = logits[position - 1 - first]
                value = float(row[self.tokens[position]] - torch.logsumexp(row, dim=-1))
                self.scores[index] = found[position] = value
        return found


def edits_for(request: Request, start: int, spans: Sequence[tuple[int, int, tuple[ActiveEdit, ...]]]) -> list[Edit]:
    """The edits of a pass in the model's terms: positions counted from the first fed token."""
    return [
        Edit(hook=edit.hook, row=request.row, start=begin - start, stop=end - start, fn=edit.fn)
        for begin, end, edits in spans
        for edit in edits
    ]


@dataclass(slots=True, eq=False)
class Lane:
    """A row of a cache and the request that wrote it last: what a resumed run may build on."""

    cache: Cache | None
    writer: Request
    turn: int = 0
    """How many runs went on in this row before."""
