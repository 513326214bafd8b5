"""``workbench demo``: three short runs, told in plain text as they end, and one report of them all."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import TraceError
from .commands import Commands, say
from .loading import DEFAULT_MODEL, add_model_options, load_model
from .running import RESIDUAL, prompt_of, refuse_used

if TYPE_CHECKING:
    from ..flows import FlowDefinition
    from ..mcmc import Chains, Decision
    from ..models import HookedModel, Tokenizer
    from ..reports import Report
    from ..trace import Trace

__all__ = ["add"]

DEMO = "workbench demo"
ELSEWHERE = "workbench demo --seed 1 --out runs/demo --overwrite"
FLOW_FILE = "flows/runtime_tools.json"
WIDTH = 100
"""Columns that prose is wrapped at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One of the runs: what it is called, what to say of it, and what it is asked and told."""

    name: str
    title: str
    about: str
    prompt: str
    settings: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0, "max_new_tokens": 24})


CALCULATOR = _Part(
    name="calculator",
    title="A mod at work",
    about="A mod is a small program that hears every event of a generation and may act on it. This one works out the "
    "sums that the model writes and puts the result into the text, in mid-sentence.",
    prompt="What is 17 * 23?",
)
FLOW = _Part(
    name="flow",
    title="A flow, answered and erased",
    about="A flow asks the model questions while it writes. Each is put into the text, answered under constraint and "
    "taken back; what the answers lead to is done. This one asks whether a tool would help, and which.",
    prompt="Please calculate 125 * 16.",
)
CHAIN = _Part(
    name="chain",
    title="A chain of texts",
    about="A chain rewrites a text from a random token on, again and again. Each proposal is accepted with probability "
    "min(1, A), where A is such that the texts come to be drawn from p(text)^4 instead of p(text).",
    prompt="Write one line of a poem about rain.",
    settings={"alpha": 4, "block_size": 16, "n_mcmc": 8, "max_tokens": 16},
)


def add(commands: Commands) -> None:
    says = "three short runs (a mod, a flow, a chain), explained, and one report of them"
    demo = commands.add("demo", _demo, says, DEMO, ELSEWHERE)
    demo.add_argument(
        "--out", type=Path, default=Path("workbench-demo"), metavar="DIR",
        help="where traces and report go (default workbench-demo, here)",
    )  # fmt: skip
    demo.add_argument("--overwrite", action="store_true", help="replace what an earlier demo left there")
    demo.add_argument("--seed", type=int, default=0, help="same seed, same runs (default 0)")
    add_model_options(demo, default=DEFAULT_MODEL)
    demo.set_defaults(raw=False, system=None)


def _demo(options: argparse.Namespace) -> int:
    _refuse_place(options.out, overwrite=options.overwrite)
    if not options.quiet:
        say(f"loading {options.model}")
    model = load_model(options, options.model, options.backend or "bridge")
    from ..reports import Report

    report = Report(f"Demonstration: three runs of {options.model}", command=_command(options))
    for number, (part, run) in enumerate(((CALCULATOR, _calculator), (FLOW, _flow), (CHAIN, _chain)), start=1):
        _tell(options, "", f"{number}. {part.title}", "", *textwrap.wrap(part.about, WIDTH), "")
        _tell(options, f"asked:    {part.prompt}")
        report.note(f"# {number}. {part.title}\n{part.about}")
        typed = run(part, options, model, report)
        report.note(f"The same by itself:\n```\n{typed}\n```")
        _tell(options, "", "The same by itself:", f"  {typed}")
    written = report.save(options.out / "report.html")
    _tell(options, "", "To make all of it again from the report alone, and compare:")
    _tell(options, f"  {shlex.join(['workbench', 'reproduce', str(written)])}", "")
    for part in (CALCULATOR, FLOW, CHAIN):
        print(f"kept: {options.out / part.name}")
    print(f"written: {written}")
    return 0


def _refuse_place(place: Path, *, overwrite: bool) -> None:
    """Refuse a place that can't be written to, or is in use, before a model is loaded; nothing is made there.

    :raises TraceError: it is one.
    """
    refuse_used(None if overwrite else place)
    standing = next(each for each in (place.absolute(), *place.absolute().parents) if each.exists())
    if not standing.is_dir():
        raise TraceError(f"{standing} is a file: choose another directory with --out")
    if not os.access(standing, os.W_OK | os.X_OK):
        raise TraceError(f"{standing} can't be written to: choose another directory with --out")


def _tell(options: argparse.Namespace, *lines: str) -> None:
    """What explains the results; ``--quiet`` leaves it out."""
    if not options.quiet:
        print(*lines, sep="\n", flush=True)


def _command(options: argparse.Namespace) -> str:
    words = ["workbench", "demo", "--seed", str(options.seed), "--out", str(options.out)]
    return shlex.join([*words, *_model_words(options)])


def _typed(part: _Part, options: argparse.Namespace, *words: str) -> str:
    """The command that makes the run of ``part`` by itself."""
    settings = [word for name, value in part.settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    told = ["--prompt", part.prompt, *settings, "--seed", str(options.seed), "--out", f"runs/{part.name}"]
    return shlex.join(["workbench", *words, *told, *_model_words(options)])


def _model_words(options: argparse.Namespace) -> list[str]:
    named = ((name, getattr(options, name)) for name in ("model", "backend", "device"))
    return [word for name, value in named if value is not None for word in (f"--{name}", str(value))]


# The runs ------------------------------------------------------------------------------------------------------


def _calculator(part: _Part, options: argparse.Namespace, model: HookedModel, report: Report) -> str:
    from ..mods import calculator

    alone = _generate(part, options, model, [], save=False)
    result = _generate(part, options, model, [calculator()])
    _tell(options, f"without:  {_quoted(alone.text)}", f"with it:  {_quoted(result.text)}")
    _tell(options, *_told_forced(result.trace))
    report.trace(result.trace, model)
    return _typed(part, options, "run", "--mod", "calculator")


def _flow(part: _Part, options: argparse.Namespace, model: HookedModel, report: Report) -> str:
    from .. import mods  # noqa: F401  # registers the functions that come with the workbench
    from ..bundled import bundled
    from ..flows import FlowDefinition, FlowEngine

    flow = FlowDefinition.from_json(bundled(FLOW_FILE).read_text("utf-8"))
    result = _generate(part, options, model, [FlowEngine(flow).as_mod()])
    _tell(options, *_told_visits(flow, result.trace), f"written:  {_quoted(result.text)}")
    report.trace(result.trace, model).flow(flow, result.trace, model)
    return _typed(part, options, "flow", "run", str(bundled(FLOW_FILE)))


def _chain(part: _Part, options: argparse.Namespace, model: HookedModel, report: Report) -> str:
    from ..mcmc import run_chains

    place = options.out / part.name
    chains = run_chains(
        model, prompt_of(options, model, part.prompt), out=place, overwrite=options.overwrite, seed=options.seed,
        **part.settings,
    )  # fmt: skip
    _tell(options, *_told_decisions(chains, model.tokenizer))
    report.chains(chains, model)
    return _typed(part, options, "mcmc")


def _generate(
    part: _Part, options: argparse.Namespace, model: HookedModel, mods: list[Any], *, save: bool = True
) -> Any:
    from ..engine import SamplingParams, Session

    return Session(model, mods, capture=RESIDUAL if save else ()).generate(
        prompt_of(options, model, part.prompt), max_new_tokens=part.settings["max_new_tokens"],
        sampling=SamplingParams(temperature=part.settings["temperature"]), seed=options.seed,
        save=options.out / part.name if save else None, overwrite=options.overwrite,
    )  # fmt: skip


# What is told of them ------------------------------------------------------------------------------------------


def _told_forced(trace: Trace) -> Iterator[str]:
    """What mods wrote, and how probable the model itself held each token of it."""
    forced = [life for life in trace.history().live if life.origin == "forced"]
    for (name, _), lives in groupby(forced, key=lambda life: (life.added_by, life.added_step)):
        said = list(lives)
        odds = ", ".join(
            f"{_quoted(life.text)} {'unknown' if life.raw_logprob is None else f'{math.exp(life.raw_logprob):.2f}'}"
            for life in said
        )
        yield f"forced:   {_quoted(''.join(life.text for life in said))} by {name}"
        yield f"          probabilities that the model itself gave these tokens: {odds}"
    if not forced:
        yield "forced:   nothing; the model wrote no sum that ends in ="


def _told_visits(flow: FlowDefinition, trace: Trace) -> Iterator[str]:
    """What a flow asked, what was answered with which probabilities, and how much of it was taken back."""
    from ..flows import states_of

    for state in states_of(trace, flow.name).values():
        for visit in state.history:
            odds = ", ".join(f"{answer} {p:.2f}" for answer, p in visit.probs.items())
            left = "erased" if visit.erased else "kept"
            yield from textwrap.wrap(
                f"question: {_quoted(flow.questions[visit.question].prompt.strip())}", WIDTH, subsequent_indent=" " * 10
            )
            yield f"answer:   {_quoted(visit.answer)} ({odds or 'no probabilities'}), {left}"
            yield f"leads to: {visit.route}"
    history = trace.history()
    yield f"erased:   {len(history.every) - len(history.live)} of {len(history.every)} tokens that were written"


def _told_decisions(chains: Chains, tokenizer: Tokenizer) -> Iterator[str]:
    """Where a chain began, every proposal with what became of it, where it ended."""
    from ..mcmc import state_before

    if chains.decisions:
        first = state_before(chains, 0)
        log_p = sum(float(x_token - whole) for x_token, whole, _ in first.scalars)
        yield f"at first: {_quoted(tokenizer.decode(list(first.tokens), skip_special=True))} (log p {log_p:.2f})"
    for number, decision in enumerate(chains.decisions, start=1):
        yield f"{number:>8}: {_told_decision(decision, tokenizer)}"
    for text in chains:
        yield f"at last:  {_quoted(text.text)} (log p {text.log_p:.2f})"
    count = Counter(decision.kind for decision in chains.decisions)
    yield f"in all:   {count['accepted']} accepted, {count['rejected']} rejected, {count['null']} times the same again"


def _told_decision(decision: Decision, tokenizer: Tokenizer) -> str:
    if decision.kind == "null":
        return f"from token {decision.pivot} on the same again"
    new = _quoted(tokenizer.decode(list(decision.new_tokens), skip_special=True))
    return f"from token {decision.pivot} on {new}: {decision.kind} (log A {decision.log_a:.2f})"


def _quoted(text: str) -> str:
    """A text in one line, whatever is in it."""
    from ..reports import legible

    return '"' + legible(text).replace("\n", "↵").replace("\t", "⇥") + '"'
