"""LiveRun from Python: the state machine, holding, acting by hand, branching, few messages."""

from __future__ import annotations

import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import workbench
from widgets import LiveRun
from widgets.base.outbox import INTERVAL, MOST_PAUSE, Outbox
from widgets.base.window import LARGEST_MESSAGE
from widgets.reading import page
from workbench import SamplingParams
from workbench.errors import PromptError, ReportError, UnknownHookError
from workbench.mods import ban_tokens, calculator

WAIT = 30.0


@pytest.fixture
def live(model: Any) -> Iterator[LiveRun]:
    live = LiveRun(model, directions={"ones": [1.0] * 32})
    yield live
    live.close()


@pytest.fixture
def heard(live: LiveRun, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the browser is told, each with its time and size."""
    heard: list[dict[str, Any]] = []

    def keep(content: dict[str, Any], buffers: Any = None) -> None:
        size = len(json.dumps(content)) + sum(map(len, buffers or ()))
        heard.append({**content, "at": time.monotonic(), "bytes": size})

    monkeypatch.setattr(live, "send", keep)
    return heard


def pages(heard: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Of each page that was told: its first item, the end of it, and how many items there are."""
    told = [message["page"] for message in heard if message.get("page")]
    return [(page["start"], page["start"] + page["count"], page["total"]) for page in told]


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def until_held(live: LiveRun, event: str, after: int = -1) -> dict[str, Any]:
    """Wait until the loop is held after an event of that name, later than hold number ``after``; step over others."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        held = live.progress()["held"]
        if held is not None and held["number"] > after:
            if held["event"] == event:
                return dict(held)
            after = held["number"]
            live.step()
        time.sleep(0.002)
    raise AssertionError(f"never held after {event}: {live.progress()}")


def test_a_run_gives_what_the_session_gives(live: LiveRun, model: Any) -> None:
    sampling = SamplingParams(temperature=0.7)
    assert live.run("Hello", max_new_tokens=9, seed=3, sampling=sampling)
    assert live.wait(WAIT)
    plain = workbench.Session(model).generate("Hello", max_new_tokens=9, seed=3, sampling=sampling)
    assert live.runs[0].result is not None
    assert live.runs[0].result.tokens == plain.tokens
    assert live.status == "idle"
    assert live.trace.run["status"] == "finished"


def test_run_while_running_does_nothing(live: LiveRun) -> None:
    assert live.run("Hello", stepping=True)
    assert not live.run("Again")
    assert not live.run("And again")
    assert len(live.runs) == 1
    live.stop()
    live.stop()
    assert live.wait(WAIT)


def test_bad_prompts_raise_and_leave_it_idle(live: LiveRun) -> None:
    with pytest.raises(PromptError, match="the prompt is empty"):
        live.run("")
    assert (live.status, live.runs) == ("idle", ())


def test_a_failing_mod_ends_in_failed_and_the_next_run_works(live: LiveRun) -> None:
    @workbench.mod
    def broken(event: Any, actions: Any, tokenizer: Any) -> None:
        raise RuntimeError("no")

    live.run("Hello", mods=[broken])
    assert live.wait(WAIT)
    assert live.status == "failed"
    assert "mod 'broken' raised RuntimeError on Prefilled" in live.runs[0].error
    assert live.run("Hello", max_new_tokens=2)
    live.wait(WAIT)
    assert live.status == "idle"


def test_a_held_run_waits_and_each_step_is_one_event(live: LiveRun) -> None:
    live.run("Hello", max_new_tokens=3, stepping=True, seed=1)
    seen: list[tuple[str, int]] = []
    for event in ("Prefilled", "ForwardPass", "Sampled", "Added", "ForwardPass"):
        held = until_held(live, event, len(seen) - 1)
        seen.append((held["event"], held["step"]))
        count = len(live.trace.records)
        time.sleep(0.05)
        assert len(live.trace.records) == count, "nothing goes on while it is held"
        live.step()
    assert seen == [("Prefilled", 0), ("ForwardPass", 1), ("Sampled", 1), ("Added", 1), ("ForwardPass", 2)]
    live.resume()
    assert live.wait(WAIT)


def test_what_is_done_by_hand_is_what_a_mod_would_do(live: LiveRun) -> None:
    live.run("Hello", max_new_tokens=12, stepping=True, seed=1)
    until_held(live, "ForwardPass")
    live.force("abc")
    held = until_held(live, "Added")
    assert held["tokens"] == ["a", "b", "c"]
    live.backtrack(2, "Z")
    assert until_held(live, "Added", held["number"])["tokens"] == ["Z"]
    live.steer("ones", 1, 2.0)
    live.ban("x")
    live.resume()
    assert live.wait(WAIT)
    actions = [(r.action, r.mod, r.status) for r in live.trace.records if r.kind == "action"]
    assert actions[:3] == [(name, "hand", "applied") for name in ("force_tokens", "backtrack", "steer")]
    assert ("adjust_logits", "hand", "applied") in actions
    assert live.runs[0].result is not None
    assert live.runs[0].result.text.startswith("aZ")
    edited = [r for r in live.trace.records if r.data.get("edits")]
    assert edited


def test_a_wish_waits_for_an_event_that_allows_it(live: LiveRun) -> None:
    live.run("Hello", max_new_tokens=4, stepping=True)
    until_held(live, "Prefilled")
    live.force("A")
    live.force("B")
    live.resume()
    assert live.wait(WAIT)
    assert live.runs[0].result is not None
    assert live.runs[0].result.text.startswith("AB")


def test_taking_back_more_than_there_is_is_refused_and_the_run_goes_on(live: LiveRun) -> None:
    live.run("Hello", max_new_tokens=3, stepping=True)
    until_held(live, "ForwardPass")
    live.backtrack(5)
    live.resume()
    assert live.wait(WAIT)
    assert live.error == "can't take back 5 tokens: 0 were generated so far"
    assert live.status == "idle"


def test_stop_ends_within_one_token_and_keeps_what_there_is(live: LiveRun) -> None:
    live.run("Hello", max_new_tokens=200)
    while len(live.trace.records) < 12:
        time.sleep(0.001)
    live.stop()
    tokens = len([r for r in live.trace.records if r.kind == "added"])
    assert live.wait(WAIT)
    result = live.runs[0].result
    assert result is not None
    assert result.reason == "interrupted"
    assert tokens <= len(result.tokens) <= tokens + 2


def test_stop_frees_a_run_that_is_held(live: LiveRun) -> None:
    live.run("Hello", stepping=True)
    until_held(live, "ForwardPass")
    live.stop()
    assert live.wait(WAIT)
    assert live.runs[0].result is not None
    assert live.runs[0].result.reason == "interrupted"


def test_many_threads_pressing_buttons_leave_a_consistent_trace(live: LiveRun) -> None:
    live.run("Hello", max_new_tokens=60, seed=2)

    def press(number: int) -> None:
        for action in (live.pause, live.step, live.resume, lambda: live.force("a"), lambda: live.backtrack(1)):
            try:
                action()
            except ReportError:  # the run has ended meanwhile
                return
            time.sleep(0.001 * (number % 5))

    threads = [threading.Thread(target=press, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    live.stop()
    assert live.wait(WAIT)
    result = live.runs[0].result
    assert result is not None
    assert tuple(life.token for life in live.trace.history().live) == result.tokens
    assert [record.seq for record in live.trace.records] == list(range(len(live.trace.records)))


def test_a_branch_has_the_tokens_before_it_and_then_its_own(live: LiveRun, model: Any) -> None:
    live.run("Hello", max_new_tokens=10, seed=1)
    live.wait(WAIT)
    first = live.runs[0].result
    assert first is not None
    assert live.branch(3, "!", seed=9)
    live.wait(WAIT)
    second = live.runs[1].result
    assert second is not None
    assert second.tokens[:5] == (*first.tokens[:4], *model.tokenizer.encode("!"))
    frame = live.explore(1, 2).differences()
    assert frame.same.tolist().index(False) == 5 + 4
    with pytest.raises(ReportError, match="no run 7; there are 2"):
        live.explore(7)


def test_a_token_that_was_taken_back_can_be_branched_from(live: LiveRun) -> None:
    live.run("Hello", max_new_tokens=6, stepping=True, seed=1)
    until_held(live, "ForwardPass")
    live.force("abc")
    until_held(live, "Added")
    live.backtrack(2, "Z")
    live.resume()
    live.wait(WAIT)
    assert live.branch(2)
    live.wait(WAIT)
    assert live.runs[1].result is not None
    assert live.runs[1].result.text.startswith("abc")


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda live: live.force("x"), "can't force: no run is going"),
        (lambda live: live.step(), "nothing to step: no run is going"),
        (lambda live: live.steer("twos", 1), "no direction 'twos'; there are ones"),
        (lambda live: live.steer("ones", 9), "a layer from 0 to 2"),
        (lambda live: live.backtrack(-1), "0 or more tokens, got -1"),
        (lambda live: live.force(""), "nothing to force: give some text"),
        (lambda live: live.branch(0), "no run 1; there are 0"),
    ],
)
def test_what_can_not_be_done_is_said(live: LiveRun, act: Any, says: str) -> None:
    with pytest.raises(ReportError, match=says):
        act(live)


@pytest.mark.parametrize(
    ("field", "typed", "says"),
    [
        ("temperature", "", "the field 'temperature' is empty; type a number"),
        ("top_k", "1.5", "the field 'top k' is '1.5'; type a whole number"),
        ("max_new_tokens", None, "the field 'max new tokens' is empty; type a whole number"),
        ("temperature", "-3", "temperature must be >= 0, got -3.0"),
    ],
)
def test_a_field_that_holds_no_number_is_named(live: LiveRun, field: str, typed: Any, says: str) -> None:
    form = {"prompt": "Hi", "temperature": "1", "top_k": "0", "top_p": "1", "max_new_tokens": "2", "seed": "0"}
    with pytest.raises((ReportError, ValueError), match=re.escape(says)):
        live._heard(live, {"type": "run", **form, field: typed}, [])
    assert (live.status, live.runs) == ("idle", ())


def test_a_pattern_that_captures_nothing_is_refused(model: Any) -> None:
    with pytest.raises(UnknownHookError, match=r"no hook matches 'blocks\.9"):
        LiveRun(model, capture="blocks.9.hook_resid_post")


@workbench.mod
def edits_in_vain(event: Any, actions: Any, tokenizer: Any) -> Any:
    """An edit that changes nothing, which the engine warns of, and a warning of its own."""
    if isinstance(event, workbench.Prefilled):
        warnings.warn("a word of the mod's own", stacklevel=1)
        return actions.edit("blocks.1.hook_resid_post", lambda value: value)
    return None


def test_warnings_of_a_run_are_in_the_window_at_each_run_and_in_no_cell(
    live: LiveRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a notebook: Python itself shows the same warning once
        for _ in range(2):
            live.run("Hello", max_new_tokens=2, mods=[edits_in_vain])
            assert live.wait(WAIT)
            assert live.status == "idle", live.runs[-1].error
            assert [text for text in live.notices if "blocks.1.hook_resid_post changed nothing" in text]
            assert not [text for text in live.notices if text.startswith("request ")]
    assert len(live.runs[0].trace.frame().query("kind == 'warning'")) == 1
    assert capsys.readouterr().err == ""
    live.run("Hello", max_new_tokens=1)
    assert live.wait(WAIT)
    assert live.notices == []


def test_a_mod_s_own_warning_is_in_the_window(live: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        live.run("Hello", max_new_tokens=2, mods=[edits_in_vain])
        assert live.wait(WAIT)
    assert live.notices[0] == "a word of the mod's own"
    assert len(live.notices) == 2, "what the engine says in the trace and to Python is one warning"
    assert capsys.readouterr().err == ""


def test_a_model_without_its_cache_says_so_in_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    model = workbench.load("tiny-gpt2", progress=False)
    monkeypatch.setattr(model, "cache_works", False)
    live = LiveRun(model, "Hello")
    assert "KV cache of this model is switched off" in live.notices[0]
    live.run("Hello", max_new_tokens=2)
    assert live.wait(WAIT)
    assert "KV cache of this model is switched off" in live.notices[0]
    assert live.trace.run["model"]["kv_cache"] is False
    live.close()


def test_mods_that_did_nothing_are_named_at_the_end(live: LiveRun, heard: list[dict[str, Any]]) -> None:
    live.run("Hello", max_new_tokens=3, mods=[ban_tokens(tokens=[70]), calculator()])
    assert live.wait(WAIT)
    live._send_progress()
    assert heard[-1]["idle"] == ["calculator"]


def test_a_run_that_was_stopped_leaves_no_hook_and_keeps_residuals_as_plain_numbers(live: LiveRun, model: Any) -> None:
    before = {name: len(point._forward_hooks) for name, point in model._points.items()}
    live.run("Hello", max_new_tokens=200)
    while len(live.trace.records) < 12:
        time.sleep(0.001)
    live.stop()
    assert live.wait(WAIT)
    assert {name: len(point._forward_hooks) for name, point in model._points.items()} == before
    kept = [value for record in live.trace.records for value in (record.activations or {}).values()]
    assert kept
    assert not [value for value in kept if value.requires_grad or value.device.type != "cpu"]


def test_a_second_after_any_moment_brings_ten_messages_at_most(live: LiveRun, heard: list[dict[str, Any]]) -> None:
    """Of a run as fast as a tiny model goes, each of bounded size; the last says how it ended."""
    live.run("Hello", max_new_tokens=230, seed=3)
    assert live.wait(WAIT)
    time.sleep(5 * INTERVAL)
    times = [each["at"] for each in heard]
    assert len(times) > 1
    assert max(sum(first <= other < first + 0.999 for other in times) for first in times) <= 10
    assert max(each["bytes"] for each in heard) < LARGEST_MESSAGE
    assert heard[-1]["reason"] in ("max_tokens", "eos")


def test_a_view_that_opens_while_a_message_is_made_gets_every_token(
    live: LiveRun, heard: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message in the making begins where the old view stood: the one after it must begin at the first token."""
    live.run("hello", max_new_tokens=6)
    assert live.wait(WAIT)

    def nothing_is_new() -> bool:
        live._outbox.touch()
        return bool(pages(heard)) and pages(heard)[-1][0] == pages(heard)[-1][2]

    until(nothing_is_new)
    live._outbox.close()
    live._outbox = Outbox(live._send_progress)
    opened = []

    def page_as_a_view_opens(reading: Any, start: int) -> dict[str, Any]:
        if not opened:
            opened.append(start)
            live.answers["hello"]({})
        return page(reading, start)

    monkeypatch.setattr("widgets.live_run.telling.page", page_as_a_view_opens)
    heard.clear()
    live._outbox.touch()
    until(lambda: len(pages(heard)) == 2)
    total = pages(heard)[0][2]
    assert opened == [total]
    assert pages(heard) == [(total, total, total), (0, total, total)]


def test_closing_ends_the_thread(model: Any) -> None:
    live = LiveRun(model)
    live.run("Hello", stepping=True)
    live.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("workbench-live-run")]
    live.close()


def test_an_outbox_rests_after_a_dear_message_but_not_for_ever() -> None:
    """Its clock says that each message took a minute; the next still comes within the longest pause."""
    clock = iter(range(0, 10**6, 60))
    sent = threading.Event()
    outbox = Outbox(sent.set, clock=lambda: float(next(clock)))
    for _ in range(2):
        outbox.touch()
        assert sent.wait(MOST_PAUSE + 5)
        sent.clear()
    outbox.close()


def test_an_outbox_sends_the_first_at_once_and_the_last_always() -> None:
    times: list[float] = []
    outbox = Outbox(lambda: times.append(time.monotonic()))
    end = time.monotonic() + 0.65
    last = 0.0
    while time.monotonic() < end:
        outbox.touch()
        last = time.monotonic()
        time.sleep(0.001)
    time.sleep(3 * INTERVAL)
    outbox.close()
    assert 2 <= len(times) <= 8
    assert all(later - earlier >= INTERVAL * 0.95 for earlier, later in pairwise(times))
    assert times[-1] >= last
    outbox.touch()
    time.sleep(0.05)
    assert len(times) <= 8
