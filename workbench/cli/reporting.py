"""``workbench report``, ``reproduce`` and ``notebook-report``: documents of runs, and runs out of documents."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ReportError, WorkbenchError
from .commands import Commands, say
from .flow import run_python
from .loading import add_model_options, agreed, load_for, load_model

if TYPE_CHECKING:
    import torch

    from ..models import HookedModel
    from ..reports import Report

__all__ = ["REPORT", "REPRODUCE", "add"]

REPORT = "workbench report runs/sum -o sum.html"
COMPARE = "workbench report runs/sum --compare runs/other -o both.html"
REPRODUCE = "workbench reproduce sum.html"
NOTEBOOK = "workbench notebook-report notebooks/50_report.ipynb -o study.html"
COULD_NOT = 3
"""Exit code: something in a report could not be run again."""
ENDINGS = ".html (offline, interactive), .md (with a folder beside it) or .pdf (printed by a browser)"


def add(commands: Commands) -> None:
    report = commands.add("report", _report, "make one offline document of a run", REPORT, COMPARE)
    report.add_argument(
        "trace", type=Path, metavar="DIR", help="what a command with --out DIR wrote: run, chains or carry"
    )
    report.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help=f"the file to write: {ENDINGS}")
    report.add_argument("--compare", type=Path, metavar="DIR", help="a second run, aligned at the first difference")
    report.add_argument("--title", help="the heading (default: the run and its model)")
    report.add_argument("--no-lens", action="store_true", help="leave out what needs the model itself")
    report.add_argument("--adapter", type=Path, metavar="FILE", help="of a carry: the adapter's .safetensors file")
    _functions(report)
    add_model_options(report, default=None)
    again = commands.add("reproduce", _reproduce, "run again what a report keeps, and say what agrees", REPRODUCE)
    again.add_argument("file", type=Path, metavar="FILE.html", help="a report; it is read as data, none of it is run")
    again.add_argument("--model", help="where the report's own is not one that the workbench knows by name")
    again.add_argument("--device", default=None, help="cpu, cuda, … (default: cuda if there is one)")
    again.add_argument("--adapter", type=Path, metavar="FILE", help="weights of a carry that the report does not hold")
    again.add_argument("--tolerance", type=float, default=1e-4, metavar="X", help="of numbers (default 1e-4)")
    again.add_argument(
        "--most-tokens", type=int, default=2_000_000, metavar="N", help="work allowed to a part (2000000)"
    )
    _functions(again)
    notebook = commands.add("notebook-report", _notebook, "execute a notebook and make one document of it", NOTEBOOK)
    notebook.add_argument("notebook", type=Path, metavar="NB.ipynb", help="its code is run in a fresh kernel")
    notebook.add_argument("-o", "--out", type=Path, metavar="FILE", help=f"default: NB.html here; {ENDINGS}")
    notebook.add_argument("--title", help="default: the notebook's first heading")
    notebook.add_argument("--no-execute", action="store_true", help="take the outputs that the file holds")
    notebook.add_argument("--allow-errors", action="store_true", help="go on after a cell that raised")
    notebook.add_argument("--seconds", type=int, metavar="N", help="longest time for a cell (default: no limit)")


def _functions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--functions", action="append", default=[], type=Path, metavar="FILE.py",
        help="Python of yours that registers functions which a flow names; it is run",
    )  # fmt: skip


# Reports -------------------------------------------------------------------------------------------------------


def _report(options: argparse.Namespace) -> int:
    for path in options.functions:
        run_python(path)
    kind = kind_of(options.trace)
    if options.compare is not None:
        other = kind_of(options.compare)
        if kind != other or kind not in ("trace", "chains"):
            raise ReportError(
                f"{options.trace} holds {_A[kind]} and {options.compare} {_A[other]}: two traces can be compared, or "
                "two runs of chains"
            )
    made = _MAKERS[kind](options)
    print(f"written: {made.save(options.out)}")
    return 0


def kind_of(directory: Path) -> str:
    """What a directory holds.

    :raises ReportError: nothing that a report can be made of.
    """
    found = next((kind for name, kind in _FILES.items() if (directory / name).is_file()), None)
    if found is None:
        others = ", ".join(name for name in _FILES if name != "run.json")
        raise ReportError(
            f"{directory} holds no trace: there is no run.json in it, and none of {others} of other runs. Give the "
            "directory that `--out DIR` of a run named"
        )
    return found


def _command(options: argparse.Namespace) -> str:
    """The command as it can be typed again, without where it wrote to."""
    words = ["workbench", "report", str(options.trace)]
    named = ("compare", "title", "adapter", "model", "backend")
    for name in named:
        value = getattr(options, name)
        words += [] if value is None else [f"--{name}", str(value)]
    words += ["--no-lens"] if options.no_lens else []
    return shlex.join(words)


def _of_trace(options: argparse.Namespace) -> Report:
    from ..reports import Report, report_of
    from ..trace import Trace

    trace = Trace.load(options.trace)
    lens = "the logit lens"
    model = _model(options, lambda: load_for(trace, options), lens) if trace.hooks or options.model else None
    if options.compare is None:
        return report_of(trace, model, options.title, command=_command(options))
    names = (str(options.trace), str(options.compare))
    made = Report(options.title or f"{names[0]} and {names[1]}", command=_command(options))
    return made.compare(trace, Trace.load(options.compare), names, model)


def _of_chains(options: argparse.Namespace) -> Report:
    from ..mcmc import load_chains
    from ..reports import Report

    chains = load_chains(options.trace)
    source = json.loads((options.trace / "chain.json").read_text("utf-8"))["model"]
    model = _model(options, lambda: _load(options, source))
    title = options.title or f"Chains of {options.trace}"
    made = Report(title, command=_command(options))
    if options.compare is None:
        return made.chains(chains, model)
    names = (str(options.trace), str(options.compare))
    return made.compare(chains, load_chains(options.compare), names, model)


def _of_carry(options: argparse.Namespace) -> Report:
    from ..carry import CarryTrace
    from ..reports import Report, made_carry

    trace = CarryTrace.load(options.trace)

    def carried() -> Any:
        base = _load(options, trace.config["model"])
        pause = trace.ids[trace.prompt_length] if trace.pauses else None
        return made_carry(base, trace.config, adapter=options.adapter, pause=pause)

    model = _model(options, carried)
    return Report(options.title or f"Carry of {options.trace}", command=_command(options)).carry(trace, model)


def _of_results(options: argparse.Namespace) -> Report:
    from ..reports import Report

    results = json.loads((options.trace / "results.json").read_text("utf-8"))
    title = options.title or f"Carry and its controls in {options.trace}"
    return Report(title, command=_command(options)).carry_results(results)


def _model(options: argparse.Namespace, load: Callable[[], Any], what: str = "what needs the model") -> Any:
    """The run's own model, or None where it is not wanted or can't be had."""
    if options.no_lens:
        return None
    try:
        return load()
    except WorkbenchError as error:
        say(f"without {what}, since the model can't be loaded: {error}")
        return None


def _load(options: argparse.Namespace, source: Any) -> HookedModel:
    if source is None and options.model is None:
        raise ReportError("the run does not say which model it was: give one with --model")
    told = source or {}
    return load_model(
        options, options.model or str(told.get("name")), options.backend or str(told.get("backend", "bridge"))
    )


_FILES = {"run.json": "trace", "chain.json": "chains", "carry.json": "carry", "results.json": "results"}
_A = {"trace": "a trace", "chains": "chains", "carry": "a carried prompt", "results": "measured controls"}
_MAKERS = {"trace": _of_trace, "chains": _of_chains, "carry": _of_carry, "results": _of_results}


# Again ---------------------------------------------------------------------------------------------------------


def _reproduce(options: argparse.Namespace) -> int:
    from ..models import load
    from ..reports import reproduce

    def loader(name: str, backend: str, dtype: torch.dtype) -> HookedModel:
        return load(
            name, backend=backend, dtype=dtype, device=options.device, accept_terms=agreed(name),
            progress=not options.quiet,
        )  # fmt: skip

    for path in options.functions:
        run_python(path)
    done = reproduce(
        options.file, model=options.model, adapter=options.adapter, tolerance=options.tolerance,
        most_tokens=options.most_tokens, loader=loader, on_outcome=print,
    )  # fmt: skip
    return {"agrees": 0, "differs": 1, "could not": COULD_NOT}[done.verdict]


def _notebook(options: argparse.Namespace) -> int:
    from ..reports import notebook_report

    words = ["workbench", "notebook-report", str(options.notebook)]
    words += [flag for flag in ("--no-execute", "--allow-errors") if getattr(options, flag[2:].replace("-", "_"))]
    if not (options.no_execute or options.quiet):
        say(f"executing {options.notebook} in a fresh kernel")
    made = notebook_report(
        options.notebook, execute=not options.no_execute, allow_errors=options.allow_errors,
        seconds_per_cell=options.seconds, title=options.title, command=shlex.join(words),
    )  # fmt: skip
    print(f"written: {made.save(options.out or Path(options.notebook.with_suffix('.html').name))}")
    return 0
