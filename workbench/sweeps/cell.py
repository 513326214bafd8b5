"""One run of a sweep, made in whatever process it is handed to."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

from ..engine import Result, SamplingParams, Session
from ..errors import WorkbenchError
from ..models import HookedModel, load
from ..mods import build
from .plan import Cell

__all__ = ["Row", "run_cell"]

Row = dict[str, Any]
"""One line of the table; with ``failed`` instead of results where the run could not be made."""


@functools.lru_cache(maxsize=1)
def _model(name: str, backend: str, threads: int | None) -> HookedModel:
    """The model that this process holds; runs of one model come one after the other, so one is enough."""
    return load(name, backend=backend, threads=threads, progress=False)


def run_cell(text: str, directory: str, threads: int | None = None) -> Row:
    """Run the cell that ``text`` (its JSON) describes; a trace goes to ``directory/traces/DIGEST``.

    What the workbench refuses is told in the row (``failed``); any other error is raised.
    """
    cell = Cell.from_json(text)
    row: Row = {
        "digest": cell.digest, "model": cell.model, "prompt": cell.prompt, "mods": cell.mods, "seed": cell.seed,
        "backend": cell.backend,
    }  # fmt: skip
    kept = f"traces/{cell.digest}" if cell.keep_trace else None
    try:
        model = _model(cell.model, cell.backend, threads)
        started = time.perf_counter()
        session = Session(
            model, [build(spec["name"], **spec["params"]) for spec in cell.specs], capture=cell.capture or None
        )
        result = session.generate(
            cell.given, max_new_tokens=cell.max_new_tokens, seed=cell.seed,
            sampling=SamplingParams(**{**cell.sampling, "stop": tuple(cell.sampling["stop"])}),
            max_forward_tokens=cell.max_forward_tokens, save=Path(directory) / kept if kept else None, overwrite=True,
        )  # fmt: skip
    except WorkbenchError as error:
        return {**row, "failed": f"{type(error).__name__}: {error}"}
    return {**row, **_told(result), "trace": kept, "seconds": time.perf_counter() - started}


def _told(result: Result) -> Row:
    """What the table says of a run; log-probabilities are the model's own, at temperature 1, in nats."""
    history = result.trace.history()
    scores = [life.raw_logprob for life in history.live]
    known = [score for score in scores if score is not None]
    return {
        "text": result.text,
        "tokens": list(result.tokens),
        "prompt_tokens": len(result.prompt_tokens),
        "reason": result.reason,
        "error": result.error,
        "tool_calls": None if result.tool_calls is None else json.dumps(result.tool_calls, sort_keys=True),
        "log_p": sum(known) if len(known) == len(scores) else None,
        "by_mods": sum(life.origin != "sampled" for life in history.live),
        "taken_back": len(history.every) - len(history.live),
        "forward_tokens": result.forward_tokens,
        "warnings": sum(record.kind == "warning" for record in result.trace.records),
    }
