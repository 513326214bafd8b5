"""A trace holds what the scan computed, addressable by phase, loop, step and layer, and comes back from disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from carry_cases import FAMILIES, LAYERS, PAUSE, carrier, relative

from workbench.carry import CarryTrace, check_trace, cost_panel, reference_states, run_carry, save_adapter, zero
from workbench.carry.reference import _replay
from workbench.errors import CarryError, TraceError

PROMPT = [5, 99, 123, 7, 43, 8, 200, 17, 64, 31, 250]


def slow(model: Any, ids: tuple[int, ...], loops: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    row = torch.tensor([ids])
    lengths = torch.tensor([len(PROMPT)])
    with torch.no_grad():
        return reference_states(
            model.blocks, model.adapter, row, torch.ones_like(row), lengths, band=(1, 3), loops=loops
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_traces_states_are_those_of_the_slow_scan(family: str) -> None:
    model = carrier(family)
    trace = model.run(PROMPT, max_new_tokens=4)
    x, s, calls = slow(model, trace.ids, 2)
    assert trace.ids == (*PROMPT, *[PAUSE] * 3, *trace.ids[14:])
    assert len(trace.ids) == 18
    assert relative(trace.x, x[0]) < 1e-5
    assert relative(trace.s, s[0]) < 1e-5
    with torch.no_grad():
        final = _replay(model.blocks, s, calls, 3, LAYERS)[0]
    assert relative(trace.residuals[-1], final) < 1e-5
    assert torch.equal(trace.states, trace.s[10:])
    assert torch.equal(trace.residuals[2], trace.s)
    assert torch.equal(trace.residuals[0], trace.e)


@pytest.mark.parametrize("loops", [0, 1, 3])
def test_every_loop_of_the_prompt_is_what_that_many_loops_give(loops: int) -> None:
    model = carrier("gemma3")
    trace = model.run(PROMPT, loops=loops, max_new_tokens=1)
    assert trace.loop_s.shape == (loops + 1, len(PROMPT), 32)
    for loop in range(loops + 1):
        x, s, _ = slow(model, tuple(PROMPT), loop)
        assert relative(trace.loop_x[loop], x[0]) < 1e-5
        assert relative(trace.loop_s[loop], s[0]) < 1e-5
        assert torch.equal(trace.at(layer=2, loop=loop), trace.loop_s[loop, -1])
    assert torch.equal(trace.loop_s[-1], trace.s[: len(PROMPT)])


def test_states_are_addressed_by_phase_loop_step_and_layer() -> None:
    trace = carrier().run(PROMPT, max_new_tokens=2)
    assert [trace.phase(step) for step in range(trace.steps)] == ["prompt"] + ["pause"] * 3 + ["answer"] * 2
    assert torch.equal(trace.at(layer=2, step=3), trace.states[3])
    assert torch.equal(trace.at(layer=3, step=3), trace.final[3])
    assert torch.equal(trace.at(layer=1, loop=1, position=4), trace.loop_residuals[1, 0, 4])
    for wrong in ({"layer": 2}, {"layer": 2, "step": 1, "loop": 1}):
        with pytest.raises(CarryError, match="give either step="):
            trace.at(**wrong)
    with pytest.raises(CarryError, match=r"loops are 0..2 and their layers 1..2"):
        trace.at(layer=3, loop=0)
    with pytest.raises(CarryError, match=r"step must be 0..5, got 6"):
        trace.at(layer=2, step=6)


def test_what_was_handed_on_and_what_it_brought_is_kept() -> None:
    model = carrier()
    plain, cut = model.run(PROMPT, max_new_tokens=2), model.run(PROMPT, answer=[7, 8], do=zero())
    assert torch.equal(plain.carried, plain.states[:-1])
    assert bool((cut.carried == 0).all())
    assert float(cut.injection.abs().max()) == 0
    with torch.no_grad():
        wanted = model.adapter(plain.e[11], plain.carried[0])
    torch.testing.assert_close(plain.x[11], wanted)
    assert plain.config["intervened"] is False
    assert cut.config["intervened"] is True


def test_rows_tell_norms_shares_and_cosines() -> None:
    trace = carrier().run(PROMPT, max_new_tokens=2)
    rows = trace.rows()
    assert [(row["phase"], row["loop"], row["step"]) for row in rows] == [
        ("prompt", 0, 0), ("prompt", 1, 0), ("prompt", 2, 0), ("pause", 0, 1), ("pause", 0, 2), ("pause", 0, 3),
        ("answer", 0, 4), ("answer", 0, 5),
    ]  # fmt: skip
    assert rows[3]["norm_s"] == pytest.approx(float(trace.states[1].norm()))
    assert rows[3]["share"] == pytest.approx(float(trace.injection[0].norm() / trace.e[11].norm()))
    assert rows[2]["cosine_first"] == pytest.approx(1, abs=1e-5)
    assert rows[0]["cosine_previous"] is None
    cosine = torch.cosine_similarity(trace.states[1], trace.states[2], dim=0)
    assert rows[4]["cosine_previous"] == pytest.approx(float(cosine), abs=1e-5)
    json.dumps(rows)


def test_attention_from_each_step_sums_to_one_and_sees_nothing_later() -> None:
    for family in FAMILIES:
        trace = carrier(family).run(PROMPT, max_new_tokens=2, attention=True)
        assert trace.attention is not None
        assert trace.attention.shape == (trace.steps, LAYERS - 1, 4, len(trace.ids))
        torch.testing.assert_close(trace.attention.sum(-1), torch.ones(trace.steps, LAYERS - 1, 4))
        for step in range(trace.steps):
            assert not bool(trace.attention[step, ..., len(PROMPT) + step :].any())
    assert carrier().run(PROMPT).attention is None


@pytest.mark.parametrize("mode", ["carry", "feedforward", "depth", "depth_tail", "prompt_loops", "plain"])
def test_every_mode_can_be_traced(mode: str) -> None:
    model = carrier()
    trace = model.run(PROMPT, mode=mode, answer=[9])
    assert trace.config["mode"] == mode
    assert len(trace.carried) == (4 if mode == "carry" else 0)
    assert check_trace(model, trace).relative < 1e-5


def test_a_trace_comes_back_from_disk(tmp_path: Path) -> None:
    trace = carrier().run("Once upon", max_new_tokens=3, attention=True)
    again = CarryTrace.load(trace.save(tmp_path / "runs" / "z"))
    assert again.config == trace.config
    assert (again.ids, again.texts, again.prompt_length, again.pauses) == (
        trace.ids, trace.texts, trace.prompt_length, trace.pauses
    )  # fmt: skip
    for name in ("e", "x", "s", "carried", "injection", "residuals", "loop_x", "loop_s", "loop_residuals", "attention"):
        assert torch.equal(getattr(again, name), getattr(trace, name))
    assert again.rows() == trace.rows()
    bare = replace(trace, attention=None)
    assert CarryTrace.load(bare.save(tmp_path / "bare")).attention is None


def test_a_damaged_or_foreign_trace_is_refused(tmp_path: Path) -> None:
    trace = carrier().run(PROMPT)
    with pytest.raises(TraceError, match="can't be read as a carry trace"):
        CarryTrace.load(tmp_path / "nowhere")
    trace.save(tmp_path / "cut")
    (tmp_path / "cut" / "carry.safetensors").write_bytes(b"\x08\0\0")
    with pytest.raises(TraceError, match="can't be read as a carry trace"):
        CarryTrace.load(tmp_path / "cut")
    trace.save(tmp_path / "old")
    (tmp_path / "old" / "carry.json").write_text('{"format": 0}')
    with pytest.raises(TraceError, match="no carry trace of format 1"):
        CarryTrace.load(tmp_path / "old")
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="can't be written"):
        trace.save(tmp_path / "file" / "below")


def test_a_trace_shows_itself_without_script() -> None:
    trace = carrier().run("<b>&", max_new_tokens=1)
    assert repr(trace).startswith("<CarryTrace prompt=4 pauses=3 answer=1 loops=2 band=1:3")
    html = trace._repr_html_()
    assert "&lt;unused0&gt;" in html
    assert "<unused0>" not in html
    assert "<script" not in html


def test_the_cost_panel_counts_and_the_check_button_checks() -> None:
    model = carrier()
    trace = model.run(PROMPT, max_new_tokens=4)
    panel = cost_panel(model, trace)
    model.runner.token_layers = 0
    model.generate([PROMPT], max_new_tokens=4, stop=False)
    assert panel.generating.fast == model.runner.token_layers
    assert panel.cache_bytes == LAYERS * 2 * 18 * 2 * 8 * 4  # layers, k and v, positions, heads, channels, bytes
    assert panel.cost.naive > panel.cost.fast
    weights = sum(parameter.numel() for parameter in model.blocks.layers[0].parameters())
    assert panel.flops == 2 * weights * panel.cost.fast
    found = check_trace(model, trace)
    assert found.largest_logit > 0
    assert found.relative < 1e-5


def test_one_call_runs_reads_checks_and_keeps(tmp_path: Path) -> None:
    base = carrier().base
    done = run_carry(base, "Once", band=(1, 3), pauses=2, loops=1, max_new_tokens=2, check=True, out=tmp_path / "z")
    assert done.directory == tmp_path / "z"
    assert CarryTrace.load(tmp_path / "z").ids == done.trace.ids
    lines = done.text.splitlines()
    assert "band 1:3 of 4 layers, 2 pauses, 1 prompt loops, adapter linear_add" in lines[0]
    assert "The adapter adds nothing" in done.text
    assert sum(line.startswith(("prompt", "pause ", "answer ")) for line in lines) == 2 + 2 + 2
    assert "against the whole-sequence scan: largest difference of a logit" in lines[-1]
    path = save_adapter(carrier().adapter, tmp_path / "adapter.safetensors")
    trained = run_carry(base, "Once", band=(1, 3), adapter=path, pauses=2, loops=1, max_new_tokens=1)
    assert carrier().adapter.fingerprint() in trained.text
    assert "adds nothing" not in trained.text
    assert trained.directory is None
