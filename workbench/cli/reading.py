"""``workbench replay``: a saved trace run again."""

from __future__ import annotations

import argparse
from pathlib import Path

from .commands import Commands
from .loading import add_model_options, load_for

__all__ = ["REPLAY", "add"]

REPLAY = "workbench replay runs/sum"


def add(commands: Commands) -> None:
    replay = commands.add("replay", _replay, "run a trace again and say whether it comes out the same", REPLAY)
    replay.add_argument("trace", type=Path, metavar="DIR", help="what `workbench run --out DIR` wrote")
    add_model_options(replay, default=None)


def _replay(options: argparse.Namespace) -> int:
    from ..engine import replay
    from ..mods import rebuild
    from ..trace import Trace

    trace = Trace.load(options.trace)
    mods = [[rebuild(told) for told in request["mods"]] for request in trace.run["requests"].values()]
    outcome = replay(trace, load_for(trace, options), mods)
    print(f"{options.trace}: {outcome}")
    return 0 if outcome.agrees else 1
