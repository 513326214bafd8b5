"""Interp Workbench: steer a language model's generation and see its residual stream beside every event.

The rooms, in the order in which they may import each other:

======== =======================================================================
models   a checkpoint -> logits, activations, a cache that rewinds
trace    records of what happened: in memory, on disk, as data frames
engine   logits -> events; mods answer with actions
flows    questions -> a mod that asks them
carry    a model and an adapter -> a model whose middle band carries its state
mcmc     a target power -> chains that propose and accept
mods     ready-made mods for everyday use
reports  a trace -> figures and a document
compat   a mod written for the public SDK -> a mod that a Session runs
sweeps   prompts, mods, seeds, models -> one table of all their runs
cli      the ``workbench`` command
======== =======================================================================

Names are looked up when first used, so ``import workbench`` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import (
        Added,
        Finished,
        ForwardPass,
        Prefilled,
        Removed,
        Result,
        Sampled,
        SamplingParams,
        Session,
        mod,
        replay,
    )
    from .models import load
    from .trace import Trace

_HOMES = {
    "load": "models",
    "Trace": "trace",
    **dict.fromkeys(
        (
            "Added", "Finished", "ForwardPass", "Prefilled", "Removed", "Result", "Sampled", "SamplingParams",
            "Session", "mod", "replay",
        ),
        "engine",
    ),
}  # fmt: skip

__all__ = [
    "Added",
    "Finished",
    "ForwardPass",
    "Prefilled",
    "Removed",
    "Result",
    "Sampled",
    "SamplingParams",
    "Session",
    "Trace",
    "load",
    "mod",
    "replay",
]


def __getattr__(name: str) -> Any:
    if name == "compat":  # so that `import workbench` is all that workbench.compat.install() needs
        return import_module(f"{__name__}.compat")
    if name not in _HOMES:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
