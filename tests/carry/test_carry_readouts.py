"""Readouts: lenses against their definition, and what they say of states that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from carry_cases import FAMILIES, LAYERS, PAUSE, carrier, random_rows, relative

from workbench.carry import (
    CarryTrace,
    Exit,
    JacobianLens,
    LogitLens,
    attention_shares,
    band_warning,
    decodability,
    effect_grid,
    fit_jacobian_lens,
    loop_motion,
    measure_controls,
    orbit,
    pack,
    readings,
    step_concepts,
    step_means,
    swapped,
    table_text,
    trajectories,
    wilson,
    zero,
)
from workbench.carry.decodability import LayerReading
from workbench.errors import CarryError

PROMPT = [5, 99, 123, 7, 43, 8, 200, 17, 64, 31, 250]


@pytest.fixture(scope="module")
def model() -> Any:
    return carrier()


@pytest.fixture(scope="module")
def trace(model: Any) -> CarryTrace:
    return model.run(PROMPT, max_new_tokens=3, attention=True)


def test_the_logit_lens_is_the_models_own_head_on_the_state(model: Any, trace: CarryTrace) -> None:
    found = readings(model, trace, k=4)
    assert [(r.phase, r.loop, r.step) for r in found[:4]] == [
        ("prompt", 0, 0), ("prompt", 1, 0), ("prompt", 2, 0), ("pause", 0, 1)
    ]  # fmt: skip
    probabilities = torch.softmax(model.unembed(trace.states[1]), -1)
    assert [guess.token for guess in found[3].lens] == probabilities.topk(4).indices.tolist()
    assert found[3].lens[0].probability == pytest.approx(float(probabilities.max()), rel=1e-4)
    assert found[3].lens[0].text == model.tokenizer.token_text(found[3].lens[0].token)
    assert [guess.rank for guess in found[3].lens] == [0, 1, 2, 3]
    assert found[0].now == ()


def test_what_the_model_would_answer_now_is_what_it_then_says(model: Any, trace: CarryTrace) -> None:
    found = {r.step: r.now[0].token for r in readings(model, trace) if r.now}
    assert [found[step] for step in (3, 4, 5)] == list(trace.ids[14:])


def test_the_mouth_can_be_left_out_of_the_lens(model: Any, trace: CarryTrace) -> None:
    for plain, without in zip(readings(model, trace), readings(model, trace, exclude_mouth=True), strict=True):
        if plain.now:
            said = plain.now[0].token
            assert said not in [guess.token for guess in without.lens]
            rest = [guess.token for guess in plain.lens if guess.token != said]
            assert [guess.token for guess in without.lens][: len(rest)] == rest


def test_trajectories_tell_ranks_first_decodable_steps_and_flips(model: Any, trace: CarryTrace) -> None:
    best = model.unembed(trace.states).argmax(-1).tolist()
    [found] = trajectories(model, trace, [best[2]])
    assert found.steps[2].rank == 0
    assert found.first_decodable == best.index(best[2])
    assert found.flips == tuple(i for i in range(1, len(best)) if best[i] != best[i - 1])
    assert len(found.loops) == 3
    never = next(token for token in range(256) if token not in best)
    assert trajectories(model, trace, [never])[0].first_decodable is None
    watched = readings(model, trace, watch=[best[2]])
    assert watched[4].watched[0] == found.steps[2]


def test_the_matrix_of_steps_and_concepts_holds_lens_probabilities(model: Any, trace: CarryTrace) -> None:
    found = step_concepts(model, trace, [40, 41])
    wanted = torch.softmax(model.unembed(trace.states), -1)[:, [40, 41]]
    torch.testing.assert_close(found, wanted)


def test_the_table_has_a_line_per_loop_and_step(model: Any, trace: CarryTrace) -> None:
    lines = table_text(model, trace, k=2).splitlines()
    assert len(lines) == 1 + 3 + trace.steps - 1
    assert "logit lens" in lines[0]


# --- the Jacobian lens ---


def numeric_jacobian(
    model: Any, prompt: list[int], loops: int, exit: Exit, step: int, channels: list[int]
) -> torch.Tensor:
    """Central differences of the last residual by some channels of the state at one place."""
    batch = pack([(prompt, 2, [])], PAUSE)
    place = len(prompt) - 1 + step
    layer = model.blocks.layers[exit.layer]

    def final(channel: int, amount: float) -> torch.Tensor:
        calls = 0

        def shift(_block: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            # The band runs over the prompt once per loop, then once per pause; the suffix once over everything.
            if exit.layer >= 3 or (exit.loop is not None and calls == exit.loop + 1):
                column = place
            elif exit.loop is None and calls == loops + 1 + step:
                column = 0
            else:
                return output
            moved = output.clone()
            moved[0, column, channel] += amount
            return moved

        handle = layer.register_forward_hook(shift)
        try:
            with torch.no_grad():
                found = model.states(batch.ids, batch.mask, batch.prompt_lengths, loops=loops)
                return model.residuals(found)[0, place].double()
        finally:
            handle.remove()

    size = 5e-3
    return torch.stack([(final(c, size) - final(c, -size)) / (2 * size) for c in channels], 1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "exit", [Exit(layer=2, loop=0), Exit(layer=1, loop=1), Exit(layer=2), Exit(layer=1), Exit(layer=3)]
)
def test_the_jacobian_is_that_of_the_last_residual_by_the_state(family: str, exit: Exit) -> None:
    model = carrier(family, pauses=2, loops=1)
    lens = fit_jacobian_lens(model, [PROMPT], [exit])
    steps = [0] if exit.loop is not None else [1, 2]
    channels = [0, 7, 31]
    wanted = torch.stack([numeric_jacobian(model, PROMPT, 1, exit, step, channels) for step in steps]).mean(0)
    assert relative(lens.matrices[exit][:, channels].double(), wanted) < 2e-2
    assert lens.samples == len(steps)


def test_the_jacobian_is_the_mean_over_prompts_of_different_lengths() -> None:
    model = carrier(pauses=2, loops=1)
    exits = [Exit(layer=2), Exit(layer=2, loop=0)]
    prompts = [PROMPT, [31, 4], [90] * 15]
    together = fit_jacobian_lens(model, prompts, exits)
    alone = [fit_jacobian_lens(model, [prompt], exits) for prompt in prompts]
    for exit in exits:
        wanted = torch.stack([lens.matrices[exit] for lens in alone]).mean(0)
        assert relative(together.matrices[exit], wanted) < 1e-4


def test_a_lens_unembeds_the_moved_state_and_comes_back_from_disk(
    tmp_path: Path, model: Any, trace: CarryTrace
) -> None:
    exit = Exit(layer=2)
    lens = fit_jacobian_lens(model, [PROMPT], [exit, *(Exit(layer=2, loop=i) for i in range(3))])
    moved = trace.states @ lens.matrices[exit].T
    torch.testing.assert_close(lens.logits(model, trace.states, exit), model.unembed(moved))
    again = JacobianLens.load(lens.save(tmp_path / "lens" / "j.safetensors"))
    assert again.samples == lens.samples
    assert all(torch.equal(again.matrices[e], j) for e, j in lens.matrices.items())
    assert len(readings(model, trace, lens=lens)) == len(readings(model, trace))
    with pytest.raises(CarryError, match="can't be read as a Jacobian lens"):
        JacobianLens.load(tmp_path / "nowhere")


def test_the_shuffled_baseline_has_the_same_channels_in_another_order(model: Any) -> None:
    lens = fit_jacobian_lens(model, [PROMPT], [Exit(layer=2)])
    mixed = lens.shuffled(seed=1)
    one, other = lens.matrices[Exit(layer=2)], mixed.matrices[Exit(layer=2)]
    assert not torch.equal(one, other)
    assert torch.equal(one.sort(dim=1).values, other.sort(dim=1).values)
    assert mixed.name == "shuffled Jacobian lens"


@pytest.mark.parametrize(
    ("exit", "says"),
    [
        (Exit(layer=0), r"exits are layers 1..3 and loops 0..2, got layer 0"),
        (Exit(layer=2, loop=3), r"got layer 2, loop 3"),
        (Exit(layer=3, loop=1), "layer 3 lies behind the band 1:3"),
    ],
)
def test_an_exit_that_is_not_there_is_refused(model: Any, exit: Exit, says: str) -> None:
    with pytest.raises(CarryError, match=says):
        fit_jacobian_lens(model, [PROMPT], [exit])


def test_a_lens_without_the_exit_and_steps_without_pauses_are_refused(model: Any, trace: CarryTrace) -> None:
    lens = fit_jacobian_lens(model, [PROMPT], [Exit(layer=2)])
    with pytest.raises(CarryError, match="no Jacobian was fitted for layer 2, loop 0; there is one for layer 2, steps"):
        readings(model, trace, lens=lens)
    with pytest.raises(CarryError, match="needs at least one pause"):
        fit_jacobian_lens(carrier(pauses=0), [PROMPT], [Exit(layer=2)])
    with pytest.raises(CarryError, match="k must be 1 or more"):
        readings(model, trace, k=0)
    with pytest.raises(CarryError, match="token 999 is outside the vocabulary"):
        trajectories(model, trace, [999])


def test_swapping_exchanges_coordinates_in_a_plane_and_nothing_else() -> None:
    first, second = torch.eye(8)[0], torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0])
    states = torch.arange(8.0).repeat(2, 1) + 1
    given = swapped(first, second)(0, states)
    unit = second / second.norm()
    a, b = 1.0 - 2.0, 2.0 * 2**0.5  # coordinates of (1, 2) along first and unit
    wanted = states.clone()
    wanted[:, :2] = b * first[:2] + a * unit[:2]
    torch.testing.assert_close(given, wanted)
    torch.testing.assert_close(swapped(first, second)(0, given), states)
    with pytest.raises(CarryError, match="not parallel"):
        swapped(first, 3 * first)


def test_a_lens_direction_raises_its_tokens_logit(model: Any) -> None:
    exit = Exit(layer=2)
    lens = fit_jacobian_lens(model, [PROMPT], [exit])
    way = lens.direction(model, exit, 40)
    head = model.blocks.whole.get_output_embeddings().weight.detach()
    raised = (head @ lens.matrices[exit]) @ way
    assert int(raised.argmax()) == 40 or float(raised[40]) > 0
    assert float(raised[40]) == pytest.approx(float(way.square().sum()), rel=1e-4)


# --- dynamics ---


def test_loop_motion_is_the_length_of_the_differences(trace: CarryTrace) -> None:
    motion = loop_motion(trace)
    torch.testing.assert_close(motion.residual[1], (trace.loop_s[2] - trace.loop_s[1]).norm(dim=-1))
    second = trace.loop_s[2] - 2 * trace.loop_s[1] + trace.loop_s[0]
    torch.testing.assert_close(motion.second_difference[0], second.norm(dim=-1), rtol=1e-3, atol=1e-4)
    assert loop_motion(carrier().run(PROMPT, loops=0)).residual.shape == (0, len(PROMPT))


def test_an_orbit_is_drawn_in_the_plane_of_the_stated_states(model: Any, trace: CarryTrace) -> None:
    other = model.run([8, 9, 10], max_new_tokens=3)
    found = orbit([trace, other])
    assert found.basis_of == f"{trace.steps} states of 1 trace"
    assert 0 < found.explained[1] <= found.explained[0] <= 1
    centred = trace.states - trace.states.mean(0)
    spread = found.points[0].square().sum() / centred.square().sum()
    assert float(spread) == pytest.approx(sum(found.explained), rel=1e-3)
    both = orbit([trace, other], fit_on=[trace, other])
    assert both.basis_of == f"{trace.steps + other.steps} states of 2 traces"
    with pytest.raises(CarryError, match="at least three states"):
        orbit([model.run(PROMPT, pauses=1, max_new_tokens=0)])


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_shares_sum_to_one_and_show_the_window(family: str) -> None:
    model = carrier(family)
    trace = model.run(PROMPT, max_new_tokens=2, attention=True)
    windows = [model.blocks.window(kind) for kind in model.blocks.kinds]
    found = attention_shares(trace, windows)
    assert found.groups == ("sink", "prompt", "pause 1", "pause 2", "pause 3", "answer", "self")
    torch.testing.assert_close(found.shares.sum(-1), torch.ones(trace.steps, LAYERS - 1, 4))
    assert not bool(found.shares[0, ..., 2:6].any())
    if family == "gemma3":
        assert found.first_visible[3].tolist() == [13 - 7, 0, 13 - 7]
        assert not bool(found.shares[3, 0, :, 0].any())
    with pytest.raises(CarryError, match="run with attention=True"):
        attention_shares(model.run(PROMPT), windows)


# --- measures ---


def rows(n: int = 10) -> list[tuple[list[int], list[int]]]:
    return [(prompt, answer) for prompt, _, answer in random_rows(5, [(4 + i % 3, 0, 1) for i in range(n)])]


def test_controls_tell_every_way_of_running_with_intervals_and_cost(model: Any) -> None:
    found = measure_controls(model, rows(), model.settings)
    names = [control.name for control in found]
    assert names[:2] == ["base", "base, pauses"]
    assert "depth loop, k = p" in names
    assert {c.ablation for c in found} == {
        None, "zero", "frozen at step 0", "noise", "step mean", "shuffled across rows"
    }  # fmt: skip
    by_name = {control.name: control for control in found}
    assert by_name["depth loop, k = p"].loops == 3
    assert by_name["carry"].depth == 2 + 2 * (2 + 1 + 3)
    assert by_name["base"].depth == LAYERS
    assert by_name["carry"].token_layers > by_name["base, pauses"].token_layers
    assert all(0 <= c.low <= c.accuracy <= c.high <= 1 for c in found)
    with pytest.raises(CarryError, match="at least one answer token"):
        measure_controls(model, [([5], [])], model.settings)


def test_a_rows_answer_counts_as_right_exactly_when_every_token_is_the_likeliest(model: Any) -> None:
    [own] = model.generate([PROMPT], max_new_tokens=2, stop=False)
    found = model.controls([(PROMPT, own.tokens), (PROMPT, (own.tokens[0], (own.tokens[1] + 1) % 256))])
    carry = next(control for control in found if control.name == "carry")
    assert (carry.accuracy, carry.generated, carry.n) == (0.5, 0.5, 2)
    lone = model.controls([(PROMPT, own.tokens)])
    assert "shuffled across rows" not in {control.ablation for control in lone}


def test_step_means_are_means_over_rows_of_different_lengths(model: Any) -> None:
    some = rows(3)
    means = step_means(model, some, model.settings)
    alone = [model.run(prompt, answer=answer).states for prompt, answer in some]
    torch.testing.assert_close(means, torch.stack(alone).mean(0), rtol=1e-4, atol=1e-4)


def test_an_edit_reaches_no_step_up_to_its_own() -> None:
    model = carrier(pauses=3)
    found = effect_grid(model, [prompt for prompt, _ in rows(6)], zero)
    assert len(found) == 3 * 4
    for effect in found:
        assert effect.n == 6
        if effect.read <= effect.edited:
            assert (effect.kl, effect.flip_rate) == (0, 0)
        else:
            assert effect.kl > 0
            assert effect.low <= effect.flip_rate <= effect.high
    with pytest.raises(CarryError, match="needs mode 'carry' and at least one pause"):
        effect_grid(carrier(pauses=0), [PROMPT], zero)


def test_a_known_interval() -> None:
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 5)[0] == 0
    with pytest.raises(CarryError, match="at least one row"):
        wilson(0, 0)


def test_an_answer_is_decodable_from_the_last_layer_as_the_model_gives_it() -> None:
    model = carrier("gemma3", pauses=2)
    prompts = [prompt for prompt, _ in rows(12)]
    for mode in ("plain", "carry"):
        own = model.generate(prompts, max_new_tokens=1, mode=mode, pauses=2, stop=False)
        found = decodability(model, [(o.prompt, o.tokens) for o in own], pauses=2, mode=mode)
        assert [reading.layer for reading in found] == list(range(LAYERS))
        assert (found[-1].lens_accuracy, found[-1].lens_rank) == (1.0, 0.0)
        states = [model.run(prompt, pauses=2, mode=mode, max_new_tokens=0) for prompt in prompts]
        for layer in range(LAYERS):
            tokens = torch.stack([model.unembed(t.residuals[layer, -1]).argmax() for t in states])
            right = tokens == torch.tensor([o.tokens[0] for o in own])
            assert found[layer].lens_accuracy == pytest.approx(float(right.float().mean()))


def test_a_probe_finds_what_is_there_and_only_that() -> None:
    from workbench.carry.decodability import _probe

    stream = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 4
    centres = torch.randn(4, 16, generator=stream) * 5
    noise = torch.randn(80, 16, generator=stream)
    assert _probe(centres[labels] + noise, labels + 30, 1.0) > 0.95
    assert _probe(noise, labels + 30, 1.0) < 0.5


def test_a_band_that_ends_too_early_is_warned_of() -> None:
    def reading(layer: int, accuracy: float) -> LayerReading:
        return LayerReading(layer=layer, n=10, lens_accuracy=accuracy, lens_rank=0, probe_accuracy=None, chance=0.1)

    found = [reading(0, 0.0), reading(1, 0.1), reading(2, 0.9), reading(3, 1.0)]
    assert band_warning(found, (1, 3)) is None
    warned = band_warning(found, (0, 2))
    assert warned is not None
    assert "readable at layer 2: try a band that ends at 3 or later" in warned
    never = band_warning([reading(layer, 0.0) for layer in range(4)], (1, 3))
    assert never is not None
    assert "readable at no layer" in never
    with pytest.raises(CarryError, match="at least one answer token"):
        decodability(carrier(), [])


def test_the_lens_names_itself() -> None:
    assert LogitLens().name == "logit lens"
