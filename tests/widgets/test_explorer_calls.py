"""TraceExplorer from Python: every view's call, refusals, comparing, refreshing."""

from __future__ import annotations

from typing import Any

import pytest
from eventful_runs import eventful_run

import workbench
from widgets import TraceExplorer
from workbench.errors import ReportError, TraceError
from workbench.trace import Trace


def test_each_view_has_a_call_for_tokens_that_were_taken_back_too(trace: Trace, model: Any) -> None:
    explorer = TraceExplorer(trace, model)
    assert explorer.events(2).kind.tolist()[0] == "forward_pass"
    assert len(explorer.layers(2)) == 3
    assert explorer.candidates(2).model_probability.notna().all()
    assert explorer.attention(2, head=1).weight.sum() == pytest.approx(1, abs=1e-5)
    assert set(explorer.norms().uid) == set(range(len(trace.history().every)))
    assert explorer.removed_mass(12) is not None


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"colour": "probabilty"}, ReportError, "Did you mean 'probability'"),
        ({"request_id": "r7"}, TraceError, "no request 'r7'"),
        ({"directions": {"x": [1.0]}}, ValueError, "one finite vector"),
    ],
)
def test_what_can_not_be_shown_is_refused(
    trace: Trace, model: Any, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        TraceExplorer(trace, model, **options)


def test_a_trace_without_tokens_says_what_to_do() -> None:
    empty = Trace({"run_id": "x", "requests": {}})
    with pytest.raises(TraceError, match="no request None in this trace; it has none"):
        TraceExplorer(empty)


def test_two_traces_are_compared_by_position(trace: Trace, other: Trace, model: Any) -> None:
    explorer = TraceExplorer(trace, model, compare=other)
    frame = explorer.differences()
    one, two = trace.history(), other.history()
    assert frame.same.tolist() == [a == b for a, b in zip(one.tokens, two.tokens, strict=True)]
    assert frame.same[:14].all()
    parting = explorer.state["parting"]
    assert f"at position {frame.same.tolist().index(False)}" in parting["told"]
    assert "First different record" in parting["told"]
    with pytest.raises(ReportError, match="nothing to compare with"):
        TraceExplorer(trace).differences()


def test_a_chosen_token_stays_chosen_for_views_that_open_later(trace: Trace, model: Any) -> None:
    explorer = TraceExplorer(trace, model)
    assert explorer.chosen == []
    explorer.select(7)
    place = explorer.frame().uid.tolist().index(7)
    first = explorer.get_state()["chosen"]
    assert first[0] == place
    explorer.select(7)
    assert explorer.chosen[0] == place
    assert explorer.chosen != first, "the same token again is a change: a person may have moved on"
    explorer.refresh()
    assert explorer.chosen[0] == place
    with pytest.raises(ReportError, match="no token number 999"):
        explorer.select(999)
    assert explorer.chosen[0] == place
    explorer.show(explorer.request_id)
    assert explorer.chosen == []


def test_equal_traces_have_no_difference(trace: Trace, model: Any) -> None:
    again = eventful_run(model)
    parting = TraceExplorer(trace, compare=again).state["parting"]
    assert parting["items"] is None
    assert parting["told"] == "The outputs are equal. The records are equal."


def test_a_trace_that_grew_is_read_again(trace: Trace) -> None:
    growing = Trace(trace.run, trace.records[:20])
    explorer = TraceExplorer(growing)
    before = len(explorer.frame())
    growing.records.extend(trace.records[20:])
    assert len(explorer.frame()) == before
    explorer.refresh()
    assert len(explorer.frame()) == 14 + len(trace.history().every)


def test_a_batch_shows_one_request_at_a_time(model: Any) -> None:
    results = workbench.Session(model).generate(["ab", "cd"], max_new_tokens=3, seed=1)
    explorer = TraceExplorer(results[0].trace)
    assert explorer.request_id == "r0"
    explorer.show("r1")
    assert explorer.request_id == "r1"
    assert [name for name, _ in explorer.state["requests"]] == ["r0", "r1"]
