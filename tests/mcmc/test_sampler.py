"""The batched sampler: what it feeds, what it keeps, what comes back after a rejection, and what it refuses."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from mcmc_toys import Toy, ToyModel

from workbench import SamplingParams
from workbench.errors import ChainError, ModelError
from workbench.mcmc import PowerSampler
from workbench.mcmc.rows import ChainRows
from workbench.models import Forward, KVRows

SETTINGS: dict[str, Any] = {"alpha": 2.0, "block_size": 6, "n_mcmc": 5, "max_tokens": 18, "seed": 4}
PROMPT = "A letter: "


class Counting:
    """A model that counts what it is fed."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.fed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, tokens: Any, cache: Any, **how: Any) -> Forward:
        self.fed += sum(map(len, tokens))
        return self._model.forward(tokens, cache, **how)


def fresh_scalars(model: Any, prompt: tuple[int, ...], tokens: tuple[int, ...], tau: float) -> np.ndarray:
    logits = model.forward([[*prompt, *tokens]], model.new_cache(), keep=[len(tokens) + 1]).logits[0][:-1].double()
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return torch.stack([chosen, logits.logsumexp(-1), (logits / tau).logsumexp(-1)], dim=1).numpy()


def kept(rows: ChainRows, row: int) -> tuple[torch.Tensor, ...]:
    """Copies of a row's keys and values behind the shared prompt."""
    tail = rows.cache.take(row, rows.cache.lengths[row] - rows.prefilled)
    rows.cache.put(row, tail)
    return tuple(part for part in (*tail.keys, *tail.values) if part is not None)


def test_an_iteration_feeds_its_suffix_and_nothing_else(model: Any) -> None:
    counting = Counting(model)
    sampler = PowerSampler(counting, PROMPT, chains=3, **SETTINGS)
    result = sampler.run()
    assert {d.forwarded / len(d.new_tokens) for d in result.decisions} == {1.0}
    assert counting.fed == result.prefilled + result.forwarded
    extended = result.forwarded - sum(d.forwarded for d in result.decisions)
    assert 0 < extended <= 3 * 18  # the blocks' own tokens; a text that ends is not extended


def test_after_two_hundred_decisions_the_kept_scalars_are_those_of_a_fresh_pass(model: Any) -> None:
    result = PowerSampler(model, PROMPT, chains=5, **(SETTINGS | {"n_mcmc": 14, "alpha": 1.2})).run()
    kinds = Counter(d.kind for d in result.decisions)
    assert kinds.total() == 210
    assert min(kinds["accepted"], kinds["rejected"]) > 20
    for text in result:
        fresh = fresh_scalars(model, result.settings.prompt, text.tokens, result.settings.target.temperature)
        assert np.abs(text.scalars - fresh).max() < 1e-4


def watched(sampler: PowerSampler) -> Iterator[tuple[Any, Any, Any]]:
    """Each decision of a single chain, with what was in place before it and after it."""
    chain, opened = sampler.chains[0], []
    open_row = sampler.rows.open

    def note(which: Any) -> None:
        opened[:] = [(list(which.tokens), which.scalars.copy(), kept(sampler.rows, 0))]
        open_row(which)

    sampler.rows.open = note  # type: ignore[method-assign]
    for decision in sampler.steps():
        yield decision, opened[0], (list(chain.tokens), chain.scalars.copy(), kept(sampler.rows, 0))


def identical(one: Any, other: Any) -> bool:
    return (
        one[0] == other[0]
        and np.array_equal(one[1], other[1])
        and len(one[2]) == len(other[2])
        and all(torch.equal(a, b) for a, b in zip(one[2], other[2], strict=True))
    )


def test_after_a_rejection_everything_is_as_it_was_bit_for_bit(model: Any) -> None:
    sampler = PowerSampler(model, PROMPT, **(SETTINGS | {"n_mcmc": 9}))
    seen = [(d.kind, identical(before, after)) for d, before, after in watched(sampler)]
    assert {same for kind, same in seen if kind == "rejected"} == {True}
    assert not any(same for kind, same in seen if kind == "accepted")
    assert sum(kind == "rejected" for kind, _ in seen) >= 5


def test_a_rejection_that_does_not_restore_is_caught(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put = KVRows.put
    monkeypatch.setattr(ChainRows, "close", lambda self, chain, length, chosen: leave(self, chain, length, chosen))

    def leave(rows: ChainRows, chain: Any, length: int, chosen: int | None) -> None:
        """Keep the rejected suffix's keys and values where the old one's were."""
        row, old = rows.row_of[chain.number], rows.old.pop(chain.number, None)
        if chosen is None and old is not None:
            wrong = rows.cache.take(row, length)
            put(rows.cache, row, wrong if wrong.n == old.n else old)  # type: ignore[arg-type]

    sampler = PowerSampler(model, PROMPT, **(SETTINGS | {"n_mcmc": 10}))
    seen = [(d.kind, identical(before, after)) for d, before, after in watched(sampler)]
    assert not all(same for kind, same in seen if kind == "rejected")
    text = sampler.result().texts[0]
    fresh = fresh_scalars(model, sampler.settings.prompt, text.tokens, sampler.chains[0].tau)
    assert np.abs(text.scalars - fresh).max() > 1e-2


def test_more_chains_change_no_chains_path(model: Any) -> None:
    alone = PowerSampler(model, PROMPT, chains=1, **SETTINGS).run()
    many = PowerSampler(model, PROMPT, chains=5, **SETTINGS).run()
    assert many.texts[0].tokens == alone.texts[0].tokens
    for one, other in zip(alone.of(0), many.of(0), strict=True):
        assert (one.pivot, one.new_tokens, one.accepted, one.u) == (
            other.pivot,
            other.new_tokens,
            other.accepted,
            other.u,
        )
        assert one.log_a == pytest.approx(other.log_a, abs=1e-3)
    assert len({text.tokens for text in many.texts}) > 1


def test_every_decision_can_be_made_again_from_what_is_kept(model: Any) -> None:
    for d in PowerSampler(model, PROMPT, chains=2, **SETTINGS).run().decisions:
        new, old = d.new_scalars, d.old_scalars
        again = d.alpha * ((new[:, 0] - new[:, 1]).sum() - (old[:, 0] - old[:, 1]).sum())
        again += (old[:, 0] / d.tau - old[:, 2]).sum() - (new[:, 0] / d.tau - new[:, 2]).sum()
        again += np.log((d.pivot + len(old)) / (d.pivot + len(new)))
        assert d.log_a == pytest.approx(again, abs=1e-9)
        assert d.accepted == (np.log(d.u) < d.log_a)
        assert d.margin == pytest.approx(d.log_a - d.log_u)


def test_pivots_reach_over_all_generated_text_with_the_first_token_included(model: Any) -> None:
    result = PowerSampler(model, PROMPT, chains=8, **(SETTINGS | {"n_mcmc": 10})).run()
    last = [d for d in result.decisions if d.block == 2 and d.pivot + len(d.old_tokens) == 18]
    assert {d.pivot < 12 for d in last} == {True, False}
    assert 0 in {d.pivot for d in last}


def test_texts_that_end_stay_ended_and_may_come_back_longer() -> None:
    toy = Toy(seed=3, end=2, scale=1.0)
    result = PowerSampler(
        ToyModel(toy), [0], alpha=1.0, block_size=4, n_mcmc=40, max_tokens=4, chains=20, seed=1
    ).run()  # fmt: skip
    for text in result:
        assert text.tokens in toy.texts()
    lengths = {(d.pivot + len(d.old_tokens), d.length) for d in result.decisions if d.kind == "accepted"}
    assert any(old < new for old, new in lengths)
    assert any(old > new for old, new in lengths)


def test_captured_activations_are_those_of_a_fresh_pass_and_cost_two_tokens_a_move(model: Any) -> None:
    hook = "blocks.1.hook_resid_post"
    plain = PowerSampler(model, PROMPT, **SETTINGS).run()
    result = PowerSampler(model, PROMPT, capture=hook, **SETTINGS).run()
    moves = [d for d in result.decisions if d.kind == "accepted"]
    assert [d.new_tokens for d in plain.decisions] == [d.new_tokens for d in result.decisions]
    assert result.forwarded == plain.forwarded + 2 * len(moves)
    assert len(result.contrasts) == len(moves) > 0
    last = result.contrasts[-1]
    text = [*result.texts[0].tokens[: last.position]]
    for token, held in ((last.old_token, last.old), (last.new_token, last.new)):
        ids = [*result.settings.prompt, *text, token]
        fresh = model.forward([ids], model.new_cache(), capture=[hook]).activations[hook][0][-1]
        assert torch.allclose(held[hook], fresh, atol=1e-4)
    assert float(last.difference(hook).norm()) > 0


class Wide:
    """A model of 20,000 tokens that says the same wherever it stands."""

    name, backend, n_layers, d_model, vocab_size, n_ctx = "wide", "fake", 1, 1, 20_000, 200
    hook_names = edit_names = ()
    cache_works, device, dtype = True, torch.device("cpu"), torch.float32

    def __init__(self) -> None:
        self.tokenizer = ToyModel(Toy(longest=1)).tokenizer
        self.tokenizer.decode = lambda tokens, **_: ""  # type: ignore[method-assign]
        self.source = {"name": "wide"}
        self._logits = torch.linspace(-5, 5, self.vocab_size)

    def new_cache(self, batch: int = 1) -> KVRows:
        return KVRows(1, batch, self.n_ctx)

    def forward(self, tokens: Any, cache: KVRows, **how: Any) -> Forward:
        rows = [row for row, ids in enumerate(tokens) if ids]
        view = cache.begin(rows, len(tokens[rows[0]]))
        new = torch.ones(len(rows), len(tokens[rows[0]]), 1, 1)
        view.append(0, new, new)
        view.commit()
        return Forward(logits=tuple(self._logits[None] if ids else torch.empty(0) for ids in tokens), activations={})


def bytes_held(root: Any, without: tuple[Any, ...]) -> tuple[int, int]:
    """Bytes of all arrays and tensors that ``root`` leads to: together, and of the largest."""
    seen, waiting, sizes = {id(one) for one in without}, [root], []
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type) or (callable(one) and not isinstance(one, torch.Tensor)):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            sizes.append(one.untyped_storage().nbytes())
        elif isinstance(one, np.ndarray):
            sizes.append(0 if one.base is not None else one.nbytes)
        waiting += gc.get_referents(one)
    return sum(sizes), max(sizes)


def test_a_chain_keeps_twenty_four_bytes_a_position_and_no_row_of_logits() -> None:
    model, longest = Wide(), 120
    sampler = PowerSampler(model, [1, 2], block_size=longest, n_mcmc=0, max_tokens=longest, seed=0)
    sampler.run()
    (chain,) = sampler.chains
    assert chain.scalars.dtype == np.float64
    assert chain.scalars.nbytes == 24 * longest
    total, largest = bytes_held(sampler, (model, model.tokenizer))
    row = 4 * model.vocab_size
    one_buffer = 4 * row  # the scorer's, three rows of this vocabulary and rounding up
    assert largest <= one_buffer
    assert total <= one_buffer + 24 * longest + 4096  # and a toy's keys and values
    assert total < longest * row / 20


def test_several_tries_cost_their_tokens_and_leave_an_exact_cache(model: Any) -> None:
    result = PowerSampler(model, PROMPT, tries=3, **SETTINGS).run()
    assert {d.tries for d in result.decisions} == {3}
    full = [d for d in result.decisions if len(d.new_tokens) == len(d.old_tokens)]
    assert any(d.forwarded == 3 * len(d.new_tokens) for d in full)
    text = result.texts[0]
    fresh = fresh_scalars(model, result.settings.prompt, text.tokens, 0.5)
    assert np.abs(text.scalars - fresh).max() < 1e-4


def test_a_stopped_sampler_goes_on_where_it_stood(model: Any) -> None:
    whole = PowerSampler(model, PROMPT, chains=2, **SETTINGS).run()
    sampler = PowerSampler(model, PROMPT, chains=2, **SETTINGS)
    for decision in sampler.steps():
        if decision.iteration == 2:
            sampler.stop()
    assert not sampler.result().finished
    for _ in sampler.steps():
        break  # leaving early is as good
    assert sampler.run() == whole
    assert whole.finished
    assert sampler.total == len(whole.decisions)


class Interrupted(Counting):
    """A model during whose ``at``-th pass, or right after it, the user presses Ctrl-C."""

    def __init__(self, model: Any, at: int, *, after: bool) -> None:
        super().__init__(model)
        self.passes, self.at, self.after = 0, at, after

    def forward(self, tokens: Any, cache: Any, **how: Any) -> Forward:
        self.passes += 1
        if self.passes == self.at and not self.after:
            raise KeyboardInterrupt
        found = super().forward(tokens, cache, **how)
        if self.passes == self.at:
            raise KeyboardInterrupt
        return found


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_while_the_model_works_loses_nothing(model: Any, after: bool) -> None:
    whole = PowerSampler(model, PROMPT, chains=2, **SETTINGS).run()
    sampler = PowerSampler(Interrupted(model, 20, after=after), PROMPT, chains=2, **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        sampler.run()
    assert sampler.run() == whole


def test_a_pass_that_was_broken_off_is_not_gone_on_with(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = PowerSampler(model, PROMPT, **SETTINGS)
    next(sampler.steps())
    monkeypatch.setattr(sampler.chains[0], "add", lambda token, scalars: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        sampler.run()
    with pytest.raises(ChainError, match=r"broken off in the middle; go on from a saved directory with resume"):
        sampler.run()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"sampling": SamplingParams(temperature=0.7)},
            r"neutral sampling, got temperature=0\.7: .*Use SamplingParams",
        ),
        ({"sampling": SamplingParams(top_k=5, top_p=0.9)}, r"got top_k=5, top_p=0\.9"),
        ({"sampling": SamplingParams(min_p=0.1, stop="x")}, r"got min_p=0\.1, stop=\('x',\)"),
        ({"alpha": 0.0}, r"alpha must be above 0, got 0\.0"),
        ({"alpha": float("nan")}, r"alpha must be above 0, got nan"),
        ({"tau": -1.0}, r"tau must be above 0, or None, got -1\.0"),
        ({"block_size": 0}, r"block_size must be 1 or more, got 0"),
        ({"n_mcmc": -1}, r"n_mcmc must be 0 or more, got -1"),
        ({"max_tokens": 0}, r"max_tokens must be at least 1 and below 2\*\*24, got 0"),
        ({"max_tokens": 300}, r"make 310; tiny-llama accepts n_ctx=256\. Lower max_tokens"),
        ({"chains": 0}, r"chains must be 1 or more, got 0"),
        ({"tries": 300}, r"tries must be 1 to 255, got 300"),
        ({"seed": -1}, r"seed must be in \[0, 2\*\*64\), got -1"),
        ({"ladder": (4.0, 2.0)}, r"ladder=\[4\.0, 2\.0\] must give one power above 0 for each of the chains=1"),
        ({"swap_every": 9}, r"swap_every must be 1 to n_mcmc=5, got 9"),
    ],
)
def test_what_would_not_be_exact_is_refused(model: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ChainError, match=says):
        PowerSampler(model, PROMPT, **(SETTINGS | settings))


def test_a_model_without_a_cache_is_refused(model: Any) -> None:
    without = Counting(model)
    without.cache_works = False  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="chains need the KV cache"):
        PowerSampler(without, PROMPT, **SETTINGS)


def test_a_result_shows_itself_as_a_table(model: Any) -> None:
    result = PowerSampler(model, PROMPT, chains=2, **SETTINGS).run()
    assert result.table().num_rows == len(result.decisions) == 30
    assert "<table>" in result._repr_html_()
    assert "finished alpha=2 decisions=30" in repr(result)
    assert [len(path) for path in result.log_p_paths()] == [15, 15]
