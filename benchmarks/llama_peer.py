"""llama.cpp as a peer of the packed model: the same file, greedy, with as many threads.

It comes as a prebuilt binary in the package ``xllamacpp``, which the workbench itself does not need:
``pip install xllamacpp``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from workbench.models import path

__all__ = ["llama_generate"]


def llama_generate(
    name: str, text: str, count: int, threads: int, seconds: Callable[[Callable[[], Any]], float]
) -> Callable[[], float]:
    """Seconds a token of llama.cpp's own greedy generation, its prompt's pass left out by its own clock."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path(name, accept_terms=True) / "model.gguf")
    params.n_ctx, params.n_gpu_layers = 2048, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    request = {"prompt": text, "n_predict": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}

    def run() -> float:
        took = seconds(lambda: answers.append(server.handle_completions(request)))
        answer = answers.pop()
        timings = (answer if isinstance(answer, dict) else json.loads(answer))["timings"]
        share = timings["predicted_ms"] / (timings["predicted_ms"] + timings["prompt_ms"])
        return took * share / count

    answers: list[Any] = []
    return run
