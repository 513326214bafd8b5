"""``mod``: the SDK's decorator, whose functions a Session of this engine takes as they are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .actions import ActionBuilder, ModAction, for_event, validate_action
from .adapter import ModCallable, SdkMod
from .events import ModEvent

__all__ = ["ActionBuilder", "ModCallable", "create_mod", "mod", "validate_action"]

Handler = Callable[[Any, ActionBuilder, Any], Any]


def mod(handler: Handler) -> ModCallable:
    """Make a mod of ``handler(event, actions, tokenizer)``.

    Gives a plain function of ``(event, tokenizer=None)`` whose ``__wrapped__`` is the handler. It checks what the
    handler answers. It also has what the engine asks of a mod (``name``, ``capture``, ``handle``, ``describe``), so
    ``Session(model, mods=[it])`` works.

    :raises TypeError: ``handler`` can't be called with these three.
    """
    if not callable(handler) or not _takes_three(handler):
        raise TypeError(f"@mod wraps a function handler(event, actions, tokenizer), got {handler!r}")

    def call(event: ModEvent, tokenizer: Any = None) -> ModAction:
        return validate_action(event, handler(event, for_event(event), tokenizer))

    functools.update_wrapper(call, handler)
    name = str(getattr(handler, "__name__", type(handler).__name__))
    inside = SdkMod(call, name=name)
    call.__dict__.update(name=name, capture=inside.capture, handle=inside.handle, describe=inside.describe)
    return call


def _takes_three(handler: Handler) -> bool:
    try:
        inspect.signature(handler, follow_wrapped=False).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # one written in C, which says nothing of itself
        return True
    return True


create_mod = mod
