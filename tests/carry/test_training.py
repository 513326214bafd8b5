"""Training: the loss falls, equal seeds give equal weights, and a broken-off training ends where a whole one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from workbench.carry import CarryModel, LinearAdd, Replace
from workbench.carry.optimise import Plan, optimise
from workbench.carry.systems import SYSTEMS, TwoLayerMerge, make_merge, read_logits, shortened, system_named
from workbench.carry.task import PAUSE, PointerChase, stream
from workbench.carry.toy import TOY_SHAPE, train_base, write_blank
from workbench.carry.training import Task, fit, training_loss
from workbench.errors import CarryError
from workbench.models import load

TASK = PointerChase()
SHORT = Plan(steps=12, learning_rate=0.05)


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blank(tmp_path_factory.mktemp("toy") / "blank", TASK, TOY_SHAPE, 0)


def carrier(directory: Path, adapter: object = "linear_add", *, frozen: bool = True) -> CarryModel:
    model = load(directory, device="cpu", progress=False)
    return CarryModel(model, band=(1, 3), adapter=adapter, pause_token=PAUSE, loops=0, frozen=frozen)  # type: ignore[arg-type]


# --- the optimiser loop ---


def a_line() -> tuple[dict[str, nn.Parameter], Callable[[int], Tensor]]:
    """Two weights that learn y = 3 x - 1 from batches named by the step."""
    weights = {"slope": nn.Parameter(torch.zeros(1)), "offset": nn.Parameter(torch.zeros(1))}

    def loss_at(step: int) -> Tensor:
        x = torch.randn(64, generator=stream("line", step))
        return (weights["slope"] * x + weights["offset"] - (3 * x - 1)).square().mean()

    return weights, loss_at


def test_the_loop_learns_a_line() -> None:
    weights, loss_at = a_line()
    plan = Plan(steps=400, learning_rate=0.1, weight_decay=0, clip=100)
    training = optimise(weights, loss_at, plan, progress=False)
    assert len(training.losses) == 400
    assert training.last_loss() < 1e-3 < training.losses[0]
    assert torch.allclose(torch.cat(list(weights.values())), torch.tensor([3.0, -1.0]), atol=1e-3)


@given(stops=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_training_in_pieces_ends_in_the_weights_of_a_whole_one(
    stops: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole, loss_at = a_line()
    losses = optimise(whole, loss_at, SHORT, progress=False).losses
    folder = tmp_path_factory.mktemp("pieces")
    for stop in [*stops, SHORT.steps]:
        pieces, loss_at = a_line()
        training = optimise(pieces, loss_at, SHORT, folder=folder, limit=stop, progress=False)
    assert training.losses == losses
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_weights_that_get_a_gradient_at_some_steps_only_resume_too(tmp_path: Path) -> None:
    def uneven() -> tuple[dict[str, nn.Parameter], Callable[[int], Tensor]]:
        weights, _ = a_line()
        return weights, lambda step: (weights["slope" if step % 3 else "offset"] - 1.0).square().sum()

    whole, loss_at = uneven()
    optimise(whole, loss_at, SHORT, progress=False)
    for limit in (1, 4, 12):
        pieces, loss_at = uneven()
        optimise(pieces, loss_at, SHORT, folder=tmp_path, limit=limit, progress=False)
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_the_rate_falls_along_half_a_cosine_and_the_gradient_is_clipped() -> None:
    plan = Plan(steps=100, learning_rate=2.0, clip=0.5)
    assert [round(plan.rate(step), 6) for step in (0, 50, 100)] == [2.0, 1.0, 0.0]
    weight = {"w": nn.Parameter(torch.tensor([5.0]))}
    optimise(weight, lambda _step: 1000 * weight["w"].sum(), replace(plan, steps=1), progress=False)
    assert weight["w"].grad is not None
    assert float(weight["w"].grad.norm()) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": 0}, "steps must be 1 or more, got 0"),
        ({"batch": 0}, "batch must be 1 or more, got 0"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more, got -1"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number above 0, got nan"),
        ({"clip": 0}, "clip must be a finite number above 0, got 0"),
    ],
)
def test_a_plan_out_of_range_is_refused(change: dict[str, float], says: str) -> None:
    with pytest.raises(CarryError, match=says):
        Plan(**{**asdict(SHORT), **change})


def test_a_folder_of_another_training_is_refused(tmp_path: Path) -> None:
    weights, loss_at = a_line()
    optimise(weights, loss_at, SHORT, folder=tmp_path, limit=1, progress=False)
    with pytest.raises(CarryError, match=r"another plan.*use another folder"):
        optimise(weights, loss_at, replace(SHORT, seed=1), folder=tmp_path, progress=False)
    other = {"slope": nn.Parameter(torch.zeros(2))}
    with pytest.raises(CarryError, match=r"training of other weights.*use another folder"):
        optimise(other, lambda _step: other["slope"].sum(), SHORT, folder=tmp_path, progress=False)
    (tmp_path / "training.safetensors").write_bytes(b"damaged")
    with pytest.raises(CarryError, match=r"can't be read as a training's state.*Remove it"):
        optimise(weights, loss_at, SHORT, folder=tmp_path, progress=False)


def test_a_loss_that_is_no_number_or_reaches_no_weight_is_refused() -> None:
    weights, _ = a_line()
    with pytest.raises(CarryError, match="loss is nan at step 0: lower learning_rate"):
        optimise(weights, lambda _step: weights["slope"].sum() * float("nan"), SHORT, progress=False)
    with pytest.raises(CarryError, match="does not depend on the weights that train"):
        optimise(weights, lambda _step: torch.tensor(1.0), SHORT, progress=False)
    for weight in weights.values():
        weight.requires_grad_(False)
    with pytest.raises(CarryError, match="nothing to train"):
        optimise(weights, lambda _step: weights["slope"].sum(), SHORT, progress=False)


# --- the base ---


def test_a_short_base_training_lowers_its_loss_and_ends_in_an_ordinary_checkpoint(tmp_path: Path) -> None:
    plan = Plan(steps=60, learning_rate=1.5e-3)
    train_base(tmp_path / "base", plan=plan, progress=False)
    losses = load_file(tmp_path / "base" / "training.safetensors")["losses"]
    assert losses[-10:].mean() < losses[:10].mean() - 0.4
    model = load(tmp_path / "base", device="cpu", progress=False)
    assert (model.n_layers, model.d_model, model.vocab_size) == (4, 64, 14)
    assert model.cache_works
    trained = load_file(tmp_path / "base" / "model.safetensors")
    assert sum(weight.numel() for weight in trained.values()) == 203_072
    ids = TASK.sample(1, stream(1)).prompts[0].tolist()
    captured = model.forward([ids], model.new_cache(), capture=["blocks.2.hook_resid_post"])
    assert captured.activations["blocks.2.hook_resid_post"][0].shape == (26, 64)


def test_a_base_training_in_pieces_equals_a_whole_one(tmp_path: Path) -> None:
    plan = Plan(steps=4, batch=4, learning_rate=1e-3)
    train_base(tmp_path / "whole", plan=plan, progress=False)
    for _ in range(2):
        train_base(tmp_path / "pieces", plan=plan, limit=2, progress=False)
    whole, pieces = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "pieces"))
    assert whole.keys() == pieces.keys()
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)
    stamp = (tmp_path / "whole" / "model.safetensors").stat().st_mtime_ns
    train_base(tmp_path / "whole", plan=plan, progress=False)
    assert (tmp_path / "whole" / "model.safetensors").stat().st_mtime_ns == stamp


# --- the merge ---


def test_a_system_draws_its_pauses_from_one_up_to_what_the_curriculum_allows() -> None:
    system = SYSTEMS["carry"]
    assert system.plan is not None
    seen = [{system.pauses_at(step, stream(step, i)) for i in range(60)} for step in (0, 200, 400, 500, 999)]
    assert seen == [{1}, {1, 2}, {1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3, 4}]
    assert {SYSTEMS["carry_all_at_once"].pauses_at(0, stream(i)) for i in range(60)} == {1, 2, 3, 4}
    assert [SYSTEMS[name].loops_at(3) for name in ("carry", "depth", "depth_fixed")] == [0, 3, 4]


def test_the_answers_logits_are_those_of_the_model_fed_the_whole_row(blank: Path) -> None:
    model = carrier(blank)
    with torch.no_grad():
        for weight in model.adapter.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=stream("weights")))
    batch = TASK.draw(3, 2, stream("batch"))
    for mode, loops in (("carry", 0), ("depth", 2), ("depth_tail", 2), ("feedforward", 0), ("prompt_loops", 1)):
        found, _ = read_logits(model, batch, mode=mode, loops=loops)
        whole = model.logits(batch.ids, batch.mask, batch.prompt_lengths, mode=mode, loops=loops, reads=batch.reads())
        assert torch.allclose(found, whole, atol=1e-5), mode


def test_training_reads_the_answer_where_it_is_asked_for_and_nothing_else(blank: Path) -> None:
    model = carrier(blank)
    batch = TASK.draw(4, 1, stream("loss"))
    logits = model.base.forward(batch.ids[:, :-1].tolist(), model.base.new_cache(4)).logits
    expected = nn.functional.cross_entropy(torch.cat(list(logits)), batch.ids[:, -1])
    found = training_loss(model, batch, mode="carry", loops=0).detach()
    assert float(found) == pytest.approx(float(expected), abs=1e-5)


def test_fit_changes_the_adapter_alone_and_equal_seeds_end_in_equal_weights(blank: Path) -> None:
    system = shortened(SYSTEMS["carry"], 3)
    found = []
    for seed in (5, 5, 6):
        model = carrier(blank)
        before = {name: weight.clone() for name, weight in model.blocks.whole.named_parameters()}
        fit(model, TASK, system=system, seed=seed, progress=False)
        assert all(torch.equal(before[name], weight) for name, weight in model.blocks.whole.named_parameters())
        assert not any(weight.requires_grad for weight in model.blocks.parameters())
        found.append(torch.cat([weight.detach().flatten() for weight in model.adapter.parameters()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["carry", "feedforward_all"])
def test_a_fit_in_pieces_equals_a_whole_one(name: str, blank: Path, tmp_path: Path) -> None:
    system = shortened(SYSTEMS[name], 4)
    whole = carrier(blank)
    fit(whole, TASK, system=system, seed=1, progress=False)
    for limit in (1, 3):
        pieces = carrier(blank)
        fit(pieces, TASK, system=system, seed=1, folder=tmp_path, limit=limit, progress=False)
    for one, other in ((whole.adapter, pieces.adapter), (whole.blocks.whole, pieces.blocks.whole)):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_training_all_weights_moves_the_base_and_leaves_it_frozen_again(blank: Path) -> None:
    model = carrier(blank)
    before = [weight.clone() for weight in model.blocks.parameters()]
    fit(model, TASK, system=shortened(SYSTEMS["feedforward_all"], 2), progress=False)
    moved = [not torch.equal(old, new) for old, new in zip(before, model.blocks.parameters(), strict=True)]
    assert sum(moved) > 30
    assert not any(weight.requires_grad for weight in model.blocks.parameters())


def test_what_cant_be_trained_is_refused(blank: Path) -> None:
    with pytest.raises(CarryError, match="is not trained: give a system with a plan"):
        fit(carrier(blank), TASK, system=SYSTEMS["base"], progress=False)
    with pytest.raises(CarryError, match="nothing to train"):
        fit(carrier(blank, Replace(64)), TASK, system=shortened(SYSTEMS["carry"], 1), progress=False)
    unreached = replace(shortened(SYSTEMS["carry"], 1), pauses=False)
    with pytest.raises(CarryError, match="loss does not depend on the weights"):
        fit(carrier(blank), TASK, system=unreached, progress=False)
    with pytest.raises(CarryError, match=r"no system 'cary'; choose from .* Did you mean 'carry'"):
        system_named("cary")


def test_the_two_layer_merge_starts_as_the_identity_and_every_system_has_an_adapter() -> None:
    e, s = (torch.randn(2, 64, generator=stream(name)) for name in "es")
    assert torch.equal(TwoLayerMerge(64)(e, s), e)
    assert {type(make_merge(system, 64)) for system in SYSTEMS.values()} == {LinearAdd, TwoLayerMerge}
    assert isinstance(TASK, Task)
