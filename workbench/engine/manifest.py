"""What a trace says about the run as a whole: enough to run it again and to doubt it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..models import HookedModel
from .arguments import StreamKey
from .request import Request

__all__ = ["manifest"]

PACKAGES = ("interp-workbench", "torch", "transformers", "transformer-lens", "numpy")


def manifest(
    model: HookedModel, requests: Sequence[Request], *, on_mod_error: str, streams: Sequence[StreamKey]
) -> dict[str, Any]:
    """The JSON-able manifest of a run; ``run_id`` is a digest of what decides its outcome.

    ``streams`` are the keys of the requests' random streams.
    """
    told = {
        "model": _model(model),
        "on_mod_error": on_mod_error,
        "requests": {
            request.request_id: _request(request, stream) for request, stream in zip(requests, streams, strict=True)
        },
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
    return {"run_id": digest[:12], **told, "versions": dict(versions())}


@cache
def versions() -> Mapping[str, str]:
    """Versions of Python and of the packages that decide a run's numbers; looked up once, since it takes files."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def _model(model: HookedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "backend": model.backend,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "n_layers": model.n_layers,
        "d_model": model.d_model,
        "n_ctx": model.n_ctx,
        "vocab_size": model.vocab_size,
        "source": model.source,
        "kv_cache": model.cache_works,
        "tokenizer": model.tokenizer.fingerprint,
        "eos_token_ids": list(model.tokenizer.eos_token_ids),
    }


def _request(request: Request, stream: StreamKey) -> dict[str, Any]:
    return {
        "prompt_tokens": list(request.tokens),
        "conversation": [dict(message) for message in request.conversation],
        "sampling": asdict(request.sampling),
        "seed": stream[0],
        "index": stream[1],
        "turn": stream[2],
        "taken": stream[3],
        "max_new_tokens": request.max_new_tokens,
        "max_forward_tokens": request.max_forward_tokens,
        "capture": list(request.capture),
        "mods": [dict(bound.mod.describe()) for bound in request.mods],
    }
