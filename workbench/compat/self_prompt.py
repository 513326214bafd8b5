"""``SelfPrompt``: force a question into the text, keep the answer to a strategy, take away what shall not stay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import CompatError
from ..flows import EraseMode
from .actions import ActionBuilder, ModAction
from .decorator import ModCallable, mod
from .events import Added, ForwardPass, ModEvent, Prefilled
from .prompt_parts import checked_prompt, erase_mode, masked, places_of, suffix_of, with_choices
from .remembering import remember
from .strategy_base import OpenEnded, Strategy
from .strategy_constructor import StrategyConstructor, strategy_given
from .tokenizer import tokenize

__all__ = ["EraseMode", "PromptState", "SelfPrompt", "self_prompt_mod"]


@dataclass(slots=True)
class PromptState:
    """Where one self-prompt stands in one request."""

    compiled: Strategy
    strat_state: Any
    prompt_tokens: list[int]
    suffix_tokens: list[int]
    prompt_emitted: bool = False
    outstanding_forced: int = 0
    """Forced tokens of ours that ``Added`` has not told of yet."""
    confirmed: int = 0
    """Tokens of the prompt that ``Added`` has told of."""
    answer_tokens: list[int] = field(default_factory=list)
    strays: int = 0
    """Tokens that somebody else put between: erased with the rest, and no part of the answer."""
    undecided: bool = False
    """The answer may end here or go on: the next logits tell."""
    answered: bool = False
    answer: list[int] = field(default_factory=list)
    """The answer's tokens without what only marks its end, once it is there."""
    suffix_pending: bool = False
    backtrack_n: int = 0
    backtrack_reinject: list[int] | None = None
    backtrack_scheduled: bool = False
    completed: bool = False

    @property
    def begun(self) -> bool:
        """Whether anything of prompt or answer stands in the text."""
        return self.confirmed > 0 or bool(self.answer_tokens)


class SelfPrompt:
    """One question that the model asks itself, in any number of requests.

    ``prompt`` is ``{"text": …}`` or ``{"tokens": […]}`` (or nothing); ``completion`` a text that is forced behind the
    answer, or ``{"suffix": …, "force": bool}``; ``argmax_sampling`` takes the likeliest allowed token. What
    ``Added`` has not confirmed is forced again. An answer that may end or go on ends where the model's likeliest
    token is none that goes on.

    :raises CompatError: a prompt, a completion or a strategy in another form.
    """

    def __init__(
        self,
        prompt: Mapping[str, Any] | None = None,
        strategy: StrategyConstructor | None = None,
        completion: str | Mapping[str, Any] | None = None,
        erase: EraseMode | str | None = EraseMode.NONE,
        argmax_sampling: bool = False,
        mask_value: float = -1e9,
    ) -> None:
        self.prompt = checked_prompt(prompt)
        self.strategy = strategy_given(strategy, "a self-prompt needs a strategy")
        self.suffix = suffix_of(completion)
        self.erase = erase_mode(erase)
        self.argmax_sampling = argmax_sampling
        self.mask_value = float(mask_value)
        self.suffix_with_all = False
        """Whether the suffix is forced though all will be erased: a flow does that."""
        self._states: OrderedDict[str, PromptState] = OrderedDict()
        self._own: OrderedDict[str, StrategyConstructor] = OrderedDict()

    # Events ------------------------------------------------------------------------------------------------

    def handle_prefilled(self, event: Prefilled, tokenizer: Any) -> None:
        """Compile the strategy for this request, if that has not happened."""
        self.state_of(event.request_id, tokenizer)

    def handle_forward_pass(self, event: ForwardPass, actions: ActionBuilder, tokenizer: Any) -> ModAction:
        """Force what is due, or mask the logits for the next token of the answer."""
        state = self.state_of(event.request_id, tokenizer)
        if state.undecided and not state.answered:
            self._decide(state, event, tokenizer)
        if state.completed:
            return actions.noop()
        if state.backtrack_scheduled:
            state.backtrack_scheduled, state.completed = False, True
            return actions.backtrack(state.backtrack_n, state.backtrack_reinject)
        if state.suffix_pending:
            state.outstanding_forced = len(state.suffix_tokens)
            return self._forced(actions, state.suffix_tokens)
        if state.confirmed < len(state.prompt_tokens):
            return self._prompt(state, actions)
        return self._masked(state, event, actions, tokenizer)

    def handle_added(self, event: Added, actions: ActionBuilder, tokenizer: Any) -> None:
        """Follow what was committed."""
        state = self.state_of(event.request_id, tokenizer)
        if state.completed:
            return
        if event.forced:
            self._take_forced(state, event.added_tokens)
        else:
            for token in event.added_tokens:
                self._take(state, token, tokenizer)

    def is_complete(self, request_id: str) -> bool:
        """Whether the answer is there and what shall be erased is gone."""
        state = self._states.get(request_id)
        return state is not None and state.completed

    def answer_tokens(self, request_id: str) -> list[int] | None:
        """The answer's tokens, without a mark that only ends it; None until ``is_complete``."""
        state = self._states.get(request_id)
        return list(state.answer) if state is not None and state.completed else None

    def refresh_responses(
        self, responses: Sequence[str], request_id: str | None = None, idx: int | None = None
    ) -> None:
        """Other choices: of one request (what it answered so far is forgotten), or of all that begin from now on.

        :raises CompatError: the strategy has no choices, or ``idx`` is no element of its list.
        """
        strategy = with_choices(self._strategy(request_id), responses, idx)
        if request_id is None:
            self.strategy = strategy
            return
        remember(self._own, request_id, strategy)
        state = self._states.get(request_id)
        if state is not None and not state.answered:
            state.strays += len(state.answer_tokens)
            state.answer_tokens.clear()
            state.undecided, state.strat_state = False, None

    # Inside ------------------------------------------------------------------------------------------------

    def state_of(self, request_id: str, tokenizer: Any) -> PromptState:
        """The state of a request, begun if there is none."""
        state = self._states.get(request_id)
        if state is None:
            compiled = self._strategy(request_id).into_strategy(tokenizer)
            tokens = self.prompt.get("tokens")
            made = PromptState(
                compiled=compiled,
                strat_state=compiled.start(tokenizer),
                prompt_tokens=tokenize(self.prompt.get("text"), tokenizer) if tokens is None else list(tokens),
                suffix_tokens=tokenize(self.suffix, tokenizer),
            )
            state = remember(self._states, request_id, made)
        elif state.strat_state is None:
            state.compiled = self._strategy(request_id).into_strategy(tokenizer)
            state.strat_state = state.compiled.start(tokenizer)
        return state

    def forget(self, request_id: str) -> None:
        """Let the request ask again from the beginning."""
        self._states.pop(request_id, None)

    def _strategy(self, request_id: str | None) -> StrategyConstructor:
        return self._own.get(request_id or "", self.strategy)

    def _forced(self, actions: ActionBuilder, tokens: list[int]) -> ModAction:
        action = actions.force_tokens(tokens)
        action.scratch = self.erase is not EraseMode.NONE
        return action

    def _prompt(self, state: PromptState, actions: ActionBuilder) -> ModAction:
        if state.confirmed:  # arriving piece by piece
            return actions.noop()
        state.prompt_emitted = True
        state.outstanding_forced = len(state.prompt_tokens)
        return self._forced(actions, state.prompt_tokens)

    def _masked(self, state: PromptState, event: ForwardPass, actions: ActionBuilder, tokenizer: Any) -> ModAction:
        allowed = state.compiled.allowed_tokens(state.strat_state, tokenizer)
        barred = state.compiled.disallowed_tokens(state.strat_state, tokenizer)
        if not allowed and not barred:
            return actions.noop()
        logits = masked(event.logits, allowed, barred, self.mask_value)
        return actions.adjust_logits(logits, 0.0 if self.argmax_sampling else None)

    def _take_forced(self, state: PromptState, tokens: list[int]) -> None:
        """Forced tokens: the next of ours, or somebody else's."""
        if state.outstanding_forced:
            wanted = state.suffix_tokens if state.suffix_pending else state.prompt_tokens
            if wanted[len(wanted) - state.outstanding_forced :][: len(tokens)] == tokens:
                state.outstanding_forced -= len(tokens)
                state.confirmed += 0 if state.suffix_pending else len(tokens)
                if state.suffix_pending and not state.outstanding_forced:
                    state.suffix_pending = False
                    self._finish(state, state.suffix_tokens)
                return
        state.strays += len(tokens) if state.begun else 0

    def _take(self, state: PromptState, token: int, tokenizer: Any) -> None:
        """A drawn token: the next of the answer, if the answer is being given and the strategy allows it."""
        strategy, waiting = state.compiled, state.confirmed < len(state.prompt_tokens)
        if waiting or state.answered or not _may_come(strategy, state.strat_state, token, tokenizer):
            state.strays += 1 if state.begun else 0
            return
        if strategy.step(state.strat_state, token, tokenizer) is not None:
            raise CompatError(
                f"the strategy {type(strategy).__name__} answered step() with an action; here a strategy only says "
                "which tokens may come: let the mod itself return the action"
            )
        state.answer_tokens.append(token)
        if not isinstance(strategy, OpenEnded):
            complete = strategy.is_complete(state.strat_state)
        else:
            state.undecided = strategy.may_end(state.strat_state)
            complete = state.undecided and not strategy.allowed_tokens(state.strat_state, tokenizer)
        if complete:
            self._answered(state, tokenizer)

    def _decide(self, state: PromptState, event: ForwardPass, tokenizer: Any) -> None:
        """End an answer that could go on, unless the model's likeliest token goes on with it."""
        going_on = state.compiled.allowed_tokens(state.strat_state, tokenizer)
        row = np.asarray(event.logits.to_numpy(), dtype=np.float64).reshape(-1)
        places = places_of(going_on, row.size)
        state.undecided = False
        if not places.size or row[places].max() < row.max():
            self._answered(state, tokenizer)

    def _answered(self, state: PromptState, tokenizer: Any) -> None:
        state.answered, state.undecided = True, False
        text = answer_text(state, tokenizer)
        whole = text == tokenizer.decode(state.answer_tokens)
        state.answer = list(state.answer_tokens) if whole else tokenize(text, tokenizer)
        state.suffix_pending = bool(state.suffix_tokens) and (self.suffix_with_all or self.erase is not EraseMode.ALL)
        if not state.suffix_pending:
            self._finish(state, [])

    def _finish(self, state: PromptState, suffix: list[int]) -> None:
        """What is left to do once answer and suffix stand in the text: erase, or nothing."""
        state.backtrack_n = state.confirmed + len(state.answer_tokens) + state.strays + len(suffix)
        state.backtrack_reinject = list(state.answer_tokens) if self.erase is EraseMode.PROMPT else None
        state.backtrack_scheduled = self.erase is not EraseMode.NONE and state.backtrack_n > 0
        state.completed = not state.backtrack_scheduled


def answer_text(state: PromptState, tokenizer: Any) -> str:
    """The text of the answer so far, without what only marks its end."""
    text = str(tokenizer.decode(state.answer_tokens))
    trim = getattr(state.compiled, "trim_answer", None)  # a strategy of the user's own may lack it
    return text if trim is None else str(trim(text))


def _may_come(strategy: Strategy, state: Any, token: int, tokenizer: Any) -> bool:
    """Whether our own strategies allow a token; a user's may name only some, so it is not asked."""
    return not isinstance(strategy, OpenEnded) or token in strategy.allowed_tokens(state, tokenizer)


def self_prompt_mod(
    prompt: Mapping[str, Any] | None = None,
    strategy: StrategyConstructor | None = None,
    completion: str | Mapping[str, Any] | None = None,
    erase: EraseMode | str | None = EraseMode.NONE,
    argmax_sampling: bool = False,
    mask_value: float = -1e9,
) -> ModCallable:
    """A mod that is one self-prompt, asked at the beginning of every request."""
    asking = SelfPrompt(prompt, strategy, completion, erase, argmax_sampling, mask_value)

    def self_prompt(event: ModEvent, actions: ActionBuilder, tokenizer: Any) -> ModAction:
        if isinstance(event, Prefilled):
            asking.handle_prefilled(event, tokenizer)
        if isinstance(event, ForwardPass):
            return asking.handle_forward_pass(event, actions, tokenizer)
        if isinstance(event, Added):
            asking.handle_added(event, actions, tokenizer)
        return actions.noop()

    return mod(self_prompt)
