"""The ``workbench`` command: list and fetch models, run one under mods, make a report, replay a run.

Exit codes: 0 done, 1 a replay differs, 2 something was wrong with what was asked, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import WorkbenchError

if TYPE_CHECKING:
    from .models import HookedModel
    from .trace import Trace

__all__ = ["main"]

RESIDUAL = "blocks.*.hook_resid_post"
DEFAULT_MODEL = "smollm2-135m-instruct"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except (WorkbenchError, ValueError) as error:
        print(f"workbench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("workbench: interrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="workbench", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="command")

    models = commands.add_parser("models", help="what is known, what is cached, its size and licence")
    models.add_argument("--fetch", metavar="NAME", help="download and convert a known model")
    models.add_argument("--remove", metavar="NAME", help="delete a model from the cache")
    models.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")
    models.set_defaults(command=_models)

    run = commands.add_parser("run", help="generate under mods and keep the trace")
    run.add_argument("--prompt", required=True, help="what to say to the model; - reads standard input")
    run.add_argument("--raw", action="store_true", help="feed the prompt as it is, without the chat template")
    run.add_argument("--system", help="a system message before the prompt")
    run.add_argument("--mod", action="append", default=[], metavar="NAME[:JSON]", help="a ready mod; may be repeated")
    run.add_argument("--seed", type=int, help="same seed, same tokens; drawn and recorded if left out")
    run.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest token (default 1)")
    run.add_argument("--top-k", type=int, default=0)
    run.add_argument("--top-p", type=float, default=1.0)
    run.add_argument("--max-new-tokens", type=int, default=128)
    run.add_argument("--capture", action="append", metavar="HOOK", help=f"hooks to keep (default {RESIDUAL})")
    run.add_argument("--no-capture", action="store_true", help="keep no activations")
    run.add_argument("--out", type=Path, metavar="DIR", help="where the trace goes, written while the run goes")
    run.add_argument("--overwrite", action="store_true", help="replace a trace that is there already")
    _add_model_options(run, default=DEFAULT_MODEL)
    run.set_defaults(command=_run)

    report = commands.add_parser("report", help="make one offline HTML file of a trace")
    report.add_argument("trace", type=Path, metavar="DIR")
    report.add_argument("-o", "--out", type=Path, required=True, metavar="FILE.html")
    report.add_argument("--title")
    report.add_argument("--no-lens", action="store_true", help="leave out what needs the model itself")
    _add_model_options(report, default=None)
    report.set_defaults(command=_report)

    replay = commands.add_parser("replay", help="run a trace again and say whether it comes out the same")
    replay.add_argument("trace", type=Path, metavar="DIR")
    _add_model_options(replay, default=None)
    replay.set_defaults(command=_replay)
    return parser


def _add_model_options(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    shown = default or "the trace's own"
    parser.add_argument("--model", default=default, help=f"name, directory, .gguf file or hub name (default {shown})")
    parser.add_argument("--backend", default=None, help="bridge or hooked (default bridge, or the trace's own)")
    parser.add_argument("--device", default=None, help="cpu, cuda, … (default: cuda if there is one)")


# Commands ----------------------------------------------------------------------------------------------


def _models(options: argparse.Namespace) -> int:
    from .models import listing, path, remove

    if options.remove:
        print(f"removed {options.remove}, {_size(remove(options.remove))} freed")
    if options.fetch:
        accepted = options.accept_terms or _agreed(options.fetch)
        print(f"{options.fetch} is at {path(options.fetch, accept_terms=accepted)}")
    if options.remove or options.fetch:
        return 0
    for model in listing():
        state = _size(model.bytes_on_disk) if model.cached else "not fetched"
        print(f"{model.name:24} {state:>12}  {model.licence:14} {model.summary}")
        if model.cached:
            print(f"{'':24} {model.path}")
    return 0


def _agreed(name: str) -> bool:
    """Show the terms of a model that has some and ask; without a terminal nothing is accepted."""
    from .models import KNOWN, cached

    model = KNOWN.get(name)
    if model is None or not model.opt_in or model.terms is None or cached(name) or not sys.stdin.isatty():
        return False
    print(model.terms)
    return input(f"Accept these terms and fetch {name}? [y/N] ").strip().casefold() in ("y", "yes")


def _run(options: argparse.Namespace) -> int:
    from .engine import SamplingParams, Session
    from .mods import parse

    mods = [parse(spec) for spec in options.mod]  # before the model: a typing error should not cost its load
    sampling = SamplingParams(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    model = _load(options, options.model, options.backend or "bridge")
    capture = None if options.no_capture else options.capture or RESIDUAL
    session = Session(model, mods, capture=capture, on_interrupt="return")
    result = session.generate(
        _prompt(options, model),
        max_new_tokens=options.max_new_tokens,
        sampling=sampling,
        seed=options.seed,
        save=options.out,
        overwrite=options.overwrite,
    )
    print(result.text)
    print(_summary(result), file=sys.stderr)
    if options.out:
        print(f"trace: {options.out}   next: workbench report {options.out} -o report.html", file=sys.stderr)
    return 130 if result.reason == "interrupted" else 0


def _report(options: argparse.Namespace) -> int:
    from .reports import report_of
    from .trace import Trace

    trace = Trace.load(options.trace)
    model = None
    if not options.no_lens and trace.hooks:
        try:
            model = _load_for(trace, options)
        except WorkbenchError as error:
            print(f"workbench: without the logit lens, since the model can't be loaded: {error}", file=sys.stderr)
    print(f"written: {report_of(trace, model, options.title).save(options.out)}")
    return 0


def _replay(options: argparse.Namespace) -> int:
    from .engine import replay
    from .mods import rebuild
    from .trace import Trace

    trace = Trace.load(options.trace)
    mods = [[rebuild(told) for told in request["mods"]] for request in trace.run["requests"].values()]
    outcome = replay(trace, _load_for(trace, options), mods)
    print(f"{options.trace}: {outcome}")
    return 0 if outcome.agrees else 1


# Pieces ------------------------------------------------------------------------------------------------


def _load(options: argparse.Namespace, name: str, backend: str) -> HookedModel:
    from .models import load

    return load(name, backend=backend, device=options.device, accept_terms=_agreed(name))


def _load_for(trace: Trace, options: argparse.Namespace) -> HookedModel:
    told = trace.run["model"]
    return _load(options, options.model or told["name"], options.backend or told["backend"])


def _prompt(options: argparse.Namespace, model: HookedModel) -> Any:
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    if options.raw or not model.tokenizer.has_chat_template:
        if options.system:
            raise ValueError("--system needs a chat: leave out --raw, or use a model with a chat template")
        return text
    system = [{"role": "system", "content": options.system}] if options.system else []
    return [*system, {"role": "user", "content": text}]


def _summary(result: Any) -> str:
    history = result.trace.history()
    forced = sum(life.origin != "sampled" for life in history.live)
    gone = len(history.every) - len(history.live)
    said = f"{len(result.tokens)} tokens ({forced} by mods, {gone} taken back), ended by {result.reason}"
    said += f", seed {result.seed}"
    if result.error:
        said += f", error: {result.error}"
    if result.tool_calls is not None:
        said += f", tool calls: {result.tool_calls}"
    return said


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
