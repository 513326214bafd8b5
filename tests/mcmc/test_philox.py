"""Random numbers that are named by what they are for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.mcmc.philox import Purpose, counter_of, key_of, philox, uniform, uniform_of, uniform_one

WORD = st.integers(0, 2**32 - 1)


def in_hex(words: np.ndarray) -> str:
    return " ".join(f"{int(word):08x}" for word in words)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_the_known_answers_of_random123(counter: list[int], key: list[int], answer: str) -> None:
    assert in_hex(philox(counter, key)) == answer


@given(st.integers(0, 2**64 - 1), WORD, st.integers(0, 2**24 - 1), WORD, st.sampled_from(Purpose), WORD)
def test_one_draw_is_that_of_the_arrays(
    seed: int, chain: int, block: int, iteration: int, purpose: Purpose, index: int
) -> None:
    alone = uniform_one(seed, chain=chain, block=block, iteration=iteration, purpose=purpose, index=index)
    many = uniform(seed, chain=[chain, 1], block=block, iteration=iteration, purpose=purpose, index=index)
    assert alone == many[0]
    assert 0 <= alone < 1


def test_draws_for_different_ends_never_share_a_counter() -> None:
    seen = [
        counter_of(chain=chain, block=block, iteration=iteration, purpose=purpose, index=index).tobytes()
        for chain in (0, 1, 300)
        for block in (0, 1, 256)
        for iteration in (0, 1, 2)
        for purpose in Purpose
        for index in (0, 1, 1 << 24, (1 << 24) + 1)
    ]
    assert len(set(seen)) == len(seen)


def test_the_halves_of_a_seed_are_the_key() -> None:
    assert key_of(0x0123456789ABCDEF).tolist() == [0x89ABCDEF, 0x01234567]
    assert key_of(1).tolist() != key_of(1 << 32).tolist()


def test_the_numbers_are_uniform_and_reach_neither_end() -> None:
    numbers = uniform(3, chain=0, block=0, iteration=np.arange(40_000), purpose=Purpose.ACCEPT)
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert abs(counts - 2000).max() < 6 * np.sqrt(2000)
    full = np.full(4, 0xFFFFFFFF, dtype=np.uint32)
    assert uniform_of(full) == 1 - 2.0**-53
    assert uniform_of(np.zeros(4, dtype=np.uint32)) == 0
