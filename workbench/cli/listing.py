"""``workbench models`` and ``workbench mods``: what there is to run."""

from __future__ import annotations

import argparse
import inspect
import json

from .commands import Commands
from .loading import agreed
from .running import RUN_JSON

__all__ = ["add"]


def add(commands: Commands) -> None:
    models = commands.add(
        "models",
        _models,
        "list or fetch the known models",
        "workbench models --fetch gemma-3-270m --accept-terms",
    )
    models.add_argument("--fetch", metavar="NAME", help="download and convert a known model")
    models.add_argument("--remove", metavar="NAME", help="delete a model from the cache")
    models.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")
    commands.add("mods", _mods, "list the ready mods and the parameters they take", "workbench mods", RUN_JSON)


def _models(options: argparse.Namespace) -> int:
    from ..models import listing, path, remove

    if options.remove:
        print(f"removed {options.remove}, {remove(options.remove) / 2**20:.0f} MiB freed")
    if options.fetch:
        accepted = options.accept_terms or agreed(options.fetch)
        print(f"{options.fetch} is at {path(options.fetch, accept_terms=accepted, progress=not options.quiet)}")
    for model in () if options.remove or options.fetch else listing():
        state = f"{model.bytes_on_disk / 2**20:.0f} MiB" if model.cached else "not fetched"
        print(f"{model.name:24} {state:>12}  {model.licence:14} {model.summary}")
        if model.cached:
            print(f"{'':24} {model.path}")
    return 0


def _mods(options: argparse.Namespace) -> int:
    from ..mods import MODS

    for name, factory in MODS.items():
        if name == "watch":
            continue  # it needs a function, which no command line can give
        taken = [one for one in inspect.signature(factory).parameters.values() if one.name != "ask"]
        told = [one.name + ("" if one.default is one.empty else f"={json.dumps(one.default)}") for one in taken]
        says = (inspect.getdoc(factory) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")
        print(f"{name:16} {says.removeprefix('A mod that ')}")
        print(f"{'':16} {', '.join(told) or 'no parameters'}")
    return 0
