"""One event that a flow answers, and what its answer takes back first."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine import Action, ActionBuilder, Added, ForwardPass
from ..models import Tokenizer

__all__ = ["Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """An event, what to answer it with, and the question that is over with it, if one is."""

    event: ForwardPass | Added
    actions: ActionBuilder
    tokenizer: Tokenizer
    back: int = 0
    """Generated tokens to take back first."""
    keep: tuple[int, ...] = ()
    """Those of them to put back."""

    @property
    def base(self) -> tuple[int, ...]:
        """What is generated once that is done."""
        generated = self.event.request.generated
        return (*generated[: len(generated) - self.back], *self.keep)

    def commit(self, tokens: tuple[int, ...], *, scratch: bool = False) -> Action:
        """Take back, then commit the tokens, those to be put back among them."""
        if self.back:
            return self.actions.backtrack(self.back, tokens, scratch=scratch)
        return self.actions.force_tokens(tokens, scratch=scratch)
