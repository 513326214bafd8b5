"""Functions by name: what a flow file may refer to, since it never holds code itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import FlowError, did_you_mean

__all__ = ["flow_function", "name_of", "registered", "registered_functions"]

Function = TypeVar("Function", bound=Callable[..., Any])

_NAME = re.compile(r"\w[\w.:-]{0,99}")
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def flow_function(name: str) -> Callable[[Function], Function]:
    """Register the function below under a name, so that flow files can refer to it.

    A name belongs to one function. The same definition run again (a notebook's cell, a reloaded module) takes
    the place of the former one.

    :raises FlowError: the name is taken or is no name, or what is below it can't be called.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FlowError(
            f"flow_function needs a name, got {name!r}: up to 100 letters, digits, '_', '.', ':' or '-', "
            'as in @flow_function("call_tool")'
        )

    def register(fn: Function) -> Function:
        if not callable(fn):
            raise FlowError(f"flow_function({name!r}) needs a function, got {fn!r}")
        known = _FUNCTIONS.get(name, fn)
        if known is not fn and not _again(known, fn):
            raise FlowError(f"the flow function {name!r} is registered already, as {known!r}: choose another name")
        _FUNCTIONS[name] = fn
        return fn

    return register


def registered(name: str) -> Callable[..., Any]:
    """The function of that name.

    :raises FlowError: there is none.
    """
    if name not in _FUNCTIONS:
        known = ", ".join(map(repr, sorted(_FUNCTIONS)[:20])) or "none so far"
        raise FlowError(
            f"no flow function is registered as {name!r}; known: {known}.{did_you_mean(name, _FUNCTIONS)} "
            f"Put @flow_function({name!r}) above it and run that first."
        )
    return _FUNCTIONS[name]


def registered_functions() -> dict[str, Callable[..., Any]]:
    """Every registered function by its name, sorted: what a flow file may refer to."""
    return dict(sorted(_FUNCTIONS.items()))


def name_of(fn: Callable[..., Any]) -> str | None:
    """The name a function is registered under (the first, if there are several), or None."""
    return next((name for name, known in _FUNCTIONS.items() if known is fn), None)


def _again(known: Callable[..., Any], fn: Callable[..., Any]) -> bool:
    """Whether two functions come from one definition at the top of a module or notebook."""
    places = [(getattr(each, "__module__", None), getattr(each, "__qualname__", None)) for each in (known, fn)]
    return places[0] == places[1] and places[0][1] is not None and "<" not in places[0][1]
