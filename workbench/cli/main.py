"""The ``workbench`` program: which commands there are, and how a failure ends one."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from ..errors import WorkbenchError
from . import carry, chains, demo, flow, listing, reading, reporting, running, sweep, trace
from .commands import AS_WRITTEN, Commands, say

__all__ = ["main", "parser"]

PACKAGE = Path(__file__).resolve().parents[1]
ABOUT = "Run a model under mods, flows, carried states or chains, keep what happened, report and replay it."
EPILOG = f"""\
examples:
  {running.RUN}
  {reporting.REPORT}
  {reading.REPLAY}
  {reporting.REPRODUCE}
exit codes:
  0    done, however the run ended
  1    a run that was made again came out different, a flow has problems, or a sweep has failures
  2    something was wrong with what was asked, or a mod failed
  3    a report holds something that could not be run again
  130  interrupted by Ctrl-C; what a run had until then is printed and kept
  141  whoever read the output closed it
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a model may write what the terminal's encoding lacks
        sys.stdout.reconfigure(errors="replace")
    with warnings.catch_warnings():
        # As a user of the command reads a warning: no file, no line of code.
        warnings.showwarning = lambda message, *_, **__: None if options.quiet else say(f"warning: {message}")
        try:
            code: int = options.command(options)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            # Nobody listens any more (| head); Python's own flush at its end must not fail on it again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except (WorkbenchError, ValueError, OSError) as error:
            say(f"{error}{_elsewhere(error)}")
            return 2
        except KeyboardInterrupt:
            say("interrupted")
            return 130


def _elsewhere(error: BaseException) -> str:
    """Where an error came from that the workbench did not raise on purpose: then it may be no fault of the user's."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = Path(frame.f_code.co_filename).resolve()
    if isinstance(error, WorkbenchError | OSError) or file.is_relative_to(PACKAGE):
        return ""
    return (
        f"\n({type(error).__name__} at {file}:{line}. If what you asked for was right, "
        "this is a fault of the workbench: please report it with these two lines.)"
    )


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    made = argparse.ArgumentParser(prog="workbench", description=ABOUT, epilog=EPILOG, formatter_class=AS_WRITTEN)
    commands = Commands(made)
    for module in (demo, listing, running, reading, reporting, flow, carry, chains, sweep, trace):
        module.add(commands)
    return made
