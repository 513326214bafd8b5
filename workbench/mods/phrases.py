"""Taking back a phrase the model wrote and putting another in its place."""

from __future__ import annotations

from typing import Any

from ..engine import ActionBuilder, Added, Answer, Event, FunctionMod, Removed, mod
from ..models import Tokenizer
from .texts import covering

__all__ = ["replace_phrase"]


def replace_phrase(old: str, new: str) -> FunctionMod:
    """A mod that replaces every ``old`` in the generated text by ``new``, as soon as it is complete.

    The tokens that hold the phrase are taken back; what else they hold, before or after it, is written again.
    Text that this mod has put there is not searched again, so ``new`` may contain ``old``.

    :raises ValueError: either is empty. With nothing in its place the model would write the phrase again.
    """
    if not old or not new:
        raise ValueError(
            f"replace_phrase({old!r}, {new!r}) needs two texts that are not empty; to keep the model from "
            "writing a phrase use ban_tokens(words=[…])"
        )

    @mod(name="replace_phrase", params={"old": old, "new": new})
    def swap(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        state = event.state
        if isinstance(event, Removed):
            state["done"] = min(state.get("done", 0), len(event.request.generated))
        if not isinstance(event, Added):
            return None
        put, done = state.pop("put", ((), 0))
        if put and event.origin == "reinjected" and event.tokens == put[: len(event.tokens)]:
            state["done"] = done
        return _swapped(event, actions, tokenizer, old, new)

    return swap


def _swapped(event: Added, actions: ActionBuilder, tokenizer: Tokenizer, old: str, new: str) -> Answer:
    """Replace the first ``old`` after the tokens that are done with, if there is one."""
    state: dict[str, Any] = event.state
    tokens = event.request.generated
    text = tokenizer.decode(tokens)
    found = text.find(old, len(tokenizer.decode(tokens[: state.get("done", 0)])))
    if found < 0:
        return None
    first, before = covering(tokens, tokenizer, found)
    written = tokenizer.encode(before + new)
    rest = text[found + len(old) :]
    put = [*written, *(tokenizer.encode(rest) if rest else ())]
    state["put"] = (tuple(put), first + len(written))
    return actions.backtrack(len(tokens) - first, put)
