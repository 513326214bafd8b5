"""The trained controls of the demonstration, read from its ``results.json``, with what each of them costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.carry import wilson
from workbench.errors import CarryError

__all__ = ["ablation_frame", "read_results", "results_frame", "system_cost"]

CHANGES = {
    "zero": "carry, states replaced by zeros",
    "mean": "carry, states replaced by the step's mean",
    "frozen": "carry, states frozen at step 0",
    "noise": "carry, states replaced by noise of their length",
    "shuffle_1": "carry, pause 1 merges another problem's state",
    "shuffle_2": "carry, pause 2 merges another problem's state",
    "shuffle_3": "carry, pause 3 merges another problem's state",
    "feedforward": "carry's weights run feed-forward",
}
"""How changes that ``results.json`` knows by a short name are called here; another keeps its own."""


def read_results(path: str | Path) -> dict[str, Any]:
    """What ``workbench carry controls`` wrote: a ``results.json``, or the folder that holds one.

    :raises CarryError: it can't be read, or is something else.
    """
    source = Path(path)
    source = source / "results.json" if source.is_dir() else source
    try:
        found = json.loads(source.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CarryError(f"{source} can't be read as results of a carry demonstration: {error}") from error
    if not isinstance(found, dict) or not {"runs", "systems", "shape", "band", "task"} <= set(found):
        raise CarryError(f"{source} holds no results of a carry demonstration: make them by workbench carry controls")
    return found


def results_frame(results: Mapping[str, Any], weights_per_block: int) -> pd.DataFrame:
    """One row per system and number of hops: accuracy over all problems of all seeds, and cost.

    ``system, seeds, hops, n, accuracy, low, high`` (Wilson 95 % of all problems together), ``lowest_seed,
    highest_seed, positions, band_passes, token_layers, depth, flops`` (per problem: 2 per weight of a block and
    token-layer, attention and head left out).
    """
    rows = []
    for name, told in results["systems"].items():
        runs = [run for run in results["runs"] if run["system"] == name]
        for hops in range(1, len(runs[0]["correct"]) + 1 if runs else 1):
            shares = _shares([(run["correct"][hops - 1], run["problems"]) for run in runs])
            cost = system_cost(results, told, hops - 1)
            flops = 2.0 * weights_per_block * cost["token_layers"]
            rows.append({"system": told["title"], "seeds": len(runs), "hops": hops, **shares, **cost, "flops": flops})
    return pd.DataFrame(rows)


def ablation_frame(results: Mapping[str, Any]) -> pd.DataFrame:
    """The carry's own weights, changed at test time: ``change, seeds, hops, n, accuracy, low, high, lowest_seed,
    highest_seed``.
    """
    runs = [run for run in results["runs"] if run["system"] == "carry" and "ablations" in run]
    rows = []
    for change in runs[0]["ablations"] if runs else ():
        for hops in range(1, len(runs[0]["ablations"][change]) + 1):
            shares = _shares([(run["ablations"][change][hops - 1], run["problems"]) for run in runs])
            rows.append({"change": CHANGES.get(change, change), "seeds": len(runs), "hops": hops, **shares})
    return pd.DataFrame(rows)


def _shares(counts: list[tuple[int, int]]) -> dict[str, Any]:
    hits, n = sum(hit for hit, _ in counts), sum(problems for _, problems in counts)
    low, high = wilson(hits, n)
    shares = [hit / problems for hit, problems in counts]
    return {
        "n": n, "accuracy": hits / n, "low": low, "high": high, "lowest_seed": min(shares), "highest_seed": max(shares),
    }  # fmt: skip


def system_cost(results: Mapping[str, Any], system: Mapping[str, Any], pauses: int) -> dict[str, int]:
    """What one problem with so many pauses takes: positions, passes of the band one after the other, and blocks.

    ``token_layers`` counts blocks run, times positions run through them; ``depth`` blocks on the longest path.
    """
    layers, (first, last) = int(results["shape"]["n_layers"]), results["band"]
    inside, prompt = last - first, 3 * int(results["task"]["n_nodes"]) + 2
    shown = pauses if system["pauses"] else 0
    positions = prompt + shown
    loops = pauses if system["loops"] is None else int(system["loops"])
    looped = {"carry": prompt, "prompt_loops": prompt, "depth": positions, "depth_tail": shown}
    again = loops * looped.get(system["mode"], 0)
    if system["query_looped"]:
        again += loops  # the query is looped too
    passes = 1 + (loops if again else 0) + (shown if system["mode"] == "carry" else 0)
    return {
        "positions": positions,
        "band_passes": passes,
        "token_layers": layers * positions + inside * again,
        "depth": layers - inside + inside * passes,
    }
