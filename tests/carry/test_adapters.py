"""Adapters: identity at the start, scale of the state, one cast, and weights that come back from disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from carry_cases import random_adapter
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from workbench.carry import ADAPTERS, LinearAdd, load_adapter, make_adapter, save_adapter
from workbench.errors import CarryError

IDENTITY = [kind for kind in ADAPTERS if kind != "replace"]


def vectors(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("kind", IDENTITY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_an_adapter_starts_as_the_identity(kind: str, dtype: torch.dtype) -> None:
    e, s = vectors(0, 2, 3, 32).to(dtype), vectors(1, 2, 3, 32, scale=50).to(dtype)
    x = make_adapter(kind, 32)(e, s)
    assert torch.equal(x, e)
    assert x.dtype == dtype


@pytest.mark.parametrize("kind", IDENTITY)
def test_at_the_start_some_gradient_reaches_the_weights(kind: str) -> None:
    adapter = make_adapter(kind, 32)
    adapter(vectors(0, 5, 32), vectors(1, 5, 32)).square().sum().backward()
    assert any(
        parameter.grad is not None and bool(parameter.grad.abs().max() > 0) for parameter in adapter.parameters()
    )


def test_replace_gives_the_state_at_the_length_of_e() -> None:
    e, s = vectors(0, 4, 32, scale=3), vectors(1, 4, 32, scale=200)
    x = make_adapter("replace", 32)(e, s)
    torch.testing.assert_close(x.norm(dim=-1), e.norm(dim=-1), rtol=1e-3, atol=0)
    torch.testing.assert_close(torch.cosine_similarity(x, s), torch.ones(4), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", list(ADAPTERS))
@given(scale=st.floats(0.1, 1e4))
def test_the_scale_of_the_state_does_not_matter(kind: str, scale: float) -> None:
    adapter = random_adapter(kind)
    e, s = vectors(2, 3, 32), vectors(3, 3, 32)
    torch.testing.assert_close(adapter(e, s * scale), adapter(e, s), rtol=1e-3, atol=1e-3)


def test_with_rescale_the_gain_is_in_units_of_e() -> None:
    e, s = vectors(4, 6, 32, scale=7), vectors(5, 6, 32)
    x = make_adapter("replace", 32, gain=0.25)(e, s)
    torch.testing.assert_close(x.norm(dim=-1) / e.norm(dim=-1), torch.full((6,), 0.25), rtol=1e-3, atol=0)


def test_the_injection_is_what_the_state_adds() -> None:
    adapter = random_adapter("linear_add")
    e, s = vectors(6, 3, 32), vectors(7, 3, 32)
    nothing = adapter(e, torch.zeros_like(s))
    torch.testing.assert_close(adapter.injection(e, s), adapter(e, s) - nothing)
    assert bool((adapter.injection(e, torch.zeros_like(s)) == 0).all())


@pytest.mark.parametrize("kind", list(ADAPTERS))
def test_a_merge_in_half_precision_is_computed_in_float32_and_cast_once(kind: str) -> None:
    adapter = random_adapter(kind)
    e, s = vectors(8, 4, 32).bfloat16(), vectors(9, 4, 32).bfloat16()
    assert torch.equal(adapter(e, s), adapter(e.float(), s.float()).bfloat16())


def test_the_linear_adapter_of_the_demonstration_has_about_eight_thousand_weights() -> None:
    assert sum(parameter.numel() for parameter in LinearAdd(64).parameters()) == 2 * 64 * 64 + 64


@pytest.mark.parametrize("kind", list(ADAPTERS))
def test_an_adapter_comes_back_from_disk(kind: str, tmp_path: Path) -> None:
    adapter = random_adapter(kind)
    again = load_adapter(save_adapter(adapter, tmp_path / "made" / "adapter.safetensors"))
    assert again.config() == adapter.config() == json.loads(json.dumps(adapter.config()))
    assert again.fingerprint() == adapter.fingerprint()
    e, s = vectors(0, 3, 32), vectors(1, 3, 32)
    assert torch.equal(again(e, s), adapter(e, s))


def test_the_fingerprint_tells_weights_and_forms_apart() -> None:
    prints = {
        make_adapter("linear_add", 32).fingerprint(),
        make_adapter("linear_add", 32, gain=2.0).fingerprint(),
        random_adapter("linear_add").fingerprint(),
        random_adapter("linear_add", seed=1).fingerprint(),
    }
    assert len(prints) == 4


def test_making_an_adapter_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    make_adapter("low_rank", 32, seed=5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: make_adapter("linear_ad", 32), "no adapter 'linear_ad'.*Did you mean 'linear_add'"),
        (lambda: make_adapter("low_rank", 32, rang=2), "takes gain, rank, rescale, seed; got 'rang'"),
        (lambda: make_adapter("low_rank", 8, rank=9), "rank must be 1 to d_model=8, got 9"),
        (lambda: make_adapter("linear_add", 0), "d_model must be 1 or more, got 0"),
        (lambda: make_adapter("linear_add", 4, gain=-1.0), "gain must be a finite number of 0 or more.*got -1"),
        (lambda: make_adapter("linear_add", 4)(torch.zeros(3, 5), torch.zeros(3, 4)), r"d_model=4, but e is \(3, 5\)"),
        (lambda: make_adapter("linear_add", 4)(torch.zeros(3, 4), torch.zeros(3, 5)), r"d_model=4, but s is \(3, 5\)"),
    ],
)
def test_a_wrong_adapter_is_refused_with_what_to_do(make: object, says: str) -> None:
    with pytest.raises(CarryError, match=says):
        make()  # type: ignore[operator]


def test_a_file_that_is_no_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.safetensors").write_bytes(b"\x10garbage")
    save_file({"w": torch.zeros(2)}, tmp_path / "other.safetensors")
    damaged = {"adapter": json.dumps(make_adapter("linear_add", 4).config())}
    save_file({"state_weight": torch.zeros(4, 4)}, tmp_path / "half.safetensors", metadata=damaged)
    for name, says in [
        ("missing", "can't be read as an adapter"),
        ("noise", "can't be read as an adapter"),
        ("other", "its header says nothing of one"),
        ("half", "other weights than its header says"),
    ]:
        with pytest.raises(CarryError, match=says):
            load_adapter(tmp_path / f"{name}.safetensors")
