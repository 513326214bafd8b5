"""Taking a row's end out of the cache and putting it back: bit for bit, in plain and in forked stores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from workbench.models import KVRows

IDS = [7, 20, 33, 46, 59]


def same(one: Any, other: Any) -> bool:
    pairs = zip((*one.keys, *one.values), (*other.keys, *other.values), strict=True)
    return one.n == other.n and all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("forked", [False, True], ids=["plain", "forked"])
def test_what_was_taken_comes_back_bit_for_bit_over_something_else(model: Any, forked: bool) -> None:
    base = model.new_cache(1)
    model.forward([IDS], base)
    cache = base.fork(0, 2) if forked else model.new_cache(2)
    model.forward([[1, 2, 3, 4], [5, 6]], cache)
    before = cache.lengths
    whole = cache.take(0, 4)
    cache.put(0, whole)
    tail = cache.take(0, 3)
    assert cache.lengths == (before[0] - 3, before[1])
    model.forward([[90, 91, 92, 93, 94], [95]], cache)
    cache.rewind(0, 5)
    cache.put(0, tail)
    assert same(cache.take(0, 4), whole)
    cache.put(0, whole)
    cache.rewind(1, 1)
    found = model.forward([[8], [8]], cache).logits
    prefix = IDS if forked else []
    fresh = [
        model.forward([[*prefix, *ids, 8]], model.new_cache()).logits[0][-1] for ids in ([1, 2, 3, 4], [5, 6])
    ]  # fmt: skip
    for row in (0, 1):
        assert torch.allclose(found[row][-1], fresh[row], atol=1e-3)


def test_putting_makes_room_where_there_is_none() -> None:
    long = KVRows(1, 1, 2000)
    view = long.begin([0], 700)
    values = torch.arange(700.0)[None, :, None, None]
    view.append(0, values, -values)
    view.commit()
    tail = long.take(0, 700)
    fresh = KVRows(1, 2, 2000)
    fresh.put(1, tail)
    assert fresh.lengths == (0, 700)
    assert same(fresh.take(1, 700), tail)


def test_nothing_can_be_taken_and_put_back_and_more_than_is_there_can_not(model: Any) -> None:
    cache = model.new_cache(1)
    cache.put(0, cache.take(0, 0))
    model.forward([IDS], cache)
    with pytest.raises(ValueError, match="can't rewind row 0 by 6: it holds 5 positions"):
        cache.take(0, 6)
    assert cache.lengths == (5,)


def test_a_layer_that_holds_nothing_stays_empty() -> None:
    cache = KVRows(2, 1, 50)
    view = cache.begin([0], 3)
    view.append(1, torch.ones(1, 3, 1, 1), torch.ones(1, 3, 1, 1))
    view.commit()
    tail = cache.take(0, 2)
    assert tail.keys[0] is None
    cache.put(0, tail)
    assert cache.lengths == (3,)
