"""``reasoning_with_sampling``: the chain as a mod, so that a trace shows every token it tried and every verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import Any

from ..engine import ActionBuilder, Added, Answer, Event, ForwardPass, FunctionMod, Prefilled, Removed, mod
from ..errors import ChainError
from ..models import Tokenizer
from .chain import Chain, Decision, Proposal
from .philox import Purpose, uniform_one
from .scoring import Scorer
from .setting import require_neutral
from .target import Scalars, Target

__all__ = ["Phase", "reasoning_with_sampling"]


class Phase(Enum):
    """Where a chain is; the mod's notes in the trace carry it as ``phase``."""

    OLD = "old"
    """The block's own tokens are drawn: the text that proposals will compete with."""
    NEW = "new"
    """A new suffix is drawn from a pivot on."""
    DECIDE = "decide"
    DONE = "done"


@dataclass(slots=True)
class ReasoningState:
    """What the mod keeps of one request."""

    chain: Chain
    scorer: Scorer
    phase: Phase = Phase.OLD
    forcing: tuple[int, ...] = ()
    """The tokens that the next Added event must bring."""
    taking_back: int = 0
    """How many tokens the next Removed event must take."""
    drawn: Scalars | None = None
    """``[3]``: the scalars of the token that was just drawn."""
    accepted: list[bool] = field(default_factory=list)


def reasoning_with_sampling(
    alpha: float = 4.0,
    block_size: int = 192,
    n_mcmc: int = 6,
    *,
    tau: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    chain: int = 0,
) -> FunctionMod:
    """A mod whose output follows ``p(text)**alpha``: blocks of ``block_size`` tokens, ``n_mcmc`` proposals after each.

    Every token is drawn and scored by the chain, and stands as scratch until the end: no part of the text is settled
    before. ``max_tokens`` is the run's ``max_new_tokens`` unless it is lower. Without ``seed`` one is taken from the
    request's random stream; with the same seed and ``chain`` number :class:`PowerSampler` walks the same path. Mods
    before it may edit logits (the target then is a power of the edited model) but not force or take back tokens.

    :raises ChainError: a value outside its range; in a run also sampling that is not neutral, or a mod that interferes.
    """
    Target(alpha=alpha, tau=tau, block_size=block_size, n_mcmc=n_mcmc, max_tokens=max_tokens or 1)
    params = {
        "alpha": alpha, "block_size": block_size, "n_mcmc": n_mcmc, "tau": tau, "max_tokens": max_tokens, "seed": seed,
        "chain": chain,
    }  # fmt: skip

    def started(event: ForwardPass, tokenizer: Tokenizer) -> ReasoningState:
        if event.request.generated:
            raise ChainError("reasoning_with_sampling must be there from the first token on, but some stand already")
        room = event.request.max_new_tokens
        target = Target(
            alpha=alpha, tau=tau, block_size=block_size, n_mcmc=n_mcmc, max_tokens=min(max_tokens or room, room)
        )
        own = int(event.request.uniform() * 2**53) if seed is None else seed
        return ReasoningState(
            Chain(chain, target, seed=own, ends=tokenizer.eos_token_ids), Scorer(target.temperature)
        )  # fmt: skip

    @mod(name="reasoning_with_sampling", params=params)
    def handler(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        if isinstance(event, Prefilled):
            require_neutral(event.request.sampling)
            return None
        if isinstance(event, ForwardPass):
            if "chain" not in event.state:
                event.state["chain"] = started(event, tokenizer)
            return _draw(event.state["chain"], event, actions)
        state: ReasoningState | None = event.state.get("chain")
        if state is None or state.phase is Phase.DONE:
            return None
        if isinstance(event, Removed):
            _expect(event.n == state.taking_back, "took back tokens of the chain")
            state.taking_back = 0
        if isinstance(event, Added):
            _expect(event.tokens == state.forcing, "put other tokens in the chain's place")
            return _added(state, event, actions)
        return None

    return handler


def _expect(true: bool, what: str) -> None:
    if not true:
        raise ChainError(
            f"another mod {what}: its ratio would be wrong from here on. Put reasoning_with_sampling first in the list "
            "of mods, or run it alone."
        )


def _draw(state: ReasoningState, event: ForwardPass, actions: ActionBuilder) -> Answer:
    """The next token of the open proposal, forced: the chain's own number drew it, not the request's."""
    chain = state.chain
    notes = []
    if chain.proposal is None:
        notes = [_opened(state, _begun(chain), actions)]
    iteration, index = chain.draw_index()
    u = uniform_one(
        chain.seed, chain=chain.number, block=chain.block, iteration=iteration, purpose=Purpose.TOKEN, index=index
    )
    tokens, scalars = state.scorer.draw(event.logits[None], [u])
    state.forcing, state.drawn = (tokens[0],), scalars[0]
    return [*notes, actions.force_tokens(tokens, scratch=True)]


def _begun(chain: Chain) -> Proposal:
    proposal = chain.begin()
    if proposal is None:
        raise AssertionError(f"{chain!r} has nothing to begin with")
    return proposal


def _added(state: ReasoningState, event: Added, actions: ActionBuilder) -> Answer:
    """After a token of ours: go on, or decide and make the text ready for what is next."""
    if state.drawn is None:  # put back after a rejection: already part of the chain
        return None
    drawn, state.drawn = state.drawn, None
    if not state.chain.add(event.tokens[0], drawn):
        return None
    standing = event.request.generated
    decision, _ = state.chain.finish()
    notes = [] if decision is None else [_decided(state, decision, actions)]
    proposal = state.chain.begin()
    if proposal is None:
        state.phase = Phase.DONE
        done = actions.note(
            phase="done", decisions=len(state.accepted), accepted=sum(state.accepted), log_p=state.chain.log_p
        )
        return [*notes, done, actions.force_output(state.chain.tokens)]
    notes.append(_opened(state, proposal, actions))
    return [*notes, *_back_to(state, standing, proposal.pivot, actions)]


def _back_to(state: ReasoningState, standing: tuple[int, ...], pivot: int, actions: ActionBuilder) -> list[Any]:
    """Leave the chain's first ``pivot`` tokens standing. What a rejection brings back is fed again only up to there."""
    wanted = state.chain.tokens[:pivot]
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(standing, wanted, strict=False)))
    n, tokens = len(standing) - common, tuple(wanted[common:])
    if not n and not tokens:
        return []
    state.taking_back, state.forcing = n, tokens
    return [actions.backtrack(n, tokens, scratch=True)]


def _opened(state: ReasoningState, proposal: Proposal, actions: ActionBuilder) -> Any:
    chain = state.chain
    if proposal.extends:
        state.phase = Phase.OLD
        return actions.note(phase="old", block=chain.block, position=proposal.pivot, limit=chain.limit)
    state.phase = Phase.NEW
    return actions.note(
        phase="new", block=chain.block, iteration=chain.iteration + 1, pivot=proposal.pivot, length=len(chain.tokens)
    )  # fmt: skip


def _decided(state: ReasoningState, decision: Decision, actions: ActionBuilder) -> Any:
    state.phase = Phase.DECIDE
    state.accepted.append(decision.accepted)
    terms = decision.terms
    return actions.note(
        phase="decide", block=decision.block, iteration=decision.iteration, pivot=decision.pivot, kind=decision.kind,
        alpha_log_p_new=terms.alpha_log_p_new, alpha_log_p_old=terms.alpha_log_p_old, log_q_new=terms.log_q_new,
        log_q_old=terms.log_q_old, pivot_term=terms.pivot, log_a=decision.log_a, u=decision.u,
        accepted=decision.accepted, flagged=decision.flagged, length=decision.length, log_p=decision.log_p,
    )  # fmt: skip
