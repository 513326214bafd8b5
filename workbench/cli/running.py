"""``workbench run``: generate under mods and keep the trace; and what every generating command shares."""

from __future__ import annotations

import argparse
import functools
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PromptError, TraceError
from .commands import Commands
from .loading import DEFAULT_MODEL, add_model_options, load_model
from .screen import Screen

if TYPE_CHECKING:
    from ..engine import Mod, Result
    from ..models import HookedModel

__all__ = [
    "RUN",
    "RUN_JSON",
    "add",
    "add_generation_options",
    "add_prompt_options",
    "generate",
    "prompt_of",
    "prompt_text",
    "refuse_used",
]

RESIDUAL = "blocks.*.hook_resid_post"
RUN = 'workbench run --prompt "What is 17 * 23?" --mod calculator --temperature 0 --out runs/sum'
RUN_JSON = """workbench run --prompt - --mod 'ban_tokens:{"words": ["city"]}' --mod calculator < question.txt"""


def add(commands: Commands) -> None:
    run = commands.add("run", _run, "generate under mods and keep the trace", RUN, RUN_JSON)
    run.add_argument(
        "--mod", action="append", default=[], metavar="NAME[:JSON]", help="see `workbench mods`; may be repeated"
    )
    add_generation_options(run)


def add_generation_options(run: argparse.ArgumentParser) -> None:
    """The options of a command that generates."""
    add = run.add_argument
    add_prompt_options(run)
    add("--seed", type=int, help="same seed, same tokens; drawn and recorded if left out")
    add("--temperature", type=float, default=1.0, metavar="T", help="0 takes the likeliest token (default 1)")
    add("--top-k", type=int, default=0, metavar="K", help="draw among the K likeliest tokens (default 0: all)")
    add("--top-p", type=float, default=1.0, metavar="P", help="draw among the likeliest of mass P (default 1)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end once this is written; may be repeated")
    add("--max-new-tokens", type=int, default=128, metavar="N", help="longest output (default 128)")
    add(
        "--max-forward-tokens", type=int, metavar="N", help="most tokens fed, questions and retries included, before "
        "the run ends as over budget (default 64 for each output token)",
    )  # fmt: skip
    keep = run.add_mutually_exclusive_group()
    keep.add_argument("--capture", action="append", metavar="HOOK", help=f"hooks to keep (default {RESIDUAL})")
    keep.add_argument("--no-capture", action="store_true", help="keep no activations")
    add("--out", type=Path, metavar="DIR", help="where the trace goes, written while the run goes")
    add("--overwrite", action="store_true", help="replace a trace that is there already")
    add_model_options(run, default=DEFAULT_MODEL)


def _run(options: argparse.Namespace) -> int:
    from ..mods import parse

    # All that can be wrong is looked at before the model: a typing error should not cost its load.
    mods = [parse(spec) for spec in options.mod]
    return generate(options, mods)


def refuse_used(directory: Path | None, way_out: str = "choose another directory or pass --overwrite") -> None:
    """Refuse a directory that holds something, before a model is loaded."""
    if directory and directory.is_dir() and any(directory.iterdir()):
        raise TraceError(f"{directory} already holds files: {way_out}")


def add_prompt_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """The options that say what the model is given."""
    add = parser.add_argument
    add("--prompt", required=required, help="what to say; - reads standard input, less its last newline")
    add("--raw", action="store_true", help="feed the prompt as it is, without the chat template")
    add("--system", help="a system message before the prompt")


def generate(
    options: argparse.Namespace,
    mods: Sequence[Mod],
    tell_more: Callable[[Result], str] | None = None,
) -> int:
    """Generate as the options say, under ``mods``; the exit code comes back.

    ``tell_more`` says what else is to be told of the result.
    """
    from ..engine import SamplingParams, Session

    sampling = SamplingParams(**{name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "stop")})
    text = prompt_text(options)
    refuse_used(None if options.overwrite else options.out)
    model = load_model(options, options.model, options.backend or "bridge")
    capture = None if options.no_capture else options.capture or RESIDUAL
    tell = functools.partial(print, file=io.StringIO() if options.quiet else sys.stderr)
    screen = Screen(model.tokenizer) if sys.stdout.isatty() and not options.quiet else None
    session = Session(model, mods, capture=capture, on_interrupt="return", sinks=[screen] if screen else [])
    try:
        result = session.generate(
            prompt_of(options, model, text), max_new_tokens=options.max_new_tokens, sampling=sampling,
            seed=options.seed, save=options.out, overwrite=options.overwrite,
            max_forward_tokens=options.max_forward_tokens,
        )  # fmt: skip
        print(screen.rest() if screen else result.text)
        tell(*([tell_more(result)] if tell_more else []), _summary(result), sep="\n")
    finally:
        if options.out and session.last_results:  # also of a run that a mod broke
            tell(f"trace: {options.out}   next: workbench report {options.out} -o report.html")
    return 130 if result.reason == "interrupted" else 0


def prompt_text(options: argparse.Namespace) -> str:
    """What ``--prompt`` says; asked for before a model is loaded, since it may be empty."""
    text: str = sys.stdin.read().removesuffix("\n") if options.prompt == "-" else options.prompt
    if not (text if options.raw else text.strip()):
        raise PromptError("the prompt is empty: give --prompt some text, or - and text on standard input")
    return text


def prompt_of(options: argparse.Namespace, model: HookedModel, text: str) -> Any:
    """The prompt that ``text`` makes: chat messages, or raw text where that is wanted or all there is."""
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
