"""Looking back at a decision: the text it stood at, the kernel's records, what if, and a chain that branches off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from workbench.errors import ChainError
from workbench.mcmc import (
    Chains,
    PowerSampler,
    branch,
    contrast_of,
    decided_again,
    load_chains,
    philox,
    reference,
    resume,
    state_after,
    state_before,
    trace_row,
    what_if,
)

PROMPT = "A letter: "
SETTINGS: dict[str, Any] = {"alpha": 2.0, "block_size": 5, "n_mcmc": 4, "max_tokens": 10, "seed": 3, "chains": 3}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several tries": {"tries": 3},
    "a ladder": {"ladder": (2.0, 1.5, 1.0), "tau": 0.5},
}


@pytest.fixture(scope="module")
def chains(model: Any) -> Chains:
    return PowerSampler(model, PROMPT, **SETTINGS).run()


def index_of(chains: Chains, kind: str, least: int = 1) -> int:
    return next(i for i, d in enumerate(chains.decisions) if d.kind == kind and len(d.new_tokens) >= least)


# The text it stood at ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_the_text_before_a_decision_is_the_one_that_the_chain_had(model: Any, variant: str) -> None:
    sampler = PowerSampler(model, PROMPT, **(SETTINGS | VARIANTS[variant]))
    seen: list[tuple[tuple[int, ...], np.ndarray, tuple[int, ...]]] = []
    for chain in sampler.chains:
        decide = chain._decide

        def watched(pivot: int, tries: Any, chain: Any = chain, decide: Any = decide) -> Any:
            before = tuple(chain.tokens), chain.scalars.copy()
            made = decide(pivot, tries)
            seen.append((*before, tuple(chain.tokens)))
            return made

        chain._decide = watched
    result = sampler.run()
    assert len(seen) == 24
    assert variant != "a ladder" or any(swap.accepted for swap in result.swaps)
    for index, (tokens, scalars, after) in enumerate(seen):
        found = state_before(result, index)
        assert found.tokens == tokens
        assert np.array_equal(found.scalars, scalars)
        assert state_after(result, index).tokens == after


def test_it_is_known_in_the_middle_of_a_run_too(model: Any) -> None:
    sampler = PowerSampler(model, PROMPT, **SETTINGS)
    whole = PowerSampler(model, PROMPT, **SETTINGS).run()
    for count, _ in enumerate(sampler.steps(), start=1):
        if count % 5 == 0:
            part = sampler.result()
            for index in range(len(part.decisions)):
                assert state_before(part, index) == state_before(whole, index)


def test_records_that_do_not_fit_together_are_told(chains: Chains) -> None:
    index = index_of(chains, "accepted")
    wrong = replace(chains.decisions[index], new_tokens=(0,) * len(chains.decisions[index].new_tokens))
    broken = replace(chains, decisions=(*chains.decisions[:index], wrong, *chains.decisions[index + 1 :]))
    with pytest.raises(ChainError, match="its files do not belong together"):
        state_before(broken, index)
    with pytest.raises(ChainError, match="there is no decision 24; the run has decisions 0 to 23"):
        state_before(chains, 24)
    with pytest.raises(ChainError, match="there is no decision 0; the run made none yet"):
        state_before(replace(chains, decisions=()), 0)


# The cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_what_is_told_of_the_cache_is_what_the_cache_did(
    model: Any, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call of the cache is watched, and a row's own history held against its decisions."""
    sampler = PowerSampler(model, PROMPT, **(SETTINGS | VARIANTS[variant]))
    cache, calls = sampler.rows.cache, []
    for name in ("take", "put", "rewind"):
        method = getattr(cache, name)

        def watched(row: int, what: Any, name: str = name, method: Any = method) -> Any:
            calls.append((name, row, what if isinstance(what, int) else what.n))
            return method(row, what)

        monkeypatch.setattr(cache, name, watched)
    checked = 0
    finish = sampler._complete

    def complete(chain: Any) -> None:
        nonlocal checked
        made = len(sampler.decisions)
        row = sampler.rows.row_of[chain.number]
        before = len(calls)
        finish(chain)
        if len(sampler.decisions) > made:
            move = sampler.decisions[-1].cache
            restored = [n for name, at, n in calls[before:] if name == "put" and at == row]
            assert move is not None
            assert move.after == cache.lengths[row] == len(sampler.rows.prompt) - 1 + len(chain.tokens)
            assert move.before - move.kept == move.taken == len(sampler.decisions[-1].old_tokens)
            if not sampler.decisions[-1].accepted:
                assert restored[-1] == move.restored == move.taken
                assert move.dropped == move.fed
            else:
                assert move.restored == 0
                assert move.dropped == move.fed - len(sampler.decisions[-1].new_tokens)
            checked += 1

    sampler._complete = complete  # type: ignore[method-assign]
    sampler.run()
    assert checked == 24


def test_it_is_kept_on_disk_and_older_runs_do_without(model: Any, chains: Chains, tmp_path: Path) -> None:
    chains.save(tmp_path / "run")
    assert [d.cache for d in load_chains(tmp_path / "run").decisions] == [d.cache for d in chains.decisions]
    (part,) = (tmp_path / "run").glob("decisions-*.parquet")
    table = pq.read_table(part)
    pq.write_table(table.drop_columns([name for name in table.column_names if name.startswith("cache_")]), part)
    older = load_chains(tmp_path / "run", model)
    assert older == chains
    assert {d.cache for d in older.decisions} == {None}


def test_a_model_with_another_tokenizer_is_refused(model: Any, tmp_path: Path) -> None:
    class Other:
        name = "other"

        class tokenizer:
            fingerprint = "another"

    for _ in PowerSampler(model, PROMPT, save=tmp_path / "run", **SETTINGS).steps():
        break
    with pytest.raises(ChainError, match="the tokenizer of other is another one"):
        load_chains(tmp_path / "run", Other())  # type: ignore[arg-type]


# The kernel's records ---------------------------------------------------------------------------------------------


def test_a_decision_is_made_again_bit_for_bit(chains: Chains) -> None:
    for decision in chains.decisions:
        again = decided_again(decision, chains.settings.seed)
        assert float(again.u[0]) == decision.u
        assert float(again.log_a[0]) == pytest.approx(decision.log_a, abs=1e-12)
        assert bool(again.accepted[0]) == decision.accepted
        assert again.old_terms.shape == (len(decision.old_tokens), 2)


def test_a_traced_row_gives_the_scalars_that_were_kept(model: Any, chains: Chains) -> None:
    index = index_of(chains, "rejected", least=3)
    decision = chains.decisions[index]
    for side, tokens in (("old", decision.old_tokens), ("new", decision.new_tokens)):
        for row in range(len(tokens)):
            found = trace_row(model, chains, index, side, row, tile=100)
            assert found.token == tokens[row]
            assert found.position == decision.pivot + row
            assert len(found.trace) == -(-model.vocab_size // 100)
            assert found.difference < 1e-4


def test_each_tile_is_the_one_before_rescaled_and_its_own_part(model: Any, chains: Chains) -> None:
    """By hand, in float64, for tau = 1/2: max, sum of exp(x - max) and of its square, tile by tile."""
    index = index_of(chains, "accepted", least=3)
    decision, seen = chains.decisions[index], set()
    before = [*chains.settings.prompt, *state_before(chains, index).tokens[: decision.pivot]]
    for place in range(len(decision.new_tokens)):
        found = trace_row(model, chains, index, "new", place, tile=40)
        row = model.forward([[*before, *decision.new_tokens[:place]]], model.new_cache()).logits[0][-1].double()
        top, sums = -np.inf, np.zeros(2)
        for tile, part in enumerate(row.split(40)):
            higher = max(top, float(part.max()))
            scale = np.exp(top - higher) ** np.array([1, 2])
            each = (part - higher).exp()
            sums = sums * scale + np.array([float(each.sum()), float((each**2).sum())])
            top = higher
            assert found.rescales[tile].tolist() == pytest.approx(scale.tolist(), rel=1e-5)
            assert found.trace[tile].tolist() == pytest.approx([top, *sums], rel=1e-5)
            seen.add("none" if scale[0] == 0 else "stands" if scale[0] == 1 else "grows")
        assert float(found.stats[1]) == pytest.approx(top + np.log(sums[0]), rel=1e-6)
    assert seen == {"none", "stands", "grows"}


def test_rescales_of_rows_that_begin_with_nothing() -> None:
    logits = torch.tensor([[-np.inf, -np.inf, 1.0, 3.0, 2.0, 0.0]])
    found = reference.row_stats(logits, torch.tensor([2]), 0.5, tile=2, trace=True)
    assert found.trace is not None
    scales = reference.rescales(found.trace, 0.5)
    assert scales[0].tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert not scales.isnan().any()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"side": "both", "row": 0}, "side is 'old' or 'new', got 'both'"),
        ({"side": "new", "row": 99}, r"the new suffix has rows 0 to \d, got 99"),
        ({"side": "new", "row": 0, "tile": 0}, "a tile has 1 column or more, got 0"),
    ],
)
def test_a_row_that_is_not_there_is_refused(model: Any, chains: Chains, how: dict[str, Any], says: str) -> None:
    with pytest.raises(ChainError, match=says):
        trace_row(model, chains, 0, **how)


def test_a_contrast_computed_now_is_the_one_that_was_kept(model: Any) -> None:
    hooks = "blocks.*.hook_resid_post"
    kept = PowerSampler(model, PROMPT, capture=hooks, **SETTINGS).run()
    index = index_of(kept, "accepted")
    own = contrast_of(kept, index)
    assert own in kept.contrasts
    fresh = contrast_of(replace(kept, contrasts=()), index, model, hooks)
    assert own == fresh
    for hook in own.old:
        assert torch.allclose(own.difference(hook), fresh.difference(hook), atol=1e-4)
    rejected = index_of(kept, "rejected")
    assert contrast_of(kept, rejected, model).position == kept.decisions[rejected].first_difference
    with pytest.raises(ChainError, match="give the model, or run with capture="):
        contrast_of(kept, rejected)
    first = replace(kept.decisions[0], new_tokens=kept.decisions[0].old_tokens)
    with pytest.raises(ChainError, match=r"are the same \(null\): no token differs"):
        contrast_of(replace(kept, decisions=(first,)), 0, model)


# What if ----------------------------------------------------------------------------------------------------------


def test_nothing_changed_is_the_decision_itself(chains: Chains) -> None:
    for index, decision in enumerate(chains.decisions):
        same = what_if(chains, index)
        assert (same.u, same.accepted, same.changed, same.warnings) == (decision.u, decision.accepted, False, ())
        assert same.margin == pytest.approx(decision.margin)


def test_u_drawn_again_is_philoxs_under_the_next_counters(chains: Chains) -> None:
    decision = chains.decisions[7]
    named = {"chain": decision.chain, "block": decision.block, "iteration": decision.iteration}
    for redraw in (1, 2, 3):
        found = what_if(chains, 7, redraw=redraw)
        assert found.u == philox.uniform_one(3, purpose=philox.Purpose.ACCEPT, index=redraw, **named)
        assert found.accepted == (np.log(found.u) < decision.log_a)
        assert "no longer a sample of the target" in found.warnings[0]


def test_a_verdict_set_by_hand_is_marked(chains: Chains) -> None:
    index = index_of(chains, "rejected")
    forced = what_if(chains, index, verdict="accept")
    assert forced.accepted
    assert forced.warnings == ("Verdict set by hand (accept): what follows is no longer a sample of the target.",)
    assert forced.u == chains.decisions[index].u


def test_another_alpha_is_the_ratio_under_it(chains: Chains) -> None:
    index = index_of(chains, "rejected", least=3)
    decision = chains.decisions[index]
    found = what_if(chains, index, alpha=1.25)
    p_new, p_old = ((s[:, 0] - s[:, 1]).sum() for s in (decision.new_scalars, decision.old_scalars))
    q_old_new = decision.terms.log_q_old - decision.terms.log_q_new
    assert found.log_a == pytest.approx(1.25 * (p_new - p_old) + q_old_new + decision.terms.pivot)
    assert "another target" in found.warnings[0]


def test_what_can_not_be_told_is_refused(model: Any, chains: Chains) -> None:
    with pytest.raises(ChainError, match="redraw counts from 0"):
        what_if(chains, 0, redraw=-1)
    with pytest.raises(ChainError, match="verdict is 'accept', 'reject' or None, got True"):
        what_if(chains, 0, verdict=True)  # type: ignore[arg-type]
    with pytest.raises(ChainError, match="alpha must be above 0"):
        what_if(chains, 0, alpha=0.0)
    many = PowerSampler(model, PROMPT, tries=2, **SETTINGS).run()
    with pytest.raises(ChainError, match="chose among 2 tries, of which the run keeps one"):
        what_if(many, 0, alpha=1.0)
    assert what_if(many, 0).log_a == many.decisions[0].log_a
    assert what_if(many, 0).accepted == many.decisions[0].accepted


# Branches ---------------------------------------------------------------------------------------------------------


def test_a_branch_with_the_runs_own_numbers_walks_the_runs_path(model: Any) -> None:
    """Chain 0 under the same seed draws what chain 0 drew: from any decision on the two are one."""
    alone = SETTINGS | {"chains": 1}
    whole = PowerSampler(model, PROMPT, **alone).run()
    for index in range(len(whole.decisions) - 1):
        again = branch(model, whole, index, seed=whole.settings.seed)
        assert again.total == len(whole.decisions) - index - 1
        result = again.run()
        assert result.decisions == whole.decisions[index + 1 :] or all(
            a.new_tokens == b.new_tokens and abs(a.log_a - b.log_a) < 1e-4
            for a, b in zip(result.decisions, whole.decisions[index + 1 :], strict=True)
        )
        assert result.texts[0].tokens == whole.texts[0].tokens


def test_a_branch_has_numbers_of_its_own_and_leaves_the_run_alone(model: Any) -> None:
    sampler = PowerSampler(model, PROMPT, **SETTINGS)
    for _ in sampler.steps():
        if sampler.given == 8:
            break
    before = sampler.result()
    one, two = (branch(model, before, 4, number=number) for number in (0, 1))
    assert len({sampler.settings.seed, one.settings.seed, two.settings.seed}) == 3
    assert one.chains[0].tokens == list(state_after(before, 4).tokens)
    one.run()
    assert sampler.result() == before
    assert sampler.run() == PowerSampler(model, PROMPT, **SETTINGS).run()


def test_a_forced_verdict_is_where_the_branch_stands(model: Any, chains: Chains) -> None:
    index = index_of(chains, "rejected")
    decision = chains.decisions[index]
    forced = branch(model, chains, index, verdict="accept")
    assert tuple(forced.chains[0].tokens[decision.pivot :]) == decision.new_tokens
    assert np.array_equal(forced.chains[0].scalars[decision.pivot :], decision.new_scalars)
    refused = branch(model, chains, index, verdict="reject")
    assert refused.chains[0].tokens == list(state_before(chains, index).tokens)
    assert (forced.chains[0].block, forced.chains[0].iteration) == (decision.block, decision.iteration)


def test_another_tau_scores_the_text_again(model: Any, chains: Chains) -> None:
    index = index_of(chains, "accepted")
    hotter = branch(model, chains, index, tau=1.0)
    state = state_after(chains, index)
    assert np.abs(hotter.chains[0].scalars[:, :2] - state.scalars[:, :2]).max() < 1e-4
    assert np.abs(hotter.chains[0].scalars[:, 2] - hotter.chains[0].scalars[:, 1]).max() < 1e-6
    kept = branch(model, chains, index, alpha=3.0)
    assert np.array_equal(kept.chains[0].scalars, state.scalars)
    assert kept.settings.target.temperature == 0.5


@pytest.mark.parametrize("tau", [None, 0.8])
def test_the_cache_of_a_branch_is_that_of_its_text(model: Any, chains: Chains, tau: float | None) -> None:
    """After every move of a branch the kept scalars are those of a fresh pass over its text."""
    long = PowerSampler(model, PROMPT, alpha=2.0, block_size=24, n_mcmc=4, max_tokens=24, seed=5).run()
    sampler = branch(model, long, 1, tau=tau)
    result = sampler.run()
    tokens, prompt = result.texts[0].tokens, result.settings.prompt
    logits = model.forward([[*prompt, *tokens]], model.new_cache(), keep=[len(tokens) + 1]).logits[0][:-1].double()
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    temperature = result.settings.target.temperature
    fresh = torch.stack([chosen, logits.logsumexp(-1), (logits / temperature).logsumexp(-1)], dim=1).numpy()
    assert np.abs(result.texts[0].scalars - fresh).max() < 2e-4


def test_behind_the_last_decision_a_branch_needs_more_proposals(model: Any, chains: Chains) -> None:
    last = max(range(24), key=lambda i: (chains.decisions[i].block, chains.decisions[i].iteration))
    with pytest.raises(ChainError, match="give more proposals a block with n_mcmc=, which is 4"):
        branch(model, chains, last)
    more = branch(model, chains, last, n_mcmc=6)
    assert more.total == 2
    assert len(more.run().decisions) == 2


def test_a_branch_is_kept_and_resumed_like_any_run(model: Any, chains: Chains, tmp_path: Path) -> None:
    whole = branch(model, chains, 2).run()
    sampler = branch(model, chains, 2, save=tmp_path / "branch")
    next(sampler.steps())
    again = resume(tmp_path / "branch", model)
    assert again.total == len(whole.decisions)
    assert again.run() == whole
    assert state_before(whole, 0) == state_before(load_chains(tmp_path / "branch"), 0)
