"""``workbench report`` and ``workbench replay``: what can be done with a saved trace."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import WorkbenchError
from .commands import Commands, say
from .loading import add_model_options, load_for

__all__ = ["REPLAY", "REPORT", "add"]

REPORT = "workbench report runs/sum -o sum.html"
REPLAY = "workbench replay runs/sum"


def add(commands: Commands) -> None:
    report = commands.add("report", _report, "make one offline HTML file of a trace", REPORT)
    replay = commands.add("replay", _replay, "run a trace again and say whether it comes out the same", REPLAY)
    for reader in (report, replay):
        reader.add_argument("trace", type=Path, metavar="DIR", help="what `workbench run --out DIR` wrote")
        add_model_options(reader, default=None)
    report.add_argument("-o", "--out", type=Path, required=True, metavar="FILE.html", help="the file to write")
    report.add_argument("--title", help="the heading (default: the run and its model)")
    report.add_argument("--no-lens", action="store_true", help="leave out what needs the model itself")


def _report(options: argparse.Namespace) -> int:
    from ..reports import report_of
    from ..trace import Trace

    trace = Trace.load(options.trace)
    model = None
    if not options.no_lens and trace.hooks:
        try:
            model = load_for(trace, options)
        except WorkbenchError as error:
            say(f"without the logit lens, since the model can't be loaded: {error}")
    print(f"written: {report_of(trace, model, options.title).save(options.out)}")
    return 0


def _replay(options: argparse.Namespace) -> int:
    from ..engine import replay
    from ..mods import rebuild
    from ..trace import Trace

    trace = Trace.load(options.trace)
    mods = [[rebuild(told) for told in request["mods"]] for request in trace.run["requests"].values()]
    outcome = replay(trace, load_for(trace, options), mods)
    print(f"{options.trace}: {outcome}")
    return 0 if outcome.agrees else 1
