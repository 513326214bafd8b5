"""The ``workbench`` command: list and fetch models, run one under mods, make a report, replay a run.

The text that a run generates goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .errors import PromptError, TraceError, WorkbenchError

if TYPE_CHECKING:
    from .engine import Result, Session
    from .models import HookedModel, Tokenizer
    from .trace import Record, Trace

__all__ = ["main"]

RESIDUAL = "blocks.*.hook_resid_post"
DEFAULT_MODEL = "smollm2-135m-instruct"
EXIT_CODES = """\
exit codes:
  0    done, however the run ended
  1    a replayed run came out different
  2    something was wrong with what was asked, or a mod failed
  130  interrupted by Ctrl-C; what there was until then is printed and kept
  141  whoever read the output closed it
"""
EXAMPLES = {
    "": """\
  workbench run --prompt "What is 17 * 23?" --mod calculator --seed 0 --out runs/sum
  workbench report runs/sum -o sum.html
  workbench replay runs/sum
""",
    "models": """\
  workbench models
  workbench models --fetch gemma-3-270m --accept-terms
""",
    "mods": """\
  workbench mods
  workbench run --prompt "Tell me about Paris." --mod 'ban_tokens:{"words": ["city"]}' --mod calculator
""",
    "run": """\
  workbench run --prompt "What is 17 * 23?" --mod calculator --temperature 0 --out runs/sum
  workbench run --prompt - --system "Answer in JSON." --mod 'valid_json:{"max_rolls": 9}' < question.txt
  workbench run --model tiny-llama --raw --prompt "no download needed" --seed 0
""",
    "report": "  workbench report runs/sum -o sum.html --title 'A sum'\n",
    "replay": "  workbench replay runs/sum --backend hooked\n",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a model may write what the terminal's encoding lacks
        sys.stdout.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.showwarning = _show_nothing if options.quiet else _show_warning
        try:
            code: int = options.command(options)
            sys.stdout.flush()
        except BrokenPipeError:
            # Nobody listens any more (| head); Python's own flush at its end must not fail on it again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except (WorkbenchError, ValueError, OSError) as error:
            return _say(str(error), 2)
        except KeyboardInterrupt:
            return _say("interrupted", 130)
    return code


def _say(message: str, code: int = 0) -> int:
    print(f"workbench: {message}", file=sys.stderr)
    return code


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """A warning as a user of the command reads it: no file, no line of code."""
    _say(f"warning: {message}")


def _show_nothing(*_: Any, **__: Any) -> None:
    """In place of a warning."""


# Options -----------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench",
        description=(__doc__ or "").split("\n")[0],
        epilog=f"examples:\n{EXAMPLES['']}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    models = _command(commands, "models", _models, "list the known models: what is cached, its size and licence")
    models.add_argument("--fetch", metavar="NAME", help="download and convert a known model")
    models.add_argument("--remove", metavar="NAME", help="delete a model from the cache")
    models.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")

    _command(commands, "mods", _mods, "list the ready mods and the parameters they take")
    _add_run(_command(commands, "run", _run, "generate under mods and keep the trace"))

    report = _command(commands, "report", _report, "make one offline HTML file of a trace")
    report.add_argument("trace", type=Path, metavar="DIR", help="what `workbench run --out DIR` wrote")
    report.add_argument("-o", "--out", type=Path, required=True, metavar="FILE.html", help="the file to write")
    report.add_argument("--title", help="the heading (default: the run and its model)")
    report.add_argument("--no-lens", action="store_true", help="leave out what needs the model itself")
    _add_model_options(report, default=None)

    replay = _command(commands, "replay", _replay, "run a trace again and say whether it comes out the same")
    replay.add_argument("trace", type=Path, metavar="DIR", help="what `workbench run --out DIR` wrote")
    _add_model_options(replay, default=None)
    return parser


def _command(commands: Any, name: str, function: Any, says: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=says,
        description=says[0].upper() + says[1:] + ".",
        epilog=f"examples:\n{EXAMPLES[name]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print results and errors only")
    parser.set_defaults(command=function)
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("--prompt", required=True, help="what to say; - reads standard input, less its last newline")
    run.add_argument("--raw", action="store_true", help="feed the prompt as it is, without the chat template")
    run.add_argument("--system", help="a system message before the prompt")
    run.add_argument(
        "--mod",
        action="append",
        default=[],
        metavar="NAME[:JSON]",
        help="a ready mod (see `workbench mods`); repeatable",
    )
    run.add_argument("--seed", type=int, help="same seed, same tokens; drawn and recorded if left out")
    run.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest token (default 1)")
    run.add_argument("--top-k", type=int, default=0, help="draw among the k likeliest tokens (default 0: all)")
    run.add_argument("--top-p", type=float, default=1.0, help="draw among the likeliest with this mass (default 1)")
    run.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end once this is written; repeatable")
    run.add_argument("--max-new-tokens", type=int, default=128, help="longest output (default 128)")
    keep = run.add_mutually_exclusive_group()
    keep.add_argument("--capture", action="append", metavar="HOOK", help=f"hooks to keep (default {RESIDUAL})")
    keep.add_argument("--no-capture", action="store_true", help="keep no activations")
    run.add_argument("--out", type=Path, metavar="DIR", help="where the trace goes, written while the run goes")
    run.add_argument("--overwrite", action="store_true", help="replace a trace that is there already")
    _add_model_options(run, default=DEFAULT_MODEL)


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
        directory = path(options.fetch, accept_terms=accepted, progress=not options.quiet)
        print(f"{options.fetch} is at {directory}")
    if options.remove or options.fetch:
        return 0
    for model in listing():
        state = _size(model.bytes_on_disk) if model.cached else "not fetched"
        print(f"{model.name:24} {state:>12}  {model.licence:14} {model.summary}")
        if model.cached:
            print(f"{'':24} {model.path}")
    return 0


def _mods(options: argparse.Namespace) -> int:
    from .mods import MODS

    for name, factory in MODS.items():
        taken = inspect.signature(factory).parameters.values()
        functions = [one for one in taken if "Callable" in str(one.annotation) or "Ask" in str(one.annotation)]
        if any(one.default is one.empty for one in functions):
            continue  # it needs a function, which no command line can give
        says = (inspect.getdoc(factory) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")
        print(f"{name:16} {says.removeprefix('A mod that ')}")
        for one in taken:
            if one not in functions:
                default = "needed" if one.default is one.empty else f"default {json.dumps(one.default)}"
                print(f"{'':16}   {one.name}: {default}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from .engine import SamplingParams, Session
    from .mods import parse

    # All that can be wrong is looked at before the model: a typing error should not cost its load.
    mods = [parse(spec) for spec in options.mod]
    sampling = SamplingParams(
        temperature=options.temperature, top_k=options.top_k, top_p=options.top_p, stop=tuple(options.stop)
    )
    text = _prompt_text(options)
    if options.out and not options.overwrite and options.out.is_dir() and any(options.out.iterdir()):
        raise TraceError(f"{options.out} already holds files: choose another directory or pass --overwrite")
    model = _load(options, options.model, options.backend or "bridge")
    capture = None if options.no_capture else options.capture or RESIDUAL
    screen = _Screen(model.tokenizer) if sys.stdout.isatty() and not options.quiet else None
    session = Session(model, mods, capture=capture, on_interrupt="return", sinks=[screen] if screen else [])
    try:
        result = session.generate(
            _prompt(text, options, model), max_new_tokens=options.max_new_tokens, sampling=sampling,
            seed=options.seed, save=options.out, overwrite=options.overwrite,
        )  # fmt: skip
    except WorkbenchError:
        _tell_trace(options, session)
        raise
    if screen is None:
        print(result.text)
    else:
        screen.close()
    if not options.quiet:
        print(_summary(result), file=sys.stderr)
    _tell_trace(options, session)
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
            _say(f"without the logit lens, since the model can't be loaded: {error}")
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


class _Screen:
    """A sink that writes a run's text to a terminal as tokens are committed."""

    CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\ufffd")
    """What a terminal would obey instead of showing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.shown = ""
        self.took_back = False

    def __call__(self, record: Record) -> None:
        if record.kind == "added":
            self.tokens += record.tokens
            self._show(self._text().rstrip("\ufffd"))  # a character whose bytes have not all come yet waits
        elif record.kind == "removed":
            del self.tokens[-len(record.tokens) :]
            self._show(self._text().rstrip("\ufffd"))

    def close(self) -> None:
        """Write what waited; where text was taken back, write once more what stayed."""
        self._show(self._text())
        print(f"\n\nwithout what was taken back (⌫):\n{self._legible(self.shown)}" if self.took_back else "")

    def _text(self) -> str:
        return self.tokenizer.decode(self.tokens, skip_special=True)

    def _show(self, text: str) -> None:
        common = len(os.path.commonprefix([text, self.shown]))
        if common < len(self.shown):
            self.took_back = True
            print(f"⌫{len(self.shown) - common} ", end="")
        print(self._legible(text[common:]), end="", flush=True)
        self.shown = text

    def _legible(self, text: str) -> str:
        return text.translate(self.CONTROLS)


def _load(options: argparse.Namespace, name: str, backend: str) -> HookedModel:
    from .models import load

    accepted = _agreed(name)
    return load(name, backend=backend, device=options.device, accept_terms=accepted, progress=not options.quiet)


def _load_for(trace: Trace, options: argparse.Namespace) -> HookedModel:
    told = trace.run["model"]
    return _load(options, options.model or told["name"], options.backend or told["backend"])


def _agreed(name: str) -> bool:
    """Show the terms of a model that has some and ask; without a terminal nothing is accepted."""
    from .models import KNOWN, cached

    model = KNOWN.get(name)
    if model is None or not model.opt_in or model.terms is None or cached(name) or not sys.stdin.isatty():
        return False
    print(f"{model.terms}\nAccept these terms and fetch {name}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def _prompt_text(options: argparse.Namespace) -> str:
    if options.raw and options.system:
        raise ValueError("--system needs a chat, and --raw is none: leave out one of them")
    text: str = sys.stdin.read().removesuffix("\n") if options.prompt == "-" else options.prompt
    if not (text if options.raw else text.strip()):
        raise PromptError("the prompt is empty: give --prompt some text, or - and text on standard input")
    return text


def _prompt(text: str, options: argparse.Namespace, model: HookedModel) -> Any:
    if options.raw or not model.tokenizer.has_chat_template:
        if options.system:
            raise ValueError(f"--system needs a chat, and {model.name} has no chat template: put it into --prompt")
        return text
    system = [{"role": "system", "content": options.system}] if options.system else []
    return [*system, {"role": "user", "content": text}]


def _tell_trace(options: argparse.Namespace, session: Session) -> None:
    """Say where the trace is, also that of a run that failed."""
    if options.out and session.last_results and not options.quiet:
        print(f"trace: {options.out}   next: workbench report {options.out} -o report.html", file=sys.stderr)


def _summary(result: Result) -> str:
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
