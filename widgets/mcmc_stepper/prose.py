"""Keys and sentences of the window. They travel as data: the script is near its bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["KEYS", "PROSE"]

KEYS = [
    ["← →", "previous, next decision"],
    ["Page Up, Page Down", "25 back, on"],
    ["Home, End", "first, last decision"],
    ["a, A", "next, previous accepted"],
    ["r, R", "next, previous rejected"],
    ["n, N", "next, previous null"],
    ["Space", "play, pause"],
    ["s", "step the chain: one more decision"],
    ["x", "stop what runs"],
    ["t", "decisions as a table"],
    ["?", "this list"],
    ["Esc", "close this list"],
]
PROSE: Mapping[str, Any] = {
    "legend": [
        "● accepted",
        "× rejected",
        "○ null: the proposal was what stood",
        "bars: log A (up is above 0; asinh scale)",
        "line: log p of the text",
        "dashed: a new block",
    ],
    "fresh": "No decision yet. Step makes one, Run makes all.",
    "none": (
        "This run made no decision: it was asked for no proposals (n_mcmc=0), or stopped before the first. "
        "MCMCStepper(sampler) opens a sampler that can make some."
    ),
    "unchanged": "Nothing is changed. The run itself stays as it is whatever you try here.",
    "branch": ("A branch is a chain of its own with random numbers of its own. The one it leaves stays as it is."),
    "unbranchable": "Branching needs the model: MCMCStepper(chains, model).",
    "tiles": "Choose a program: its row of logits is computed again and read tile by tile.",
    "uncached": "This run was kept by an older version, which recorded nothing of them.",
    "uncontrasted": "The run kept none of this decision (it keeps those of accepted moves, with capture=).",
}
