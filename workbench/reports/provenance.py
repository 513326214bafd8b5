"""Where a run came from: model, tokenizer, versions, seeds, sampling, capture, and the mods themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..engine import versions
from ..trace import Trace
from .blocks import Attachment, Block, Facts, Fold, Heading, Note, Verbatim
from .calls import carry_call, chain_call, trace_call
from .kept import FORMAT, model_told, weights_told
from .legible import shortened
from .reading_back import KEPT_NAME
from .steps import short_list

__all__ = ["kept_blocks", "part_blocks", "provenance_blocks"]

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
            ("Weights", weights_told(str(model.get("name")))),
            ("Run", str(run.get("run_id", "not recorded"))),
            ("Status", str(run.get("status", "not recorded"))),
            ("When a mod fails", str(run.get("on_mod_error", "not recorded"))),
            *((f"Version of {name}", str(value)) for name, value in run.get("versions", {}).items()),
        )
    )
    for request_id in request_ids:
        yield from _request(request_id, run.get("requests", {}).get(request_id, {}))
    yield Fold(summary="The call that makes this run again", blocks=(Verbatim(label="Call", text=trace_call(run)),))
    manifest = json.dumps(run, indent=1, ensure_ascii=True, sort_keys=True, default=str)
    yield Fold(summary="The whole manifest", blocks=(Verbatim(label="Manifest", text=manifest),))


def _source(model: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of the weights beyond what is said already."""
    source = model_told(model.get("source")) if isinstance(model.get("source"), Mapping) else model.get("source", {})
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


# Chains, carried prompts, and the report itself ------------------------------------------------------------------


def part_blocks(part: Mapping[str, Any]) -> Iterator[Block]:
    """Where a run of chains or a carried prompt came from, out of what the report keeps of it."""
    yield Heading(text=f"Provenance of {part['name']}")
    chains = part["kind"] == "chains"
    source = part["model"] if chains else part["config"].get("model")
    settings = part["settings"] if chains else {**part["config"], "prompt_length": part["prompt_length"]}
    told = {} if source is None else source
    yield Facts(
        pairs=(
            *((f"Model: {name.replace('_', ' ')}", _plain(value)) for name, value in told.items()),
            ("Weights", weights_told(str(told.get("name")))),
            ("Tokenizer fingerprint", _plain(part["tokenizer"])),
            *((f"Version of {name}, here", value) for name, value in versions().items()),
        )
    )
    if source is None:
        yield Note(text="The model was not given along, so this report can't name it: `report.chains(chains, model)`.")
    text = json.dumps(settings, indent=1, ensure_ascii=True, sort_keys=True, default=str)
    yield Fold(summary="All settings", blocks=(Verbatim(label="Settings", text=text),))
    call = chain_call(settings, source) if chains else carry_call(part)
    yield Fold(summary="The call that makes this run again", blocks=(Verbatim(label="Call", text=call),))


def kept_blocks(parts: Sequence[Mapping[str, Any]], made_by: str | None) -> Iterator[Block]:
    """The last section: how this document was made, and the data from which its runs can be made again."""
    yield Heading(text="Running it again")
    yield Note(
        text="`workbench reproduce FILE.html` runs again what this file keeps and says what agrees. It reads the data "
        "below and runs no code from this file: mods are made by their registered names and parameters, flows from "
        "their JSON, models are loaded only if the workbench knows them by name. Drawings, controls and effects are "
        "not computed again."
    )
    yield Facts(
        pairs=(
            *((f"Part {number}", str(part["name"])) for number, part in enumerate(parts, 1)),
            *((("This report was made by", made_by),) if made_by else ()),
        )
    )
    text = json.dumps({"format": FORMAT, "parts": list(parts)}, ensure_ascii=True, sort_keys=True, default=str)
    yield Attachment(name=KEPT_NAME, text=text, media_type="application/json")
