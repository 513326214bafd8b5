"""Logs as the public engine's versions write them: an action's values in ``details``, and no event for much of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import TraceError
from workbench.trace import Trace, from_ingest, read_ingest, to_ingest

PASS, ADDED, DRAWN = "ForwardPass", "Added", "Sampled"


class Log:
    """A log in the form of the public engine, written event by event."""

    def __init__(self, prompt: int = 3, **request: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.actions: list[dict[str, Any]] = []
        self.request = {"request_id": "one", **request}
        self.event("Prefilled", prompt_length=prompt, max_steps=1)

    def event(self, kind: str, **fields: Any) -> None:
        self.events.append({"event_type": kind, "step": 0, "sequence_order": len(self.events), **fields})

    def draw(self, *tokens: int) -> None:
        for token in tokens:
            self.event(PASS, top_tokens=[{"token": token, "logprob": -0.5, "token_str": f"<{token}>"}])
            self.event(DRAWN, sampled_token=token, token_text=f"<{token}>")
            self.event(ADDED, added_tokens=[token], added_token_count=1, forced=False)

    def put(self, *tokens: int) -> None:
        self.event(ADDED, added_tokens=list(tokens), added_token_count=len(tokens), forced=True)

    def act(self, kind: str, **details: Any) -> None:
        """What a mod answered the last event with."""
        last = self.events[-1]
        told = {"event_type": last["event_type"], "step": 0}
        self.calls.append({"event_sequence_order": last["sequence_order"], "mod_name": "wrapped_fix", **told})
        place = {"mod_call_sequence": len(self.calls) - 1, "action_type": kind, "action_order": 0}
        self.actions.append({**place, "details": details or None})

    def ended(self, *final: int) -> dict[str, Any]:
        request = {**self.request, "final_token_ids": list(final)} if final else self.request
        return {
            "request": request, "events": self.events, "mod_calls": self.calls, "mod_logs": [], "actions": self.actions,
        }  # fmt: skip


def forced(*tokens: int) -> dict[str, Any]:
    return {
        "tokens": list(tokens),
        "tokens_as_text": [f"'{token}'" for token in tokens],
        "token_count": len(tokens),
    }


def live(trace: Trace) -> list[int]:
    return [life.token for life in trace.history().live]


def warned(trace: Trace) -> list[str]:
    said = [record.data["message"] for record in trace.records if record.kind == "warning"]
    return [message for message in said if "does not hold the prompt's" not in message]


def test_an_actions_values_are_found_in_its_details() -> None:
    log = Log()
    log.draw(1, 2)
    log.act("Backtrack", backtrack_steps=2, **forced(7, 8))
    log.put(7, 8)
    log.event(PASS)
    log.act("AdjustedLogits", logits_shape=[1, 9], note="raw logits omitted", temperature=0.25)
    log.event(DRAWN, sampled_token=3)
    log.act("ToolCalls", tool_calls='{"name": "find"}')
    trace = from_ingest(log.ended())
    history = trace.history()
    assert live(trace) == [7, 8]
    assert [(life.text, life.added_by) for life in history.live] == [("'7'", "wrapped_fix"), ("'8'", "wrapped_fix")]
    assert [(life.token, life.removed_by) for life in history.every if not life.visible] == [
        (1, "wrapped_fix"), (2, "wrapped_fix"),
    ]  # fmt: skip
    told = {record.action: record for record in trace.records if record.kind == "action"}
    assert (told["backtrack"].tokens, told["backtrack"].text, told["backtrack"].data["n"]) == ((7, 8), "'7''8'", 2)
    assert told["adjust_logits"].data["token_temp"] == 0.25
    assert trace.records[-1].data == {"reason": "tool_calls", "tool_calls": {"name": "find"}}
    assert warned(trace) == []


def test_a_tool_call_that_was_cut_stays_a_text_and_an_error_needs_no_message() -> None:
    log = Log()
    log.draw(1)
    log.act("ToolCalls", tool_calls='{"name": "fi... (truncated)')
    assert from_ingest(log.ended()).records[-1].data["tool_calls"] == '{"name": "fi... (truncated)'
    log = Log()
    log.draw(1)
    log.act("EmitError")
    assert from_ingest(log.ended()).records[-1].data == {"reason": "error", "error": ""}


def test_an_end_token_that_the_final_tokens_leave_out_is_the_end_and_no_contradiction() -> None:
    log = Log()
    log.draw(1, 2, 9)
    trace = from_ingest(log.ended(1, 2))
    assert live(trace) == [1, 2, 9]
    assert (warned(trace), trace.history().reason) == ([], "eos")
    other = from_ingest(log.ended(1, 3))
    assert warned(other) == ["the log's final tokens are not those that its events add up to"]
    assert other.history().reason == "not recorded"
    log.act("ToolCalls", tool_calls="{}")
    assert warned(from_ingest(log.ended(70, 71))) == []  # there the final tokens spell the call


def test_the_new_prompt_is_known_where_the_log_holds_its_tokens() -> None:
    log = Log(prompt=2, user_prompt_token_ids=[5, 6])
    log.act("AdjustedPrefill", **forced(5, 6, 7), adjusted_max_steps=0)
    log.draw(1)
    trace = from_ingest(log.ended(1))
    assert trace.history().prompt == [5, 6, 7]
    assert [life.position for life in trace.history().live] == [3]
    assert [record.data for record in trace.records if record.action == "adjust_prefill"] == [{"event": "Prefilled"}]
    assert warned(trace) == []


def test_the_first_few_tokens_are_all_of_them_where_the_count_says_so() -> None:
    for count, tokens in ((2, (7, 8)), (12, ())):
        log = Log()
        log.event(PASS)
        log.act("ForceTokens", tokens_preview=[7, 8], token_count=count)
        log.put(7, 8)
        (action,) = (record for record in from_ingest(log.ended()).records if record.kind == "action")
        assert action.tokens == tokens
    log = Log()
    log.event(PASS)
    log.act("ForceTokens", tokens_as_text="one text for all", token_count=2)
    log.put(7, 8)
    (action,) = (record for record in from_ingest(log.ended()).records if record.kind == "action")
    assert action.text == "one text for all"


def test_values_beside_the_type_come_before_those_in_details() -> None:
    log = Log()
    log.draw(1, 2, 3)
    log.act("Backtrack", backtrack_steps=3)
    log.actions[-1]["backtrack_steps"] = 1
    assert live(from_ingest(log.ended(1, 2))) == [1, 2]


# What there is no event for --------------------------------------------------------------------------------


def test_tokens_that_the_first_engine_put_behind_an_added_one_have_no_event_of_their_own() -> None:
    log = Log()
    log.draw(1)
    log.act("ForceTokens", **forced(4, 5))
    log.draw(2)
    trace = from_ingest(log.ended(1, 4, 5, 2))
    assert live(trace) == [1, 4, 5, 2]
    assert [(life.origin, life.added_by) for life in trace.history().live[1:3]] == [("forced", "wrapped_fix")] * 2
    assert warned(trace) == []
    last = Log()
    last.draw(1)
    last.act("ForceTokens", **forced(4))
    assert live(from_ingest(last.ended(1, 4))) == [1, 4]


def test_the_later_engine_tells_of_them_one_by_one() -> None:
    log = Log()
    log.draw(1)
    log.act("ForceTokens", **forced(1, 4))
    for token in (1, 4):
        log.event(PASS)
        log.put(token)
    log.draw(2)
    trace = from_ingest(log.ended(1, 1, 4, 2))
    assert live(trace) == [1, 1, 4, 2]
    assert [life.added_by for life in trace.history().live] == [None, "wrapped_fix", "wrapped_fix", None]
    assert warned(trace) == []


BACKTRACKS = [
    # event, number, new tokens, final tokens by the documents, by the first engine, by the later one
    (ADDED, 2, (8,), [1, 2, 8], [1, 2, 8], [1, 2, 3, 8]),
    (ADDED, 2, (), [1, 2], [1, 2, 3], [1, 2, 3]),
    (DRAWN, 2, (8,), [1, 2, 3, 8], [1, 2, 8], [1, 2, 8]),
    (DRAWN, 2, (), [1, 2, 3], [1, 2, 3], [1, 2]),
    (PASS, 2, (8,), [1, 2, 8], [1, 8], [1, 8]),
    (PASS, 2, (), [1, 2], [1, 2], [1]),
]


def backtracking(event: str, steps: int, tokens: Sequence[int], *, told: bool) -> Log:
    """Four tokens, the mod's answer to the fourth or to the one after it, and the text's last token."""
    log = Log()
    log.draw(1, 2, 3, 4)
    if event != ADDED:
        log.event(PASS)
    if event == DRAWN:
        log.event(DRAWN, sampled_token=5)
    log.act("Backtrack", backtrack_steps=steps, **(forced(*tokens) if tokens else {}))
    if event == PASS:
        log.event(DRAWN, sampled_token=5)
    if tokens and told:
        log.put(*tokens)
    log.draw(9)
    return log


@pytest.mark.parametrize(("event", "steps", "tokens", "documented", "first", "later"), BACKTRACKS)
def test_how_many_tokens_went_is_found_by_the_final_ones(
    event: str, steps: int, tokens: Sequence[int], documented: list[int], first: list[int], later: list[int]
) -> None:
    for number, final in enumerate((documented, first, later)):
        log = backtracking(event, steps, tokens, told=event != ADDED or number == 2)
        trace = from_ingest(log.ended(*final, 9))
        assert live(trace) == [*final, 9]
        assert warned(trace) == []
    unknown = backtracking(event, steps, tokens, told=True)
    assert live(from_ingest(unknown.ended())) == [*documented, 9]
    contradicted = from_ingest(unknown.ended(70, 71, 72))
    assert live(contradicted) == [*documented, 9]
    assert warned(contradicted) == ["the log's final tokens are not those that its events add up to"]


def test_several_logs_are_each_read_by_their_own_rule_and_numbered_through() -> None:
    logs = []
    for name, final in (("a", [1, 2, 8, 9]), ("b", [1, 8, 9])):
        log = backtracking(PASS, 2, (8,), told=True)
        log.request["request_id"] = name
        logs.append(log.ended(*final))
    trace = from_ingest(logs)
    assert [[life.token for life in history.live] for history in trace.histories.values()] == [[1, 2, 8, 9], [1, 8, 9]]
    assert [record.seq for record in trace.records] == list(range(len(trace)))


def test_a_pass_after_a_backtrack_computes_the_new_tokens() -> None:
    log = Log()
    log.draw(1, 2, 3, 4)
    log.act("Backtrack", backtrack_steps=3, **forced(7, 8, 9))
    log.put(7, 8, 9)
    log.draw(5)
    *_, last = (record.data for record in from_ingest(log.ended()).records if record.kind == "forward_pass")
    assert last == {"fed_start": 1, "fed": 3}


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    log = Log()
    log.draw(1)
    (tmp_path / "log.json").write_text(json.dumps(log.ended(1)), "utf-8-sig")
    assert live(read_ingest(tmp_path / "log.json")) == [1]


def test_old_logs_of_every_kind_open_in_the_explorer_and_come_back_as_they_went_out(tmp_path: Path) -> None:
    from widgets import TraceExplorer

    logs = []
    for name, kind, details in (
        ("plain", "Backtrack", {"backtrack_steps": 1, **forced(7, 8)}),
        ("tool", "ToolCalls", {"tool_calls": "{}"}),
        ("error", "EmitError", {"error_message": "<b>no</b>"}),
        ("output", "ForceOutput", forced(30, 31)),
        ("prompt", "AdjustedPrefill", forced(5, 6)),
    ):
        log = Log()
        log.request["request_id"] = name
        if kind != "AdjustedPrefill":
            log.draw(1, 2)
        log.events[-1]["of_another_version"] = {"any": [1]}
        log.act(kind, **details)
        logs.append(log.ended())
    trace = from_ingest(logs)
    assert from_ingest(json.loads(json.dumps(to_ingest(trace), allow_nan=False))).records == trace.records
    trace.save(tmp_path / "saved")
    loaded = Trace.load(tmp_path / "saved")
    for name, tokens in (("plain", [1, 2, 7, 8]), ("tool", [1, 2]), ("error", [1, 2]), ("output", [1, 2, 30, 31])):
        shown = TraceExplorer(loaded, request_id=name)
        frame = shown.frame()
        assert list(frame.token) == tokens
        for uid in range(len(tokens)):
            assert len(shown.events(uid)) > 0
        assert list(shown.candidates(0).token) == [1]
        page = shown.static_html()
        assert "&lt;1&gt;" in page
        assert "<1>" not in page
        shown.close()


def test_candidates_in_a_form_of_the_writers_own_are_left_out_and_said() -> None:
    for form in ({"12": 0.5}, "none", [3], [["a", 0.5]]):
        log = Log()
        log.draw(1)
        log.events[1]["top_tokens"] = form
        trace = from_ingest(log.ended())
        assert warned(trace) == ["the likeliest tokens of 1 passes stand in a form that is not known"]
        assert trace.records[2].top == ()


@pytest.mark.parametrize(
    ("details", "says"),
    [
        ({"backtrack_steps": "two"}, r"backtrack_steps of details of actions\[0\] of the log must be a whole number"),
        ({"backtrack_steps": 10**30}, r"backtrack_steps of details of .* must be a whole number"),
        ({"tokens": [1, "x"]}, r"tokens\[1\] of details of actions\[0\] of the log must be a token id, got 'x'"),
        ({"tokens": 5}, r"tokens of details of actions\[0\] of the log must be a list, got 5"),
        (
            {"tokens": [1], "tokens_as_text": [3]},
            r"tokens_as_text of details of actions\[0\] of the log must be a text",
        ),
        ({"temperature": "hot"}, r"temperature of details of actions\[0\] of the log must be a number, got 'hot'"),
    ],
)
def test_a_wrong_value_in_details_is_said_with_its_place(details: dict[str, Any], says: str) -> None:
    log = Log()
    log.draw(1, 2)
    log.act("Backtrack", **details)
    with pytest.raises(TraceError, match=says):
        from_ingest(log.ended())


def test_details_in_a_form_of_the_writers_own_say_nothing() -> None:
    for details in (None, [], "text", 5, {"tokens_preview": None}):
        log = Log()
        log.draw(1)
        log.act("ForceTokens")
        log.actions[0]["details"] = details
        assert live(from_ingest(log.ended())) == [1]


def test_an_export_holds_an_actions_tokens_where_the_engines_server_reads_them() -> None:
    log = Log()
    log.draw(1, 2)
    log.act("Backtrack", backtrack_steps=1, **forced(7, 8))
    log.draw(3)
    (out,) = to_ingest(from_ingest(log.ended(1, 7, 8, 3)))
    (action,) = out["actions"]
    assert (action["backtrack_steps"], action["tokens"]) == (1, [7, 8])
    stripped = copy.deepcopy(out)
    del stripped["request"]["workbench"]
    for one in [*stripped["events"], *stripped["actions"]]:
        del one["details"]
    again = from_ingest(json.loads(json.dumps(stripped)))
    assert live(again) == [1, 7, 8, 3]
    assert warned(again) == []
