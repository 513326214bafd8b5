"""The hand: a mod through which a person holds the loop after an event and acts in it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from workbench.engine import Action, ActionBuilder, Added, Answer, Event, ForwardPass, Mod, Prefilled, Sampled
from workbench.models import Tokenizer

__all__ = ["Hand", "Held", "Wish"]

SHOWN = 8
"""Candidates that are shown while the loop is held at a pass."""
STRUCTURAL = ("force", "backtrack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a person wants done: ``force``, ``backtrack``, ``ban``, ``unban``, ``steer`` or ``unsteer``."""

    kind: str
    tokens: tuple[int, ...] = ()
    n: int = 0
    ban: Mod | None = None
    hook: str = ""
    vector: Tensor | None = None
    scale: float = 1.0

    def fits(self, event: Event) -> bool:
        """Whether it can be carried out as an answer to this event."""
        if self.kind in STRUCTURAL:
            return isinstance(event, (ForwardPass, Sampled, Added))
        if self.kind in ("steer", "unsteer"):
            return isinstance(event, (Prefilled, ForwardPass, Sampled, Added))
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The event that the loop is held after."""

    number: int
    """How many times the run was held before."""
    event: str
    step: int
    position: int
    tokens: tuple[int, ...] = ()
    logprob: float | None = None
    candidates: tuple[tuple[int, float], ...] = ()
    """Of a pass: the likeliest tokens with their log-probabilities, before the mods that follow."""
    acts: bool = True
    """Whether tokens can be forced or taken back as an answer to it."""


class Hand:
    """A mod with one person behind it. It comes first in the order of mods, so what a person does wins.

    ``changed`` is called, in the thread of the run, when the loop is held and when it goes on. ``prefix`` is
    committed before anything is drawn: the tokens of the run that this one branches from.
    """

    name = "hand"
    capture: tuple[str, ...] = ()

    def __init__(
        self,
        changed: Callable[[], None],
        *,
        stepping: bool = False,
        prefix: Sequence[int] = (),
        refused: Callable[[str], None],
    ) -> None:
        self.held: Held | None = None
        self._changed = changed
        self._refused = refused
        self._turn = threading.Condition()
        self._stepping = stepping
        self._steps = 0
        self._holds = 0
        self._ended = False
        self._prefix = tuple(prefix)
        self._wishes: deque[Wish] = deque()
        self._bans: list[Mod] = []

    def describe(self) -> Mapping[str, Any]:
        return {"name": self.name, "params": None, "source": "a person's actions, as the trace has them"}

    # From the person ---------------------------------------------------------------------------------------

    @property
    def stepping(self) -> bool:
        """Whether the loop is held after every event."""
        return self._stepping

    def hold(self) -> None:
        """Hold the loop after the next event and after every one that follows."""
        with self._turn:
            self._stepping = True

    def step(self) -> None:
        """Let the loop go on to the next event and hold it there."""
        with self._turn:
            self._stepping = True
            self._steps += 1
            self._turn.notify_all()

    def resume(self) -> None:
        """Let the loop go on without holding it."""
        with self._turn:
            self._stepping = False
            self._turn.notify_all()

    def end(self) -> None:
        """Never hold again: the run is being stopped."""
        with self._turn:
            self._ended = True
            self._wishes.clear()
            self._turn.notify_all()

    def wish(self, wish: Wish) -> None:
        """Have something done as an answer to this event if it is held, else to the next that allows it."""
        with self._turn:
            self._wishes.append(wish)
            self._turn.notify_all()

    # From the loop -----------------------------------------------------------------------------------------

    def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        """Hold if asked to, then answer with what was wished for."""
        if self._prefix and isinstance(event, ForwardPass):
            prefix, self._prefix = self._prefix, ()
            return actions.force_tokens(prefix)
        if not isinstance(event, (Prefilled, ForwardPass, Sampled, Added)) or self._prefix:
            return None
        self._wait(event)
        return [*self._answers(event, actions), *self._masked(event, actions, tokenizer)] or None

    def _wait(self, event: Event) -> None:
        with self._turn:
            if not self._stepping or self._ended:
                return
            self.held = held_after(event, self._holds)
            self._holds += 1
        self._changed()
        with self._turn:
            self._turn.wait_for(
                lambda: self._steps or self._ended or not self._stepping or any(w.fits(event) for w in self._wishes)
            )
            self._steps = max(self._steps - 1, 0)
            self.held = None

    def _answers(self, event: Event, actions: ActionBuilder) -> list[Action]:
        """The wishes that fit, in order; of those that change tokens only the first: the others wait."""
        found: list[Action] = []
        acted = False
        with self._turn:
            waiting = list(self._wishes)
            self._wishes.clear()
            for wish in waiting:
                if not wish.fits(event) or (acted and wish.kind in STRUCTURAL):
                    self._wishes.append(wish)
                    continue
                action = self._action(wish, event, actions)
                if action is not None:
                    acted = acted or wish.kind in STRUCTURAL
                    found.append(action)
        return found

    def _action(self, wish: Wish, event: Event, actions: ActionBuilder) -> Action | None:
        match wish.kind:
            case "force":
                return actions.force_tokens(wish.tokens)
            case "backtrack":
                there = len(event.request.generated)
                if wish.n > there:
                    self._refused(f"can't take back {wish.n} tokens: {there} were generated so far")
                    return None
                return actions.backtrack(wish.n, wish.tokens)
            case "steer":
                return actions.steer(wish.hook, wish.vector, wish.scale)
            case "unsteer":
                return actions.clear_edits()
            case "unban":
                self._bans.clear()
            case "ban":
                self._bans += [] if wish.ban is None else [wish.ban]
        return None

    def _masked(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> list[Action]:
        """What is banned, as one edit of the logits."""
        if not self._bans or not isinstance(event, ForwardPass):
            return []
        logits = event.logits
        for ban in self._bans:
            answer: Any = ban.handle(replace(event, logits=logits), actions, tokenizer)
            logits = torch.as_tensor(answer.logits)
        return [actions.adjust_logits(logits)]


def held_after(event: Event, number: int) -> Held:
    """An event as it is shown while the loop waits."""
    shared = {"number": number, "event": type(event).__name__, "step": event.step, "position": event.position}
    match event:
        case ForwardPass():
            return Held(candidates=tuple(event.top_k_logprob(SHOWN)), **shared)  # type: ignore[arg-type]
        case Sampled():
            return Held(tokens=(event.token,), logprob=event.logprob, **shared)  # type: ignore[arg-type]
        case Added():
            return Held(tokens=tuple(event.tokens), **shared)  # type: ignore[arg-type]
    return Held(acts=False, **shared)  # type: ignore[arg-type]
