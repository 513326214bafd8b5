"""A report's traces, chains and carried prompts run again from its file alone, and compared with what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..carry import CarryTrace
from ..engine import replay
from ..errors import ReportError, WorkbenchError
from ..mcmc import Decision, PowerSampler, Settings
from ..trace import Record, Trace
from .reading_back import KeptReport, Part, read_report
from .remaking import Loader, Models, made_mod

__all__ = ["Outcome", "Reproduction", "reproduce"]

Verdict = Literal["agrees", "differs", "could not"]
WORK = 2_000_000
"""Tokens that one part may ask to be fed, unless told otherwise: some hours on two cores."""
EXACT = ("chain", "block", "iteration", "pivot", "accepted")
CLOSE = ("log_a", "u", "log_p")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of running one part again."""

    kind: str
    name: str
    verdict: Verdict
    says: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.name}: {self.says}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What came of running a whole report again."""

    outcomes: tuple[Outcome, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        """``differs`` if any part does, else ``could not`` if any could not be run, else ``agrees``."""
        found = {outcome.verdict for outcome in self.outcomes}
        return "differs" if "differs" in found else "could not" if "could not" in found else "agrees"

    def __str__(self) -> str:
        return "\n".join(map(str, self.outcomes))


def reproduce(
    path: str | Path,
    *,
    model: str | None = None,
    adapter: str | Path | None = None,
    tolerance: float = 1e-4,
    most_tokens: int = WORK,
    loader: Loader | None = None,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Reproduction:
    """Run again what the report in ``path`` keeps, and compare.

    ``model`` is loaded where the report names one that the workbench does not know; ``adapter`` is a file of weights
    where it keeps none. What happened is compared exactly, numbers to ``tolerance``. A part that would feed more than
    ``most_tokens`` tokens is left out. ``on_outcome`` hears of each part as it is done.

    :raises ReportError: the file can't be read, or is no report that keeps something to run again.
    """
    kept = read_report(path)
    models = Models(model, loader, adapter)
    outcomes = []
    for part in kept.parts:
        outcomes.append(_again(part, kept, models, tolerance, most_tokens))
        if on_outcome is not None:
            on_outcome(outcomes[-1])
    return Reproduction(outcomes=tuple(outcomes))


def _again(part: Part, kept: KeptReport, models: Models, tolerance: float, most: int) -> Outcome:
    runs = {"trace": _trace_again, "chains": _chains_again, "carry": _carry_again}
    try:
        if part.kind not in runs:
            raise ReportError(f"it is of kind {part.kind[:40]!r}, which this version does not know")
        verdict, says = runs[part.kind](part.told, kept, models, tolerance, most)
    except WorkbenchError as error:
        verdict, says = "could not", str(error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        # The record is whatever the file says; what does not fit is found where it is used.
        verdict, says = (
            "could not",
            f"what the report keeps of it is damaged ({type(error).__name__}: {str(error)[:200]})",
        )
    return Outcome(kind=part.kind, name=part.name, verdict=verdict, says=says)


def _within(asked: int, most: int) -> None:
    if asked > most:
        raise ReportError(
            f"it asks for up to {asked:,} tokens to be fed, more than {most:,}: allow that with --most-tokens "
            "(most_tokens=) if you know where the report comes from"
        )


# Traces --------------------------------------------------------------------------------------------------------


def _trace_again(
    told: Mapping[str, Any], kept: KeptReport, models: Models, tolerance: float, most: int
) -> tuple[Verdict, str]:
    run = dict(told["run"])
    names = sorted(run["requests"], key=_place)
    # A run names its requests by their place. Activations are not compared, so nothing needs to be captured.
    run["requests"] = {f"r{place}": {**run["requests"][name], "capture": []} for place, name in enumerate(names)}
    if not run["requests"]:
        raise ReportError("its manifest names no request")
    _within(sum(int(one["max_forward_tokens"]) + len(one["prompt_tokens"]) for one in run["requests"].values()), most)
    mods = [[made_mod(mod) for mod in request["mods"]] for request in run["requests"].values()]
    places = {name: f"r{place}" for place, name in enumerate(names)}
    records = [_record(line, places) for name in told["records"] for line in kept.lines(name)]
    trace = Trace(run, sorted(records, key=lambda record: record.seq))
    source = run["model"].get("source") or run["model"]
    outcome = replay(trace, models.of(source, told.get("weights")), mods, tolerance=tolerance)
    return ("agrees" if outcome.agrees else "differs"), str(outcome)


def _place(name: str) -> tuple[int, str]:
    """The order of requests in their batch: ``r2`` before ``r10``."""
    digits = name.removeprefix("r")
    return (int(digits) if digits.isdecimal() and len(digits) < 10 else 0, name)


def _record(line: Mapping[str, Any], places: Mapping[str, str]) -> Record:
    """A record as :func:`~workbench.reports.steps.record_line` wrote it, its request named by its place."""
    plain = {name: value for name, value in line.items() if name not in ("tokens", "top", "data", "request_id")}
    return Record(
        **plain,
        request_id=places[line["request_id"]],
        tokens=tuple(int(token) for token in line.get("tokens", ())),
        top=tuple((int(token), float(value)) for token, value in line.get("top", ())),
        data=dict(line.get("data", {})),
    )


# Chains --------------------------------------------------------------------------------------------------------


def _chains_again(
    told: Mapping[str, Any], kept: KeptReport, models: Models, tolerance: float, most: int
) -> tuple[Verdict, str]:
    settings = Settings.from_json(told["settings"])
    target, lines = settings.target, kept.lines(told["decisions"])
    proposals = settings.chains * (target.n_blocks * target.n_mcmc * settings.tries + 1)
    _within(proposals * target.max_tokens + len(settings.prompt), most)
    model = models.of(told["model"])
    if told.get("tokenizer") not in (None, model.tokenizer.fingerprint):
        raise ReportError(f"its tokens are another tokenizer's than that of {model.name}")
    sampler = PowerSampler(
        model, [int(token) for token in settings.prompt], alpha=target.alpha, tau=target.tau,
        block_size=target.block_size, n_mcmc=target.n_mcmc, max_tokens=target.max_tokens, seed=settings.seed,
        chains=settings.chains, tries=settings.tries, ladder=settings.ladder, swap_every=settings.swap_every,
    )  # fmt: skip
    close, steps = "", iter(sampler.steps())
    for index, line in enumerate(lines):
        decision = next(steps, None)
        said = "it ended before" if decision is None else _differs(line, decision, tolerance)
        if said is not None:
            return "differs", f"differs at decision {index}: {said}{close}"
        if decision is not None and decision.flagged:
            close = f" (decision {index} was too close to call)"
    if not told["finished"]:
        return "agrees", f"agrees in all {len(lines)} decisions that were kept of an unfinished run"
    result = sampler.run()
    for text, old in zip(result, told["texts"], strict=True):
        if list(text.tokens) != old["tokens"]:
            return "differs", f"the text of chain {text.chain} differs{close}"
    if len(result.decisions) != len(lines):
        return "differs", f"there were {len(lines)} decisions, now there are {len(result.decisions)}"
    return "agrees", f"agrees in all {len(lines)} decisions and {len(result)} texts"


def _differs(line: Mapping[str, Any], decision: Decision, tolerance: float) -> str | None:
    """What of a decision is another than the line says, or None."""
    for name in EXACT:
        if line[name] != getattr(decision, name):
            return f"{name} was {line[name]!r}, now {getattr(decision, name)!r}"
    for name in ("old_tokens", "new_tokens"):
        if tuple(line[name]) != getattr(decision, name):
            return f"{name.replace('_', ' ')} were {line[name]}, now {list(getattr(decision, name))}"
    for name in CLOSE:
        if not _close(line[name], getattr(decision, name), tolerance):
            return f"{name} was {line[name]!r}, now {getattr(decision, name)!r}"
    return None


def _close(before: Any, after: Any, tolerance: float) -> bool:
    if before is None or after is None:
        return before is after
    if isinstance(before, str) or isinstance(after, str):
        return bool(before == after)
    return math.isclose(before, after, rel_tol=tolerance, abs_tol=tolerance)


# Carried prompts -------------------------------------------------------------------------------------------------


def _carry_again(
    told: Mapping[str, Any], _kept: KeptReport, models: Models, tolerance: float, most: int
) -> tuple[Verdict, str]:
    config, ids = dict(told["config"]), [int(token) for token in told["ids"]]
    length, pauses, loops = int(told["prompt_length"]), int(told["pauses"]), int(config["loops"])
    if config.get("intervened"):
        raise ReportError("its states were changed on their way by code, which a report does not hold")
    if length < 1 or pauses < 0 or length + pauses > len(ids):
        raise ReportError("what the report keeps of it is damaged: its spans do not fit its tokens")
    _within(length * (loops + 1) + len(ids), most)
    base = models.of(config["model"])
    model = models.carried(base, config, told.get("weights"), pause=ids[length] if pauses else None)
    if told.get("tokenizer") not in (None, model.tokenizer.fingerprint):
        raise ReportError(f"its tokens are another tokenizer's than that of {base.name}")
    prompt, answer = ids[:length], ids[length + pauses :]
    own = bool(told.get("own_answer"))
    generated = own or not answer
    trace = model.run(prompt, **({"max_new_tokens": len(answer)} if generated else {"answer": answer}))
    fed = "" if generated else "; its answer was fed as recorded, not generated"
    return _compared(told["rows"], ids, trace, tolerance, fed)


def _compared(rows: Any, ids: list[int], trace: CarryTrace, tolerance: float, fed: str) -> tuple[Verdict, str]:
    if list(trace.ids) != ids:
        at = next(i for i, pair in enumerate(zip([*ids, None], [*trace.ids, None], strict=False)) if pair[0] != pair[1])
        return "differs", f"differs at token {at}"
    found = trace.rows()
    if len(found) != len(rows):
        return "differs", f"there were {len(rows)} states, now there are {len(found)}"
    for index, (old, new) in enumerate(zip(rows, found, strict=True)):
        for name, value in new.items():
            if not _close(old[name], value, tolerance):
                return "differs", f"differs at state {index}: {name} was {old[name]!r}, now {value!r}"
    return "agrees", f"agrees in all {len(ids)} tokens and {len(found)} states{fed}"
