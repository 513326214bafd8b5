"""Drawing tokens: the distribution is the stated one, and the stream is one number a token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench import SamplingParams
from workbench.engine.sampling import Stream, draw, warp

logits = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40)


@given(
    values=logits,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 50),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.9),
)
def test_filters_keep_a_distribution_over_the_likeliest(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    raw = torch.tensor(values)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logprobs = warp(raw, params)
    assert float(logprobs.exp().sum()) == pytest.approx(1, abs=1e-4)
    kept = logprobs > -math.inf
    assert raw[kept].max() >= raw.max() - 1e-6  # of equals any may stay
    if top_k:
        assert raw[kept].min() >= raw.sort(descending=True).values[: max(top_k, 1)][-1]
    # Among the kept ones ratios are those of softmax(logits / temperature).
    ratio = torch.log_softmax(raw.double() / temperature, -1)[kept] - logprobs[kept].double()
    assert float(ratio.max() - ratio.min()) < 1e-3


def test_top_p_keeps_the_smallest_set_with_that_mass() -> None:
    logprobs = warp(torch.tensor([0.5, 0.3, 0.15, 0.05]).log(), SamplingParams(top_p=0.75))
    assert (logprobs > -math.inf).tolist() == [True, True, False, False]
    assert logprobs.exp().tolist()[:2] == pytest.approx([0.625, 0.375])


def test_temperature_zero_is_the_first_argmax() -> None:
    logprobs = warp(torch.tensor([1.0, 3.0, 3.0]), SamplingParams(temperature=0))
    assert logprobs.tolist() == [-math.inf, 0.0, -math.inf]


def test_a_tiny_temperature_does_not_overflow() -> None:
    logprobs = warp(torch.tensor([1e4, -1e4, 9999.0]), SamplingParams(temperature=1e-30))
    assert not bool(torch.isnan(logprobs).any())
    assert int(logprobs.argmax()) == 0


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.25, 0.2, 0.05])
    stream = Stream(1, 0)
    counts = torch.zeros(5)
    for _ in range(20_000):
        counts[draw(probabilities.log(), stream.uniform())] += 1
    assert counts[1] == 0
    expected = probabilities[[0, 2, 3, 4]] * 20_000
    chi_square = float(((counts[[0, 2, 3, 4]] - expected) ** 2 / expected).sum())
    assert chi_square < 16.3  # 99.9 % quantile with three degrees of freedom; the seed is fixed


@given(st.integers(0, 200), st.integers(0, 3))
def test_a_stream_can_begin_behind_the_numbers_that_were_taken(taken: int, turn: int) -> None:
    whole = Stream(5, 1, turn)
    numbers = [whole.uniform() for _ in range(taken + 3)]
    rest = Stream(5, 1, turn, taken)
    assert [rest.uniform() for _ in range(3)] == numbers[taken:]
    assert rest.taken == whole.taken == taken + 3
    assert all(0 <= number < 1 for number in numbers)


def test_streams_of_seed_and_index_are_distinct() -> None:
    first = {Stream(s, i).uniform() for s in range(20) for i in range(20)}
    assert len(first) == 400


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature must be >= 0, got -1"),
        ({"temperature": math.nan}, "temperature must be >= 0"),
        ({"top_k": -1}, "top_k must be >= 0"),
        ({"top_p": 0}, r"top_p must be in \(0, 1\], got 0"),
        ({"min_p": 1}, r"min_p must be in \[0, 1\)"),
        ({"stop": ("",)}, "stop must be non-empty strings"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**settings)


def test_a_single_stop_string_is_no_sequence_of_characters() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
