"""A mod: a small program that hears every event of a request and may answer with actions."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, overload, runtime_checkable

from ..models import Tokenizer
from .actions import Action, ActionBuilder
from .events import Event

__all__ = ["Answer", "FunctionMod", "Handler", "Mod", "mod"]

Answer: TypeAlias = Action | Sequence[Action] | None
"""What a mod may return: nothing, one action or several."""
Handler: TypeAlias = Callable[[Any, ActionBuilder, Tokenizer], Answer]
"""What ``@mod`` decorates: a function of event, actions and tokenizer."""


@runtime_checkable
class Mod(Protocol):
    """What the engine needs of a mod. ``@mod`` makes one of a function; a class can be one too."""

    @property
    def name(self) -> str:
        """Shown in traces and errors."""
        ...

    @property
    def capture(self) -> tuple[str, ...]:
        """Patterns of hooks that it wants to see on ForwardPass."""
        ...

    def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        """Called once per event, in the order of the mods; None means noop."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What a trace's manifest says about it: ``params`` if it can be rebuilt by name, ``source``."""
        ...


class FunctionMod:
    """A mod made of one function ``handler(event, actions, tokenizer)``."""

    def __init__(
        self,
        handler: Handler,
        *,
        name: str | None = None,
        capture: str | Sequence[str] = (),
        params: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(handler):
            raise TypeError(f"@mod wraps a function handler(event, actions, tokenizer), got {handler!r}")
        self.handler = handler
        self.name: str = name or str(getattr(handler, "__name__", type(handler).__name__))
        self.capture = (capture,) if isinstance(capture, str) else tuple(capture)
        self.params = None if params is None else dict(params)
        try:
            json.dumps(self.params)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"@mod(params=…) must be plain data, JSON-able, so that a trace can keep it: {error}"
            ) from None
        self.__doc__ = handler.__doc__

    def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        return self.handler(event, actions, tokenizer)

    __call__ = handle

    def describe(self) -> dict[str, Any]:
        try:
            source: str | None = textwrap.dedent(inspect.getsource(self.handler))
        except (OSError, TypeError):  # typed at a prompt, or not a Python function
            source = None
        return {"name": self.name, "params": self.params, "source": source}

    def __repr__(self) -> str:
        return f"<Mod {self.name}>"


@overload
def mod(handler: Handler) -> FunctionMod: ...
@overload
def mod(
    *, name: str | None = None, capture: str | Sequence[str] = (), params: Mapping[str, Any] | None = None
) -> Callable[[Handler], FunctionMod]: ...
def mod(
    handler: Handler | None = None,
    *,
    name: str | None = None,
    capture: str | Sequence[str] = (),
    params: Mapping[str, Any] | None = None,
) -> FunctionMod | Callable[[Handler], FunctionMod]:
    """Make a mod of ``handler(event, actions, tokenizer)``; plain ``@mod`` or ``@mod(capture=…)``.

    ``capture`` are hook patterns whose activations ForwardPass events shall carry. ``params`` are the
    JSON-able arguments that a factory of :mod:`workbench.mods` rebuilds the mod from.
    """
    if handler is not None:
        return FunctionMod(handler)
    return lambda fn: FunctionMod(fn, name=name, capture=capture, params=params)
