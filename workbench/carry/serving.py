"""A carry model under the engine: ragged rows in groups, and hooks that see every pass a carry is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import CarryError, PromptError, UnknownHookError, did_you_mean
from ..models import Cache, Edit, Forward, KVRows, PassView, hooks_on
from .cache import CarryCache
from .runner import Columns, Growing, Where
from .taps import Taps

if TYPE_CHECKING:
    from .served import ServedCarry

__all__ = ["serve"]


class _RowsPast:
    """A pass over rows of a store, in the shape that the runner's blocks expect."""

    def __init__(self, view: PassView, first_layer: int, device: torch.device) -> None:
        self._view = view
        self._first = first_layer
        self.leads = tuple(view.width - past for past in view.past)
        """Columns of padding before each row's first position."""
        lead = torch.tensor(self.leads, device=device)[:, None]
        self.key_positions = torch.arange(view.width + view.n_new, device=device) - lead
        self.key_real = self.key_positions >= 0

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        held = self._view.append(layer - self._first, keys.transpose(1, 2), values.transpose(1, 2))
        return held[0].transpose(1, 2), held[1].transpose(1, 2)


def serve(
    model: ServedCarry,
    tokens: Sequence[Sequence[int]],
    cache: Cache,
    *,
    capture: Sequence[str],
    edits: Sequence[Edit],
    keep: Sequence[int] | None,
) -> Forward:
    """Feed ``tokens[row]`` after what the cache holds: :meth:`HookedModel.forward` of a carry model."""
    if not isinstance(cache, CarryCache):
        raise TypeError(f"cache must come from this model's new_cache(), got {type(cache).__name__}")
    _check(model, tokens, cache, capture, edits)
    kept = [1] * len(tokens) if keep is None else list(keep)
    empty = torch.empty(0)
    logits = [empty] * len(tokens)
    captured = {name: [empty] * len(tokens) for name in capture}
    before = cache.lengths
    known = list(cache.prompt_lengths)
    done: list[_Group] = []
    with model.blocks.lock, torch.inference_mode():
        try:
            for rows in _groups(model, tokens, cache):
                group = _Group(model, cache, rows, [tokens[row] for row in rows], capture, edits)
                done.append(group)
                found = group.run(max(kept[row] for row in rows))
                for index, row in enumerate(rows):
                    logits[row] = found[index][-kept[row] :] if kept[row] else empty
                    for name in capture:
                        captured[name][row] = group.taps.taken(name, index)
        except BaseException:
            # A pass that raised never happened: the band's store alone was committed to on the way.
            for row, length in enumerate(before):
                cache.band.rewind(row, cache.band.lengths[row] - length)
            cache.prompt_lengths[:] = known
            raise
        for group in done:
            group.commit()
    return Forward(logits=tuple(logits), activations={name: tuple(rows) for name, rows in captured.items()})


def _groups(model: ServedCarry, tokens: Sequence[Sequence[int]], cache: CarryCache) -> list[list[int]]:
    """Rows that feed as much, with as much of it prompt: one run each. Fixes where new rows' prompts end.

    :raises CarryError: a looped prompt that is fed in pieces.
    """
    alike: dict[tuple[int, int, bool], list[int]] = {}
    for row, ids in enumerate(tokens):
        if not len(ids):
            continue
        held, prompt = cache.lengths[row], cache.prompt_lengths[row]
        if prompt is None:
            prompt = next((i for i, token in enumerate(ids) if i and token == model.pause.id), len(ids))
            cache.prompt_lengths[row] = prompt
        part = min(max(prompt - held, 0), len(ids))
        if cache.loops and part and part != prompt:
            raise CarryError(
                f"row {row} feeds {part} of its prompt's {prompt} tokens: a prompt that is looped must be fed whole"
            )
        alike.setdefault((len(ids), part, held + part == prompt), []).append(row)
    return list(alike.values())


class _Group:
    """Rows that feed the same number of tokens, of which the first ``prompt`` belong to their prompts."""

    def __init__(
        self,
        model: ServedCarry,
        cache: CarryCache,
        rows: list[int],
        tokens: Sequence[Sequence[int]],
        capture: Sequence[str],
        edits: Sequence[Edit],
    ) -> None:
        self._model, self._cache, self._rows = model, cache, rows
        self._ids = torch.tensor([list(ids) for ids in tokens], device=model.device)
        self._past = [cache.lengths[row] for row in rows]
        self._new = self._ids.shape[1]
        ends = [cache.prompt_lengths[row] or 0 for row in rows]
        self._prompt = min(max(ends[0] - self._past[0], 0), self._new)
        mine = [edit for edit in edits if edit.row in rows]
        self.taps = Taps(rows, self._past, self._new, capture, mine)
        self._views: list[PassView] = []
        self._states: list[Tensor] = []

    def run(self, keep: int) -> Tensor:
        """Logits ``[rows, keep, vocab]`` float32."""
        model, taps = self._model, self.taps
        with hooks_on(model.base, taps.hooks()):
            columns = self._columns(0, self._new)
            past = self._open(self._cache.prefix, 0, self._new)
            e = taps.through("carry.e", model.runner.prefix(self._ids, columns, past, taps), 0)
            s = taps.joined(self._band(e))
            past = self._open(self._cache.suffix, model.settings.band[1], self._new)
            normed = model.blocks.norm(model.runner.suffix(s, columns, past, taps))
            return model.blocks.unembed(normed[:, -max(keep, 1) :]).float()

    def commit(self) -> None:
        for view in self._views:
            view.commit()
        for index, row in enumerate(self._rows):
            self._cache.states[row].extend(state[index] for state in self._states)

    def _band(self, e: Tensor) -> list[Tensor]:
        """States of all new positions, in order: the prompt's at once, then one by one."""
        found = []
        if self._prompt:
            block = self._prompt_block(e[:, : self._prompt])
            found.append(block)
            if self._completes_prompt():
                self._states.append(block[:, -1])
        state = self._states[-1] if self._states else None
        for step in range(self._prompt, self._new):
            if state is None:
                state = torch.stack([self._cache.states[row][-1] for row in self._rows])
            state = self._step(e[:, step], state, step)
            self._states.append(state)
            found.append(state[:, None])
        return found

    def _prompt_block(self, e: Tensor) -> Tensor:
        model, columns, x = self._model, self._columns(0, self._prompt), e
        for loop in range(self._cache.loops + 1):
            last = loop == self._cache.loops
            x = self.taps.through("carry.x", x, 0)
            where = Where(phase="prompt", loop=loop, step=0, first=0, count=self._prompt)
            # Earlier loops see nothing but themselves: a looped prompt is always fed from its start.
            past = self._open_band(self._prompt) if last else Growing(None, columns)
            s = model.runner.through_band(x, columns, past, where, self.taps)
            if not last:
                x = model.adapter(e, s)
        self._close_band()
        return self.taps.through("carry.s", s, 0)

    def _step(self, e: Tensor, state: Tensor, step: int) -> Tensor:
        model, columns = self._model, self._columns(step, 1)
        x = self.taps.through("carry.x", model.adapter(e, state)[:, None], step)
        where = Where(phase="step", loop=0, step=step - self._prompt + 1, first=step, count=1)
        s = model.runner.through_band(x, columns, self._open_band(1), where, self.taps)
        self._close_band()
        return self.taps.through("carry.s", s, step)[:, 0]

    def _completes_prompt(self) -> bool:
        return self._past[0] + self._prompt == self._cache.prompt_lengths[self._rows[0]]

    def _columns(self, first: int, count: int) -> Columns:
        device = self._model.device
        starts = torch.tensor(self._past, device=device)[:, None] + first
        positions = starts + torch.arange(count, device=device)
        real = torch.ones_like(positions, dtype=torch.bool)
        return Columns(positions=positions, real=real, tokens=len(self._rows) * count)

    def _open(self, store: KVRows, first_layer: int, count: int) -> _RowsPast:
        """A pass that counts only once all groups have succeeded."""
        view = store.begin(self._rows, count)
        self._views.append(view)
        past = _RowsPast(view, first_layer, self._model.device)
        self.taps.leads = past.leads
        return past

    def _open_band(self, count: int) -> _RowsPast:
        self._band_view = self._cache.band.begin(self._rows, count)
        past = _RowsPast(self._band_view, self._model.settings.band[0], self._model.device)
        self.taps.leads = past.leads
        return past

    def _close_band(self) -> None:
        """Steps build on each other, so the band's store moves on at once; ``serve`` takes it back on failure."""
        self._band_view.commit()


def _check(
    model: ServedCarry,
    tokens: Sequence[Sequence[int]],
    cache: CarryCache,
    capture: Sequence[str],
    edits: Sequence[Edit],
) -> None:
    lengths = cache.lengths
    if len(tokens) != len(lengths):
        raise ValueError(f"the cache has {len(lengths)} rows but tokens for {len(tokens)} were given")
    for row, ids in enumerate(tokens):
        if lengths[row] + len(ids) > model.n_ctx:
            raise PromptError(
                f"row {row} would hold {lengths[row] + len(ids)} tokens, pauses included; {model.name} accepts at "
                f"most n_ctx={model.n_ctx}. Shorten the prompt, use fewer pauses or lower max_new_tokens."
            )
        for token in ids:
            if not 0 <= token < model.vocab_size:
                raise PromptError(f"token id {token} in row {row} is outside the vocabulary 0..{model.vocab_size - 1}")
    unknown = [name for name in capture if name not in model.hook_names]
    unknown += [edit.hook for edit in edits if edit.hook not in model.edit_names]
    if unknown:
        raise UnknownHookError(
            f"{model.name} offers no hook {unknown[0]!r} here.{did_you_mean(unknown[0], model.hook_names)} "
            "model.hook_names and model.edit_names list all."
        )
