"""Under the engine: any script of actions ends in the logits of a fresh pass, on prefix, band and suffix together."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from carry_cases import FAMILIES, LAYERS, PAUSE, carrier, random_adapter, relative
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_runs import Account
from torch import Tensor

from workbench import Added, Finished, ForwardPass, Prefilled, Removed, SamplingParams, Session, mod
from workbench.carry import CarryModel, pack, reference_logits, reference_states
from workbench.engine import ActionBuilder, Event
from workbench.errors import CarryError, InvalidActionError, PromptError, UnknownHookError
from workbench.flows import FlowEngine, FlowQuestion
from workbench.models import Cache, Edit, HookedModel, Tokenizer

LOGITS = 1e-3
GREEDY = SamplingParams(temperature=0)
HOOKS = (
    "blocks.0.hook_resid_post",
    "blocks.1.hook_resid_pre",
    "carry.s",
    "blocks.2.hook_mlp_out",
    "carry.x",
    "carry.e",
)
PROMPT = [5, 99, 123, 7, 43, 8, 200, 17, 64, 31, 250]


class Script(Account):
    """A mod that answers with what a list of numbers says, and compares every pass with a fresh one."""

    model: CarryModel
    passes = 0

    def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        if isinstance(event, ForwardPass):
            self.passes += 1
            tokens = list(event.request.tokens)
            self.prompt = tokens[: len(tokens) - len(self.heard)]
            assert (event.raw_logits - self.twin(tokens)).abs().max() < LOGITS
        elif isinstance(event, Added):
            self.heard += event.tokens
        elif isinstance(event, Removed):
            self.forget(event)
        if isinstance(event, (Prefilled, Removed, Finished)):
            return None
        return self.answer(event, actions)

    def twin(self, tokens: list[int]) -> Tensor:
        """The last logits of a fresh pass over the tokens, with the same edits at the same positions."""
        length = self.prompt.index(PAUSE) if PAUSE in self.prompt else len(self.prompt)
        cache = self.model.new_cache(prompt_lengths=[length])
        return self.model.forward([tokens], cache, edits=self.edits(self.edits_at.items())).logits[0][-1]

    def answer(self, event: Event, actions: ActionBuilder) -> Any:
        kind, size, content = next(self.moves, (0, 0, 0))
        tokens = [4 + (content * 37 + i) % 250 for i in range(size)]
        back = min(size, len(self.heard))
        found: list[Any] = self.steering(actions, HOOKS[(kind + size) % len(HOOKS)], content)
        if kind == 1 and size:
            found.append(actions.force_tokens(tokens))
        elif kind == 2:
            found.append(actions.backtrack(back, tokens[: content % 4]))
        elif kind == 3:
            found.append(actions.backtrack(back))
        return found


moves = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), max_size=16)


def play(
    model: CarryModel, scripts: list[list[tuple[int, int, int]]], prompts: list[list[int]], pauses: int, *, steer: bool
) -> tuple[list[Script], list[Any]]:
    mods = [Script(model, own, f"r{i}", steer=steer) for i, own in enumerate(scripts)]
    session = Session(model, capture="carry.*", sinks=[script.listen for script in mods])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*edits active at once|.*never changed")
        results = session.generate(
            prompts, max_new_tokens=8, seed=[7] * len(prompts), mods=[[model.pausing(pauses), one] for one in mods],
            sampling=SamplingParams(temperature=0.8), max_forward_tokens=60,
        )  # fmt: skip
    return mods, results


@settings(max_examples=25)
@given(
    family=st.sampled_from(FAMILIES),
    script=moves,
    prompt=st.lists(st.integers(4, 250), min_size=1, max_size=12),
    pauses=st.integers(0, 3),
    loops=st.integers(0, 2),
    steer=st.booleans(),
)
def test_after_any_script_of_actions_the_logits_are_those_of_a_fresh_pass(
    family: str, script: list[tuple[int, int, int]], prompt: list[int], pauses: int, loops: int, steer: bool
) -> None:
    mods, results = play(carrier(family, loops=loops), [script], [prompt], pauses, steer=steer)
    held = results[0].lane.cache
    assert held.prefix.lengths == held.band.lengths == held.suffix.lengths
    assert len(held.states[0]) == held.lengths[0] - held.prompt_lengths[0] + 1
    assert mods[0].passes


@settings(max_examples=6)
@given(scripts=st.lists(moves, min_size=2, max_size=3), steer=st.booleans(), pauses=st.integers(0, 2))
def test_a_row_of_a_batch_does_what_it_does_alone(
    scripts: list[list[tuple[int, int, int]]], steer: bool, pauses: int
) -> None:
    model = carrier("gemma3")
    prompts = [[5 + 11 * i] * (1 + 3 * i) for i in range(len(scripts))]
    _, together = play(model, scripts, prompts, pauses, steer=steer)
    for script, prompt, result in zip(scripts, prompts, together, strict=True):
        _, [alone] = play(model, [script], [prompt], pauses, steer=steer)
        assert (result.tokens, result.reason) == (alone.tokens, alone.reason)


def test_the_check_above_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A band cache whose states stay behind after a backtrack is caught."""
    from workbench.carry.cache import CarryCache

    def forgetful(self: CarryCache, row: int, n: int) -> None:
        for store in (self.prefix, self.band, self.suffix):
            store.rewind(row, n)

    monkeypatch.setattr(CarryCache, "rewind", forgetful)
    with pytest.raises(Exception, match="script"):
        play(carrier(), [[(0, 0, 1)] * 7 + [(2, 3, 7)] + [(0, 0, 1)] * 9], [PROMPT], 2, steer=False)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pauses", [0, 1, 4])
def test_the_engine_generates_what_generate_does(family: str, pauses: int) -> None:
    model = carrier(family, pauses=pauses)
    prompts = [PROMPT, [31, 4], [90] * 15]
    results = Session(model, [model.pausing()]).generate(prompts, max_new_tokens=8, sampling=GREEDY, seed=0)
    outputs = model.generate(prompts, max_new_tokens=8)
    assert [result.tokens for result in results] == [output.tokens for output in outputs]
    assert all(result.prompt_tokens[len(p) :] == (PAUSE,) * pauses for result, p in zip(results, prompts, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_captures_are_the_values_of_the_slow_scan(family: str) -> None:
    model = carrier(family)
    names = ["carry.e", "carry.x", "carry.s", *(f"blocks.{n}.hook_resid_post" for n in range(LAYERS))]
    batch = pack([(PROMPT, 3, [77, 78])], PAUSE)
    tokens, cache = batch.ids[0].tolist(), model.new_cache()
    parts = [model.forward([part], cache, capture=names, keep=[len(part)]) for part in (tokens[:14], tokens[14:])]
    found = {name: torch.cat([part.activations[name][0] for part in parts]) for name in names}
    x, s, _ = reference_states(
        model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths, band=(1, 3), loops=2
    )
    assert relative(found["carry.x"], x[0]) < 1e-5
    assert relative(found["carry.s"], s[0]) < 1e-5
    assert torch.equal(found["carry.s"], found["blocks.2.hook_resid_post"])
    assert torch.equal(found["carry.e"], found["blocks.0.hook_resid_post"])
    logits = torch.cat([part.logits[0] for part in parts])
    slow = reference_logits(
        model.blocks, model.adapter, batch.ids, batch.mask, batch.prompt_lengths, band=(1, 3), loops=2
    )
    assert relative(logits, slow[0]) < 1e-5
    assert relative(model.unembed(found["blocks.3.hook_resid_post"]), slow[0]) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_every_offered_hook_gives_one_value_per_fed_position(family: str) -> None:
    model = carrier(family)
    tokens = [[*PROMPT, PAUSE, PAUSE, 8], [5, 6, PAUSE, PAUSE]]
    whole = model.forward(tokens, model.new_cache(2), capture=model.hook_names).activations
    cache = model.new_cache(2)
    model.forward([[*PROMPT, PAUSE], [5, 6, PAUSE]], cache)
    rest = model.forward([[PAUSE, 8], [PAUSE]], cache, capture=model.hook_names).activations
    for name in model.hook_names:
        for row, (ids, new) in enumerate(zip(tokens, (2, 1), strict=True)):
            assert whole[name][row].shape[0] == len(ids)
            tail, later = whole[name][row][-new:], rest[name][row]
            if name.endswith(("hook_pattern", "hook_attn_scores")):
                assert later.shape[-1] == tail.shape[-1] == len(ids)
            finite = torch.isfinite(tail)
            assert torch.equal(finite, torch.isfinite(later))
            torch.testing.assert_close(later[finite], tail[finite], rtol=1e-4, atol=1e-4)
        if name.endswith("hook_pattern"):
            torch.testing.assert_close(whole[name][0].sum(-1), torch.ones_like(whole[name][0].sum(-1)))


def test_an_edit_of_the_carried_state_changes_what_follows_as_an_edit_of_a_residual_does() -> None:
    model = carrier()
    tokens = [*PROMPT, PAUSE, PAUSE, PAUSE, 9]
    vector = torch.linspace(-2, 2, 32)
    plain = model.forward([tokens], model.new_cache(), keep=[len(tokens)]).logits[0]
    found = []
    for hook in ("carry.s", "blocks.2.hook_resid_post"):
        edits = [Edit(hook=hook, row=0, start=12, stop=13, fn=lambda x: x + vector)]
        found.append(model.forward([tokens], model.new_cache(), edits=edits, keep=[len(tokens)]).logits[0])
    assert torch.equal(*found)
    assert torch.equal(found[0][:12], plain[:12])
    assert bool(((found[0] - plain)[12:].abs().max(-1).values > 1e-3).all())


def test_an_attention_map_can_be_edited_at_one_position() -> None:
    model = carrier()
    tokens = [*PROMPT, PAUSE, PAUSE]
    seen: list[tuple[int, ...]] = []

    def uniform(value: Tensor) -> Tensor:
        seen.append(tuple(value.shape))
        return torch.full_like(value, 1 / value.shape[-1])

    edits = [Edit(hook="blocks.1.attn.hook_pattern", row=0, start=12, stop=13, fn=uniform)]
    name = "blocks.1.attn.hook_pattern"
    found = model.forward([tokens], model.new_cache(), capture=[name], edits=edits).activations[name][0]
    assert seen == [(1, 4, 13)]
    assert bool((found[12] == 1 / 13).all())
    assert not bool((found[11] == 1 / 13).any())


def test_a_failed_pass_leaves_no_mark() -> None:
    model, cache = carrier(), carrier().new_cache(2)
    first = [[*PROMPT, PAUSE, PAUSE], [5, 6, PAUSE]]
    model.forward(first, cache)

    def broken(_value: Tensor) -> Tensor:
        raise RuntimeError("broken edit")

    held = (cache.lengths, cache.band.lengths, cache.suffix.lengths, [len(s) for s in cache.states])
    edits = [Edit(hook="carry.s", row=1, start=1, stop=2, fn=broken)]
    with pytest.raises(RuntimeError, match="broken edit"):
        model.forward([[8, 9], [10, 11, 12]], cache, edits=edits)
    assert held == (cache.lengths, cache.band.lengths, cache.suffix.lengths, [len(s) for s in cache.states])
    again = model.forward([[8, 9], [10, 11, 12]], cache).logits
    fresh = model.forward([[*first[0], 8, 9], [*first[1], 10, 11, 12]], model.new_cache(2)).logits
    assert all(relative(one, other) < 1e-5 for one, other in zip(again, fresh, strict=True))


def test_a_fork_goes_on_where_its_row_stands() -> None:
    model, cache = carrier("gemma3"), carrier("gemma3").new_cache()
    model.forward([[*PROMPT, PAUSE, PAUSE, 9]], cache)
    tails = [[10, 11], [12, 13]]
    forked = model.forward(tails, cache.fork(0, 2)).logits
    for tail, found in zip(tails, forked, strict=True):
        fresh = model.forward([[*PROMPT, PAUSE, PAUSE, 9, *tail]], model.new_cache()).logits[0]
        assert relative(found, fresh) < 1e-5


def test_what_is_taken_out_of_the_cache_can_be_put_back_bit_for_bit() -> None:
    model, cache = carrier(), carrier().new_cache()
    model.forward([[*PROMPT, PAUSE, PAUSE, 9, 10]], cache)
    wanted = model.forward([[11]], cache).logits[0]
    cache.rewind(0, 1)
    tail = cache.take(0, 3)
    model.forward([[50, 51, 52, 53]], cache)
    cache.rewind(0, 4)
    cache.put(0, tail)
    assert torch.equal(model.forward([[11]], cache).logits[0], wanted)
    with pytest.raises(ValueError, match="reach into its prompt"):
        cache.take(0, 9)


def test_rewinding_into_a_looped_prompt_forgets_it_and_into_an_unlooped_one_does_not() -> None:
    for loops, left in ((2, 0), (0, 9)):
        model = carrier(loops=loops)
        cache = model.new_cache()
        model.forward([[*PROMPT, PAUSE]], cache)
        cache.rewind(0, 3)
        assert cache.lengths == (left,)
        rest = [*PROMPT, PAUSE, 7][left:]
        fresh = model.forward([[*PROMPT, PAUSE, 7]], model.new_cache()).logits[0]
        assert relative(model.forward([rest], cache).logits[0], fresh) < 1e-5


def test_a_looped_prompt_is_fed_as_a_whole_and_an_unlooped_one_may_come_in_pieces() -> None:
    tokens = [[*PROMPT, 7, 8], [5, 6, 7, 8, 9, 10, 11, 12]]
    lengths = [11, 6]
    looped = carrier()
    cache = looped.new_cache(2, prompt_lengths=lengths)
    with pytest.raises(CarryError, match="row 0 feeds 4 of its prompt's 11 tokens"):
        looped.forward([ids[:4] for ids in tokens], cache)
    assert cache.lengths == (0, 0)
    model = carrier("gemma3", loops=0)
    cache = model.new_cache(2, prompt_lengths=lengths)
    for begin, end in ((0, 4), (4, 6), (6, 8), (8, 13)):
        found = model.forward([ids[begin:end] for ids in tokens], cache).logits
        if end == 8:
            short = found[1]
    whole = model.forward(tokens, model.new_cache(2, prompt_lengths=lengths)).logits
    assert relative(found[0], whole[0]) < 1e-5
    assert relative(short, whole[1]) < 1e-5


def test_a_flow_asks_after_the_pauses_and_leaves_the_text_as_if_it_had_not() -> None:
    model = carrier("llama")
    plain = Session(model, [model.pausing()]).generate("Once upon", max_new_tokens=10, sampling=GREEDY, seed=0)
    question = FlowQuestion(name="ask", prompt=" well?", responses=["yes", "no"], erase_mode="all")
    engine = FlowEngine(question)
    asked = Session(model, [model.pausing(), engine.as_mod()]).generate(
        "Once upon", max_new_tokens=10, sampling=GREEDY, seed=0
    )
    assert asked.tokens == plain.tokens
    assert next(iter(engine.states.values())).answers["ask"] in {"yes", "no"}


def test_a_run_that_is_resumed_goes_on_from_the_same_states() -> None:
    model = carrier()
    session = Session(model, [model.pausing()])
    whole = session.generate(PROMPT, max_new_tokens=8, sampling=GREEDY, seed=0)
    part = session.generate(PROMPT, max_new_tokens=3, sampling=GREEDY, seed=0)
    rest = session.resume(part, max_new_tokens=5, mods=[])
    assert part.tokens + rest.tokens == whole.tokens


def test_traces_carry_the_states() -> None:
    model = carrier()
    result = Session(model, [model.pausing()], capture="carry.*").generate(PROMPT, max_new_tokens=4, seed=0)
    assert set(result.trace.hooks) == {"carry.e", "carry.x", "carry.s"}
    assert result.trace.run["model"]["source"]["carry"]["pauses"] == 3
    history = result.trace.history("r0")
    fresh = model.forward([list(history.tokens)], model.new_cache(), capture=["carry.s"]).activations["carry.s"][0]
    for life in history.live:
        torch.testing.assert_close(
            result.trace.activation("carry.s", life), fresh[life.position - 1], rtol=1e-4, atol=1e-4
        )


def test_it_is_a_hooked_model_with_a_cache() -> None:
    model = carrier()
    assert isinstance(model, HookedModel)
    assert isinstance(model.new_cache(), Cache)
    assert model.name == "tiny-llama+carry"
    assert "carry.s" in model.edit_names


@pytest.mark.parametrize(
    ("act", "kind", "says"),
    [
        (lambda m: m.forward([[1, 2]], m.new_cache(2)), ValueError, "the cache has 2 rows but tokens for 1"),
        (lambda m: m.forward([[1, 999]], m.new_cache()), PromptError, "token id 999 in row 0"),
        (lambda m: m.forward([[5] * 97], m.new_cache()), PromptError, "97 tokens, pauses included.*n_ctx=96"),
        (lambda m: m.forward([[5]], m.new_cache(), capture=["carry.t"]), UnknownHookError, "no hook 'carry.t'"),
        (lambda m: m.forward([[5]], m.base.new_cache()), TypeError, r"must come from this model's new_cache"),
        (lambda m: m.new_cache(2, prompt_lengths=[3]), CarryError, "one number of 1 or more for each of 2 rows"),
        (lambda m: carrier(mode="depth").new_cache(), CarryError, "runs in mode 'carry', not 'depth'"),
        (lambda m: m.pausing(-2), CarryError, "pauses must be 0 or more, got -2"),
    ],
)
def test_what_can_not_be_fed_is_refused(act: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        act(carrier())


def test_pauses_that_do_not_fit_are_refused_by_the_engine() -> None:
    model = carrier()

    @mod
    def quiet(event: Any, actions: Any, tokenizer: Any) -> None:
        """Hears everything and says nothing."""

    with pytest.raises((InvalidActionError, PromptError), match="96"):
        Session(model, [model.pausing(90), quiet]).generate(PROMPT, max_new_tokens=4, seed=0)


def test_an_untrained_carry_writes_what_the_base_writes_after_the_same_pauses() -> None:
    model = carrier("gemma3", adapter=random_adapter(scale=0.0))
    carried = Session(model, [model.pausing()]).generate(PROMPT, max_new_tokens=8, sampling=GREEDY, seed=0)
    plain = Session(model.base).generate([*PROMPT, *[PAUSE] * 3], max_new_tokens=8, sampling=GREEDY, seed=0)
    assert carried.tokens == plain.tokens
