"""The SDK's list strategy: elements that follow strategies of their own, with the marks between and around them."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from .strategy_base import OpenEnded, RuntimeState, Strategy, tokenize_str
from .strategy_primitives import CharsStrategy, refuse

__all__ = ["ListStrategy"]


class Phase(Enum):
    """Where the list stands once its queue of certain tokens is empty."""

    CHOOSING = auto()
    """Before an element or the end."""
    ELEMENT = auto()
    DONE = auto()


@dataclass(slots=True)
class ListState(RuntimeState):
    phase: Phase
    queue: list[int] = field(default_factory=list)
    """Tokens that must come next, in this order."""
    count: int = 0
    """Elements that are complete."""
    inner: Any = None


class ListStrategy(OpenEnded):
    """``open``, elements with ``sep`` between and ``wrap`` around each, ``close``, ``end_with``.

    One strategy serves ``least`` to ``most`` elements; several make a list of exactly these. Where separator and
    closing mark begin with the same token, that token closes. An element that ends with a text equal to ``wrap`` has
    brought its closing wrap with it. ``end_with`` does not belong to the answer.
    """

    def __init__(
        self,
        elements: Strategy | Sequence[Strategy],
        *,
        open: str | None = None,
        close: str | None = None,
        wrap: str | None = None,
        sep: str | None = None,
        end_with: str | None = None,
        least: int = 0,
        most: int | None = None,
    ) -> None:
        fixed = isinstance(elements, (list, tuple))
        self.elements: tuple[Any, ...] = tuple(elements) if fixed else (elements,)  # type: ignore[arg-type]
        self.least = len(self.elements) if fixed else least
        self.most = len(self.elements) if fixed else most
        self.opening, self.closing, self.wrap, self.sep, self.end_with = open, close, wrap, sep, end_with

    def start(self, tokenizer: Any) -> ListState:
        return self._reached(ListState(Phase.CHOOSING, queue=tokenize_str(self.opening, tokenizer)), tokenizer)

    def allowed_tokens(self, state: ListState, tokenizer: Any) -> AbstractSet[int]:
        if state.queue:
            return {state.queue[0]}
        if state.phase is Phase.ELEMENT:
            found = set(self._element(state).allowed_tokens(state.inner, tokenizer))
            if self._element_may_end(state):
                found |= self._after_element(state, tokenizer)
            return found
        return self._choices(state.count, tokenizer) if state.phase is Phase.CHOOSING else frozenset()

    def step(self, state: ListState, token_id: int, tokenizer: Any) -> None:
        if token_id not in self.allowed_tokens(state, tokenizer):
            raise refuse(token_id, tokenizer)
        if state.queue:
            del state.queue[0]
        elif state.phase is Phase.CHOOSING:
            self._choose(state, token_id, tokenizer)
        else:
            element = self._element(state)
            if token_id in element.allowed_tokens(state.inner, tokenizer):
                element.step(state.inner, token_id, tokenizer)
            else:
                self._leave(state, tokenizer)
                self._reached(state, tokenizer)
                self.step(state, token_id, tokenizer)
                return
        self._reached(state, tokenizer)

    def is_complete(self, state: ListState) -> bool:
        return state.phase is Phase.DONE and not state.queue

    def may_end(self, state: ListState) -> bool:
        if self.is_complete(state):
            return True
        if state.queue or self.closing or self.end_with:
            return False
        if state.phase is Phase.ELEMENT:
            return not self.wrap and self._element_may_end(state) and state.count + 1 >= self.least
        return state.count >= max(self.least, 1)

    def trim_answer(self, answer: str) -> str:
        return answer.removesuffix(self.end_with or "")

    # Inside ------------------------------------------------------------------------------------------------

    def _element(self, state: ListState) -> Any:
        return self.elements[min(state.count, len(self.elements) - 1)]

    def _element_may_end(self, state: ListState) -> bool:
        element = self._element(state)
        if isinstance(element, OpenEnded):
            return element.may_end(state.inner)
        return bool(element.is_complete(state.inner))

    def _brings_wrap(self, state: ListState) -> bool:
        element = self._element(state)
        return isinstance(element, CharsStrategy) and element.stop == self.wrap

    def _last_tokens(self, tokenizer: Any) -> list[int]:
        return tokenize_str(self.closing, tokenizer) + tokenize_str(self.end_with, tokenizer)

    def _more_tokens(self, count: int, tokenizer: Any) -> list[int]:
        return (tokenize_str(self.sep, tokenizer) if count else []) + tokenize_str(self.wrap, tokenizer)

    def _choices(self, count: int, tokenizer: Any) -> set[int]:
        """Tokens that may follow ``count`` complete elements."""
        found = set()
        if count >= self.least and (last := self._last_tokens(tokenizer)):
            found.add(last[0])
        if self.most is None or count < self.most:
            more = self._more_tokens(count, tokenizer)
            element = self.elements[min(count, len(self.elements) - 1)]
            found |= {more[0]} if more else set(element.allowed_tokens(element.start(tokenizer), tokenizer))
        return found

    def _after_element(self, state: ListState, tokenizer: Any) -> set[int]:
        if self.wrap and not self._brings_wrap(state):
            return {tokenize_str(self.wrap, tokenizer)[0]}
        return self._choices(state.count + 1, tokenizer)

    def _choose(self, state: ListState, token: int, tokenizer: Any) -> None:
        last = self._last_tokens(tokenizer) if state.count >= self.least else []
        if last and token == last[0]:
            state.phase, state.queue = Phase.DONE, last[1:]
            return
        more = self._more_tokens(state.count, tokenizer)
        self._enter(state, more[1:], tokenizer)
        if not more:
            self._element(state).step(state.inner, token, tokenizer)

    def _enter(self, state: ListState, queue: list[int], tokenizer: Any) -> None:
        state.phase, state.queue = Phase.ELEMENT, queue
        state.inner = self._element(state).start(tokenizer)

    def _leave(self, state: ListState, tokenizer: Any) -> None:
        queue = [] if self._brings_wrap(state) else tokenize_str(self.wrap, tokenizer)
        state.count += 1
        state.phase, state.queue, state.inner = Phase.CHOOSING, queue, None

    def _reached(self, state: ListState, tokenizer: Any) -> ListState:
        """Go on where there is nothing to choose: an element that must end, a list that is full or has one way on."""
        if state.phase is Phase.ELEMENT and not state.queue and self._element_may_end(state):
            goes_on = self._element(state).allowed_tokens(state.inner, tokenizer)
            if not goes_on or not isinstance(self._element(state), OpenEnded):
                self._leave(state, tokenizer)
        if state.phase is Phase.CHOOSING and not state.queue and state.count == self.most:
            state.phase, state.queue = Phase.DONE, self._last_tokens(tokenizer)
        return state
