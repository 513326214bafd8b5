"""Models, mods and adapters made again from what a report says of them: by registered names and plain data only.

A report may be anybody's. A model is loaded by its word only if the workbench knows it; a mod is made only by its
name in the registry with its parameters, or as a flow from its JSON; weights come as safetensors. Nothing is executed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from ..bundled import bundled
from ..carry import Adapter, CarryModel, load_adapter, make_adapter, pausing
from ..engine import Mod
from ..errors import ReportError
from ..models import KNOWN, HookedModel, load
from .kept import OWN

__all__ = ["Loader", "Models", "made_carry", "made_mod"]

Loader = Callable[[str, str, torch.dtype], HookedModel]
"""``(name, backend, dtype)`` to a model."""
TINY = re.compile(r"tiny-(llama|gemma3|gpt2|gpt_neox)")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


def default_loader(name: str, backend: str, dtype: torch.dtype) -> HookedModel:
    return load(name, backend=backend, dtype=dtype, progress=False)


class Models:
    """Models by what a report says of them, each loaded once."""

    def __init__(self, instead: str | None, loader: Loader | None, adapter: str | Path | None) -> None:
        self._instead = instead
        self._loader = loader or default_loader
        self._adapter = adapter
        self._known: dict[tuple[str, str, str], HookedModel] = {}

    def of(self, source: Any, weights: Any = None) -> HookedModel:
        """The model that a source names, with its carry if it had one; ``weights`` are its adapter's.

        :raises ReportError: the name is none that may be loaded on a report's word, or the source is damaged.
        """
        if not isinstance(source, Mapping):
            raise ReportError("the report does not say which model it was: give one with --model (model=)")
        base = self._base(source)
        if "carry" not in source:
            return base
        return self.carried(base, source["carry"], weights)

    def _base(self, source: Mapping[str, Any]) -> HookedModel:
        name, backend = str(source.get("name")), str(source.get("backend"))
        dtype = str(source.get("dtype"))
        if dtype not in DTYPES:
            raise ReportError(f"the report names the number type {dtype[:40]!r}; known are {', '.join(DTYPES)}")
        key = (name, backend, dtype)
        if key not in self._known:
            self._known[key] = self._loader(self._allowed(name), backend, DTYPES[dtype])
        return self._known[key]

    def _allowed(self, name: str) -> str:
        if name in KNOWN or TINY.fullmatch(name):
            return name
        if name in OWN:
            return str(bundled(OWN[name]))
        if self._instead is None:
            raise ReportError(
                f"it was made with the model {name[:200]!r}, which is not one that the workbench knows by name, and "
                "no path or address is opened on a report's word: give the model with --model (model=)"
            )
        return self._instead

    def carried(self, base: HookedModel, config: Any, weights: Any, *, pause: int | None = None) -> CarryModel:
        """The carry that a trace's config describes, on ``base``: see :func:`made_carry`."""
        return made_carry(base, config, weights=weights, adapter=self._adapter, pause=pause)


def made_carry(
    base: HookedModel,
    config: Mapping[str, Any],
    *,
    weights: str | None = None,
    adapter: str | Path | None = None,
    pause: int | None = None,
) -> CarryModel:
    """The carry that a carry trace's ``config`` describes, on ``base``.

    ``weights`` are an adapter's as a report keeps them, ``adapter`` a file of them; ``pause`` is the pause token's id
    where its text might not name it.

    :raises ReportError: the adapter's weights are neither fresh, nor kept, nor given.
    """
    first, last = config["band"]
    return CarryModel(
        base,
        band=(int(first), int(last)),
        adapter=made_adapter(config, weights, adapter),
        pause_token=str(config["pause_token"]) if pause is None else pause,
        pauses=int(config["pauses"]),
        loops=int(config["loops"]),
        mode=str(config["mode"]),
    )


def made_adapter(config: Mapping[str, Any], weights: Any, given: str | Path | None) -> Adapter:
    """The adapter of that form whose weights have the fingerprint told.

    :raises ReportError: no source of weights has it.
    """
    wanted = config.get("adapter_fingerprint")
    fresh = make_adapter(**dict(config["adapter"]))
    if fresh.fingerprint() == wanted:
        return fresh
    if isinstance(weights, str):
        try:
            fresh.load_state_dict(load_tensors(base64.b64decode(weights, validate=True)))
        except (binascii.Error, SafetensorError, RuntimeError) as error:
            raise ReportError(f"the adapter's weights in the report are damaged: {str(error)[:200]}") from None
        if fresh.fingerprint() == wanted:
            return fresh
        raise ReportError(f"the adapter's weights in the report are not those of fingerprint {str(wanted)[:40]}")
    if given is None:
        raise ReportError(
            f"the report keeps no weights of the adapter {str(wanted)[:40]}: give its file with --adapter (adapter=)"
        )
    found = load_adapter(given)
    if found.fingerprint() != wanted:
        raise ReportError(f"the adapter in {given} is {found.fingerprint()}, but the report's is {str(wanted)[:40]}")
    return found


def made_mod(told: Any) -> Mod:
    """The mod that a manifest tells of.

    :raises ReportError: it is code, or asks a person, or its flow names functions that are not registered here.
    """
    from ..mods import ModSpecError, rebuild  # a room that takes a second or two to enter

    if not isinstance(told, Mapping):
        raise ReportError("a mod of the run is not described")
    name, params = str(told.get("name")), told.get("params")
    if name == "ask_when_unsure":
        raise ReportError("the mod 'ask_when_unsure' asked a person, whose answers can't be made again")
    if name == "carry_pauses" and isinstance(params, Mapping):
        return pausing(int(params["pause"]), int(params["pauses"]))
    try:
        return rebuild(told)
    except ModSpecError as error:
        raise ReportError(f"it needs a mod that the report can't make again: {error}") from None
