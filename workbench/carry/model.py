"""A model whose middle band carries its state: the adapter, the band and the rule that joins them, ready to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..engine import FunctionMod
from ..errors import CarryError, PromptError
from ..models import HookedModel, blocks_of
from .adapters import Adapter, make_adapter
from .controls import Control, measure_controls
from .generation import Generated, generate
from .pausing import pausing
from .runner import BandRunner, Columns, Growing, Watcher
from .scan import Do, Scan, as_do, scan
from .served import ServedCarry
from .settings import CarrySettings, PauseToken, find_pause_token
from .spans import Layout
from .tracing import Prompt, record

if TYPE_CHECKING:
    from .optimise import Training
    from .trace import CarryTrace
    from .training import Task

__all__ = ["CarryModel"]

Intervention = Do | Mapping[int, Callable[[Tensor], Tensor]]
CHECK_TOLERANCE = 1e-3
"""Largest difference of logits, relative to their largest, between the parts run in turn and the whole model."""


class CarryModel(ServedCarry):
    """``model`` with a carry: its prompt is looped through the band, and each later position merges the last state.

    It is a :class:`~workbench.models.HookedModel`, so ``Session(CarryModel(...))`` works: a request's prompt ends
    before its first pause token (``pausing()`` is a mod that appends them), or where there is none with the tokens
    fed first; from there on every position carries. The base's weights are frozen here (``requires_grad`` off)
    unless ``frozen=False``, which lets gradients reach them.

    :raises UnsupportedModelError: a model on which the incremental scan is not known to be exact.
    :raises CarryError: an empty band or one outside the model, an adapter of another width, no such pause token.
    """

    def __init__(
        self,
        model: HookedModel,
        *,
        band: tuple[int, int],
        adapter: Adapter | str = "linear_add",
        pause_token: str | int = "<unused0>",
        pauses: int = 8,
        loops: int = 2,
        mode: str = "carry",
        frozen: bool = True,
    ) -> None:
        self.base = model
        self.blocks = blocks_of(model)
        self.settings = CarrySettings(band=band, pauses=pauses, loops=loops, mode=mode)
        self.runner = BandRunner(self.blocks, band)
        if not model.cache_works:
            raise CarryError(f"{model.name}'s KV cache failed its check at load, so no scan over it can be exact")
        made = make_adapter(adapter, model.d_model) if isinstance(adapter, str) else adapter
        if made.d_model != model.d_model:
            raise CarryError(
                f"the adapter has width d_model={made.d_model}, the model {model.d_model}: make it with "
                f"make_adapter({made.kind!r}, {model.d_model})"
            )
        self.adapter = made.to(model.device)
        self.pause: PauseToken = find_pause_token(model.tokenizer, pause_token, self.blocks)
        for parameter in self.blocks.parameters():
            parameter.requires_grad_(not frozen)
        self._check_against_the_whole()

    # Teacher-forced -------------------------------------------------------------------------------------------

    def logits(
        self,
        ids: Tensor,
        mask: Tensor,
        prompt_lengths: Tensor,
        *,
        loops: int | None = None,
        mode: str | None = None,
        do: Intervention | None = None,
        reads: Tensor | None = None,
    ) -> Tensor:
        """Logits ``[batch, pos, vocab]`` of ids ``[batch, pos]``, with gradients; padding on either side.

        Position t predicts the token at t + 1, so the first answer token is read at the last pause. ``reads``, a
        bool ``[batch, pos]``, gives only the rows where it is true, ``[read, vocab]``: use it where the vocabulary
        is large. ``do(t, states)`` or ``{t: fn}`` changes the state handed on from step t (0: the prompt's last
        token, 1: the first pause); what the suffix reads at t stays.

        :raises CarryError: spans that are empty or have holes, an unknown mode.
        :raises PromptError: more positions than ``n_ctx``, or a token outside the vocabulary.
        """
        with self.blocks.lock:
            found, final = self._through(ids, mask, prompt_lengths, loops=loops, mode=mode, do=do)
            final = found.layout.back(final)
            return self.blocks.unembed(self.blocks.norm(final if reads is None else final[reads.to(final.device)]))

    def states(
        self,
        ids: Tensor,
        mask: Tensor,
        prompt_lengths: Tensor,
        *,
        loops: int | None = None,
        mode: str | None = None,
        do: Intervention | None = None,
        watcher: Watcher | None = None,
    ) -> Scan:
        """The band's inputs and outputs over the same arguments; rows are moved to the front (column = position).

        ``scan.layout.back(scan.s)`` puts them where the ids stood.
        """
        layout = self._layout(ids, mask, prompt_lengths)
        with self.blocks.lock:
            return scan(
                self.runner,
                self.adapter,
                layout.to_front(ids.to(layout.mask.device)),
                layout,
                loops=self.settings.loops if loops is None else loops,
                mode=self.settings.mode if mode is None else mode,
                do=as_do(do),
                watcher=watcher,
            )

    def residuals(self, found: Scan, watcher: Watcher | None = None) -> Tensor:
        """The residual leaving the last block at every position of a scan, ``[batch, pos, d_model]``."""
        ends = found.layout
        positions = torch.arange(found.s.shape[1], device=found.s.device).expand(found.s.shape[:2])
        columns = Columns(positions=positions, real=positions < ends.lengths[:, None], tokens=sum(ends.ends))
        return self.runner.suffix(found.s, columns, Growing(None, columns), watcher)

    def parameters_of_adapter(self) -> Iterator[nn.Parameter]:
        """What training changes while the base is frozen."""
        yield from self.adapter.parameters()

    def require_trainable(self, mask: Tensor, prompt_lengths: Tensor, reads: Tensor, *, loops: int, mode: str) -> None:
        """Refuse a batch whose loss could not move the adapter.

        :raises CarryError: the adapter has no parameters, or no position that is read has it on its path.
        """
        if not self.adapter.trainable:
            raise CarryError(f"adapter {self.adapter.kind!r} has no parameters to train")
        layout = self._layout(mask.long(), mask, prompt_lengths)
        later = reads.to(layout.mask.device) & (layout.positions >= layout.prompt_lengths[:, None])
        reached = {
            "plain": False,
            "feedforward": True,
            "depth": loops > 0,
            "depth_tail": loops > 0 and bool(later.any()),
        }
        if not reached.get(mode, loops > 0 or bool(later.any())):
            raise CarryError(
                f"mode {mode!r} with loops={loops} reads its answer before the adapter is ever used: add pauses, loops "
                "or a longer answer"
            )

    # Running and measuring ------------------------------------------------------------------------------------

    def run(
        self,
        prompt: Prompt,
        *,
        pauses: int | None = None,
        loops: int | None = None,
        mode: str | None = None,
        answer: Prompt | None = None,
        max_new_tokens: int = 1,
        do: Intervention | None = None,
        attention: bool = False,
    ) -> CarryTrace:
        """One prompt with everything that its states can tell: see :class:`CarryTrace`.

        ``prompt`` is text, chat messages or token ids; pauses follow it, after a chat's generation prompt. ``answer``
        is fed after them; without one ``max_new_tokens`` are generated greedily. ``attention`` keeps the maps from the
        band on. ``do`` is asked in the generating pass and again in the recorded one: a random one draws anew.
        """
        return record(
            self,
            prompt,
            self.with_(pauses=pauses, loops=loops, mode=mode),
            answer=answer,
            max_new_tokens=max_new_tokens,
            do=as_do(do),
            attention=attention,
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        pauses: int | None = None,
        loops: int | None = None,
        mode: str | None = None,
        do: Intervention | None = None,
        stop: bool = True,
    ) -> list[Generated]:
        """Continue each prompt (token ids) greedily by exactly ``max_new_tokens``, or up to an end token if ``stop``.

        For sampling, mods and backtracking use ``Session(carry_model)``.
        """
        settings = self.with_(pauses=pauses, loops=loops, mode=mode)
        return generate(self, prompts, settings, max_new_tokens=max_new_tokens, do=as_do(do), stop=stop)

    def fit(self, task: Task, **settings: Any) -> Training:
        """Train the adapter in place on a task: see :func:`workbench.carry.fit`."""
        from .training import fit  # which builds on this module

        return fit(self, task, **settings)

    def controls(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], *, pauses: int | None = None, seed: int = 0
    ) -> list[Control]:
        """How well ``(prompt, answer)`` rows of token ids are answered with, without and against the carry.

        The same weights throughout: see :func:`workbench.carry.controls.measure_controls`.
        """
        return measure_controls(self, rows, self.with_(pauses=pauses), seed=seed)

    def pausing(self, pauses: int | None = None) -> FunctionMod:
        """A mod that puts pause tokens after a request's prompt, for runs under the engine."""
        return pausing(self.pause.id, self.settings.pauses if pauses is None else pauses)

    def with_(self, **changes: Any) -> CarrySettings:
        """The settings with what is not None changed."""
        return replace(self.settings, **{name: value for name, value in changes.items() if value is not None})

    def __repr__(self) -> str:
        first, last = self.settings.band
        return (
            f"<CarryModel {self.base.name} band={first}:{last} of {self.n_layers} adapter={self.adapter.kind} "
            f"pauses={self.settings.pauses} loops={self.settings.loops} mode={self.settings.mode}>"
        )

    # Inside ---------------------------------------------------------------------------------------------------

    def _through(
        self,
        ids: Tensor,
        mask: Tensor,
        prompt_lengths: Tensor,
        *,
        loops: int | None = None,
        mode: str | None = None,
        do: Intervention | None = None,
    ) -> tuple[Scan, Tensor]:
        """The scan, its layout still that of the ids, and the residual leaving the last block, at the front."""
        layout = Layout.of(mask.to(self.device), prompt_lengths)
        found = self.states(ids, mask, prompt_lengths, loops=loops, mode=mode, do=do)
        final = self.residuals(found)
        return replace(found, layout=layout), final

    def _layout(self, ids: Tensor, mask: Tensor, prompt_lengths: Tensor) -> Layout:
        layout = Layout.of(mask.to(self.device), prompt_lengths.to(self.device))
        if max(layout.ends) > self.n_ctx:
            raise PromptError(
                f"a row holds {max(layout.ends)} positions, pauses included; {self.base.name} accepts at most "
                f"n_ctx={self.n_ctx}. Shorten the prompt or use fewer pauses."
            )
        real = ids.to(self.device)[layout.mask]
        if int(real.min()) < 0 or int(real.max()) >= self.vocab_size:
            raise PromptError(f"token ids must be 0..{self.vocab_size - 1}, got {int(real.min())}..{int(real.max())}")
        return layout

    def _check_against_the_whole(self) -> None:
        """Compare the parts, run with a scan that appends one position at a time, with the model's own pass."""
        ids = [(7 * i + 3) % self.vocab_size for i in range(min(12, self.n_ctx))]
        whole = self.base.forward([ids], self.base.new_cache(), keep=[len(ids)]).logits[0]
        with torch.no_grad():
            row = torch.tensor([ids], device=self.device)
            parts = self.logits(row, torch.ones_like(row), torch.tensor([5]), mode="depth_tail", loops=0)[0]
        difference = float((parts - whole).abs().max() / whole.abs().max().clamp(min=1e-6))
        if not difference < max(CHECK_TOLERANCE, 16 * torch.finfo(self.dtype).eps):
            raise CarryError(
                f"{self.base.name}: its blocks run part by part give other logits than the whole (by {difference:.2g} "
                "of their size), so the incremental scan would not be exact on it"
            )
