"""The product's first promise: after any script of actions, tokens, cache, trace and logits agree."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_runs import MODELS, MOST_NEW, Move, Script, agrees, tiny, under_scripts

from workbench import Added, Finished, ForwardPass, Prefilled, Removed, Sampled, Session, load
from workbench.engine import ActionBuilder, Event
from workbench.models import Tokenizer

moves = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 9)), max_size=40)


prompts = st.lists(st.integers(4, 250), min_size=1, max_size=12)


@settings(max_examples=120)
@given(model=st.sampled_from(MODELS), script=moves, prompt=prompts)
def test_any_script_of_actions_keeps_the_invariant(
    model: tuple[str, str], script: list[Move], prompt: list[int]
) -> None:
    scripts, results = under_scripts(tiny(*model), [script], [prompt], steer=False)
    agrees(scripts[0], results[0], steered=False)
    assert len(results[0].tokens) <= MOST_NEW


@settings(max_examples=80)
@given(model=st.sampled_from(MODELS), script=moves, prompt=prompts)
def test_steered_tokens_equal_a_fresh_prefill_with_the_same_edits(
    model: tuple[str, str], script: list[Move], prompt: list[int]
) -> None:
    scripts, results = under_scripts(tiny(*model), [script], [prompt], steer=True)
    agrees(scripts[0], results[0], steered=True)


@settings(max_examples=30)
@given(model=st.sampled_from(MODELS), scripts=st.lists(moves, min_size=2, max_size=4), steer=st.booleans())
def test_a_row_of_a_batch_does_what_it_does_alone(
    model: tuple[str, str], scripts: list[list[Move]], steer: bool
) -> None:
    several = [[5 + 11 * i] * (1 + 3 * i) for i in range(len(scripts))]
    mods, together = under_scripts(tiny(*model), scripts, several, steer=steer)
    for script, mod, prompt, result in zip(scripts, mods, several, together, strict=True):
        agrees(mod, result, steered=steer)
        [alone_mod], [alone] = under_scripts(tiny(*model), [script], [prompt], steer=steer)
        assert (result.tokens, result.reason) == (alone.tokens, alone.reason)
        assert len(mod.passes) == len(alone_mod.passes)


def test_the_invariant_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that forgets to rewind is caught: the check above is not empty."""
    model = load("tiny-llama")
    from workbench.models.kv_rows import KVRows

    monkeypatch.setattr(KVRows, "rewind", lambda self, row, n: None)
    monkeypatch.setattr(
        "workbench.engine.request.Request.plan",
        lambda self, cache: min(cache.lengths[self.row], len(self.tokens) - 1),
    )
    [script], _ = under_scripts(model, [[(0, 0, 1)] * 7 + [(2, 3, 7)] + [(0, 0, 1)] * 9], [[5, 6, 7]], steer=False)
    with pytest.raises(AssertionError):
        script.verify()


@pytest.mark.real
@settings(max_examples=4)
@given(script=moves, steer=st.booleans())
def test_the_real_model_keeps_the_invariant(script: list[Move], steer: bool) -> None:
    model = real()
    prompt = model.tokenizer.chat([{"role": "user", "content": "Name three colours."}])
    scripts, results = under_scripts(model, [script], [prompt], steer=steer)
    agrees(scripts[0], results[0], steered=steer)


@cache
def real() -> Any:
    return load("smollm2-135m-instruct")


def test_events_cover_every_kind() -> None:
    """The script hears all six kinds of event over a run with a backtrack in it."""
    kinds = set()

    class Listener(Script):
        def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
            kinds.add(type(event))
            return super().handle(event, actions, tokenizer)

    model = tiny("llama", "bridge")
    script = Listener(model, [(0, 0, 1)] * 8 + [(3, 2, 1)], "r0", steer=False)
    Session(model, [script]).generate([5, 6], max_new_tokens=6, seed=0)
    assert kinds == {Prefilled, ForwardPass, Sampled, Added, Removed, Finished}
