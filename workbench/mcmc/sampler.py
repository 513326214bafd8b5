"""Several chains as one batch: each feeds one token a pass and goes on by itself, so that none waits for another."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine import SamplingParams
from ..errors import ChainError
from ..models import HookedModel, match_hooks
from .cache_move import CacheMove
from .chain import Chain, Decision
from .philox import Purpose, uniform
from .result import Chains, ChainText, Contrast, Settings
from .rows import ChainRows
from .scoring import Scorer
from .setting import Prompt, checked, require_neutral, token_ids
from .state import chain_state, restore_chain, restore_rows, rows_state
from .store import ChainWriter, read_run
from .target import Scalars, Target
from .tempering import Swap, checked_ladder, swap_neighbours

__all__ = ["PowerSampler"]


class PowerSampler:
    """Metropolis-Hastings chains towards ``p(text)**alpha`` behind ``prompt`` (text, chat messages, or token ids).

    ``chains`` run as one batch over the prompt's keys and values. ``tries`` proposals are made per decision
    (multiple-try Metropolis). ``ladder`` gives each chain a power of its own, and neighbours exchange texts after
    every ``swap_every`` iterations; all then propose at the one temperature. ``capture`` names hooks (patterns) whose
    values are kept at the first token that an accepted move changed, for the old and the new one. ``save`` is a
    directory that the run is kept in (see :func:`~workbench.mcmc.resume`).

    A chain's random numbers are named by (seed, chain, block, iteration, purpose): more chains change no other's.

    :raises ChainError: an argument outside its range, or a ``sampling`` that is not neutral.
    :raises ModelError: the model's KV cache is switched off.
    """

    def __init__(
        self,
        model: HookedModel,
        prompt: Prompt,
        *,
        alpha: float = 4.0,
        tau: float | None = None,
        block_size: int = 32,
        n_mcmc: int = 6,
        max_tokens: int = 128,
        seed: int = 0,
        chains: int = 1,
        tries: int = 1,
        ladder: Sequence[float] | None = None,
        swap_every: int = 1,
        capture: str | Sequence[str] = (),
        sampling: SamplingParams | None = None,
        save: str | Path | None = None,
        overwrite: bool = False,
    ) -> None:
        require_neutral(sampling or SamplingParams())
        target = Target(alpha=alpha, tau=tau, block_size=block_size, n_mcmc=n_mcmc, max_tokens=max_tokens)
        settings = Settings(
            target=target, seed=seed, chains=chains, tries=tries, ladder=checked_ladder(ladder, chains),
            swap_every=swap_every, capture=match_hooks(capture, model.hook_names) if capture else (),
            prompt=tuple(token_ids(model, prompt)),
        )  # fmt: skip
        self._set_up(model, checked(settings, model))
        self._writer = None if save is None else ChainWriter.create(Path(save), model, settings, overwrite=overwrite)
        if self._writer is not None:
            self._writer.begin(self)

    def _set_up(self, model: HookedModel, settings: Settings) -> None:
        self.model = model
        self.settings = settings
        self.rows = ChainRows(model, settings.prompt, settings.chains)
        self.decisions: list[Decision] = []
        self.swaps: list[Swap] = []
        self.contrasts: list[Contrast] = []
        self.forwarded = 0
        """Tokens fed behind the shared prompt, for captures too."""
        self.chains = [
            Chain(
                number, settings.target, seed=settings.seed, ends=model.tokenizer.eos_token_ids, tries=settings.tries,
                alpha=None if settings.ladder is None else settings.ladder[number],
            )
            for number in range(settings.chains)
        ]  # fmt: skip
        self._scorer = Scorer(settings.target.temperature)
        self._pending: deque[Decision] = deque()
        self._swapped_at = (0, 0)
        self._broken = False
        self._stop = threading.Event()

    def __repr__(self) -> str:
        target = self.settings.target
        return (
            f"<PowerSampler alpha={target.alpha:g} tau={target.temperature:g} chains={len(self.chains)} "
            f"decisions={len(self.decisions)} of {self.total}>"
        )

    @property
    def total(self) -> int:
        """How many decisions the whole run has; of a branch, without those before it."""
        target = self.settings.target
        left = sum(max((target.n_blocks - chain.block) * target.n_mcmc - chain.iteration, 0) for chain in self.chains)
        return len(self.decisions) + left

    @property
    def given(self) -> int:
        """How many of the decisions :meth:`steps` has yielded; the rest come first when it is called again."""
        return len(self.decisions) - len(self._pending)

    # Running -------------------------------------------------------------------------------------------------

    def steps(self) -> Generator[Decision, None, None]:
        """Go on, and yield each decision as it is made; leaving early keeps everything for the next call.

        :raises ChainError: an earlier pass was broken off in the middle, so that going on would not be exact.
        """
        self._stop.clear()  # now, and not at the first decision asked for: a stop that comes between the two counts
        return self._go_on()

    def _go_on(self) -> Generator[Decision, None, None]:
        if self._broken:
            raise ChainError("a pass was broken off in the middle; go on from a saved directory with resume(...)")
        try:
            while not self._stop.is_set():
                while self._pending:
                    yield self._pending.popleft()
                if not self._pass():
                    break
                self._save(finished=False, now=False)
        finally:
            if not self._broken:
                self._save(finished=self.finished, now=True)

    def run(self) -> Chains:
        """Go on to the end (or until :meth:`stop`) and give the result."""
        for _ in self.steps():
            pass
        return self.result()

    def stop(self) -> None:
        """Let :meth:`steps` end after the present pass; may be called from another thread."""
        self._stop.set()

    @property
    def finished(self) -> bool:
        return all(chain.finished and chain.proposal is None for chain in self.chains)

    def result(self) -> Chains:
        """What the chains hold now, with every decision so far."""
        texts = tuple(
            ChainText(
                chain=chain.number, alpha=chain.alpha, tokens=tuple(chain.tokens), scalars=chain.scalars.copy(),
                text=self.model.tokenizer.decode(chain.tokens, skip_special=True), log_p=chain.log_p,
            )
            for chain in self.chains
        )  # fmt: skip
        return Chains(
            settings=self.settings, texts=texts, decisions=tuple(self.decisions), swaps=tuple(self.swaps),
            contrasts=tuple(self.contrasts), prefilled=self.rows.prefilled, forwarded=self.forwarded,
            finished=self.finished,
        )  # fmt: skip

    def stand(self, tokens: Sequence[int], scalars: Scalars, *, block: int, iteration: int, rescore: bool) -> None:
        """Let the one chain of a fresh sampler go on from a state: its text is fed once, for its keys and values.

        ``rescore`` computes the scalars anew, for ones that were taken at another temperature of the proposal.
        """
        (chain,) = self.chains
        chain.restore(tokens=tokens, scalars=scalars, block=block, iteration=iteration, proposal=None, spent=0)
        found = self.rows.stand(chain, self._scorer if rescore else None)
        if rescore:
            chain.restore(tokens=tokens, scalars=found, block=block, iteration=iteration, proposal=None, spent=0)
        self.forwarded += len(tokens)
        self._save(finished=self.finished, now=True)

    # One pass ------------------------------------------------------------------------------------------------

    def _pass(self) -> bool:
        """Feed one token of every chain that has something to do; False when none has.

        Almost all the time goes by in the model, where an interrupt does no harm: the rows take a pass whole or not at
        all. One that arrives in the bookkeeping before or after leaves the sampler broken.
        """
        self._broken = True
        active = self._begin()
        self._broken = False
        if active:
            logits = torch.stack(self.rows.feed(active))
            self._broken = True
            self.forwarded += len(active)
            for chain, token, scalars in zip(active, *self._draw(active, logits), strict=True):
                if chain.add(token, scalars):
                    self._complete(chain)
            self._broken = False
        return bool(active)

    def _begin(self) -> list[Chain]:
        """Open what is next in each chain that has nothing open; chains that wait for an exchange wait."""
        if self.settings.ladder is not None and not any(chain.proposal for chain in self.chains):
            self._exchange()
        for chain in self.chains:
            if chain.proposal is None and not self._waits(chain) and chain.begin() is not None:
                self.rows.open(chain)
        return [chain for chain in self.chains if chain.proposal is not None]

    def _draw(self, active: Sequence[Chain], logits: Tensor) -> tuple[list[int], list[np.ndarray]]:
        named = [chain.draw_index() for chain in active]
        uniforms = uniform(
            self.settings.seed,
            chain=[chain.number for chain in active],
            block=[chain.block for chain in active],
            iteration=[iteration for iteration, _ in named],
            purpose=Purpose.TOKEN,
            index=[index for _, index in named],
        )
        tokens, scalars = self._scorer.draw(logits, uniforms)
        return tokens, list(scalars)

    def _complete(self, chain: Chain) -> None:
        proposal = chain.proposal
        assert proposal is not None
        length = len(proposal.tokens)
        if chain.another_try():
            self.rows.next_try(chain, length)
            return
        kept = self.rows.length(chain) - length
        decision, stands = chain.finish()
        self.rows.close(chain, length, stands)
        if decision is not None:
            decision = replace(decision, cache=self._move(chain, decision, kept))
            self.decisions.append(decision)
            self._pending.append(decision)
            if decision.kind == "accepted" and self.settings.capture:
                self._capture(chain, decision)

    def _move(self, chain: Chain, decision: Decision, kept: int) -> CacheMove:
        after = self.rows.length(chain)
        return CacheMove(
            kept=kept, taken=len(decision.old_tokens), fed=decision.forwarded,
            restored=0 if decision.accepted else after - kept, after=after,
        )  # fmt: skip

    def _capture(self, chain: Chain, decision: Decision) -> None:
        position = decision.first_difference
        assert position is not None
        at = position - decision.pivot
        pair = (decision.old_tokens[at], decision.new_tokens[at])
        old, new = self.rows.activations_at(chain, position, pair, self.settings.capture)
        self.forwarded += 2
        self.contrasts.append(
            Contrast(
                chain=chain.number, block=decision.block, iteration=decision.iteration, position=position,
                old_token=pair[0], new_token=pair[1], old=old, new=new,
            )
        )  # fmt: skip

    # Exchanges -----------------------------------------------------------------------------------------------

    def _waits(self, chain: Chain) -> bool:
        """Whether an exchange is due after the iteration that the chain has just made."""
        if self.settings.ladder is None or chain.finished:
            return False
        due = chain.iteration > 0 and chain.iteration % self.settings.swap_every == 0
        return due and (chain.block, chain.iteration) > self._swapped_at

    def _exchange(self) -> None:
        if not all(self._waits(chain) for chain in self.chains):
            return
        block, iteration = self._swapped_at = (self.chains[0].block, self.chains[0].iteration)
        every = self.settings.swap_every
        turn = block * (self.settings.target.n_mcmc // every) + iteration // every
        for swap in swap_neighbours(self.chains, self.settings.seed, turn):
            self.swaps.append(swap)
            if swap.accepted:
                self.rows.swap(swap.first, swap.second)

    # Keeping -------------------------------------------------------------------------------------------------

    @classmethod
    def resume(cls, path: str | Path, model: HookedModel) -> PowerSampler:
        """Go on with a run that was kept with ``save=``, from its last write, bit for bit as if it had never stopped.

        :raises ChainError: nothing readable is there, or it was made with another model.
        """
        so_far, tensors, facts, writer = read_run(Path(path), model)
        sampler = cls.__new__(cls)
        sampler._set_up(model, so_far.settings)
        sampler._writer = writer
        sampler.decisions, sampler.swaps = list(so_far.decisions), list(so_far.swaps)
        sampler.contrasts, sampler.forwarded = list(so_far.contrasts), so_far.forwarded
        sampler._swapped_at = (facts["swapped_at"][0], facts["swapped_at"][1])
        restore_rows(sampler.rows, tensors, facts["rows"])
        for chain, own in zip(sampler.chains, facts["chains"], strict=True):
            restore_chain(chain, tensors, own)
        return sampler

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Between two passes: all that :meth:`resume` needs beside the result so far."""
        tensors, rows = rows_state(self.rows)
        facts: dict[str, Any] = {"rows": rows, "swapped_at": list(self._swapped_at), "chains": []}
        for chain in self.chains:
            own, about = chain_state(chain)
            tensors |= own
            facts["chains"].append(about)
        return tensors, facts

    def _save(self, *, finished: bool, now: bool) -> None:
        if self._writer is not None:
            self._writer.keep_up(self, finished=finished, now=now)
