"""Pointer chasing: every prompt says the map that its answers follow, and equal seeds give equal problems."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workbench.carry.task import PAUSE, PointerChase, Problems, stream
from workbench.carry.toy import ToyShape, write_blank
from workbench.errors import CarryError
from workbench.models import load

sizes = st.integers(2, 26)
batches = st.integers(1, 7)
seeds = st.integers(0, 2**32)


def read_map(task: PointerChase, prompt: Tensor) -> dict[str, str]:
    """The map that a prompt's words spell out, read without the task's own code."""
    words = [task.vocabulary[token] for token in prompt.tolist()]
    triples = [words[start : start + 3] for start in range(0, 3 * task.n_nodes, 3)]
    assert [triple[2] for triple in triples] == [","] * task.n_nodes
    assert words[3 * task.n_nodes] == "?"
    return {source: target for source, target, _ in triples}


@given(size=sizes, batch=batches, seed=seeds)
def test_a_prompt_spells_one_cycle_over_all_nodes_and_asks_for_one_of_them(size: int, batch: int, seed: int) -> None:
    task = PointerChase(n_nodes=size)
    for prompt in task.sample(batch, stream(seed)).prompts:
        told = read_map(task, prompt)
        here, seen = task.vocabulary[int(prompt[-1])], []
        for _ in range(size):
            seen.append(here)
            here = told[here]
        assert sorted(seen) == sorted(told)
        assert here == seen[0]


@given(size=sizes, batch=batches, seed=seeds, hops=st.integers(0, 60))
def test_an_answer_is_what_the_prompts_own_map_leads_to(size: int, batch: int, seed: int, hops: int) -> None:
    task = PointerChase(n_nodes=size)
    problems = task.sample(batch, stream(seed))
    for prompt, answer in zip(problems.prompts, problems.answers(hops).tolist(), strict=True):
        told, here = read_map(task, prompt), task.vocabulary[int(prompt[-1])]
        for _ in range(hops):
            here = told[here]
        assert task.vocabulary[answer] == here


@given(size=sizes, seed=seeds, first=st.integers(0, 9), second=st.integers(0, 9))
def test_hops_add_up_and_a_whole_round_leads_back(size: int, seed: int, first: int, second: int) -> None:
    problems = PointerChase(n_nodes=size).sample(5, stream(seed))
    halfway = problems.follow(problems.starts, first)
    assert torch.equal(problems.follow(halfway, second), problems.follow(problems.starts, first + second))
    assert torch.equal(problems.follow(halfway, size), halfway)


@given(seed=seeds, pauses=st.integers(0, 12))
def test_pauses_follow_the_prompt_and_change_nothing_before_them(seed: int, pauses: int) -> None:
    task = PointerChase()
    problems = task.sample(3, stream(seed))
    ids = task.with_pauses(problems, pauses)
    assert torch.equal(ids[:, : task.prompt_length], problems.prompts)
    assert ids[:, task.prompt_length :].tolist() == [[task.pause_id] * pauses] * 3
    assert task.vocabulary[task.pause_id] == PAUSE


def test_the_default_prompt_has_26_tokens_and_chance_is_an_eighth() -> None:
    task = PointerChase()
    assert task.sample(2, stream(0)).prompts.shape == (2, 26)
    assert (task.prompt_length, task.chance) == (26, 1 / 8)


@given(seed=seeds)
def test_equal_names_give_equal_problems_and_other_names_others(seed: int) -> None:
    task = PointerChase()
    first, again, other = (task.sample(16, stream("law", name)) for name in (seed, seed, seed + 1))
    assert torch.equal(first.prompts, again.prompts)
    assert not torch.equal(first.prompts, other.prompts)


def test_maps_orders_and_queries_are_uniform() -> None:
    """Chi-square over 4000 problems of 4 nodes: 6 cycles, 24 orders, 4 queries; bounds at p = 1e-6."""
    task = PointerChase(n_nodes=4)
    problems = task.sample(4000, stream("uniform"))
    order = problems.prompts[:, 0:12:3]
    for rows, kinds, bound in ((problems.successors, 6, 36), (order, 24, 75), (problems.starts[:, None], 4, 31)):
        counts = torch.unique(rows, dim=0, return_counts=True)[1].double()
        assert len(counts) == kinds
        expected = len(rows) / kinds
        assert ((counts - expected) ** 2 / expected).sum() < bound


def test_given_parts_make_the_prompt_that_a_reader_would_write() -> None:
    task = PointerChase(n_nodes=3)
    problems = task.problems(torch.tensor([[1, 2, 0]]), torch.tensor([[2, 0, 1]]), torch.tensor([1]))
    assert task.text(problems, 0, pauses=2) == f"c a , a b , b c , ? b {PAUSE} {PAUSE}"
    assert [task.vocabulary[int(problems.answers(hops))] for hops in range(4)] == ["b", "c", "a", "b"]


def test_the_checkpoints_tokenizer_reads_a_prompts_text_back(tmp_path: Path) -> None:
    task = PointerChase()
    tokenizer = load(write_blank(tmp_path, task, ToyShape(), 0)).tokenizer
    problems = task.sample(4, stream("tokenizer"))
    for row, ids in enumerate(task.with_pauses(problems, 3).tolist()):
        text = task.text(problems, row, pauses=3)
        assert tokenizer.prompt(text) == ids
        assert tokenizer.decode(ids) == text
    assert len(tokenizer) == len(task.vocabulary)
    assert tokenizer.special_token(PAUSE) == task.pause_id
    assert [tokenizer.token_text(token) for token in range(len(tokenizer))] == list(task.vocabulary)


@pytest.mark.parametrize("size", [1, 27])
def test_a_size_that_letters_cant_name_is_refused(size: int) -> None:
    with pytest.raises(CarryError, match=rf"n_nodes must be 2 to 26 .*got {size}"):
        PointerChase(n_nodes=size)


def test_empty_batches_and_negative_counts_are_refused() -> None:
    task = PointerChase()
    problems: Problems = task.sample(1, stream(0))
    with pytest.raises(CarryError, match="needs 1 problem or more, got 0"):
        task.sample(0, stream(0))
    with pytest.raises(CarryError, match="pauses must be 0 or more, got -1"):
        task.with_pauses(problems, -1)
    with pytest.raises(CarryError, match="hops must be 0 or more, got -2"):
        problems.answers(-2)
