"""The kernel's own records of one decision, made again when somebody looks: the verdict, a row of logits, a contrast.

A chain keeps three numbers a position, from which :func:`decided_again` makes the decision anew, as the kernel does.
The tiles of a row need its logits, which nothing keeps: :func:`trace_row` computes that one row again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import ChainError
from ..models import HookedModel, match_hooks
from .chain import Decision
from .history import checked_index, state_before
from .reference import DEFAULT_TILE, Decided, batch_of, decide, rescales, row_stats
from .result import Chains, Contrast
from .target import Scalars

__all__ = ["RowRecord", "contrast_of", "decided_again", "trace_row"]

SIDES = ("old", "new")
RESIDUALS = "blocks.*.hook_resid_post"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRecord:
    """What the program of one row does, tile by tile, in float32."""

    side: str
    """``old`` or ``new``: whose suffix the row belongs to."""
    row: int
    """In the suffix, from 0."""
    position: int
    """In the generated text."""
    token: int
    tau: float
    tile: int
    """Columns of a tile; the last one may be narrower."""
    vocab: int
    trace: Tensor = field(repr=False)
    """``[tiles, 3]``: running max, sum of ``exp(x - max)`` and of its power ``1 / tau``, after each tile."""
    rescales: Tensor = field(repr=False)
    """``[tiles, 2]``: by what each tile multiplied the two sums before it added its own."""
    stats: Tensor
    """``[4]``: max, lse_1, lse_tau, x_tok."""
    kept: Scalars
    """``[3]`` float64: x_tok, lse_1, lse_tau as the run kept them."""

    @property
    def difference(self) -> float:
        """Largest distance of what was computed again from what was kept: a pass of another shape adds otherwise."""
        again = self.stats[[3, 1, 2]].double().numpy()
        return float(abs(again - self.kept).max())


def decided_again(decision: Decision, seed: int, *, alpha: float | None = None, redraw: int = 0) -> Decided:
    """The decision as ``reference.decide`` makes it: one program, from the kept scalars.

    ``alpha`` in the place of the chain's own; ``redraw`` as in :func:`~workbench.mcmc.reference.batch_of`. Of several
    tries the scalars of those that were not put forward are gone: then ``log_a`` is not the ratio that decided.
    """
    return decide(batch_of([decision], seed, redraw=redraw), decision.alpha if alpha is None else alpha, decision.tau)


def trace_row(
    model: HookedModel, chains: Chains, index: int, side: str, row: int, *, tile: int = DEFAULT_TILE
) -> RowRecord:  # fmt: skip
    """The program of one row of decision ``index`` on the CPU reference; the row's logits come from one pass.

    That pass feeds the prompt and the text before the row's token, and keeps one row of logits.

    :raises ChainError: no such decision or row, or a tile below 1.
    """
    decision = chains.decisions[checked_index(chains, index)]
    tokens, scalars = suffix_of(decision, side)
    if not 0 <= row < len(tokens):
        raise ChainError(f"the {side} suffix has rows 0 to {len(tokens) - 1}, got {row}")
    if tile < 1:
        raise ChainError(f"a tile has 1 column or more, got {tile}")
    before = [*state_before(chains, index).tokens[: decision.pivot], *tokens[:row]]
    logits = model.forward([[*chains.settings.prompt, *before]], model.new_cache()).logits[0][-1:].float().cpu()
    found = row_stats(logits, torch.tensor([tokens[row]]), decision.tau, tile=tile, trace=True)
    assert found.trace is not None
    return RowRecord(
        side=side, row=row, position=decision.pivot + row, token=tokens[row], tau=decision.tau, tile=tile,
        vocab=logits.shape[1], trace=found.trace[0], rescales=rescales(found.trace, decision.tau)[0],
        stats=found.stats[0], kept=scalars[row],
    )  # fmt: skip


def suffix_of(decision: Decision, side: str) -> tuple[tuple[int, ...], Scalars]:
    """Tokens and scalars of the ``old`` or the ``new`` suffix.

    :raises ChainError: another side.
    """
    if side not in SIDES:
        raise ChainError(f"side is 'old' or 'new', got {side!r}")
    return (decision.old_tokens, decision.old_scalars) if side == "old" else (decision.new_tokens, decision.new_scalars)


def contrast_of(
    chains: Chains,
    index: int,
    model: HookedModel | None = None,
    hooks: str | Sequence[str] = RESIDUALS,
) -> Contrast:
    """Activations at the first token that differs, under the old and the new one: the run's own, or computed now.

    A run with ``capture=`` kept those of its moves. Others, of rejected proposals too, take a model and three passes.

    :raises ChainError: a null proposal, or nothing kept and no model.
    :raises UnknownHookError: a pattern that matches no hook of the model.
    """
    decision = chains.decisions[checked_index(chains, index)]
    position = decision.first_difference
    if position is None:
        raise ChainError("old and new suffix of this decision are the same (null): no token differs")
    named = (decision.chain, decision.block, decision.iteration)
    kept = next((c for c in chains.contrasts if (c.chain, c.block, c.iteration) == named), None)
    if kept is not None:
        return kept
    if model is None:
        raise ChainError(
            f"the run kept no activations of this decision: give the model, or run with capture={RESIDUALS!r}, "
            "which keeps those of accepted moves"
        )
    at = position - decision.pivot
    pair = (decision.old_tokens[at], decision.new_tokens[at])
    ids = [*chains.settings.prompt, *state_before(chains, index).tokens[:position]]
    old, new = _activations(model, ids, pair, match_hooks(hooks, model.hook_names))
    return Contrast(
        chain=named[0], block=named[1], iteration=named[2], position=position, old_token=pair[0], new_token=pair[1],
        old=old, new=new,
    )  # fmt: skip


def _activations(
    model: HookedModel, ids: Sequence[int], tokens: Sequence[int], hooks: Sequence[str]
) -> list[dict[str, Tensor]]:  # fmt: skip
    """The hooks' values where each of ``tokens`` stands behind ``ids``."""
    cache = model.new_cache()
    model.forward([ids], cache)
    found = []
    for token in tokens:
        held = model.forward([[token]], cache, capture=hooks).activations
        found.append({hook: held[hook][0][-1].cpu() for hook in hooks})
        cache.rewind(0, 1)
    return found
