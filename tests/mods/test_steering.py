"""Laws of steering: the direction is a difference of means, and it is added at every position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mod_scripts import GREEDY

from workbench import Session
from workbench.errors import InvalidActionError, UnknownHookError
from workbench.mods import Direction, difference_of_means, rebuild, steer, watch

HOOK = "blocks.1.hook_resid_post"


def mean_at(model: Any, text: str, position: str) -> torch.Tensor:
    ids = model.tokenizer.prompt(text)
    row: torch.Tensor = model.forward([ids], model.new_cache(1), capture=(HOOK,)).activations[HOOK][0]
    return row[-1] if position == "last" else row.mean(dim=0)


@pytest.mark.parametrize("position", ["last", "mean"])
def test_a_direction_is_the_difference_of_the_means(model: Any, position: str) -> None:
    positive = ["good", "very good!", "b"] * 4
    found = difference_of_means(model, positive, ["bad"], hook=HOOK, position=position)
    plain = torch.stack([mean_at(model, t, position) for t in positive]).mean(0) - mean_at(model, "bad", position)
    torch.testing.assert_close(found.vector, plain.clone(), atol=1e-4, rtol=1e-4)
    assert (found.hook, found.n_positive, found.n_negative) == (HOOK, 12, 1)
    assert found.norm == pytest.approx(float(found.vector.norm()))
    assert not found.vector.is_inference()


def test_a_unit_direction_has_length_one_and_remembers_its_norm(model: Any) -> None:
    plain = difference_of_means(model, ["good"], ["bad"], hook=HOOK)
    unit = difference_of_means(model, ["good"], ["bad"], hook=HOOK, unit=True)
    assert float(unit.vector.norm()) == pytest.approx(1)
    assert unit.norm == pytest.approx(plain.norm)
    torch.testing.assert_close(unit.vector * unit.norm, plain.vector)


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"positive": []}, ValueError, "positive must be a list of at least one text"),
        ({"negative": "bad"}, ValueError, "negative must be a list of at least one text, got 'bad'"),
        ({"position": "first"}, ValueError, "choose from last, mean"),
        ({"hook": "blocks.1.hook_resid_pots"}, UnknownHookError, "no hook matches"),
        ({"hook": "blocks.1.attn.hook_z"}, ValueError, "a direction needs one vector"),
        ({"negative": ["good"]}, ValueError, "do not differ"),
    ],
)
def test_a_direction_that_can_not_be_is_refused(model: Any, change: Any, error: Any, why: str) -> None:
    given = {"positive": ["good"], "negative": ["bad"], "hook": HOOK, **change}
    with pytest.raises(error, match=why):
        difference_of_means(model, **given)


def steered(model: Any, mods: Any) -> tuple[Any, list[Any]]:
    seen: list[Any] = []
    session = Session(model, [*mods, watch(seen.append, capture=HOOK)])
    result = session.generate("p:", max_new_tokens=4, sampling=GREEDY, seed=0)
    return result, [e for e in seen if type(e).__name__ == "ForwardPass"]


def test_the_direction_is_added_from_the_first_position_on(model: Any) -> None:
    vector = torch.arange(32.0) / 10
    _, plain = steered(model, [])
    _, first = steered(model, [steer(vector, layer=1, scale=2)])
    shift = first[0].span_activations[HOOK] - plain[0].span_activations[HOOK]
    torch.testing.assert_close(shift.clone(), (2 * vector).expand_as(shift), atol=1e-4, rtol=1e-4)


def test_a_mod_rebuilt_from_the_trace_steers_the_same(model: Any) -> None:
    direction = Direction(hook=HOOK, vector=torch.randn(32), norm=1.0, n_positive=1, n_negative=1)
    result, _ = steered(model, [steer(direction, scale=3)])
    told = result.trace.run["requests"]["r0"]["mods"][0]
    again, _ = steered(model, [rebuild(told)])
    assert again.tokens == result.tokens
    assert steer(torch.zeros(9000), hook=HOOK).describe()["params"] is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "needs one hook"),
        ({"layer": 1, "hook": HOOK}, "needs one hook"),
        ({"layer": 1, "scale": float("inf")}, "all finite"),
        ({"layer": 1, "direction": [float("nan")]}, "all finite"),
        ({"layer": 1, "direction": [[1.0]]}, "needs one vector"),
    ],
)
def test_a_steer_that_can_not_be_is_refused(given: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        steer(**{"direction": [1.0] * 32, **given})


def test_a_layer_that_is_not_there_is_named(model: Any) -> None:
    with pytest.raises(InvalidActionError, match=r"no hook 'blocks\.9\.hook_resid_post'"):
        steered(model, [steer([1.0] * 32, layer=9)])
