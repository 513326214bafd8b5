"""What flows did in a saved run: their visits, read back from the notes of its trace."""

from __future__ import annotations

from dataclasses import fields

from ..trace import Trace
from .state import FlowState, Visit

__all__ = ["states_of"]

VISIT = {"flow", *(each.name for each in fields(Visit))}
"""What a note of a visit holds, and a note of somebody else's hardly does."""


def states_of(trace: Trace, flow: str | None = None) -> dict[str, FlowState]:
    """The state of a flow at its end in each request of a trace, by the request's name in the trace.

    Answers, probabilities and visits are those of ``FlowEngine.states``; ``data``, which is the user's own, is not
    in a trace. ``flow`` is the flow's name and may be left out where the notes are of one flow only.

    :raises ValueError: the trace tells of several flows and none was named, or of others than the one named.
    """
    notes = [record for record in trace.records if record.action == "note" and record.data.keys() >= VISIT]
    names = sorted({record.data["flow"] for record in notes})
    if flow is None and len(names) > 1:
        raise ValueError(f"the trace tells of several flows: choose one of {', '.join(map(repr, names))}")
    if flow is not None and names and flow not in names:
        raise ValueError(f"the trace tells of no flow {flow!r}; it tells of {', '.join(map(repr, names))}")
    states: dict[str, FlowState] = {}
    for record in notes:
        if flow not in (None, record.data["flow"]):
            continue
        visit = Visit.from_data(record.data)
        state = states.setdefault(record.request_id, FlowState(request_id=record.request_id))
        state.history.append(visit)
        state.answers[visit.question] = visit.answer
        if visit.probs:
            state.answer_probs[visit.question] = dict(visit.probs)
    return states
