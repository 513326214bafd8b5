"""How pauses enter under the engine: as tokens of the request, put after its prompt before anything is fed."""

from __future__ import annotations

from ..engine import Action, ActionBuilder, Event, FunctionMod, Prefilled
from ..errors import CarryError
from ..models import Tokenizer

__all__ = ["pausing"]


def pausing(pause: int, pauses: int) -> FunctionMod:
    """A mod that appends ``pauses`` tokens ``pause`` to a request's prompt; they count as prompt, not as output.

    Put it before mods that look at the prompt's end. After a chat the pauses stand behind the generation prompt.

    :raises CarryError: a negative number of pauses.
    """
    if pauses < 0:
        raise CarryError(f"pauses must be 0 or more, got {pauses}")

    def add_pauses(event: Event, actions: ActionBuilder, _tokenizer: Tokenizer) -> Action | None:
        if not isinstance(event, Prefilled) or not pauses:
            return None
        return actions.adjust_prefill([*event.tokens, *[pause] * pauses])

    return FunctionMod(add_pauses, name="carry_pauses", params={"pause": pause, "pauses": pauses})
