"""Calling generate: prompts, batches, limits, interruption, resuming, streaming, repeating."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch

from workbench import Added, ForwardPass, SamplingParams, Session, Trace, mod, replay
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

    @pytest.mark.parametrize("count", [0, -1])
    def test_max_new_tokens_is_at_least_one(self, session: Session, count: int) -> None:
        with pytest.raises(ValueError, match="max_new_tokens must be 1 or more"):
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
        cache = first.cache
        second = session.resume(first, [{"role": "tool", "content": "noon"}], max_new_tokens=4)
        assert second.cache is cache
        text = model.tokenizer.decode(second.prompt_tokens)
        assert text.endswith("\n[tool] noon\n[assistant] ")
        assert second.prompt_tokens[: len(first.prompt_tokens) + 3] == first.prompt_tokens + first.tokens
        fresh = session.generate(list(second.prompt_tokens), max_new_tokens=4, sampling=GREEDY)
        assert second.tokens == fresh.tokens
        fed = next(r.data["fed"] for r in second.trace.records if r.kind == "forward_pass")
        assert fed == len(second.prompt_tokens) - (len(first.prompt_tokens) + 2)

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
        assert replay(session.last_results[0].trace, model).agrees

    def test_a_failed_run_fails_again(self, model: Any, answer: Any) -> None:
        def make() -> Any:
            return answer(Added, lambda e, a, t: 1 / 0, step=4)

        with pytest.raises(ModError) as caught:
            Session(model, [make()]).generate("hi", max_new_tokens=20, seed=2)
        assert replay(caught.value.trace, model, [make()]).agrees

    def test_needs_the_same_model_and_mods(self, session: Session, model: Any, answer: Any) -> None:
        trace = session.generate("hi", max_new_tokens=2).trace
        with pytest.raises(TraceError, match=r"made with mods \[\], got \['tester'\]"):
            replay(trace, model, [answer(Added, lambda e, a, t: None)])
        other = Trace({**trace.run, "model": {**trace.run["model"], "tokenizer": "0"}}, trace.records)
        with pytest.raises(TraceError, match="tokenizer or size differs"):
            replay(other, model)


class TestArguments:
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
