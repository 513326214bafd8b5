"""Ready mods by name: for the command line, and to rebuild those of a trace without running its code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..engine import FunctionMod
from ..errors import WorkbenchError, did_you_mean
from ..mcmc import reasoning_with_sampling
from .asked_flow import flow
from .asking import ask_when_unsure
from .banning import ban_tokens
from .calculating import calculator
from .phrases import replace_phrase
from .prefilling import canned_output, replace_prefill
from .steering import steer
from .strict_json import parse_json
from .structured import tool_call, valid_json
from .watching import watch

__all__ = ["MODS", "ModSpecError", "build", "parse", "rebuild"]

MODS: Mapping[str, Callable[..., FunctionMod]] = {
    "ask_when_unsure": ask_when_unsure,
    "ban_tokens": ban_tokens,
    "calculator": calculator,
    "canned_output": canned_output,
    "flow": flow,
    "reasoning_with_sampling": reasoning_with_sampling,
    "replace_phrase": replace_phrase,
    "replace_prefill": replace_prefill,
    "steer": steer,
    "tool_call": tool_call,
    "valid_json": valid_json,
    "watch": watch,
}
"""Factories by the name of the mod they make: those of this room, and the flows and chains that are mods."""


class ModSpecError(WorkbenchError, ValueError):
    """A mod's name or parameters fit no ready mod."""


def build(name: str, /, **params: Any) -> FunctionMod:
    """The ready mod ``name`` made with ``params``.

    :raises ModSpecError: no such mod, or parameters that it does not take or refuses.
    """
    if name not in MODS:
        raise ModSpecError(f"no ready mod {name!r}; there are {', '.join(MODS)}.{did_you_mean(name, MODS)}")
    factory = MODS[name]
    signature = inspect.signature(factory)
    try:
        signature.bind(**params)
    except TypeError as error:
        near = "".join(
            did_you_mean(given, signature.parameters) for given in params if given not in signature.parameters
        )
        raise ModSpecError(f"{name}: {error}. It takes {', '.join(signature.parameters) or 'nothing'}.{near}") from None
    try:
        return factory(**params)
    except (TypeError, ValueError) as error:
        raise ModSpecError(f"{name}: {error}") from error


def rebuild(description: Mapping[str, Any]) -> FunctionMod:
    """The mod that a trace's manifest describes (``{"name": …, "params": …}``).

    Only a ready mod is rebuilt, from its parameters; ``source`` is for reading and is never run.

    :raises ModSpecError: it is no ready mod, or one that was given a function.
    """
    name, params = str(description.get("name")), description.get("params")
    kind = "flow" if name.startswith("flow:") else name
    if kind not in MODS or not isinstance(params, Mapping):
        raise ModSpecError(
            f"mod {name!r} can't be rebuilt from the trace: it was made of code, not of parameters. Pass it "
            "yourself, in the place it had; the trace's manifest has its source to read."
        )
    return build(kind, **params)


def parse(spec: str) -> FunctionMod:
    """The mod that the command line names: ``calculator`` or ``ban_tokens:{"words": ["foo"]}``.

    :raises ModSpecError: what follows the colon is no JSON object, or see :func:`build`.
    """
    name, colon, text = spec.partition(":")
    try:
        params = parse_json(text) if colon else {}
    except ValueError as error:
        raise ModSpecError(f"{spec!r}: after the colon comes a JSON object, {_EXAMPLE}: {error}") from None
    if not isinstance(params, dict):
        raise ModSpecError(f"{spec!r}: after the colon comes a JSON object, {_EXAMPLE}")
    return build(name.strip(), **params)


_EXAMPLE = """such as ban_tokens:{"words": ["foo"]}"""
