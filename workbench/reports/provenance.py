"""Where a run came from: model, tokenizer, versions, seeds, sampling, capture, and the mods themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..trace import Trace
from .blocks import Block, Facts, Fold, Heading, Note, Verbatim
from .legible import shortened
from .steps import short_list

__all__ = ["provenance_blocks"]

MODEL_NAMES = {
    "name": "Model", "backend": "Backend", "dtype": "Number type", "device": "Device", "n_layers": "Layers",
    "d_model": "Residual width", "n_ctx": "Context", "vocab_size": "Vocabulary", "tokenizer": "Tokenizer fingerprint",
    "kv_cache": "KV cache",
}  # fmt: skip
SOURCE_SHOWN = 20_000


def provenance_blocks(trace: Trace, request_ids: Sequence[str]) -> Iterator[Block]:
    """The manifest in words, and as it is."""
    run = trace.run
    model = run.get("model", {})
    yield Heading(text=f"Provenance of run {run.get('run_id', 'without a name')}")
    yield Facts(
        pairs=(
            *((name, _plain(model[key])) for key, name in MODEL_NAMES.items() if key in model),
            *((f"Weights: {key.replace('_', ' ')}", _plain(value)) for key, value in _source(model).items()),
            ("Run", str(run.get("run_id", "not recorded"))),
            ("Status", str(run.get("status", "not recorded"))),
            ("When a mod fails", str(run.get("on_mod_error", "not recorded"))),
            *((f"Version of {name}", str(value)) for name, value in run.get("versions", {}).items()),
        )
    )
    for request_id in request_ids:
        yield from _request(request_id, run.get("requests", {}).get(request_id, {}))
    manifest = json.dumps(run, indent=1, ensure_ascii=True, sort_keys=True, default=str)
    yield Fold(summary="The whole manifest", blocks=(Verbatim(label="Manifest", text=manifest),))


def _source(model: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of the weights beyond what is said already."""
    source = model.get("source", {})
    told = source if isinstance(source, Mapping) else {"source": source}
    return {key: value for key, value in told.items() if model.get(key) != value}


def _request(request_id: str, told: Mapping[str, Any]) -> Iterator[Block]:
    yield Heading(text=f"Request {request_id}: sampling and mods", level=3)
    if not told:
        yield Note(text="The manifest says nothing about this request.")
        return
    sampling = told.get("sampling", {})
    yield Facts(
        pairs=(
            ("Seed", f"{_plain(told.get('seed'))}, stream {_plain(told.get('index'))}"),
            ("Most new tokens", _plain(told.get("max_new_tokens"))),
            ("Work limit (tokens fed)", _plain(told.get("max_forward_tokens"))),
            *((key.replace("_", " ").capitalize(), _plain(value)) for key, value in sampling.items() if key != "seed"),
            ("Captured", short_list([str(hook) for hook in told.get("capture", ())])),
        )
    )
    for mod in told.get("mods", ()):
        yield _mod(mod)


def _mod(mod: Mapping[str, Any]) -> Fold:
    params = json.dumps(mod.get("params"), indent=1, ensure_ascii=False, sort_keys=True, default=str)
    source = mod.get("source") or "(its source was not available: typed at a prompt, or not a Python function)"
    return Fold(
        summary=f"Mod {mod.get('name', '?')}",
        blocks=(
            Verbatim(label="Parameters", text=f"parameters: {params}"),
            Verbatim(label="Source", text=shortened(str(source), SOURCE_SHOWN)),
        ),
    )


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return short_list([str(item) for item in value])
    return str(value) if isinstance(value, (str, int, float)) else json.dumps(value, sort_keys=True, default=str)
