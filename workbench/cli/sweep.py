"""``workbench sweep``: every prompt under every set of mods, with every seed, on every model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import SweepError
from .commands import Commands, say

__all__ = ["add"]

RUN = "workbench sweep data/sweeps/sums.json --out runs/sums --workers 2"
ON_RAY = "workbench sweep data/sweeps/sums.json --out runs/sums --ray"


def add(commands: Commands) -> None:
    parser = commands.add("sweep", _sweep, "run prompts x mods x seeds x models into one table", RUN, ON_RAY)
    parser.add_argument("file", type=Path, metavar="FILE.json", help="models, prompts, mods, seeds; see docs/sweeps.md")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where the table goes; what is there stays"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes; 0: this one (default: half the cores)")
    parser.add_argument(
        "--ray", nargs="?", const=True, default=False, metavar="ADDRESS", help="run on a Ray cluster (extra `ray`)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and stop")


def _sweep(options: argparse.Namespace) -> int:
    from ..sweeps import Sweep, sweep

    try:
        text = options.file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SweepError(f"{options.file} can't be read: {getattr(error, 'strerror', None) or error}") from None
    plan = Sweep.from_json(text)
    told = (
        f"{len(plan):,} runs: {len(plan.models)} models x {len(plan.prompts)} prompts x {len(plan.mods)} sets of mods "
        f"x {len(plan.seeds)} seeds, at most {len(plan) * plan.max_new_tokens:,} tokens"
    )
    if options.dry_run:
        print(told)
        return 0
    if not options.quiet:
        say(told)
    result = sweep(plan, options.out, workers=options.workers, ray=options.ray, progress=not options.quiet)
    for failure in result.failures:
        where = ", ".join(f"{name} {failure[name]}" for name in ("model", "prompt", "mods", "seed"))
        print(f"failed: {where}: {failure['failed']}", file=sys.stderr)
    print(f"{len(result)} of {len(plan)} runs in {options.out / 'results'}")
    return 0 if result.finished else 1
