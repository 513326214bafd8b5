"""What a report keeps as data, so that what it shows can be run again from the file alone. Plain JSON, no code.

A part is a trace, a run of chains or a carried prompt: its settings, its outcome, and where in the document the
records lie. Weights of a small adapter are kept too, as safetensors in base64.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from safetensors.torch import save

from ..bundled import bundled
from ..carry import Adapter, CarryModel, CarryTrace, make_adapter
from ..errors import CarryError
from ..mcmc import Chains
from ..models import KNOWN, HookedModel
from ..trace import Trace

__all__ = ["BUNDLED", "FORMAT", "OWN", "carry_part", "chain_part", "model_told", "trace_part", "weights_told"]

FORMAT = 1
MOST_WEIGHTS = 1 << 20
"""Bytes of an adapter's weights that a report keeps; of a larger one it keeps the fingerprint."""
BUNDLED = "bundled:"
"""Before the name of a model that comes with the workbench, in place of a path of this machine."""
OWN = {f"{BUNDLED}carry/base": "carry/base"}
"""Models that come with the workbench: how a report names them, and where they lie."""


def model_told(source: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A model's source as a report keeps it: a model that comes with the workbench is named without this machine."""
    if source is None:
        return None
    name = str(source.get("name", ""))
    known = next((told for told, own in OWN.items() if name and os.path.abspath(name) == str(bundled(own))), name)
    return {**source, "name": known}


def weights_told(name: str) -> str:
    """What identifies the weights of a model by that name, as far as that is known."""
    if name in OWN:
        digest = hashlib.sha256((bundled(OWN[name]) / "model.safetensors").read_bytes()).hexdigest()
        return f"sha256 {digest} (model.safetensors)"
    return f"sha256 {KNOWN[name].gguf_sha256} ({KNOWN[name].gguf_filename})" if name in KNOWN else "not recorded"


def trace_part(
    trace: Trace,
    request_ids: Sequence[str],
    files: Sequence[str],
    model: HookedModel | None,
) -> dict[str, Any]:
    """A trace: its manifest with these requests, and the files of their records."""
    run = dict(trace.run)
    known = run.get("requests", {})
    run["requests"] = {name: known[name] for name in request_ids if name in known}
    run["model"] = {**run.get("model", {}), "source": model_told(run.get("model", {}).get("source"))}
    return {
        "kind": "trace",
        "name": f"run {run.get('run_id', 'without a name')}",
        "run": run,
        "records": list(files),
        "weights": adapter_weights(model.adapter) if isinstance(model, CarryModel) else None,
    }


def chain_part(chains: Chains, source: Mapping[str, Any] | None, tokenizer: str | None, file: str) -> dict[str, Any]:
    """A run of chains: settings, where each chain stands, and the file of its decisions."""
    return {
        "kind": "chains",
        "name": f"chains of power {chains.settings.target.alpha:g}, seed {chains.settings.seed}",
        "model": model_told(source),
        "tokenizer": tokenizer,
        "settings": chains.settings.to_json(),
        "texts": [
            {"chain": text.chain, "tokens": list(text.tokens), "log_p": float(text.log_p), "text": text.text}
            for text in chains
        ],
        "finished": chains.finished,
        "decisions": file,
    }


def carry_part(trace: CarryTrace, model: CarryModel | None) -> dict[str, Any]:
    """A carried prompt: its tokens, settings, adapter, and the numbers of its states."""
    return {
        "kind": "carry",
        "name": f"carry of {len(trace.ids)} tokens",
        "ids": list(trace.ids),
        "prompt_length": trace.prompt_length,
        "pauses": trace.pauses,
        "config": {**trace.config, "model": model_told(trace.config.get("model"))},
        "tokenizer": None if model is None else model.tokenizer.fingerprint,
        "weights": None if model is None else adapter_weights(model.adapter),
        "own_answer": None if model is None else _own_answer(trace, model),
        "rows": trace.rows(),
    }


def adapter_weights(adapter: Adapter) -> str | None:
    """The weights in base64; None where they are those of a fresh adapter of its form, or too many."""
    if adapter.fingerprint() == make_adapter(**adapter.config()).fingerprint():
        return None
    data = save({name: weight.detach().cpu().contiguous() for name, weight in adapter.state_dict().items()})
    return base64.b64encode(data).decode() if len(data) <= MOST_WEIGHTS else None


def _own_answer(trace: CarryTrace, model: CarryModel) -> bool:
    """Whether the answer is what the model itself says greedily, so that it can be generated again."""
    prompt, answer = trace.ids[: trace.prompt_length], trace.ids[trace.prompt_length + trace.pauses :]
    config = trace.config
    if not answer or config.get("intervened"):
        return False
    loops, mode = int(config["loops"]), str(config["mode"])
    try:
        found = model.generate(
            [prompt], max_new_tokens=len(answer), pauses=trace.pauses, loops=loops, mode=mode, stop=False
        )
    except CarryError:  # a mode that can't generate: its answer was given
        return False
    return tuple(found[0].tokens) == tuple(answer)
