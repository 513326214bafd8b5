"""The ``workbench`` command: list and fetch models, run one under mods, make a report, replay a run.

The text that a run generates goes to standard output, everything about it to standard error.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import PromptError, TraceError, WorkbenchError

if TYPE_CHECKING:
    from .engine import Result
    from .models import HookedModel, Tokenizer
    from .trace import Record, Trace

__all__ = ["main"]

RESIDUAL = "blocks.*.hook_resid_post"
DEFAULT_MODEL = "smollm2-135m-instruct"
CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\ufffd")  # a terminal would obey them
AS_WRITTEN = argparse.RawDescriptionHelpFormatter
ABOUT = "List and fetch models, run one under mods and keep the trace, make a report of it, replay it."
RUN = 'workbench run --prompt "What is 17 * 23?" --mod calculator --seed 0 --out runs/sum'
RUN_JSON = """workbench run --prompt - --mod 'ban_tokens:{"words": ["city"]}' --mod calculator < question.txt"""
REPORT = "workbench report runs/sum -o sum.html"
REPLAY = "workbench replay runs/sum"
EPILOG = f"""\
examples:
  {RUN}
  {REPORT}
  {REPLAY}
exit codes:
  0    done, however the run ended
  1    a replayed run came out different
  2    something was wrong with what was asked, or a mod failed
  130  interrupted by Ctrl-C; what a run had until then is printed and kept
  141  whoever read the output closed it
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a model may write what the terminal's encoding lacks
        sys.stdout.reconfigure(errors="replace")
    with warnings.catch_warnings():
        # As a user of the command reads a warning: no file, no line of code.
        warnings.showwarning = lambda message, *_, **__: None if options.quiet else _say(f"warning: {message}")
        try:
            code: int = options.command(options)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            # Nobody listens any more (| head); Python's own flush at its end must not fail on it again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except (WorkbenchError, ValueError, OSError) as error:
            _say(str(error))
            return 2
        except KeyboardInterrupt:
            _say("interrupted")
            return 130


def _say(message: str) -> None:
    print(f"workbench: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="workbench", description=ABOUT, epilog=EPILOG, formatter_class=AS_WRITTEN)
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(function: Callable[..., int], says: str, *examples: str) -> argparse.ArgumentParser:
        name, listed = function.__name__.strip("_"), "\n  ".join(("examples:", *examples))
        made = commands.add_parser(name, help=says, description=says, epilog=listed, formatter_class=AS_WRITTEN)
        made.add_argument("-q", "--quiet", action="store_true", help="print results and errors only")
        made.set_defaults(command=function)
        return made

    models = command(_models, "list or fetch the known models", "workbench models --fetch gemma-3-270m --accept-terms")
    models.add_argument("--fetch", metavar="NAME", help="download and convert a known model")
    models.add_argument("--remove", metavar="NAME", help="delete a model from the cache")
    models.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")
    command(_mods, "list the ready mods and the parameters they take", "workbench mods", RUN_JSON)
    _add_run(command(_run, "generate under mods and keep the trace", RUN, RUN_JSON))
    report = command(_report, "make one offline HTML file of a trace", REPORT)
    replay = command(_replay, "run a trace again and say whether it comes out the same", REPLAY)
    for reader in (report, replay):
        reader.add_argument("trace", type=Path, metavar="DIR", help="what `workbench run --out DIR` wrote")
        _add_model_options(reader, default=None)
    report.add_argument("-o", "--out", type=Path, required=True, metavar="FILE.html", help="the file to write")
    report.add_argument("--title", help="the heading (default: the run and its model)")
    report.add_argument("--no-lens", action="store_true", help="leave out what needs the model itself")
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
    add = run.add_argument
    add("--prompt", required=True, help="what to say; - reads standard input, less its last newline")
    add("--raw", action="store_true", help="feed the prompt as it is, without the chat template")
    add("--system", help="a system message before the prompt")
    add("--mod", action="append", default=[], metavar="NAME[:JSON]", help="see `workbench mods`; may be repeated")
    add("--seed", type=int, help="same seed, same tokens; drawn and recorded if left out")
    add("--temperature", type=float, default=1.0, metavar="T", help="0 takes the likeliest token (default 1)")
    add("--top-k", type=int, default=0, metavar="K", help="draw among the K likeliest tokens (default 0: all)")
    add("--top-p", type=float, default=1.0, metavar="P", help="draw among the likeliest of mass P (default 1)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end once this is written; may be repeated")
    add("--max-new-tokens", type=int, default=128, metavar="N", help="longest output (default 128)")
    keep = run.add_mutually_exclusive_group()
    keep.add_argument("--capture", action="append", metavar="HOOK", help=f"hooks to keep (default {RESIDUAL})")
    keep.add_argument("--no-capture", action="store_true", help="keep no activations")
    add("--out", type=Path, metavar="DIR", help="where the trace goes, written while the run goes")
    add("--overwrite", action="store_true", help="replace a trace that is there already")
    _add_model_options(run, default=DEFAULT_MODEL)


def _add_model_options(parser: argparse.ArgumentParser, *, default: str | None) -> None:
    shown = default or "the trace's own"
    parser.add_argument("--model", default=default, help=f"name, directory, .gguf file or hub name (default {shown})")
    parser.add_argument("--backend", default=None, help="bridge or hooked (default bridge, or the trace's own)")
    parser.add_argument("--device", default=None, help="cpu, cuda, … (default: cuda if there is one)")


def _models(options: argparse.Namespace) -> int:
    from .models import listing, path, remove

    if options.remove:
        print(f"removed {options.remove}, {remove(options.remove) / 2**20:.0f} MiB freed")
    if options.fetch:
        accepted = options.accept_terms or _agreed(options.fetch)
        print(f"{options.fetch} is at {path(options.fetch, accept_terms=accepted, progress=not options.quiet)}")
    for model in () if options.remove or options.fetch else listing():
        state = f"{model.bytes_on_disk / 2**20:.0f} MiB" if model.cached else "not fetched"
        print(f"{model.name:24} {state:>12}  {model.licence:14} {model.summary}")
        if model.cached:
            print(f"{'':24} {model.path}")
    return 0


def _mods(options: argparse.Namespace) -> int:
    from .mods import MODS

    for name, factory in MODS.items():
        if name == "watch":
            continue  # it needs a function, which no command line can give
        taken = [one for one in inspect.signature(factory).parameters.values() if one.name != "ask"]
        told = [one.name + ("" if one.default is one.empty else f"={json.dumps(one.default)}") for one in taken]
        says = (inspect.getdoc(factory) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")
        print(f"{name:16} {says.removeprefix('A mod that ')}")
        print(f"{'':16} {', '.join(told) or 'no parameters'}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from .engine import SamplingParams, Session
    from .mods import parse

    # All that can be wrong is looked at before the model: a typing error should not cost its load.
    mods = [parse(spec) for spec in options.mod]
    sampling = SamplingParams(**{name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "stop")})
    text = _prompt_text(options)
    if options.out and not options.overwrite and options.out.is_dir() and any(options.out.iterdir()):
        raise TraceError(f"{options.out} already holds files: choose another directory or pass --overwrite")
    model = _load(options, options.model, options.backend or "bridge")
    capture = None if options.no_capture else options.capture or RESIDUAL
    tell = functools.partial(print, file=io.StringIO() if options.quiet else sys.stderr)
    screen = _Screen(model.tokenizer) if sys.stdout.isatty() and not options.quiet else None
    session = Session(model, mods, capture=capture, on_interrupt="return", sinks=[screen] if screen else [])
    try:
        result = session.generate(
            _prompt(text, options, model), max_new_tokens=options.max_new_tokens, sampling=sampling,
            seed=options.seed, save=options.out, overwrite=options.overwrite,
        )  # fmt: skip
        print(screen.rest() if screen else result.text)
        tell(_summary(result))
    finally:
        if options.out and session.last_results:  # also of a run that a mod broke
            tell(f"trace: {options.out}   next: workbench report {options.out} -o report.html")
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


class _Screen:
    """A sink that writes a run's text to a terminal as tokens are committed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.shown, self.took_back = "", False

    def __call__(self, record: Record) -> None:
        if record.kind == "removed":
            del self.tokens[-len(record.tokens) :]
        elif record.kind == "added":
            self.tokens += record.tokens
        else:
            return
        text = self.tokenizer.decode(self.tokens, skip_special=True)
        print(self._more(text.rstrip("\ufffd")), end="", flush=True)  # half a character waits for its other bytes

    def rest(self) -> str:
        """What is still to be written: what waited; and once more what stayed, if something was taken back."""
        more = self._more(self.tokenizer.decode(self.tokens, skip_special=True))
        return more + (f"\n\nwithout what was taken back:\n{self.shown.translate(CONTROLS)}" if self.took_back else "")

    def _more(self, text: str) -> str:
        same = len(self.shown)
        while not text.startswith(self.shown[:same]):
            same -= 1
        mark = f"⌫{len(self.shown) - same} " if same < len(self.shown) else ""
        self.took_back = self.took_back or bool(mark)
        self.shown = text
        return mark + text[same:].translate(CONTROLS)


def _load(options: argparse.Namespace, name: str, backend: str) -> HookedModel:
    from .models import load

    return load(name, backend=backend, device=options.device, accept_terms=_agreed(name), progress=not options.quiet)


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
    text: str = sys.stdin.read().removesuffix("\n") if options.prompt == "-" else options.prompt
    if not (text if options.raw else text.strip()):
        raise PromptError("the prompt is empty: give --prompt some text, or - and text on standard input")
    return text


def _prompt(text: str, options: argparse.Namespace, model: HookedModel) -> Any:
    if options.raw or not model.tokenizer.has_chat_template:
        if options.system:
            raise ValueError("--system needs a chat: leave out --raw, or use a model with a chat template")
        return text
    system = [{"role": "system", "content": options.system}] if options.system else []
    return [*system, {"role": "user", "content": text}]


def _summary(result: Result) -> str:
    history = result.trace.history()
    forced = sum(life.origin != "sampled" for life in history.live)
    gone = len(history.every) - len(history.live)
    said = f"{len(result.tokens)} tokens ({forced} by mods, {gone} taken back), ended by {result.reason}"
    said += f", error: {result.error}" if result.error else ""
    said += "" if result.tool_calls is None else f", tool calls: {result.tool_calls}"
    return f"{said}, seed {result.seed}"
