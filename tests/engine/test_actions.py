"""Each action on each event it may answer: what becomes of the tokens, and what the trace says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from workbench import Added, Finished, ForwardPass, Prefilled, Removed, Sampled, SamplingParams, Session, mod
from workbench.errors import InvalidActionError, ModError

GREEDY = SamplingParams(temperature=0)
PROMPT = [5, 6, 7, 8]
ABC = [68, 69, 70]


@pytest.fixture(scope="module")
def plain(model: Any) -> tuple[int, ...]:
    """What the model says by itself, greedily."""
    return Session(model).generate(PROMPT, max_new_tokens=8, sampling=GREEDY).tokens


def run(model: Any, *mods: Any, **settings: Any) -> Any:
    return Session(model, mods).generate(PROMPT, **{"max_new_tokens": 8, "sampling": GREEDY, **settings})


def actions_of(result: Any, status: str = "applied") -> list[tuple[str | None, str | None]]:
    return [(r.mod, r.action) for r in result.trace.records if r.kind == "action" and r.status == status]


class TestForceTokens:
    def test_on_forward_pass_replaces_the_draw(self, model: Any, plain: Any, answer: Any) -> None:
        result = run(model, answer(ForwardPass, lambda e, a, t: a.force_tokens(ABC), step=3))
        assert result.tokens[:5] == (*plain[:2], *ABC)
        assert not any(r.kind == "sampled" and r.step == 3 for r in result.trace.records)

    def test_on_sampled_replaces_the_drawn_token(self, model: Any, plain: Any, answer: Any) -> None:
        result = run(model, answer(Sampled, lambda e, a, t: a.force_tokens(ABC), step=3))
        assert result.tokens[:5] == (*plain[:2], *ABC)
        drawn = [r for r in result.trace.records if r.kind == "sampled" and r.step == 3]
        assert drawn[0].tokens == (plain[2],)

    def test_on_added_comes_after_the_added_token(self, model: Any, plain: Any, answer: Any) -> None:
        result = run(model, answer(Added, lambda e, a, t: a.force_tokens(ABC), step=3))
        assert result.tokens[:6] == (*plain[:3], *ABC)

    def test_a_batch_is_fed_in_one_pass_and_scored(self, model: Any, answer: Any) -> None:
        result = run(model, answer(Added, lambda e, a, t: a.force_tokens(ABC), step=2))
        passes = [r.data["fed"] for r in result.trace.records if r.kind == "forward_pass"]
        assert passes[:3] == [4, 1, 4]
        forced = [life for life in result.trace.history().every if life.origin == "forced"]
        logits = model.forward([PROMPT + list(result.tokens)], model.new_cache(), keep=[12]).logits[0]
        for life in forced:
            expected = torch.log_softmax(logits[life.position - 1], -1)[life.token]
            assert life.raw_logprob == pytest.approx(float(expected), abs=1e-4)

    def test_more_than_fits_is_cut_and_said(self, model: Any, answer: Any) -> None:
        result = run(model, answer(ForwardPass, lambda e, a, t: a.force_tokens(ABC * 5)), max_new_tokens=7)
        assert result.tokens == tuple((ABC * 5)[:7])
        assert result.reason == "max_tokens"
        notes = [r.data["message"] for r in result.trace.records if r.kind == "warning"]
        assert notes == ["8 of 15 tokens cut by max_new_tokens"]

    def test_a_forced_end_token_ends_the_output(self, model: Any, answer: Any) -> None:
        result = run(model, answer(ForwardPass, lambda e, a, t: a.force_tokens([68, 2]), step=2))
        assert result.reason == "eos"
        assert result.tokens[-1] == 2
        assert result.text.endswith("a")


class TestBacktrack:
    def test_on_added_counts_the_added_token(self, model: Any, plain: Any, answer: Any) -> None:
        result = run(model, answer(Added, lambda e, a, t: a.backtrack(2, [68]), step=4))
        assert result.tokens[:3] == (*plain[:2], 68)

    def test_on_sampled_the_drawn_token_does_not_count(self, model: Any, plain: Any, answer: Any) -> None:
        result = run(model, answer(Sampled, lambda e, a, t: a.backtrack(2, [68]), step=4))
        assert result.tokens[:2] == (plain[0], 68)

    def test_on_forward_pass_counts_committed_tokens(self, model: Any, plain: Any, answer: Any) -> None:
        result = run(model, answer(ForwardPass, lambda e, a, t: a.backtrack(2, [68]), step=4))
        assert result.tokens[:2] == (plain[0], 68)

    def test_without_tokens_the_model_goes_on_from_there(self, model: Any, plain: Any, answer: Any) -> None:
        result = run(model, answer(Added, lambda e, a, t: a.backtrack(3), step=5))
        assert result.tokens == plain  # greedy: it says the same again

    def test_of_nothing_on_sampled_draws_again(self, model: Any, plain: Any, answer: Any) -> None:
        result = run(model, answer(Sampled, lambda e, a, t: a.backtrack(0), step=2))
        assert result.tokens == plain
        assert result.forward_tokens == 8  # one token was fed twice

    def test_every_mod_hears_what_was_removed(self, model: Any, answer: Any) -> None:
        heard = []

        @mod
        def listener(event: Any, actions: Any, tokenizer: Any) -> None:
            if isinstance(event, Removed):
                heard.append((event.position, event.tokens, event.n))

        result = run(model, answer(Added, lambda e, a, t: a.backtrack(2), step=3), listener)
        removed = [r for r in result.trace.records if r.kind == "removed"]
        assert heard == [(5, removed[0].tokens, 2)]
        assert removed[0].mod == "tester"

    def test_past_the_first_generated_token_is_refused(self, model: Any, answer: Any) -> None:
        with pytest.raises(InvalidActionError, match=r"mod 'tester' on Added at step 2 .* 2 are committed") as caught:
            run(model, answer(Added, lambda e, a, t: a.backtrack(3), step=2))
        assert caught.value.trace.history().live[-1].position == 5


class TestFinishing:
    @pytest.mark.parametrize("kind", [Prefilled, ForwardPass, Sampled, Added])
    def test_force_output_replaces_everything(self, model: Any, answer: Any, kind: type) -> None:
        result = run(model, answer(kind, lambda e, a, t: a.force_output(ABC)))
        assert (result.tokens, result.reason, result.text) == (tuple(ABC), "force_output", "abc")
        passes = sum(r.kind == "forward_pass" for r in result.trace.records)
        assert passes == (0 if kind is Prefilled else 1)

    @pytest.mark.parametrize("kind", [Prefilled, ForwardPass, Sampled, Added])
    def test_tool_calls_end_with_the_payload(self, model: Any, answer: Any, kind: type) -> None:
        payload = [{"name": "search", "arguments": {"q": "x"}}]
        result = run(model, answer(kind, lambda e, a, t: a.tool_calls(payload)))
        assert (result.reason, result.tool_calls) == ("tool_calls", payload)

    @pytest.mark.parametrize("kind", [Prefilled, ForwardPass, Sampled, Added])
    def test_emit_error_ends_with_the_message(self, model: Any, answer: Any, kind: type) -> None:
        result = run(model, answer(kind, lambda e, a, t: a.emit_error("no more")))
        assert (result.reason, result.error) == ("error", "no more")

    def test_an_answer_that_comes_too_late_is_shadowed(self, model: Any, answer: Any) -> None:
        heard: list[Any] = []

        @mod
        def late(event: Any, actions: Any, tokenizer: Any) -> Any:
            if isinstance(event, Finished):
                heard.append(event.reason)
            return actions.force_tokens([70]) if isinstance(event, Added) else None

        output = answer(ForwardPass, lambda e, a, t: a.force_output(ABC))
        result = run(model, output, late, max_forward_tokens=2)
        assert result.tokens == tuple(ABC)
        assert heard == ["force_output"]
        assert actions_of(result, "shadowed") == [("late", "force_tokens")]

    def test_finished_is_heard_once_and_frees_the_state(self, model: Any) -> None:
        heard, kept = [], []

        @mod
        def listener(event: Any, actions: Any, tokenizer: Any) -> None:
            event.state["steps"] = event.state.get("steps", 0) + 1
            kept.append(event.state)
            if isinstance(event, Finished):
                heard.append((event.reason, event.state["steps"] > 8))

        run(model, listener)
        assert heard == [("max_tokens", True)]
        assert kept[0] is kept[-1]
        assert kept[0] == {}


class TestLogits:
    def test_edits_chain_and_each_mod_sees_the_earlier_ones(self, model: Any) -> None:
        seen = []

        def adder(amount: float) -> Any:
            @mod(name=f"add{amount}")
            def handler(event: Any, actions: Any, tokenizer: Any) -> Any:
                if isinstance(event, ForwardPass):
                    seen.append(float((event.logits - event.raw_logits)[9]))
                    changed = event.logits.clone()
                    changed[9] += amount
                    return actions.adjust_logits(changed)
                return None

            return handler

        result = run(model, adder(100.0), adder(50.0), max_new_tokens=2)
        assert result.tokens == (9, 9)
        assert seen == pytest.approx([0.0, 100.0, 0.0, 100.0], abs=1e-4)

    @pytest.mark.parametrize("form", [lambda x: x, lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x[None]])
    def test_tensor_array_list_and_one_row_matrix_are_the_same(self, model: Any, answer: Any, form: Any) -> None:
        def only_nine(event: Any, actions: Any, tokenizer: Any) -> Any:
            logits = torch.full_like(event.logits, -torch.inf)
            logits[9] = 0.0
            return actions.adjusted_logits(form(logits))

        result = run(model, answer(ForwardPass, only_nine))
        assert result.tokens[0] == 9
        drawn = next(r for r in result.trace.records if r.kind == "sampled")
        assert drawn.data["removed_mass"] == pytest.approx(1 - np.exp(drawn.raw_logprob), abs=1e-5)
        assert drawn.raw_logprob < -1
        assert drawn.logprob == 0.0

    def test_token_temp_zero_is_argmax_for_that_step(self, model: Any, plain: Any, answer: Any) -> None:
        chosen = answer(ForwardPass, lambda e, a, t: a.adjust_logits(e.logits, token_temp=0), step=1)
        result = run(model, chosen, sampling=SamplingParams(temperature=5.0), seed=4)
        assert result.tokens[0] == plain[0]

    def test_a_later_edit_keeps_an_earlier_temperature(self, model: Any, plain: Any, answer: Any) -> None:
        cold = answer(ForwardPass, lambda e, a, t: a.adjust_logits(e.logits, token_temp=0), name="cold")
        plainly = answer(ForwardPass, lambda e, a, t: a.adjust_logits(e.logits), name="plainly")
        result = run(model, cold, plainly, sampling=SamplingParams(temperature=9.0), seed=4)
        assert result.tokens[0] == plain[0]

    def test_writing_into_raw_logits_reaches_nobody(self, model: Any, plain: Any) -> None:
        @mod
        def vandal(event: Any, actions: Any, tokenizer: Any) -> None:
            if isinstance(event, ForwardPass):
                event.raw_logits[:] = 0.0
                event.raw_logits[77] = 9.0

        @mod
        def relay(event: Any, actions: Any, tokenizer: Any) -> Any:
            return actions.adjust_logits(event.logits) if isinstance(event, ForwardPass) else None

        assert run(model, vandal, relay).tokens == plain

    def test_masks_of_large_negative_numbers_count_as_removed(self, model: Any, answer: Any) -> None:
        def mask(event: Any, actions: Any, tokenizer: Any) -> Any:
            logits = torch.full_like(event.logits, -1e9)
            logits[9] = 0.0
            return actions.adjust_logits(logits)

        result = run(model, answer(ForwardPass, mask))
        drawn = next(r for r in result.trace.records if r.kind == "sampled")
        assert drawn.data["removed_mass"] == pytest.approx(1 - np.exp(drawn.raw_logprob), abs=1e-5)

    def test_writing_in_place_without_returning_it_is_said(self, model: Any, plain: Any, answer: Any) -> None:
        def careless(event: Any, actions: Any, tokenizer: Any) -> None:
            event.logits[:] = -torch.inf

        with pytest.warns(UserWarning, match=r"'tester' wrote into event.logits without returning"):
            result = run(model, answer(ForwardPass, careless))
        assert result.tokens == plain


class TestShadowing:
    def test_the_first_structural_action_wins_and_the_other_is_on_record(self, model: Any, answer: Any) -> None:
        first = answer(ForwardPass, lambda e, a, t: a.force_tokens([68]), name="first")
        second = answer(ForwardPass, lambda e, a, t: a.force_tokens([69]), name="second")
        result = run(model, first, second)
        assert result.tokens[0] == 68
        assert actions_of(result) == [("first", "force_tokens")]
        assert actions_of(result, "shadowed") == [("second", "force_tokens")]

    def test_logit_edits_are_moot_beside_a_structural_action(self, model: Any, answer: Any) -> None:
        edit = answer(ForwardPass, lambda e, a, t: a.adjust_logits(e.logits), name="editor")
        force = answer(ForwardPass, lambda e, a, t: a.force_tokens([68]), name="forcer")
        result = run(model, edit, force)
        assert actions_of(result, "shadowed") == [("editor", "adjust_logits")]


class TestPrefill:
    def test_adjust_prefill_replaces_prompt_and_limit(self, model: Any, answer: Any) -> None:
        result = run(model, answer(Prefilled, lambda e, a, t: a.adjust_prefill([9, 9, 9], max_steps=3)))
        assert result.prompt_tokens == (9, 9, 9)
        assert len(result.tokens) == 3
        assert result.tokens == Session(model).generate([9, 9, 9], max_new_tokens=3, sampling=GREEDY).tokens
        assert result.trace.history().prompt == [9, 9, 9]

    def test_a_later_prompt_keeps_an_earlier_limit(self, model: Any, answer: Any) -> None:
        one = answer(Prefilled, lambda e, a, t: a.adjust_prefill([9], max_steps=2), name="one")
        two = answer(Prefilled, lambda e, a, t: a.adjust_prefill([8, 8]), name="two")
        result = run(model, one, two)
        assert (result.prompt_tokens, len(result.tokens)) == ((8, 8), 2)

    def test_later_mods_see_the_new_prompt(self, model: Any, answer: Any) -> None:
        seen = []
        look = answer(Prefilled, lambda e, a, t: seen.append((e.tokens, e.max_new_tokens)), name="look")
        run(model, answer(Prefilled, lambda e, a, t: a.adjust_prefill([9, 9], max_steps=2)), look)
        assert seen == [((9, 9), 2)]


class TestEditing:
    HOOK = "blocks.1.hook_resid_post"

    def test_steering_acts_from_the_next_pass_until_cleared(self, model: Any, plain: Any) -> None:
        vector = torch.linspace(-8, 8, 32)

        @mod
        def steerer(event: Any, actions: Any, tokenizer: Any) -> Any:
            if isinstance(event, Added) and event.step == 2:
                return actions.steer(self.HOOK, vector, scale=2.0)
            if isinstance(event, Added) and event.step == 4:
                return actions.clear_edits()
            return None

        result = Session(model, [steerer], capture=self.HOOK).generate(PROMPT, max_new_tokens=8, sampling=GREEDY)
        spans = {r.step: r.data.get("edits") for r in result.trace.records if r.kind == "forward_pass"}
        assert [step for step, edits in spans.items() if edits] == [3, 4]
        assert result.tokens[:2] == plain[:2]
        assert result.tokens != plain
        edited = [life.position for life in result.trace.history().live if life.edits == ("e0",)]
        assert edited == [5, 6]
        note = next(r for r in result.trace.records if r.action == "steer")
        assert note.data["scale"] == 2.0
        assert note.data["norm"] == pytest.approx(float(vector.norm()))

    def test_may_accompany_one_other_action(self, model: Any, answer: Any) -> None:
        vector = torch.linspace(-1, 1, 32)
        both = answer(Added, lambda e, a, t: [a.steer(self.HOOK, vector), a.backtrack(1, [68])], step=2)
        result = run(model, both)
        assert result.tokens[1] == 68
        assert actions_of(result) == [("tester", "steer"), ("tester", "backtrack")]

    def test_an_edit_function_gets_positions_first(self, model: Any, answer: Any) -> None:
        shapes = []

        def zero(value: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(value.shape))
            return torch.zeros_like(value)

        run(model, answer(Prefilled, lambda e, a, t: a.edit(self.HOOK, zero)), max_new_tokens=2)
        assert shapes == [(4, 32), (1, 32)]

    def test_clear_edits_ends_ones_own_only(self, model: Any, answer: Any, plain: Any) -> None:
        vector = torch.linspace(-8, 8, 32)
        steers = answer(Prefilled, lambda e, a, t: a.steer(self.HOOK, vector), name="steers")
        clears = answer(Added, lambda e, a, t: a.clear_edits(), step=1, name="clears")
        result = run(model, steers, clears)
        assert all(life.edits == ("e0",) for life in result.trace.history().live[:-1])

    def test_many_edits_at_once_are_said(self, model: Any) -> None:
        @mod
        def piles_up(event: Any, actions: Any, tokenizer: Any) -> Any:
            return actions.steer(self.HOOK, torch.linspace(-1, 1, 32)) if isinstance(event, ForwardPass) else None

        with pytest.warns(UserWarning, match=r"has 8 edits active at once .* they add up"):
            run(model, piles_up, max_new_tokens=10)

    def test_a_token_fed_again_without_an_edit_no_longer_has_it(self, model: Any) -> None:
        @mod
        def clears_and_goes_back(event: Any, actions: Any, tokenizer: Any) -> Any:
            if isinstance(event, Prefilled):
                return actions.steer(self.HOOK, torch.linspace(-1, 1, 32))
            if isinstance(event, Added) and event.step == 3:
                return [actions.clear_edits(), actions.backtrack(1)]
            return None

        result = run(model, clears_and_goes_back)
        assert [life.edits for life in result.trace.history().live[:3]] == [("e0",), (), ()]

    def test_captured_activations_can_be_learned_from(self, model: Any) -> None:
        result = Session(model, capture=self.HOOK).generate(PROMPT, max_new_tokens=2)
        probe = torch.nn.Linear(32, 1)
        probe(result.trace.activation(self.HOOK, result.trace.history().live[0])).sum().backward()
        assert probe.weight.grad is not None

    def test_an_edit_that_changes_nothing_is_said(self, model: Any, answer: Any) -> None:
        with pytest.warns(UserWarning, match="edit e0 of mod 'tester' at blocks.1.hook_resid_post changed nothing"):
            run(model, answer(Prefilled, lambda e, a, t: a.edit(self.HOOK, lambda x: x)))

    def test_a_neighbour_in_the_batch_is_not_steered(self, model: Any, answer: Any, plain: Any) -> None:
        steer = answer(Prefilled, lambda e, a, t: a.steer(self.HOOK, torch.linspace(-9, 9, 32)))
        one, two = Session(model).generate([PROMPT, PROMPT], mods=[[steer], []], max_new_tokens=8, sampling=GREEDY)
        assert two.tokens == plain
        assert one.tokens != plain

    @pytest.mark.parametrize(
        ("fn", "message"),
        [
            (lambda x: x[:, :3], r"edit e0 of mod 'tester' .* returned \(4, 3\)"),
            (lambda x: "no", r"returned str; it must be a tensor"),
            (lambda x: x / 0, r"gave NaN or infinity"),
            (lambda x: 1 / 0, r"raised ZeroDivisionError"),
        ],
    )
    def test_a_bad_edit_function_names_its_mod(self, model: Any, answer: Any, fn: Any, message: str) -> None:
        with pytest.raises((InvalidActionError, ModError), match=message):
            run(model, answer(Prefilled, lambda e, a, t: a.edit(self.HOOK, fn)))
        assert run(model).tokens  # the model is usable
        mods = [answer(Prefilled, lambda e, a, t: a.edit(self.HOOK, fn))]
        survived = Session(model, mods, on_mod_error="disable").generate(PROMPT, max_new_tokens=8, sampling=GREEDY)
        assert survived.tokens == run(model).tokens
        assert ("tester", "raised") in actions_of(survived, "refused")


BAD = [
    (ForwardPass, lambda e, a, t: a.adjust_prefill([5]), r"adjust_prefill\(\) can't answer this event.*Allowed here: noop"),
    (Prefilled, lambda e, a, t: a.backtrack(1), r"backtrack\(\) can't answer this event"),
    (Removed, lambda e, a, t: a.force_tokens([5]), r"can't answer this event.*Allowed here: noop\."),
    (Finished, lambda e, a, t: a.force_tokens([5]), r"can't answer this event"),
    (Added, lambda e, a, t: a.force_tokens([]), r"force_tokens\(\) got no tokens"),
    (Added, lambda e, a, t: a.force_tokens([260]), r"token id 260 is outside the vocabulary 0\.\.259"),
    (Added, lambda e, a, t: a.force_tokens([-1]), r"token id -1 is outside"),
    (Added, lambda e, a, t: a.force_tokens(["a"]), r"needs token ids .*got 'a'; encode text first"),
    (Added, lambda e, a, t: a.force_tokens([1.5]), r"needs token ids .*got 1\.5"),
    (Added, lambda e, a, t: a.backtrack(-1), r"must be a whole number of tokens"),
    (Added, lambda e, a, t: a.backtrack(9), r"reaches past the first generated token"),
    (ForwardPass, lambda e, a, t: a.adjust_logits(e.logits[:5]), r"got shape \(5,\); it must be \(260,\)"),
    (ForwardPass, lambda e, a, t: a.adjust_logits(e.logits * torch.nan), r"adjust_logits\(\) got NaN"),
    (ForwardPass, lambda e, a, t: a.adjust_logits(e.logits + torch.inf), r"got \+inf"),
    (ForwardPass, lambda e, a, t: a.adjust_logits(e.logits - torch.inf), r"bans every token"),
    (ForwardPass, lambda e, a, t: a.adjust_logits("logits"), r"needs a tensor, array or list"),
    (ForwardPass, lambda e, a, t: a.adjust_logits(e.logits, token_temp=-1), r"token_temp=-1\) must be 0 or above"),
    (Added, lambda e, a, t: "force", r"it answered with str 'force': return None"),
    (Added, lambda e, a, t: [a.force_tokens([5]), a.backtrack(1)], r"more than one action besides steer"),
    (Added, lambda e, a, t: a.steer("blocks.1.hook_resid_pots", torch.ones(32)), r"Did you mean 'blocks.1.hook_resid_post'"),
    (Added, lambda e, a, t: a.steer("blocks.1.hook_resid_post", torch.ones(31)), r"shape \(32,\), got \(31,\)"),
    (Added, lambda e, a, t: a.steer("blocks.1.hook_resid_post", torch.ones(32) / 0), r"not finite"),
    (Added, lambda e, a, t: a.edit("blocks.1.hook_resid_post", 3), r"needs a function of a tensor"),
    (Added, lambda e, a, t: a.tool_calls({1, 2}), r"JSON-able payload"),
    (Added, lambda e, a, t: a.emit_error(""), r"needs a message"),
    (Prefilled, lambda e, a, t: a.adjust_prefill([]), r"got no tokens"),
    (Prefilled, lambda e, a, t: a.adjust_prefill([5] * 300), r"gives 300 tokens; the context holds 256"),
    (Prefilled, lambda e, a, t: a.adjust_prefill([5], max_steps=0), r"whole number above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "give", "message"), BAD)
def test_what_an_event_does_not_allow_is_refused_and_changes_nothing(
    model: Any, answer: Any, plain: Any, kind: type, give: Any, message: str
) -> None:
    helper = [answer(Added, lambda e, a, t: a.backtrack(1), step=3, name="helper")] if kind is Removed else []
    with pytest.raises(InvalidActionError, match=message) as caught:
        run(model, answer(kind, give), *helper)
    assert "mod 'tester' on " + kind.__name__ in str(caught.value)
    refused = [r for r in caught.value.trace.records if r.status == "refused"]
    assert [r.action for r in refused] == ["raised"]
    # With "disable" the run goes on as if the mod had not been there.
    result = Session(model, [answer(kind, give), *helper], on_mod_error="disable").generate(
        PROMPT, max_new_tokens=8, sampling=GREEDY
    )
    assert result.tokens == plain


def test_a_mod_that_raises_is_named_with_event_and_step(model: Any, answer: Any) -> None:
    with pytest.raises(ModError, match=r"mod 'tester' raised KeyError on Sampled at step 2 .*'missing'") as caught:
        run(model, answer(Sampled, lambda e, a, t: {}["missing"], step=2))
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.trace.history().reason == "error"


def test_what_an_earlier_mod_did_is_on_record_when_a_later_one_raises(model: Any, answer: Any) -> None:
    first = answer(ForwardPass, lambda e, a, t: a.force_tokens([68]), name="first")
    with pytest.raises(ModError) as caught:
        run(model, first, answer(ForwardPass, lambda e, a, t: 1 / 0))
    told = [(r.mod, r.action, r.status) for r in caught.value.trace.records if r.kind == "action"]
    assert told == [("tester", "raised", "refused"), ("first", "force_tokens", "shadowed")]  # nothing was forced


def test_span_logits_are_those_of_the_forced_batch(model: Any, answer: Any) -> None:
    shapes: list[Any] = []

    @mod
    def look(event: Any, actions: Any, tokenizer: Any) -> None:
        if isinstance(event, ForwardPass):
            shapes.append((event.step, tuple(event.span_logits.shape)))
            assert torch.equal(event.span_logits[-1], event.raw_logits)

    run(model, answer(Added, lambda e, a, t: a.force_tokens(ABC), step=1), look, max_new_tokens=5)
    assert shapes == [(1, (1, 260)), (2, (4, 260))]


def test_a_type_error_inside_a_handler_is_not_retried(model: Any) -> None:
    calls = []

    @mod
    def broken(event: Any, actions: Any, tokenizer: Any) -> None:
        calls.append(event)
        raise TypeError("mine")

    with pytest.raises(ModError, match="raised TypeError on Prefilled at step 0"):
        run(model, broken)
    assert len(calls) == 1


def test_each_handler_is_called_once_per_event(model: Any) -> None:
    calls: list[tuple[str, int]] = []

    @mod
    def counter(event: Any, actions: Any, tokenizer: Any) -> None:
        calls.append((type(event).__name__, event.step))

    run(model, counter, max_new_tokens=2)
    assert calls == [
        ("Prefilled", 0), ("ForwardPass", 1), ("Sampled", 1), ("Added", 1),
        ("ForwardPass", 2), ("Sampled", 2), ("Added", 2), ("Finished", 2),
    ]  # fmt: skip
