"""``workbench flow``: check a flow file, draw it, run it."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FlowError
from .commands import Commands
from .loading import load_model
from .running import add_generation_options, generate

if TYPE_CHECKING:
    from ..engine import Result
    from ..flows import FlowDefinition, FlowEngine

__all__ = ["add", "run_python"]

CHECK = "workbench flow check data/flows/runtime_tools.json"
RUN = 'workbench flow run data/flows/runtime_tools.json --prompt "What is 17 * 23?" --temperature 0 --out runs/tools'
DRAW = "workbench flow draw data/flows/runtime_tools.json --trace runs/tools"
OWN = "workbench flow run my_flow.json --functions my_functions.py --prompt hello"


def add(commands: Commands) -> None:
    flow = commands.group("flow", "check, run or draw a flow file", CHECK, RUN, DRAW)
    check = flow.add("check", _check, "say what looks wrong in a flow, without running it", CHECK)
    check.add_argument("--model", help="look at the prompts with this model's tokenizer too")
    check.set_defaults(backend=None, device=None)
    run = flow.add("run", _run, "generate while a flow asks its questions", RUN, OWN)
    draw = flow.add("draw", _draw, "write a flow as a mermaid flowchart", DRAW)
    draw.add_argument("--trace", type=Path, metavar="DIR", help="count the visits of this run, with probabilities")
    for parser in (check, run, draw):
        parser.add_argument("file", type=Path, metavar="FILE.json", help="what flow.to_json() wrote")
        parser.add_argument(
            "--functions",
            action="append",
            default=[],
            type=Path,
            metavar="FILE.py",
            help="Python of yours that registers the functions which the flow names; it is run",
        )
    add_generation_options(run)


def _check(options: argparse.Namespace) -> int:
    flow = _flow(options)
    tokenizer = load_model(options, options.model, "bridge").tokenizer if options.model else None
    problems = flow.check(tokenizer)
    for problem in problems:
        print(f"{problem.kind}: {problem}")
    if not problems and not options.quiet:
        print(f"{options.file}: {len(flow.questions)} questions, nothing looks wrong")
    return 1 if problems else 0


def _run(options: argparse.Namespace) -> int:
    from ..flows import FlowEngine

    engine = FlowEngine(_flow(options))
    return generate(options, [engine.as_mod()], functools.partial(_told, engine))


def _draw(options: argparse.Namespace) -> int:
    from ..flows import states_of
    from ..trace import Trace

    flow = _flow(options)
    states = states_of(Trace.load(options.trace), flow.name).values() if options.trace else ()
    print(flow.draw(states), end="")
    return 0


def _flow(options: argparse.Namespace) -> FlowDefinition:
    from .. import mods  # noqa: F401  # registers the functions that come with the workbench
    from ..flows import FlowDefinition

    for path in options.functions:
        run_python(path)
    try:
        return FlowDefinition.from_json(options.file.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise FlowError(f"{options.file} is no flow file: it is not UTF-8 text ({error})") from None


def run_python(path: Path) -> None:
    """Run a file that the user named for it. What a flow file says never leads here."""
    spec = importlib.util.spec_from_file_location(f"functions_of_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FlowError(f"--functions {path}: this is no Python file; give one that uses @flow_function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and others look up their own module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise FlowError(f"--functions {path} raised {type(error).__name__}: {error}") from error


def _told(engine: FlowEngine, result: Result) -> str:
    """The questions that a run was asked, one a line."""
    lines = []
    for visit in next(reversed(engine.states.values())).history if engine.states else []:
        sure = f" ({visit.probs[visit.answer]:.2f})" if visit.answer in visit.probs else ""
        gone = "erased" if visit.erased else "kept"
        lines.append(f"{visit.question}: {visit.answer}{sure} → {visit.route}; {visit.spent} tokens, {gone}")
    return "\n".join(lines) or "the flow asked nothing"
