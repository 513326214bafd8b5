"""Running a trace again, to see whether it comes out the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import InvalidActionError, ModError, TraceError
from ..models import HookedModel, load
from ..trace import WARNING, Difference, Record, Trace, first_difference
from .arguments import Options
from .mod import Mod
from .prompts import TokenisedPrompt
from .sampling import SamplingParams
from .session import Session

__all__ = ["Replay", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay gave: ``difference`` is None when every record agrees.

    ``trace`` is the run made again, to its end also where the old one was broken off: a run that was killed goes on
    that way. ``compared`` counts the records that both have.
    """

    difference: Difference | None
    trace: Trace
    compared: int

    @property
    def agrees(self) -> bool:
        return self.difference is None

    def __str__(self) -> str:
        return f"agrees in all {self.compared} records" if self.agrees else f"differs at {self.difference}"


def replay(
    trace: Trace,
    model: HookedModel | None = None,
    mods: Sequence[Mod] | Sequence[Sequence[Mod]] = (),
    *,
    tolerance: float = 1e-4,
) -> Replay:
    """Run every request of ``trace`` again and report the first difference.

    ``model`` is the model it ran with; left out, it is loaded by the name in the trace.

    ``mods`` are the mods it ran with (code is not kept in a trace): one list for all requests, or one each.
    A run that was interrupted is repeated to its end and compared as far as it went.

    :raises TraceError: the tokenizer or size of the model is another one, or mods are missing.
    """
    told = trace.run["model"]
    if model is None:
        dtypes = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
        if told["dtype"] not in dtypes:
            raise TraceError(f"the trace names the dtype {told['dtype']!r}; known are {', '.join(dtypes)}")
        model = load(told["name"], backend=told["backend"], dtype=dtypes[told["dtype"]])
    if told["tokenizer"] != model.tokenizer.fingerprint or told["n_layers"] != model.n_layers:
        raise TraceError(f"the trace was made with {told['name']}, whose tokenizer or size differs from {model.name}'s")
    wanted = [request["mods"] for request in trace.run["requests"].values()]
    given = (
        [own if isinstance(own, (list, tuple)) else [own] for own in mods] if _nested(mods) else [mods] * len(wanted)
    )
    if len(given) != len(wanted):
        raise TraceError(f"the trace has {len(wanted)} requests, but mods for {len(given)} were given")
    for names, own in zip(wanted, given, strict=True):
        if [mod["name"] for mod in names] != [mod.name for mod in own]:  # type: ignore[union-attr]
            raise TraceError(
                f"the trace was made with mods {[m['name'] for m in names]}, got {[m.name for m in own]}: "  # type: ignore[union-attr]
                "pass the same mods in the same order"
            )
    again = _again(trace, model, given)
    if trace.run.get("status") in ("interrupted", "failed", "running"):
        old, new = _as_far_as_it_went(trace, again)
    else:
        old, new = trace, again
    difference = first_difference(old, new, tolerance=tolerance)
    return Replay(difference=difference, trace=again, compared=len(new))


def _as_far_as_it_went(trace: Trace, again: Trace) -> tuple[Trace, Trace]:
    """Request by request, the records of a broken run up to its break, and as many of the repeated one."""
    old: list[Record] = []
    new: list[Record] = []
    for request_id, history in trace.histories.items():
        mine = [record for record in trace.records if record.request_id == request_id]
        if history.reason in (None, "interrupted", "error"):
            # Where it was broken off is nothing to repeat, nor what was said on that occasion.
            while mine and mine[-1].kind in ("finished", WARNING):
                mine.pop()
        old += mine
        new += [record for record in again.records if record.request_id == request_id][: len(mine)]
    return Trace(trace.run, old), Trace(again.run, new)


def _nested(mods: Sequence[Any]) -> bool:
    return any(isinstance(own, (list, tuple)) for own in mods)


def _again(trace: Trace, model: HookedModel, mods: Sequence[Any]) -> Trace:
    requests = list(trace.run["requests"].values())
    first = requests[0]
    settings: dict[str, Any] = {**first["sampling"], "stop": tuple(first["sampling"]["stop"])}
    session = Session(model, capture=first["capture"] or None, on_mod_error=trace.run["on_mod_error"])
    options = Options(
        max_new_tokens=max(request["max_new_tokens"] for request in requests),
        sampling=SamplingParams(**settings),
        seed=[
            (request["seed"], request["index"], request.get("turn", 0), request.get("taken", 0)) for request in requests
        ],
        max_forward_tokens=first["max_forward_tokens"],
        save=None,
        overwrite=False,
    )
    prompts = [
        TokenisedPrompt(tokens=list(request["prompt_tokens"]), conversation=tuple(request["conversation"]))
        for request in requests
    ]
    # A run that failed is repeated up to its failure; its records are compared like any other's.
    with suppress(ModError, InvalidActionError):
        session.play(prompts, options, [list(own) for own in mods])
    return session.last_results[0].trace
