"""``workbench replay``: a saved trace run again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .commands import Commands
from .loading import add_model_options, load_for
from .running import refuse_used

__all__ = ["REPLAY", "add"]

REPLAY = "workbench replay runs/sum"


def add(commands: Commands) -> None:
    replay = commands.add("replay", _replay, "run a trace again and say whether it comes out the same", REPLAY)
    replay.add_argument("trace", type=Path, metavar="DIR", help="what `workbench run --out DIR` wrote")
    add_model_options(replay, default=None)
    replay.add_argument(
        "--out", type=Path, metavar="DIR", help="keep the run made again: of one that was broken off, the whole"
    )
    replay.add_argument("--overwrite", action="store_true", help="replace a trace that is there already")


def _replay(options: argparse.Namespace) -> int:
    from ..engine import replay
    from ..mods import rebuild
    from ..trace import Trace

    refuse_used(None if options.overwrite else options.out)
    trace = Trace.load(options.trace)
    mods = [[rebuild(told) for told in request["mods"]] for request in trace.run["requests"].values()]
    outcome = replay(trace, load_for(trace, options), mods)
    print(f"{options.trace}: {outcome}")
    if options.out is not None:
        print(f"kept: {outcome.trace.save(options.out, overwrite=options.overwrite)}", file=sys.stderr)
    return 0 if outcome.agrees else 1
