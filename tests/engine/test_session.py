"""Calling generate: prompts, batches, limits, interruption, resuming, streaming, repeating."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from workbench import Added, ForwardPass, Prefilled, SamplingParams, Session, Trace, mod, replay
from workbench.engine import tool_call_pairs
from workbench.errors import BudgetError, ModError, PromptError, TraceError, UnknownHookError, WorkbenchError
from workbench.trace import Record

GREEDY = SamplingParams(temperature=0)


class TestPrompts:
    def test_text_ids_and_chat(self, session: Session, model: Any) -> None:
        text = session.generate("hi", max_new_tokens=2, sampling=GREEDY)
        ids = session.generate(model.tokenizer.prompt("hi"), max_new_tokens=2, sampling=GREEDY)
        assert text.tokens == ids.tokens
        chat = session.generate([{"role": "user", "content": "hi"}], max_new_tokens=2)
        assert model.tokenizer.decode(chat.prompt_tokens) == "<bos>[user] hi\n[assistant] "
        assert chat.conversation == ({"role": "user", "content": "hi"},)

    def test_prefilled_shows_the_ids_that_are_fed(self, model: Any) -> None:
        seen = []

        @mod
        def look(event: Any, actions: Any, tokenizer: Any) -> None:
            if event.step == 0:
                seen.append((event.tokens, event.text, len(event.conversation)))

        result = Session(model, [look]).generate([{"role": "user", "content": "hi"}], max_new_tokens=1)
        assert seen == [(result.prompt_tokens, "<bos>[user] hi\n[assistant] ", 1)]

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            ("", "the prompt is empty"),
            ([], "the prompt is empty"),
            (["hi", ""], "the prompt is empty"),
            ([[5], []], "one of the prompts is empty"),
            (None, "a prompt is text, a list of chat messages.*got NoneType"),
            (b"hi", "got bytes"),
            ([5, {"role": "user"}], "all token ids or all chat messages, got a list of dict, int"),
            ([5, 260], r"token id 260 in the prompt is outside the vocabulary 0\.\.259"),
            ([5] * 256, r"has 256 tokens; tiny-llama holds n_ctx=256"),
            ([{"role": "user"}], "chat template refuses these messages"),
        ],
    )
    def test_a_bad_prompt_says_what_would_be_right(self, session: Session, prompt: Any, message: str) -> None:
        with pytest.raises(PromptError, match=message):
            session.generate(prompt)
        assert session.generate("hi", max_new_tokens=1).tokens

    def test_the_output_ends_where_the_context_does(self, session: Session) -> None:
        result = session.generate([5] * 250, max_new_tokens=50, sampling=GREEDY)
        assert (len(result.tokens), result.reason) == (6, "max_tokens")


class TestSeeds:
    def test_same_seed_same_tokens(self, session: Session) -> None:
        one, two, other = (session.generate("hi", max_new_tokens=12, seed=s).tokens for s in (3, 3, 4))
        assert one == two != other

    def test_one_request_of_a_batch_can_be_run_again_alone(self, session: Session) -> None:
        _, two = session.generate(["hi", "there"], max_new_tokens=8, seed=3)
        [again] = session.generate(["there"], max_new_tokens=8, seed=[(two.seed, two.index)])
        assert again.tokens == two.tokens

    def test_seeds_and_ids_may_be_numpy_numbers(self, session: Session) -> None:
        one = session.generate(np.array([5, 6]), max_new_tokens=4, seed=np.int64(3))
        assert one.tokens == session.generate(torch.tensor([5, 6]), max_new_tokens=4, seed=3).tokens
        with pytest.raises(ValueError, match=r"a seed is a whole number, got 1\.5"):
            session.generate("hi", seed=1.5)  # type: ignore[arg-type]

    def test_without_a_seed_one_is_drawn_and_recorded(self, session: Session) -> None:
        first = session.generate("hi", max_new_tokens=8)
        assert first.tokens == session.generate("hi", max_new_tokens=8, seed=first.seed).tokens

    def test_the_global_random_state_is_neither_read_nor_moved(self, session: Session) -> None:
        torch.manual_seed(1)
        before = torch.get_rng_state()
        one = session.generate("hi", max_new_tokens=6, seed=3).tokens
        assert torch.equal(before, torch.get_rng_state())
        torch.manual_seed(2)
        assert session.generate("hi", max_new_tokens=6, seed=3).tokens == one

    def test_a_request_does_not_depend_on_its_neighbours(self, session: Session) -> None:
        three = session.generate(["hi", "there you are", "x"], max_new_tokens=6, seed=3)
        two = session.generate(["hi", "another one"], max_new_tokens=6, seed=3)
        assert three[0].tokens == two[0].tokens
        assert len({result.tokens for result in three}) == 3


class TestLimits:
    def test_stop_strings_end_the_output(self, model: Any, answer: Any) -> None:
        force = answer(ForwardPass, lambda e, a, t: a.force_tokens(t.encode("one STOP")))
        result = Session(model, [force]).generate("hi", sampling=SamplingParams(temperature=0, stop=("STOP",)))
        assert (result.text, result.reason) == ("one STOP", "stop")

    def test_a_stop_string_at_the_start_of_a_long_forced_batch(self, model: Any, answer: Any) -> None:
        force = answer(ForwardPass, lambda e, a, t: a.force_tokens(t.encode("STOP " + "x" * 60)))
        result = Session(model, [force]).generate("hi", sampling=SamplingParams(temperature=0, stop=("STOP",)))
        assert result.reason == "stop"

    def test_what_is_committed_as_the_budget_ends_is_heard_too(self, model: Any) -> None:
        heard: list[int] = []

        @mod
        def greedy_forcer(event: Any, actions: Any, tokenizer: Any) -> Any:
            if isinstance(event, Added):
                heard.extend(event.tokens)
                return actions.force_tokens([9, 9])
            return None

        result = Session(model, [greedy_forcer]).generate("hi", max_new_tokens=50, max_forward_tokens=6)
        assert result.reason == "budget"
        assert tuple(heard) == result.tokens
        last = [r for r in result.trace.records if r.action == "force_tokens"][-1]
        assert last.status == "shadowed"

    def test_without_a_working_cache_only_new_tokens_are_work(self, answer: Any) -> None:
        from workbench import load

        model = load("tiny-llama")
        whole = Session(model).generate([5] * 150, max_new_tokens=30, sampling=GREEDY)
        model.cache_works = False
        slow = Session(model).generate([5] * 150, max_new_tokens=30, sampling=GREEDY)
        assert (slow.tokens, slow.forward_tokens) == (whole.tokens, whole.forward_tokens)

    def test_a_mod_that_backtracks_for_ever_ends_by_budget(self, model: Any) -> None:
        @mod
        def restless(event: Any, actions: Any, tokenizer: Any) -> Any:
            return actions.backtrack(1) if isinstance(event, Added) else None

        result = Session(model, [restless]).generate("hi", max_new_tokens=4, max_forward_tokens=20)
        assert result.reason == "budget"
        assert result.forward_tokens == 20

    def test_a_mod_that_never_lets_a_pass_happen_ends_by_budget(self, model: Any) -> None:
        @mod
        def treadmill(event: Any, actions: Any, tokenizer: Any) -> Any:
            return actions.backtrack(1, [9]) if isinstance(event, Added) else None

        result = Session(model, [treadmill]).generate("hi", max_new_tokens=4, max_forward_tokens=50)
        assert result.reason == "budget"

    def test_default_work_is_64_passes_a_token(self, model: Any) -> None:
        @mod
        def restless(event: Any, actions: Any, tokenizer: Any) -> Any:
            return actions.backtrack(1) if isinstance(event, Added) else None

        assert Session(model, [restless]).generate("hi", max_new_tokens=2).forward_tokens == 128

    def test_activations_beyond_the_budget_are_refused_before_the_run(self, model: Any) -> None:
        session = Session(model, capture="blocks.*.hook_resid_post", activation_budget=10_000)
        with pytest.raises(BudgetError, match=r"capturing 3 hooks over \d+ positions needs about"):
            session.generate("hi", max_new_tokens=100)

    def test_activations_that_outgrow_it_are_dropped_with_a_warning(self, model: Any, answer: Any) -> None:
        session = Session(model, capture="blocks.*.hook_resid_post", activation_budget=12 * 3 * 128)

        @mod
        def twice(event: Any, actions: Any, tokenizer: Any) -> Any:
            return actions.backtrack(6) if isinstance(event, Added) and event.step == 6 else None

        with pytest.warns(UserWarning, match="activation budget is used up"):
            result = session.generate("hi", max_new_tokens=8, mods=[twice])
        assert result.trace.history().live[-1].source_row is None

    @pytest.mark.parametrize("count", [0, -1, 2.5, True])
    def test_max_new_tokens_is_at_least_one(self, session: Session, count: int) -> None:
        with pytest.raises(ValueError, match="max_new_tokens must be a whole number, 1 or more"):
            session.generate("hi", max_new_tokens=count)


def ctrl_c_at_step_4(record: Record) -> None:
    """A sink that presses Ctrl-C between two mods' turns."""
    if record.kind == "forward_pass" and record.step == 4:
        os.kill(os.getpid(), signal.SIGINT)


class TestInterruption:
    def test_ctrl_c_ends_at_a_token_and_leaves_everything_usable(self, model: Any) -> None:
        session = Session(model, on_interrupt="return", capture="blocks.0.hook_resid_post", sinks=[ctrl_c_at_step_4])
        handler = signal.getsignal(signal.SIGINT)
        result = session.generate("hi", max_new_tokens=50, sampling=GREEDY)
        assert signal.getsignal(signal.SIGINT) is handler
        assert result.reason == "interrupted"
        assert len(result.tokens) == 4
        assert result.trace.records[-1].data == {"reason": "interrupted"}
        whole = Session(model).generate("hi", max_new_tokens=8, sampling=GREEDY)
        assert whole.tokens[:4] == result.tokens

    def test_by_default_it_is_raised_again_and_nothing_is_lost(self, model: Any) -> None:
        session = Session(model, sinks=[ctrl_c_at_step_4])
        with pytest.raises(KeyboardInterrupt):
            session.generate("hi", max_new_tokens=50, sampling=GREEDY)
        assert len(session.last_results[0].tokens) == 4
        assert session.last_results[0].reason == "interrupted"

    def test_a_mod_that_waits_for_a_person_can_be_interrupted(self, model: Any) -> None:
        @mod
        def waits(event: Any, actions: Any, tokenizer: Any) -> None:
            if isinstance(event, ForwardPass) and event.step == 4:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)

        result = Session(model, [waits], on_interrupt="return").generate("hi", max_new_tokens=9, sampling=GREEDY)
        assert (len(result.tokens), result.reason) == (3, "interrupted")
        with pytest.raises(KeyboardInterrupt):
            Session(model, [waits]).generate("hi", max_new_tokens=9)

    def test_an_exception_in_the_middle_of_a_pass_never_happened(self, model: Any, answer: Any) -> None:
        from workbench import Prefilled

        passes = []

        def explode(value: torch.Tensor) -> torch.Tensor:
            passes.append(1)
            if len(passes) == 3:
                raise KeyboardInterrupt
            return value

        session = Session(model)
        mods = [answer(Prefilled, lambda e, a, t: a.edit("blocks.1.hook_resid_post", explode))]
        with pytest.raises(KeyboardInterrupt):
            session.generate("hi", max_new_tokens=9, sampling=GREEDY, mods=mods)
        [partial] = session.last_results
        assert partial.reason == "interrupted"
        assert partial.tokens == session.generate("hi", max_new_tokens=2, sampling=GREEDY).tokens

    def test_stop_from_another_thread(self, model: Any) -> None:
        session = Session(model)
        started = threading.Event()

        @mod
        def slow(event: Any, actions: Any, tokenizer: Any) -> None:
            started.set()
            time.sleep(0.01)

        def stopper() -> None:
            started.wait()
            session.stop()

        thread = threading.Thread(target=stopper)
        thread.start()
        result = session.generate("hi", max_new_tokens=200, mods=[slow])
        thread.join()
        assert result.reason == "interrupted"

    def test_a_run_inside_a_mod_does_not_steal_the_stop_button(self, model: Any) -> None:
        session = Session(model)

        @mod
        def nested(event: Any, actions: Any, tokenizer: Any) -> None:
            if isinstance(event, ForwardPass) and event.step == 2:
                session.generate("x", max_new_tokens=1, mods=[])
                session.stop()

        assert session.generate("hi", max_new_tokens=50, mods=[nested]).reason == "interrupted"

    def test_any_exception_ends_the_run_and_keeps_the_trace(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = model.forward, []

        def breaks(*args: Any, **settings: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("out of memory")
            return real(*args, **settings)

        monkeypatch.setattr(model, "forward", breaks)
        session = Session(model)
        with pytest.raises(RuntimeError, match="out of memory"):
            session.generate("hi", max_new_tokens=9)
        [partial] = session.last_results
        assert (partial.reason, len(partial.tokens)) == ("error", 2)
        assert partial.trace.records[-1].kind == "finished"

    def test_a_trace_can_be_read_while_it_grows(self, model: Any) -> None:
        session, seen = Session(model), []
        traces: list[Trace] = []

        @mod
        def share(event: Any, actions: Any, tokenizer: Any) -> Any:
            return actions.backtrack(2) if isinstance(event, Added) and event.step % 5 == 0 else None

        def read() -> None:
            while not done.is_set():
                for trace in traces:
                    seen.append(len(trace.history().live) if trace.histories else 0)
                time.sleep(0.0005)

        done = threading.Event()
        reader = threading.Thread(target=read)
        reader.start()
        for record in session.stream("hi", max_new_tokens=60, mods=[share], seed=1):
            if not traces:
                [job] = session._running
                traces.append(job.trace)
            assert record.seq >= 0
        done.set()
        reader.join()
        [result] = session.last_results
        assert result.trace.history().tokens == list(result.prompt_tokens + result.tokens)

    def test_two_threads_share_a_model(self, model: Any) -> None:
        alone = Session(model).generate("hello there", max_new_tokens=20, seed=5).tokens
        found: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(Session(model).generate("hello there", max_new_tokens=20, seed=5).tokens)
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [alone] * 4


class TestStreaming:
    def test_it_is_the_same_run(self, session: Session) -> None:
        streamed = list(session.stream("hi", max_new_tokens=5, seed=1))
        assert streamed == session.last_results[0].trace.records
        assert session.generate("hi", max_new_tokens=5, seed=1).trace.records[-2].tokens == streamed[-2].tokens

    def test_bad_arguments_raise_at_the_call(self, session: Session) -> None:
        with pytest.raises(PromptError, match="the prompt is empty"):
            session.stream("")

    def test_between_records_ctrl_c_is_the_consumers(self, session: Session) -> None:
        handler = signal.getsignal(signal.SIGINT)
        for _ in session.stream("hi", max_new_tokens=3):
            assert signal.getsignal(signal.SIGINT) is handler

    def test_leaving_early_ends_the_run(self, session: Session) -> None:
        for record in session.stream("hi", max_new_tokens=50):
            if record.step == 3:
                break
        assert session.last_results[0].reason == "interrupted"


class TestResuming:
    CHAT = ({"role": "user", "content": "what time is it?"},)

    def test_goes_on_from_the_same_cache(self, model: Any, answer: Any) -> None:
        call = answer(Added, lambda e, a, t: a.tool_calls([{"name": "clock", "arguments": {}}]), step=3)
        session = Session(model)
        first = session.generate(self.CHAT, mods=[call], max_new_tokens=9, sampling=GREEDY)
        second = session.resume(first, [{"role": "tool", "content": "noon"}], max_new_tokens=4)
        assert second.lane is first.lane
        text = model.tokenizer.decode(second.prompt_tokens)
        assert text.endswith("\n[tool] noon\n[assistant] ")
        assert second.prompt_tokens[: len(first.prompt_tokens) + 3] == first.prompt_tokens + first.tokens
        fresh = session.generate(list(second.prompt_tokens), max_new_tokens=4, sampling=GREEDY)
        assert second.tokens == fresh.tokens
        fed = next(r.data["fed"] for r in second.trace.records if r.kind == "forward_pass")
        assert fed == len(second.prompt_tokens) - (len(first.prompt_tokens) + 2)

    def test_branches_of_one_result_are_each_what_a_fresh_run_gives(self, session: Session) -> None:
        first = session.generate("abc", max_new_tokens=3, sampling=GREEDY)
        one = session.resume(first, "abcdefgh", max_new_tokens=3)
        two = session.resume(first, "zyxwvuts", max_new_tokens=3)
        three = session.resume(one, "!!", max_new_tokens=3)  # the row was overwritten by two in between
        for branch in (one, two, three):
            fresh = session.generate(list(branch.prompt_tokens), max_new_tokens=3, sampling=GREEDY)
            assert branch.tokens == fresh.tokens
            expected = [life.raw_logprob for life in fresh.trace.history().live]
            assert [life.raw_logprob for life in branch.trace.history().live] == pytest.approx(expected, abs=1e-3)

    def test_edits_end_with_their_run_so_that_the_next_one_can_be_replayed(self, model: Any, answer: Any) -> None:
        from workbench import Prefilled

        steer = answer(Prefilled, lambda e, a, t: a.steer("blocks.1.hook_resid_post", torch.linspace(-5, 5, 32)))
        session = Session(model)
        first = session.generate("abc", max_new_tokens=4, mods=[steer], seed=1)
        second = session.resume(first, "def", max_new_tokens=4)
        assert replay(second.trace, model).agrees

    def test_going_on_draws_new_numbers(self, session: Session) -> None:
        first = session.generate("abc", max_new_tokens=8, seed=1)
        second = session.resume(first, max_new_tokens=8)
        assert second.prompt_tokens == first.prompt_tokens + first.tokens
        assert second.trace.run["requests"]["r0"]["turn"] == 1
        assert replay(second.trace, session.model).agrees

    def test_a_released_cache_is_said(self, session: Session) -> None:
        first = session.generate("abc", max_new_tokens=2)
        first.release()
        with pytest.raises(PromptError, match="holds no cache"):
            session.resume(first, "x")

    def test_text_and_ids_follow_as_they_are(self, session: Session, model: Any) -> None:
        first = session.generate("2+2=", max_new_tokens=3, sampling=GREEDY)
        second = session.resume(first, " four", max_new_tokens=2)
        assert second.prompt_tokens == first.prompt_tokens + first.tokens + tuple(model.tokenizer.encode(" four"))
        third = session.resume(first, [9, 9], max_new_tokens=2)
        assert third.prompt_tokens[-2:] == (9, 9)

    def test_what_can_not_be_resumed_says_why(self, session: Session) -> None:
        first = session.generate("2+2=", max_new_tokens=3)
        with pytest.raises(PromptError, match="not a chat"):
            session.resume(first, [{"role": "tool", "content": "4"}])
        with pytest.raises(PromptError, match="no tool results"):
            session.resume(first, "")

    def test_tool_calls_are_paired_with_their_replies(self) -> None:
        one, two = {"id": "a", "name": "x"}, {"id": "b", "name": "y"}
        reply = {"role": "tool", "tool_call_id": "b", "content": "2"}
        chat = [{"role": "assistant", "tool_calls": [one, two]}, reply]
        assert tool_call_pairs(chat) == [(one, None), (two, reply)]
        assert tool_call_pairs([{"role": "assistant", "tool_calls": one}]) == [(one, None)]


class TestReplay:
    def test_agrees_with_itself_and_names_the_first_difference(self, model: Any, answer: Any) -> None:
        def make() -> Any:
            return answer(Added, lambda e, a, t: a.backtrack(2, [68, 69]), step=4)

        result = Session(model, capture="blocks.1.hook_resid_post").generate(
            ["hi", "there"], mods=[[make()], []], max_new_tokens=8, seed=2
        )[0]
        assert replay(result.trace, model, [[make()], []]).agrees
        changed = answer(Added, lambda e, a, t: a.backtrack(2, [68, 70]), step=4)
        again = replay(result.trace, model, [[changed], []])
        assert "tokens was (68, 69), now (68, 70)" in str(again)

    def test_an_interrupted_run_is_compared_as_far_as_it_went(self, session: Session, model: Any) -> None:
        for record in session.stream("hi", max_new_tokens=20, seed=2):
            if record.step == 5:
                break
        again = replay(session.last_results[0].trace, model)
        assert again.agrees
        assert len(again.trace) > again.compared  # and made to its end
        assert again.trace.history().tokens[2:] == list(session.generate("hi", max_new_tokens=20, seed=2).tokens)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_an_interrupted_run_and_its_rest_are_the_whole_run(self, session: Session, temperature: float) -> None:
        sampling = SamplingParams(temperature=temperature)
        whole = session.generate(["hi", "there"], max_new_tokens=20, seed=2, sampling=sampling)[1]
        for record in session.stream(["hi", "there"], max_new_tokens=20, seed=2, sampling=sampling):
            if record.step == 5:
                break
        part = session.last_results[1]
        assert 0 < len(part.tokens) < 20
        middle = session.resume(part, max_new_tokens=3)
        assert part.tokens + middle.tokens == whole.tokens[: len(part.tokens) + 3]
        rest = session.resume(part, max_new_tokens=20 - len(part.tokens))  # from one part as often as one likes
        assert part.tokens + rest.tokens == whole.tokens
        assert replay(rest.trace, session.model).agrees

    def test_a_finished_run_that_goes_on_draws_numbers_of_its_own(self, session: Session) -> None:
        first = session.generate("hi", max_new_tokens=5, seed=2)
        told = session.resume(first, max_new_tokens=5).trace.run["requests"]["r0"]
        assert (told["turn"], told["taken"]) == (1, 0)

    def test_what_was_never_carried_out_is_not_told_as_applied(self, model: Any, answer: Any) -> None:
        replaces = answer(Prefilled, lambda e, a, t: a.adjust_prefill([5, 6, 7]), name="replaces")
        raises = answer(Prefilled, lambda e, a, t: 1 / 0, name="raises")
        session = Session(model, [replaces, raises])
        with pytest.raises(ModError):
            session.generate("hi")
        [result] = session.last_results
        assert result.trace.history().tokens == list(result.prompt_tokens)
        told = [(record.mod, record.action, record.status) for record in result.trace.records if record.mod]
        assert told == [("raises", "raised", "refused"), ("replaces", "adjust_prefill", "shadowed")]

    def test_a_failed_run_fails_again(self, model: Any, answer: Any) -> None:
        def make() -> Any:
            return answer(Added, lambda e, a, t: 1 / 0, step=4)

        with pytest.raises(ModError) as caught:
            Session(model, [make()]).generate("hi", max_new_tokens=20, seed=2)
        assert replay(caught.value.trace, model, [make()]).agrees

    def test_the_model_is_loaded_by_its_name_in_the_trace(self, session: Session) -> None:
        trace = session.generate("hi", max_new_tokens=4, seed=1).trace
        assert replay(trace).agrees

    def test_an_interrupted_batch_is_compared_request_by_request(self, model: Any, answer: Any) -> None:
        def make() -> Any:
            return answer(Added, lambda e, a, t: a.force_output([9]), step=2)

        session = Session(model)
        for record in session.stream(["hi", "there"], mods=[[make()], []], max_new_tokens=20, seed=2):
            if record.step == 6:
                break
        assert [r.reason for r in session.last_results] == ["force_output", "interrupted"]
        assert replay(session.last_results[0].trace, model, [[make()], []]).agrees

    def test_a_chat_is_replayed_as_a_chat(self, model: Any) -> None:
        @mod
        def reads_the_chat(event: Any, actions: Any, tokenizer: Any) -> Any:
            if event.step == 0:
                return actions.adjust_prefill(tokenizer.encode(event.conversation[0]["content"]))
            return None

        chat = [{"role": "user", "content": "hello"}]
        result = Session(model, [reads_the_chat]).generate(chat, max_new_tokens=4, seed=1)
        assert replay(result.trace, model, [reads_the_chat]).agrees

    def test_needs_the_same_model_and_mods(self, session: Session, model: Any, answer: Any) -> None:
        trace = session.generate("hi", max_new_tokens=2).trace
        with pytest.raises(TraceError, match=r"made with mods \[\], got \['tester'\]"):
            replay(trace, model, [answer(Added, lambda e, a, t: None)])
        other = Trace({**trace.run, "model": {**trace.run["model"], "tokenizer": "0"}}, trace.records)
        with pytest.raises(TraceError, match="tokenizer or size differs"):
            replay(other, model)


class TestArguments:
    def test_request_ids_never_repeat_so_that_dicts_keyed_by_them_do_not_mix_runs(self, model: Any) -> None:
        seen: dict[str, int] = {}

        @mod
        def counter(event: Any, actions: Any, tokenizer: Any) -> None:
            seen[event.request_id] = seen.get(event.request_id, 0) + 1

        session = Session(model, [counter])
        results = [session.generate("hi", max_new_tokens=2, seed=1) for _ in range(3)]
        assert list(seen.values()) == [8, 8, 8]
        for result, key in zip(results, seen, strict=True):
            assert result.trace.history(key) is result.trace.history("r0")

    def test_what_a_trace_keeps_must_be_plain_data(self, model: Any) -> None:
        with pytest.raises(TypeError, match="JSON-able, so that a trace can keep it"):
            mod(params={"x": torch.ones(2)})(lambda event, actions, tokenizer: None)
        with pytest.raises(PromptError, match="chat messages must be plain data"):
            Session(model).generate([{"role": "user", "content": "a", "extra": {1, 2}}])

    def test_mods_must_be_mods(self, model: Any) -> None:
        with pytest.raises(TypeError, match="is not a mod: decorate its handler"):
            Session(model, [lambda event, actions, tokenizer: None])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="one list for each of the 2 prompts"):
            Session(model).generate(["a", "b"], mods=[[]])
        with pytest.raises(TypeError, match="@mod wraps a function"):
            mod("handler")  # type: ignore[call-overload]

    def test_choices_are_checked(self, model: Any) -> None:
        with pytest.raises(ValueError, match="got 'ignore'; choose from raise, disable"):
            Session(model, on_mod_error="ignore")
        with pytest.raises(UnknownHookError, match=r"no hook matches 'blocks.\*.resid_post'"):
            Session(model, capture="blocks.*.resid_post")
        with pytest.raises(ValueError, match="got 1 seeds for 2 prompts"):
            Session(model).generate(["a", "b"], seed=[1])

    def test_everything_raised_on_purpose_is_a_workbench_error(self) -> None:
        assert all(issubclass(e, WorkbenchError) for e in (BudgetError, ModError, PromptError, TraceError))

    def test_results_show_themselves_escaped(self, model: Any, answer: Any) -> None:
        force = answer(ForwardPass, lambda e, a, t: a.force_output(t.encode("<script>alert(1)</script>")))
        result = Session(model, [force]).generate("hi")
        for shown in (result._repr_html_(), result.trace._repr_html_()):
            assert "<script>" not in shown
            assert "&lt;script&gt;" in shown
        assert str(result) == "<script>alert(1)</script>"


def test_long_runs_leave_no_hooks_behind(model: Any, answer: Any) -> None:
    before = {name: len(point._forward_hooks) for name, point in model._points.items()}
    session = Session(model, capture="blocks.*.hook_resid_post")
    for _ in range(5):
        session.generate(["a", "bc"], max_new_tokens=4)
    assert {name: len(point._forward_hooks) for name, point in model._points.items()} == before
