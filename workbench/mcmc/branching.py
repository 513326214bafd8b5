"""What if a decision had gone otherwise: its numbers under another u, verdict or power, and a new chain from there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ChainError
from ..models import HookedModel
from .chain import Decision
from .history import TextState, checked_index, state_before
from .philox import branch_seed
from .records import decided_again
from .reference import Decided
from .result import Chains
from .sampler import PowerSampler
from .target import Target

__all__ = ["WhatIf", "branch", "what_if"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A decision made again with something changed. The run itself is left as it is."""

    decision: Decision
    alpha: float
    redraw: int
    """0: the run's own u. Others are drawn under the same counter but for its last word."""
    verdict: str | None
    """``accept`` or ``reject`` where it is set by hand."""
    decided: Decided = field(repr=False)
    """What the kernel's arithmetic says, before any verdict by hand."""
    log_a: float
    u: float
    margin: float
    """``log A - log u``."""
    accepted: bool

    @property
    def changed(self) -> bool:
        return self.redraw != 0 or self.verdict is not None or self.alpha != self.decision.alpha

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why what follows from here is no sample of the run's target; empty where it is one."""
        said = []
        if self.verdict is not None:
            said.append(f"Verdict set by hand ({self.verdict}): what follows is no longer a sample of the target.")
        if self.redraw:
            said.append(
                f"u was drawn again (draw {self.redraw}) after the first one was known, and choosing among draws "
                "favours some verdicts: what follows is no longer a sample of the target."
            )
        if self.alpha != self.decision.alpha:
            said.append(
                f"alpha is {self.alpha:g} in the place of {self.decision.alpha:g}: another target, and a state that "
                "came from a chain for the first. It is no sample of either."
            )
        return tuple(said)


def what_if(
    chains: Chains, index: int, *, redraw: int = 0, verdict: str | None = None, alpha: float | None = None
) -> WhatIf:  # fmt: skip
    """Decision ``index`` with its u drawn again, its verdict set, or under another power.

    :raises ChainError: no such decision; a value outside its range; another power where several tries were made, since
        the run keeps the scalars of one.
    """
    decision = chains.decisions[checked_index(chains, index)]
    if redraw < 0:
        raise ChainError(f"redraw counts from 0 (the run's own u), got {redraw}")
    if verdict not in (None, "accept", "reject"):
        raise ChainError(f"verdict is 'accept', 'reject' or None, got {verdict!r}")
    power = decision.alpha if alpha is None else float(alpha)
    Target(alpha=power)
    if power != decision.alpha and decision.tries > 1:
        raise ChainError(
            f"this decision chose among {decision.tries} tries, of which the run keeps one: what another alpha would "
            "have chosen can't be told"
        )
    decided = decided_again(decision, chains.settings.seed, alpha=power, redraw=redraw)
    log_u = float(decided.log_u[0])
    # Of several tries the ratio that decided is the recorded one; there the sum of the terms is another number.
    log_a = decision.log_a if decision.tries > 1 else float(decided.log_a[0])
    accepted = log_u < log_a if verdict is None else verdict == "accept"
    return WhatIf(
        decision=decision, alpha=power, redraw=redraw, verdict=verdict, decided=decided, log_a=log_a,
        u=float(decided.u[0]), margin=log_a - log_u, accepted=accepted,
    )  # fmt: skip


def branch(
    model: HookedModel,
    chains: Chains,
    index: int,
    *,
    redraw: int = 0,
    verdict: str | None = None,
    alpha: float | None = None,
    tau: float | None = None,
    n_mcmc: int | None = None,
    number: int = 0,
    seed: int | None = None,
    save: str | Path | None = None,
) -> PowerSampler:
    """A new chain that goes on behind decision ``index``, as it was or as ``what_if`` has it; the old one stays.

    Its random numbers are those of a seed of its own: ``seed``, or one made of the run's, the decision's place and
    ``number`` (:func:`~workbench.mcmc.philox.branch_seed`). The proposal keeps its temperature unless ``tau`` is given,
    for which the text is scored again. The text is fed once, since only the run's own sampler has its keys and values:
    they may differ from those in the last bits. ``n_mcmc`` changes how many proposals a block gets.

    :raises ChainError: as :func:`what_if`; a branch with no decision left to make.
    """
    place = checked_index(chains, index)
    supposed = what_if(chains, place, redraw=redraw, verdict=verdict, alpha=alpha)
    decision, settings = supposed.decision, chains.settings
    target = Target(
        alpha=supposed.alpha, tau=decision.tau if tau is None else tau, block_size=settings.target.block_size,
        n_mcmc=settings.target.n_mcmc if n_mcmc is None else n_mcmc, max_tokens=settings.target.max_tokens,
    )  # fmt: skip
    if (target.n_blocks - decision.block) * target.n_mcmc <= decision.iteration:
        raise ChainError(
            "no decision is left behind the run's last one: branch from an earlier one, or give more proposals a block "
            f"with n_mcmc=, which is {target.n_mcmc}"
        )
    state = _standing(chains, place, supposed)
    own = seed
    if own is None:
        own = branch_seed(
            settings.seed, chain=decision.chain, block=decision.block, iteration=decision.iteration, index=number
        )
    sampler = PowerSampler(
        model, settings.prompt, alpha=target.alpha, tau=target.tau, block_size=target.block_size, n_mcmc=target.n_mcmc,
        max_tokens=target.max_tokens, seed=own, tries=settings.tries, capture=settings.capture, save=save,
    )  # fmt: skip
    sampler.stand(
        state.tokens, state.scalars, block=decision.block, iteration=decision.iteration,
        rescore=target.temperature != decision.tau,
    )  # fmt: skip
    return sampler


def _standing(chains: Chains, index: int, supposed: WhatIf) -> TextState:
    decision, before = supposed.decision, state_before(chains, index)
    if not supposed.accepted:
        return before
    return before.ending(decision.pivot, decision.new_tokens, decision.new_scalars)
