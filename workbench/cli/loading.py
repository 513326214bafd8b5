"""Options that say which model to load, and loading it with its terms shown."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..models import HookedModel
    from ..trace import Trace

__all__ = ["DEFAULT_MODEL", "add_model_options", "agreed", "load_for", "load_model"]

DEFAULT_MODEL = "smollm2-135m-instruct"


def add_model_options(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    shown = default or "the trace's own"
    parser.add_argument("--model", default=default, help=f"name, directory, .gguf file or hub name (default {shown})")
    parser.add_argument("--backend", default=None, help="bridge, hooked or lean (default bridge, or the trace's own)")
    parser.add_argument("--device", default=None, help="cpu, cuda, … (default: cuda if there is one)")


def load_model(options: argparse.Namespace, name: str, backend: str) -> HookedModel:
    from ..models import load

    return load(name, backend=backend, device=options.device, accept_terms=agreed(name), progress=not options.quiet)


def load_for(trace: Trace, options: argparse.Namespace) -> HookedModel:
    told = trace.run["model"]
    return load_model(options, options.model or told["name"], options.backend or told["backend"])


def agreed(name: str) -> bool:
    """Show the terms of a model that has some and ask; without a terminal nothing is accepted."""
    from ..models import KNOWN, cached

    model = KNOWN.get(name)
    if model is None or not model.opt_in or model.terms is None or cached(name) or not sys.stdin.isatty():
        return False
    print(f"{model.terms}\nAccept these terms and fetch {name}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().casefold() in ("y", "yes")
