"""A flow to the parts of a report: its drawing, how often and how probably each way was taken, what was erased."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any

import pandas as pd

from ..errors import FlowError
from ..flows import (
    FlowDefinition,
    FlowQuestion,
    FlowRoute,
    FlowState,
    RouteKind,
    Visit,
    normalised,
    question_of,
    states_of,
)
from ..trace import Trace
from .blocks import Alert, Attachment, Block, Facts, Grid, Heading, Note, Picture, grid_of
from .flow_drawing import Way, flow_drawing
from .legible import legible, shortened
from .words import Words

__all__ = ["flow_blocks", "flows_in"]

TEXT_SHOWN = 2000
Visits = Sequence[tuple[str, Visit]]


def flows_in(trace: Trace) -> list[FlowDefinition]:
    """The flows that ran in a trace, as far as it holds their documents and their functions are registered here."""
    found: dict[str, FlowDefinition] = {}
    for request in trace.run.get("requests", {}).values():
        for mod in request.get("mods", ()):
            document = (mod.get("params") or {}).get("flow") if str(mod.get("name")).startswith("flow:") else None
            if isinstance(document, str) and document not in found:
                from .. import mods  # noqa: F401  # registers the functions that come with the workbench

                with suppress(FlowError):
                    found[document] = FlowDefinition.from_json(document)
    return list(found.values())


def flow_blocks(
    flow: FlowDefinition, trace: Trace | None, words: Words, document: str | None, file: str
) -> Iterator[Block]:
    """The parts of one flow and, with a trace, of what it did there.

    ``document`` is the flow as JSON, None if it is no data; ``file`` is the stem of attached files.
    """
    yield Heading(text=f"Flow {flow.name}")
    states = None if trace is None else _states(trace, flow)
    visits = [(name, visit) for name, state in (states or {}).items() for visit in state.history]
    yield Facts(
        pairs=(
            ("Questions", str(len(flow.questions))),
            ("Root", legible(flow.root.name)),
            ("Requests it ran in", "no run given" if states is None else str(len(states))),
            ("Questions asked", "no run given" if states is None else str(len(visits))),
            ("Tokens spent on them", f"{sum(visit.spent for _, visit in visits):,}"),
        )
    )
    if states is not None and not visits:
        yield Alert(text="The flow asked nothing in this run: its condition never held, or it was not there.")
    yield from _drawn(flow, states, visits)
    if trace is not None:
        yield from _visit_blocks(visits, file)
        yield from _erased(trace, flow, words, file)
    if document is None:
        yield Alert(
            text="This flow holds functions without a name, so it can't be kept as data nor made again from here."
        )
    else:
        yield Heading(text="The flow as data", level=3)
        yield Attachment(name=f"{file}.json", text=document, media_type="application/json")


def _states(trace: Trace, flow: FlowDefinition) -> Mapping[str, FlowState]:
    """What the flow did by request; empty where the trace tells of other flows only, or of none."""
    told = {record.data.get("flow") for record in trace.records if record.action == "note"}
    return states_of(trace, flow.name) if flow.name in told else {}


def _drawn(flow: FlowDefinition, states: Mapping[str, FlowState] | None, visits: Visits) -> Iterator[Block]:
    ways = [way for question in flow.questions.values() for way in _ways(question, states, visits)]
    asked = {name: sum(visit.question == name for _, visit in visits) for name in flow.questions}
    yield Picture(
        html=flow_drawing(flow, ways, None if states is None else asked),
        caption="The flow as it runs. A box is a question with its answers; heavy arrows were taken, dashed ones lead "
        "back. p is an answer's mean probability over the visits that computed it.",
        twin=_way_grid(ways),
    )
    rows = [
        (
            legible(name), legible(question.prompt), type(question.strategy).__name__, str(question.decide),
            str(question.erase_mode), asked[name],
        )
        for name, question in flow.questions.items()
    ]  # fmt: skip
    columns = ["question", "prompt", "answers by", "decided", "erased", "asked"]
    yield grid_of(pd.DataFrame(rows, columns=columns, dtype=object), "Questions of the flow")


# Ways ----------------------------------------------------------------------------------------------------------


def _ways(question: FlowQuestion, states: Mapping[str, FlowState] | None, visits: Visits) -> Iterator[Way]:
    """Every answer of a question: those with a route, other possible ones, and any that were given."""
    own = [visit for _, visit in visits if visit.question == question.name]
    given = [normalised(visit.answer) for visit in own]
    computed: dict[str, list[float]] = {}
    for visit in own:
        for answer, probability in visit.probs.items():
            computed.setdefault(normalised(answer), []).append(probability)
    listed = [*question.routes, *map(normalised, question.strategy.finite() or ()), *given]
    for answer in dict.fromkeys(listed):
        target = question.routes.get(answer, question.fallback)
        chooses = question.brancher is not None and answer not in question.routes
        yield Way(
            question=question.name,
            answer=answer,
            leads="a function chooses" if chooses else _leads(target),
            to=None if chooses else _question(target),
            probability=fmean(computed[answer]) if answer in computed else None,
            taken=None if states is None else given.count(answer),
        )
    if question.strategy.finite() is None and question.has_fallback:
        told = _leads(question.fallback)
        yield Way(question=question.name, answer="anything else", leads=told, to=_question(question.fallback))
    if question.retries is not None:
        most, target = question.retries
        yield Way(question=question.name, answer=f"after {most} visits", leads=_leads(target), to=_question(target))


def _question(target: Any) -> str | None:
    """The name of the question that a target leads to, if it is one."""
    asked = question_of(target)
    return None if asked is None else asked.name


def _leads(target: Any) -> str:
    match target:
        case None:
            return "back to the text"
        case FlowQuestion():
            return f"question {target.name}"
        case FlowDefinition():
            return f"flow {target.name}"
        case str():
            return f"says {target!r}"
        case FlowRoute(kind=RouteKind.QUESTION):
            return f"question {target.question.name}" if target.question else "a question"
        case FlowRoute():
            return str(target.kind) + (f" {target.text!r}" if target.text else "")
        case _:
            return f"function {getattr(target, '__name__', type(target).__name__)}"


def _way_grid(ways: Sequence[Way]) -> Grid:
    frame = pd.DataFrame(
        [(legible(way.question), legible(way.answer), legible(way.leads)) for way in ways],
        columns=["question", "answer", "leads to"],
        dtype=object,
    )
    frame["mean p"] = pd.array([way.probability for way in ways], dtype="Float64")
    frame["given"] = pd.array([way.taken for way in ways], dtype="Int64")
    return grid_of(frame, "Answers: where each leads, how probable, how often given")


# What happened -------------------------------------------------------------------------------------------------


def _visit_blocks(visits: Visits, file: str) -> Iterator[Block]:
    yield Heading(text="Visits", level=3)
    if not visits:
        yield Note(text="None.")
        return
    rows = [
        (
            legible(name), legible(visit.question), legible(shortened(visit.answer, TEXT_SHOWN)),
            "a function" if visit.auto else "the model", legible(visit.route), "yes" if visit.erased else "no",
        )
        for name, visit in visits
    ]  # fmt: skip
    columns = ["request", "question", "answer", "answered by", "led to", "answer erased"]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    given = [
        {normalised(answer): p for answer, p in visit.probs.items()}.get(normalised(visit.answer))
        for _, visit in visits
    ]
    frame.insert(3, "p", pd.Series(given, dtype="Float64"))
    frame["tokens spent"] = [visit.spent for _, visit in visits]
    yield grid_of(frame, "Questions asked, in order", attach=f"{file}-visits.csv")
    told = [(index, answer, p) for index, (_, visit) in enumerate(visits) for answer, p in visit.probs.items()]
    if told:
        odds = pd.DataFrame(told, columns=["visit", "answer", "p"])
        odds["answer"] = pd.Series([legible(answer) for answer in odds["answer"]], dtype=object)
        yield grid_of(odds, "Probability of every possible answer, by visit (counted from 0)")


def _erased(trace: Trace, flow: FlowDefinition, words: Words, file: str) -> Iterator[Block]:
    """What the flow wrote and took back, in the order in which it was removed."""
    gone = [record for record in trace.records if record.kind == "removed" and record.mod == f"flow:{flow.name}"]
    yield Heading(text="Erased text", level=3)
    if not gone:
        yield Note(text="The flow erased nothing.")
        return
    frame = pd.DataFrame(
        [(legible(record.request_id), record.step, record.position, len(record.tokens)) for record in gone],
        columns=["request", "step", "position", "tokens"],
    )
    texts = [legible(shortened(words.text(record.tokens), TEXT_SHOWN)) for record in gone]
    frame["text"] = pd.Series(texts, dtype=object)
    yield grid_of(
        frame,
        "Text that the flow took back; position is where the sequence ended afterwards",
        attach=f"{file}-erased.csv",
    )
