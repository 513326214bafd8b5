"""The chain as a mod: the same path as the sampler's, visible in the trace, and nothing inexact let through."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from workbench import Added, ForwardPass, SamplingParams, Session, load, mod, replay
from workbench.errors import ChainError, InvalidActionError, ModError
from workbench.mcmc import Phase, PowerSampler, reasoning_with_sampling

PROMPT = "A letter: "
SETTINGS: dict[str, Any] = {"alpha": 2.0, "block_size": 5, "n_mcmc": 4}


def notes(result: Any, phase: str) -> list[dict[str, Any]]:
    return [
        dict(record.data)
        for record in result.trace.records
        if record.action == "note" and record.data.get("phase") == phase
    ]  # fmt: skip


@pytest.mark.parametrize(("family", "prompt"), [("tiny-llama", PROMPT), ("tiny-llama", "hello"), ("tiny-gemma3", "x")])
def test_it_walks_the_path_of_the_sampler(family: str, prompt: str) -> None:
    model = load(family)
    path = PowerSampler(model, prompt, max_tokens=14, seed=3, **SETTINGS).run()
    result = Session(model).generate(
        prompt, mods=[reasoning_with_sampling(seed=3, **SETTINGS)], max_new_tokens=14, seed=0
    )
    assert result.tokens == path.texts[0].tokens
    decided = notes(result, "decide")
    assert len(decided) == len(path.decisions) == 12
    for note, decision in zip(decided, path.decisions, strict=True):
        assert (note["block"], note["iteration"], note["pivot"]) == (
            decision.block,
            decision.iteration,
            decision.pivot,
        )
        assert (note["u"], note["accepted"], note["kind"]) == (decision.u, decision.accepted, decision.kind)
        assert note["log_a"] == pytest.approx(decision.log_a, abs=1e-3)
    assert len({note["kind"] for note in decided}) > 1


def test_all_phases_are_in_the_trace_in_their_order(model: Any) -> None:
    result = Session(model).generate(PROMPT, mods=[reasoning_with_sampling(**SETTINGS)], max_new_tokens=10, seed=1)
    phases = [
        record.data["phase"] for record in result.trace.records if record.action == "note" and "phase" in record.data
    ]
    assert phases == [*(["old"] + ["new", "decide"] * 4) * 2, "done"]
    assert set(phases) == {phase.value for phase in Phase}
    (done,) = notes(result, "done")
    assert done["decisions"] == 8
    assert done["accepted"] == sum(note["accepted"] for note in notes(result, "decide"))
    for note in notes(result, "decide"):
        four = note["alpha_log_p_new"] - note["alpha_log_p_old"] + note["log_q_old"] - note["log_q_new"]
        assert note["log_a"] == pytest.approx(four + note["pivot_term"])
    assert result.reason == "force_output"
    assert len(result.tokens) == 10


def test_its_log_p_is_that_of_a_fresh_pass(model: Any) -> None:
    result = Session(model).generate(PROMPT, mods=[reasoning_with_sampling(**SETTINGS)], max_new_tokens=15, seed=2)
    ids, n = [*result.prompt_tokens, *result.tokens], len(result.tokens)
    rows = model.forward([ids], model.new_cache(), keep=[n + 1]).logits[0][:-1].log_softmax(-1)
    fresh = sum(float(row[token]) for row, token in zip(rows, result.tokens, strict=True))
    (done,) = notes(result, "done")
    assert done["log_p"] == pytest.approx(fresh, abs=1e-3)


def test_a_rejection_feeds_again_only_what_the_next_pivot_needs(model: Any) -> None:
    seen: list[tuple[int, int]] = []
    result = Session(model).generate(
        PROMPT, mods=[reasoning_with_sampling(alpha=6.0, block_size=12, n_mcmc=12)], max_new_tokens=12, seed=5
    )
    decided = notes(result, "decide")
    for before, after in pairwise(decided):
        again = max(after["pivot"] - before["pivot"], 0) if before["kind"] == "rejected" else 0
        seen.append((after["pivot"], again))
    assert any(again for _, again in seen)
    drawn = sum(record.action == "force_tokens" for record in result.trace.records)
    fed_again = sum(again for _, again in seen)
    # What is put back is fed once more, and the token before it, whose logits score it.
    assert drawn <= result.forward_tokens + 1 <= drawn + fed_again + 2 * sum(again > 0 for _, again in seen) + 1


def test_without_a_seed_it_takes_one_from_the_request_so_that_a_trace_replays(model: Any) -> None:
    def run(seed: int) -> Any:
        return Session(model).generate(PROMPT, mods=[reasoning_with_sampling(**SETTINGS)], max_new_tokens=8, seed=seed)

    assert run(4).tokens == run(4).tokens
    assert len({run(seed).tokens for seed in range(4, 8)}) > 1
    again = replay(run(4).trace, model, mods=[reasoning_with_sampling(**SETTINGS)])
    assert again.difference is None


def test_requests_of_one_batch_run_their_own_chains(model: Any) -> None:
    both = Session(model).generate(
        [PROMPT, "hello"], mods=[reasoning_with_sampling(seed=3, **SETTINGS)], max_new_tokens=8, seed=0
    )
    alone = Session(model).generate(
        "hello", mods=[reasoning_with_sampling(seed=3, **SETTINGS)], max_new_tokens=8, seed=0
    )  # fmt: skip
    assert both[1].tokens == alone.tokens


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (SamplingParams(temperature=0.5), r"temperature=0\.5"),
        (SamplingParams(top_k=3), "top_k=3"),
        (SamplingParams(top_p=0.9), r"top_p=0\.9"),
        (SamplingParams(min_p=0.1), r"min_p=0\.1"),
        (SamplingParams(stop="x"), r"stop=\('x',\)"),
    ],
)
def test_sampling_that_is_not_neutral_is_refused(model: Any, sampling: SamplingParams, says: str) -> None:
    with pytest.raises(ModError, match=f"a chain needs neutral sampling, got {says}"):
        Session(model).generate(
            PROMPT, mods=[reasoning_with_sampling(**SETTINGS)], max_new_tokens=4, seed=0, sampling=sampling
        )  # fmt: skip


def test_mods_that_interfere_are_noticed(model: Any) -> None:
    @mod
    def forces(event: Any, actions: Any, tokenizer: Any) -> Any:
        return actions.force_tokens([70]) if isinstance(event, ForwardPass) and event.step == 3 else None

    @mod
    def takes_back(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Added) and len(event.request.generated) == 3 and not event.state:
            event.state["done"] = True
            return actions.backtrack(2)
        return None

    chain = reasoning_with_sampling(**SETTINGS)
    for other, what in ((forces, "put other tokens in the chain's place"), (takes_back, "took back tokens")):
        with pytest.raises(ModError, match=f"another mod {what}.*Put reasoning_with_sampling first"):
            Session(model).generate(PROMPT, mods=[other, chain], max_new_tokens=8, seed=0)


def test_a_mod_that_edits_logits_changes_the_target_and_is_counted_in(model: Any) -> None:
    @mod
    def bans_vowels(event: Any, actions: Any, tokenizer: Any) -> Any:
        if not isinstance(event, ForwardPass):
            return None
        logits = event.logits.clone()
        logits[tokenizer.encode("aeiou")] = -float("inf")
        return actions.adjust_logits(logits)

    result = Session(model).generate(
        PROMPT, mods=[bans_vowels, reasoning_with_sampling(**SETTINGS)], max_new_tokens=12, seed=0
    )
    assert not set(result.tokens) & set(model.tokenizer.encode("aeiou"))
    tried = Counter(token for r in result.trace.records if r.action == "force_tokens" for token in r.tokens)
    assert not set(tried) & set(model.tokenizer.encode("aeiou"))


def test_bad_arguments_are_refused_when_the_mod_is_made() -> None:
    with pytest.raises(ChainError, match=r"alpha must be above 0, got -1"):
        reasoning_with_sampling(alpha=-1)
    assert not issubclass(ChainError, InvalidActionError)


def test_the_budget_of_a_run_ends_it_with_nothing_said(model: Any) -> None:
    result = Session(model).generate(
        PROMPT, mods=[reasoning_with_sampling(**SETTINGS)], max_new_tokens=8, seed=0, max_forward_tokens=10
    )
    assert (result.reason, result.tokens) == ("budget", ())
    assert np.isfinite(result.forward_tokens)
