"""``ModManager``: calls SDK mods by hand, as tests of mods do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .actions import ModAction, validate_action
from .adapter import ModCallable
from .checks import callable_given
from .conversation import request_context
from .events import ModEvent, event_given

__all__ = ["ModManager"]


class ModManager:
    """Some mods and the tokenizer they are called with. In a Session mods need no manager."""

    def __init__(self, mods: Iterable[ModCallable] | None = None, *, tokenizer: Any = None) -> None:
        self.mods: list[ModCallable] = []
        for mod in mods or ():
            self.register(mod)
        self._tokenizer = tokenizer

    def register(self, mod: ModCallable) -> None:
        """Call this mod too, after the others.

        :raises CompatError: it can't be called.
        """
        self.mods.append(callable_given(mod, "a mod is a function of (event, tokenizer)"))

    def set_tokenizer(self, tokenizer: Any) -> None:
        """Call the mods with this tokenizer from now on."""
        self._tokenizer = tokenizer

    def dispatch(self, event: ModEvent) -> list[ModAction]:
        """Every mod's checked action, in order; a ``Noop`` for a mod that gave None.

        :raises InvalidActionError: an answer that the event does not allow. What a mod raises is not caught.
        :raises TypeError: ``event`` is none.
        """
        with request_context(event_given(event).request_id):
            return [validate_action(event, mod(event, self._tokenizer)) for mod in self.mods]
