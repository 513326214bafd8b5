"""Request logs of the public engine: out and back without loss, old ones as far as they go, hostile ones refused."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench
from workbench import Session, Trace, load
from workbench.errors import TraceError
from workbench.mods import ban_tokens
from workbench.trace import Record, from_ingest, read_ingest, to_ingest
from workbench.trace.ingest_checks import LIMIT_BYTES


def whole(trace: Trace) -> list[Any]:
    """Records as comparable data, without what a log has no place for."""
    plain = []
    for record in trace.records:
        data = {key: value for key, value in record.data.items() if key != "row"}
        made = dataclasses.replace(record, activations=None, data=json.loads(json.dumps(data)))
        plain.append(json.loads(json.dumps(dataclasses.asdict(made))))
    return plain


def lives(trace: Trace, request_id: str | None = None) -> list[tuple[Any, ...]]:
    return [
        (life.position, life.token, life.origin != "sampled", life.removed_step)
        for life in trace.history(request_id).every
    ]


def bare(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The logs as the public engine would have written them: nothing of ours in them."""
    stripped = copy.deepcopy(logs)
    for log in stripped:
        del log["request"]["workbench"]
        for one in [*log["events"], *log["actions"]]:
            del one["details"]
    return stripped


@workbench.mod
def restless(event: Any, actions: Any, tokenizer: Any) -> Any:
    """Does something else on every third event, whatever it allows."""
    turn = event.state["turn"] = event.state.get("turn", -1) + 1
    count = len(event.request.generated)
    if isinstance(event, workbench.Prefilled):
        return actions.note(began=True)
    if isinstance(event, (workbench.ForwardPass, workbench.Added)) and turn % 3 == 0 and turn < 24:
        wish = (turn // 3 + event.request.prompt_tokens[-1]) % 4
        if wish == 0:
            return actions.backtrack(min(count, 2), tokenizer.encode("<b>"))
        if wish == 1:
            return actions.force_tokens(tokenizer.encode("é\n"))
        if wish == 2 and count:
            return actions.backtrack(1)
        if isinstance(event, workbench.ForwardPass):
            return [actions.adjust_logits(event.logits, 0.5), actions.note(half=True)]
    return None


@pytest.fixture(scope="module")
def model() -> Any:
    return load("tiny-llama", progress=False)


@pytest.fixture(scope="module")
def trace(model: Any) -> Trace:
    mods = [restless, ban_tokens(tokens=list(range(40, 90)))]
    session = Session(model, mods, capture="blocks.*.hook_resid_post")
    found: Trace = session.generate(["One", "Two"], max_new_tokens=16, seed=3)[0].trace
    return found


@given(seed=st.integers(0, 10**6), prompt=st.text(min_size=1, max_size=8), tokens=st.integers(1, 14))
@settings(max_examples=25)
def test_a_trace_comes_back_as_it_went_out(model: Any, seed: int, prompt: str, tokens: int) -> None:
    session = Session(model, [restless], capture="blocks.0.hook_resid_post")
    found = session.generate([prompt, prompt + "."], max_new_tokens=tokens, seed=seed)[0].trace
    back = from_ingest(json.loads(json.dumps(to_ingest(found), allow_nan=False)))
    assert whole(back) == whole(found)
    assert set(back.run["requests"]) == set(found.run["requests"])
    assert back.run["run_id"] == found.run["run_id"]


@given(seed=st.integers(0, 10**6), prompt=st.text(min_size=1, max_size=8), tokens=st.integers(1, 14))
@settings(max_examples=25)
def test_an_old_log_says_enough_to_find_every_token_and_what_took_it_back(
    model: Any, seed: int, prompt: str, tokens: int
) -> None:
    found = Session(model, [restless]).generate(prompt, max_new_tokens=tokens, seed=seed).trace
    (log,) = bare(to_ingest(found))
    old = from_ingest(log)
    assert lives(old) == lives(found)
    assert old.history().tokens == found.history().tokens
    assert not [record for record in old.records if record.kind == "warning"]
    assert [r.top for r in old.records if r.kind == "forward_pass"] == [
        tuple((token, pytest.approx(value)) for token, value in r.top)
        for r in found.records
        if r.kind == "forward_pass"
    ]
    first = next(record for record in old.records if record.kind == "forward_pass")
    assert (first.data["fed_start"], first.data["fed"]) == (0, len(found.history().prompt))


def test_only_what_a_log_has_no_place_for_is_lost(trace: Trace, tmp_path: Path) -> None:
    assert trace.hooks
    back = from_ingest(to_ingest(trace))
    assert back.hooks == ()
    assert not [record for record in back.records if "row" in record.data]
    back.save(tmp_path / "again")
    assert whole(Trace.load(tmp_path / "again")) == whole(trace)


def test_one_request_can_be_taken_alone(trace: Trace) -> None:
    (log,) = to_ingest(trace, "r1")
    alone = from_ingest(log)
    assert alone.request_ids == ("r1",)
    assert list(alone.run["requests"]) == ["r1"]
    assert lives(alone) == lives(trace, "r1")
    with pytest.raises(TraceError, match="no request 'r9'"):
        to_ingest(trace, "r9")


def test_an_export_has_the_form_that_the_public_engine_reads(trace: Trace) -> None:
    for log in to_ingest(trace):
        assert set(log) == {"request", "events", "mod_calls", "mod_logs", "actions"}
        assert [event["sequence_order"] for event in log["events"]] == list(range(len(log["events"])))
        assert {event["event_type"] for event in log["events"]} == {"Prefilled", "ForwardPass", "Sampled", "Added"}
        for call in log["mod_calls"]:
            assert call["event_type"] == log["events"][call["event_sequence_order"]]["event_type"]
        for action in log["actions"]:
            call = log["mod_calls"][action["mod_call_sequence"]]
            assert call["mod_name"] == "restless" or action["action_type"] == "AdjustedLogits"
        for event in log["events"]:
            for candidate in event.get("top_tokens", ()):
                assert candidate["prob"] == pytest.approx(math.exp(candidate["logprob"]))
        stats = log["request"]["inference_stats"]
        assert stats["generated_tokens"] == len(log["request"]["final_token_ids"])


def test_numbers_that_json_lacks_survive() -> None:
    run = {"run_id": "x", "model": {"name": "m"}, "requests": {"r0": {"prompt_tokens": [1]}}}
    records = [
        Record(
            run_id="x", request_id="r0", seq=0, step=0, position=0, kind="prefilled", tokens=(1,), data={"a": math.inf}
        ),
        Record(run_id="x", request_id="r0", seq=1, step=1, position=1, kind="sampled", tokens=(2,), logprob=-math.inf),
    ]
    text = json.dumps(to_ingest(Trace(run, records)), allow_nan=False)
    back = from_ingest(json.loads(text)).records
    assert back[0].data == {"a": math.inf}
    assert back[1].logprob == -math.inf


# Old logs --------------------------------------------------------------------------------------------------


def old_log(**changes: Any) -> dict[str, Any]:
    """A small log in the public form, of a run in which one token was taken back and two were put there."""
    log = {
        "request": {
            "request_id": "a@b", "model": "base/model/fix", "max_tokens": 9, "temperature": 0.5,
            "active_mod_name": "fix", "user_prompt": "hey", "user_prompt_token_ids": [5], "final_token_ids": [8, 9, 7],
            "completed_at": "2025-01-01T00:00:00Z",
        },
        "events": [
            {"event_type": "Prefilled", "step": 0, "sequence_order": 0, "prompt_length": 12, "max_steps": 9},
            {"event_type": "ForwardPass", "step": 0, "sequence_order": 1, "input_text": "<user>hey<bot>",
             "top_tokens": [{"token": 6, "logprob": -0.5}, {"token": 7, "prob": 0.25}, {"token": " x", "prob": 0.1}]},
            {"event_type": "Sampled", "step": 0, "sequence_order": 2, "sampled_token": 6, "token_text": "um"},
            {"event_type": "Added", "step": 0, "sequence_order": 3, "added_tokens": [6], "forced": False},
            {"event_type": "Added", "step": 0, "sequence_order": 4, "added_tokens": [8, 9], "forced": True},
            {"event_type": "Prefilled", "step": 0, "sequence_order": 5},
            {"event_type": "ForwardPass", "step": 0, "sequence_order": 6},
            {"event_type": "Sampled", "step": 0, "sequence_order": 7, "sampled_token": 7, "token_text": "ok"},
            {"event_type": "Added", "step": 0, "sequence_order": 8, "added_tokens": [7], "forced": False},
        ],
        "mod_calls": [
            {"event_sequence_order": 3, "mod_name": "fix", "event_type": "Added", "step": 0, "execution_time_ms": 2.5},
            {"event_sequence_order": 6, "mod_name": "fix", "event_type": "ForwardPass", "step": 0,
             "exception_occurred": True, "exception_message": "oh"},
        ],
        "mod_logs": [{"mod_call_sequence": 0, "mod_name": "fix", "log_message": "saw um"}],
        "actions": [
            {"mod_call_sequence": 0, "action_type": "Backtrack", "action_order": 0, "backtrack_steps": 1,
             "backtrack_token_count": 2},
            {"mod_call_sequence": 1, "action_type": "Noop", "action_order": 0},
        ],
    }  # fmt: skip
    return {**log, **changes}


def test_an_old_log_becomes_a_trace() -> None:
    trace = from_ingest(old_log())
    history = trace.history("a_b")
    assert [life.token for life in history.live] == [8, 9, 7]
    assert [(life.text, life.origin) for life in history.live] == [
        ("#8", "forced"),
        ("#9", "forced"),
        ("ok", "sampled"),
    ]
    gone = next(life for life in history.every if not life.visible)
    assert (gone.text, gone.removed_by, gone.raw_logprob) == ("um", "fix", -0.5)
    kinds = [record.kind for record in trace.records]
    assert kinds == [
        "prefilled", "warning", "forward_pass", "sampled", "added", "action", "action", "removed", "added",
        "forward_pass", "action", "sampled", "added", "warning", "finished",
    ]  # fmt: skip
    said = [record.data["message"] for record in trace.records if record.kind == "warning"]
    assert said == [
        "the log does not hold the prompt's 12 tokens: positions count from the first generated one",
        "1 repeated Prefilled events are left out",
    ]
    note, action = (
        record for record in trace.records if record.kind == "action" and record.mod == "fix" and record.seq < 8
    )
    assert (note.action, note.data["log"]) == ("note", "saw um")
    assert (action.action, action.data["n"], action.duration_ns) == ("backtrack", 1, 0 + 2_500_000)
    assert trace.records[2].top == ((6, -0.5), (7, pytest.approx(math.log(0.25))))
    assert trace.records[0].text == "<user>hey<bot>"
    assert [record.step for record in trace.records if record.kind == "forward_pass"] == [1, 2]
    assert history.reason == "not recorded"
    assert trace.run["model"]["name"] == "base/model/fix"


def test_token_texts_come_from_whoever_knows_them() -> None:
    trace = from_ingest(old_log(), decode=lambda token: f"<{token}>")
    assert [life.text for life in trace.history().live] == ["<8>", "<9>", "ok"]


@pytest.mark.parametrize(
    ("action", "reason", "data"),
    [
        ({"action_type": "ToolCalls", "tool_calls": {"name": "f"}}, "tool_calls", {"tool_calls": {"name": "f"}}),
        ({"action_type": "EmitError", "error_message": "no"}, "error", {"error": "no"}),
        ({"action_type": "ForceOutput", "token_count": 3}, "force_output", {}),
    ],
)
def test_an_old_log_ends_as_its_last_action_says(action: dict[str, Any], reason: str, data: dict[str, Any]) -> None:
    log = old_log(actions=[{"mod_call_sequence": 1, "action_order": 0, **action}])
    trace = from_ingest(log)
    assert trace.history().reason == reason
    assert trace.records[-1].data == {"reason": reason, **data}
    if reason == "force_output":
        assert [life.token for life in trace.history().live] == [8, 9, 7]


def test_a_log_whose_end_does_not_fit_says_so() -> None:
    log = old_log()
    log["request"]["final_token_ids"] = [1]
    said = [record.data["message"] for record in from_ingest(log).records if record.kind == "warning"]
    assert "the log's final tokens are not those that its events add up to" in said
    log = old_log()
    log["actions"][0]["backtrack_steps"] = 4
    said = [record.data["message"] for record in from_ingest(log).records if record.kind == "warning"]
    assert "mod 'fix' took back 4 tokens where 1 had been generated" in said


def test_a_prompt_that_a_mod_rewrote_is_not_claimed_to_be_known() -> None:
    log = old_log()
    log["events"][0]["prompt_length"] = 1
    known = from_ingest(log)
    assert known.history().prompt == [5]
    log["mod_calls"].append({"event_sequence_order": 0, "mod_name": "fix", "event_type": "Prefilled", "step": 0})
    log["actions"].insert(
        0, {"mod_call_sequence": 2, "action_type": "AdjustedPrefill", "new_prompt": "x", "new_length": 1}
    )
    rewritten = from_ingest(log)
    assert rewritten.history().prompt == []
    assert [life.position for life in rewritten.history().live] == [0, 1, 2]


def test_old_logs_open_in_the_explorer_and_in_a_report(tmp_path: Path) -> None:
    from widgets import TraceExplorer
    from workbench.reports import report_of

    second = old_log()
    second["request"] = {"request_id": "second"}
    (tmp_path / "log.json").write_text(json.dumps([old_log(), second]))
    trace = read_ingest(tmp_path / "log.json")
    trace.save(tmp_path / "trace")
    loaded = Trace.load(tmp_path / "trace")
    for name in ("a_b", "second"):
        shown = TraceExplorer(loaded, request_id=name)
        assert list(shown.frame().token) == [6, 8, 9, 7]
        shown.close()
    assert len(loaded.frame()) == len(trace)
    page = report_of(loaded, None, None).save(tmp_path / "page.html").read_text()
    assert "um" in page


# Hostile logs ----------------------------------------------------------------------------------------------


def spoilt(path: str, value: Any) -> dict[str, Any]:
    log = old_log()
    place: Any = log
    *inner, last = path.split(".")
    for step in inner:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if value is KeyError:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return log


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("request", KeyError, r"the log has no 'request'"),
        ("request", [1], r"request of the log must be an object, got a list"),
        ("request.request_id", 5, r"request_id of request of the log must be a text, got 5"),
        ("request.final_token_ids", "x", r"final_token_ids of request of the log must be a list, got 'x'"),
        ("request.final_token_ids", [1, -1], r"final_token_ids\[1\] of request of the log must be a token id, got -1"),
        ("request.max_tokens", 1.5, r"max_tokens of request of the log must be a whole number of 0 or more, got 1.5"),
        ("request.temperature", "hot", r"temperature of request of the log must be a number, got 'hot'"),
        ("request.workbench", 3, r"the log: this version reads format 1 of its own logs"),
        ("events", {}, r"events of the log must be a list, got an object"),
        ("events", [], r"the log has no events"),
        ("events.0", 7, r"events\[0\] of the log must be an object, got 7"),
        (
            "events.0.event_type",
            "Prefilt",
            r"event_type of events\[0\] of the log must be one of Prefilled, ForwardPass",
        ),
        ("events.0.sequence_order", 3, r"two have the same sequence_order"),
        ("events.0.sequence_order", True, r"sequence_order of events\[0\] of the log must be a whole number"),
        (
            "events.1.top_tokens.0.logprob",
            "x",
            r"logprob of top_tokens\[0\] of events\[1\] of the log must be a number",
        ),
        ("events.2.sampled_token", 10**400, r"sampled_token of events\[2\] of the log .*a very large number"),
        ("events.3.added_tokens", [[]], r"added_tokens\[0\] of events\[3\] of the log must be a token id, got a list"),
        ("events.3.forced", "no", r"forced of events\[3\] of the log must be true or false, got 'no'"),
        ("mod_calls.0.event_sequence_order", 77, r"mod_calls\[0\] of the log belongs to event 77, which is not there"),
        ("mod_calls.0.mod_name", KeyError, r"mod_calls\[0\] of the log has no 'mod_name'"),
        ("mod_logs.0.mod_call_sequence", 9, r"mod_logs\[0\] of the log belongs to mod call 9; there are 2"),
        ("actions.0.action_type", "Explode", r"action_type of actions\[0\] of the log is 'Explode'; known: Noop"),
        ("actions.0.backtrack_steps", -1, r"backtrack_steps of actions\[0\] of the log must be a whole number"),
    ],
)
def test_a_log_with_a_wrong_part_says_which(path: str, value: Any, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        from_ingest(spoilt(path, value))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "the list of logs is empty"),
        (None, "the log must be an object, got nothing"),
        ("x" * 500, r"the log must be an object, got 'x+…"),
        ([old_log(), old_log()], "two of the logs are of request 'a@b'"),
        ([old_log(), 5], "log 1 must be an object, got 5"),
    ],
)
def test_what_is_no_log_is_refused(document: Any, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        from_ingest(document)


def test_a_log_of_ours_that_was_tampered_with_is_refused(trace: Trace) -> None:
    def ours(change: Any) -> Any:
        (log,) = to_ingest(trace, "r0")
        log = json.loads(json.dumps(log))
        change(log)
        return log

    def first_added(log: Any) -> Any:
        return next(event["details"]["workbench"] for event in log["events"] if event["event_type"] == "Added")

    cases = [
        (lambda log: log["request"]["workbench"].update(format=2), "this version reads format 1"),
        (
            lambda log: log["request"]["workbench"].update(run=[]),
            "run of workbench of request of the log must be an object",
        ),
        (lambda log: log["request"]["workbench"]["run"].update(model=None), "the log names no model"),
        (lambda log: log["events"][0].pop("details"), r"events\[0\] of the log has no 'details'"),
        (
            lambda log: first_added(log).update(tokens=[-4]),
            r"tokens\[0\] of workbench of details .* must be a token id",
        ),
        (lambda log: first_added(log).update(logprob="x"), 'logprob must be a number, got "x"'),
        (lambda log: first_added(log).update(top=[[1]]), "a candidate is a pair of token id and log-probability"),
        (
            lambda log: first_added(log)["data"].update(texts=[]),
            r"contradict each other: record \d+ \(added\): it has not one text for each token",
        ),
        (lambda log: first_added(log)["data"].update(texts=3), "it has not one text for each token"),
        (lambda log: first_added(log).update(data={}), "it has not one text for each token"),
    ]
    for change, says in cases:
        with pytest.raises(TraceError, match=says):
            from_ingest(ours(change))
    with pytest.raises(TraceError, match="one run with each request once"):
        from_ingest([ours(lambda log: None), ours(lambda log: None)])
    with pytest.raises(TraceError, match="some of the logs were written by this workbench and some were not"):
        from_ingest([ours(lambda log: None), old_log()])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "this is no JSON: Expecting value"),
        ("{", "this is no JSON"),
        ('{"request": NaN}', "this is no JSON: NaN is no number of JSON"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "nested too deeply"),
        ("1" * 5000, "this is no JSON: Exceeds the limit"),
    ],
)
def test_a_file_that_is_no_log_says_why_and_which(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "log.json").write_text(text)
    with pytest.raises(TraceError, match=rf"log\.json: .*{says}"):
        read_ingest(tmp_path / "log.json")


def test_depth_that_json_can_read_but_python_can_not_fold_is_refused() -> None:
    payload: Any = 1
    for _ in range(90):
        payload = {"a": payload}
    log = old_log(
        actions=[{"mod_call_sequence": 1, "action_type": "ToolCalls", "action_order": 0, "tool_calls": payload}]
    )
    assert from_ingest(log).history().reason == "tool_calls"
    for _ in range(800):
        payload = {"a": payload}
    log["actions"][0]["tool_calls"] = payload
    with pytest.raises(TraceError, match="its data is no object, or too deep"):
        from_ingest(log)
    (own,) = to_ingest(from_ingest(old_log()))
    deep: Any = 1
    for _ in range(20_000):
        deep = [deep]
    own["request"]["workbench"]["run"]["deep"] = deep
    with pytest.raises(TraceError, match="nested too deeply"):
        from_ingest(own)


def test_a_file_that_is_not_there_binary_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"can't read .*gone\.json: No such file"):
        read_ingest(tmp_path / "gone.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="it is not UTF-8 text"):
        read_ingest(tmp_path / "bytes.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(LIMIT_BYTES + 1)
    with pytest.raises(TraceError, match=r"has 256 MiB; a log of up to 256 MiB is read"):
        read_ingest(tmp_path / "huge.json")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["request", "request_id", "events", "event_type", "step", "actions"]), inner
            )
        ),
        max_leaves=30,
    )
)
def test_no_json_whatever_gives_anything_but_a_trace_or_a_clear_error(document: Any) -> None:
    with contextlib.suppress(TraceError):
        assert from_ingest(document).histories


@given(st.data())
def test_no_single_change_of_a_log_gives_anything_but_a_trace_or_a_clear_error(data: st.DataObject) -> None:
    log = copy.deepcopy(data.draw(st.sampled_from([old_log(), bare(to_ingest(from_ingest(old_log())))[0]])))
    section = data.draw(st.sampled_from(["events", "mod_calls", "mod_logs", "actions", "request"]))
    place = log[section] if section == "request" else data.draw(st.sampled_from(log[section] or [log["request"]]))
    name = data.draw(st.sampled_from(sorted(place)))
    place[name] = data.draw(st.none() | st.booleans() | st.integers(-5, 10**20) | st.text(max_size=3) | st.just([]))
    with contextlib.suppress(TraceError):
        assert from_ingest(log).histories
