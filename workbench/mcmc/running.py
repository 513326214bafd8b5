"""A whole run kept in a directory, and one that goes on: what the command line asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..errors import ChainError
from ..models import HookedModel, load
from .chain import Decision
from .result import Chains
from .sampler import PowerSampler
from .setting import Prompt
from .store_reading import read_head

__all__ = ["resume", "resume_chains", "run_chains"]

Listener = Callable[[Decision, PowerSampler], None]


def run_chains(
    model: HookedModel,
    prompt: Prompt,
    *,
    out: str | Path,
    overwrite: bool = False,
    on_decision: Listener | None = None,
    **settings: Any,
) -> Chains:
    """Run chains to their end, kept in ``out`` meanwhile. ``settings`` are those of :class:`PowerSampler`.

    ``on_decision`` is called with each decision and the sampler, whose ``total`` says how many there will be.

    :raises ChainError: a setting outside its range, or ``out`` is not empty and ``overwrite`` not set.
    """
    return _drain(PowerSampler(model, prompt, save=out, overwrite=overwrite, **settings), on_decision)


def resume_chains(
    out: str | Path,
    model: HookedModel | None = None,
    *,
    accept_terms: bool = False,
    on_decision: Listener | None = None,
) -> Chains:
    """Go on with a run kept in ``out`` and take it to its end; a finished one is given as it is.

    :raises ChainError: nothing readable is there, or it was made with another model.
    """
    return _drain(resume(out, model, accept_terms=accept_terms), on_decision)


def resume(path: str | Path, model: HookedModel | None = None, *, accept_terms: bool = False) -> PowerSampler:
    """The sampler of a kept run, standing at its last write. Without a model the one it names is loaded.

    :raises ChainError: nothing readable is there, or it was made with another model.
    """
    if model is None:
        source = read_head(Path(path))["model"]
        if source is None:
            raise ChainError(f"{path} holds a result without its state: only a run with save= can be resumed")
        model = load(
            source["name"], backend=source["backend"], dtype=getattr(torch, source["dtype"]), accept_terms=accept_terms
        )
    return PowerSampler.resume(path, model)


def _drain(sampler: PowerSampler, on_decision: Listener | None) -> Chains:
    for decision in sampler.steps():
        if on_decision is not None:
            on_decision(decision, sampler)
    return sampler.result()
