"""A request as a sequence to look at: nothing is lost, everything stands at its place, numbers are the trace's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_traces import long_trace

import workbench
from widgets.reading import COLUMNS, PAGE, LayerView, Reading, StepView, checked_directions, detail, norm_matrix, page
from workbench.errors import ReportError, TraceError, UnknownHookError
from workbench.reports import logit_lens, residual_norms
from workbench.trace import Trace


@pytest.fixture(scope="module")
def reading(trace: Trace, model: Any) -> Reading:
    return Reading(trace, None, model)


def test_every_token_ever_committed_is_shown_once(reading: Reading) -> None:
    uids = [item.life.uid for item in reading.items]
    prompt = len(reading.prompt)
    assert sorted(uids) == list(range(-prompt, len(reading.history.every)))
    assert [item.life.uid for item in reading.items if item.branch is None] == [
        *range(-prompt, 0),
        *(life.uid for life in reading.history.live),
    ]


def test_a_branch_stands_before_the_tokens_that_replaced_it(reading: Reading) -> None:
    (branch,) = reading.branches
    assert [life.uid for life in branch.lives] == [1, 2, 3]
    assert [item.life.uid for item in reading.items[14:21]] == [0, 1, 2, 3, 4, 5, 6]
    assert (branch.position, branch.mod, branch.anchor) == (15, "second_thoughts", 1)


@given(st.lists(st.integers(min_value=-4, max_value=5).filter(bool), min_size=1, max_size=12))
def test_whatever_is_taken_back_stays_in_sight_with_its_own_past(script: list[int]) -> None:
    """Positive numbers commit so many tokens, negative ones take so many back."""
    trace, stood = scripted(script)
    reading = Reading(trace)
    assert sorted(item.life.uid for item in reading.items) == list(range(-2, len(reading.history.every)))
    for uid, before in stood.items():
        assert [life.uid for life in reading.context(reading.life(uid)) if life.uid >= 0] == before
    for number, branch in enumerate(reading.branches):
        places = [reading.index[life.uid] for life in branch.lives]
        assert places == list(range(places[0], places[0] + len(places)))
        assert {reading.items[place].branch for place in places} == {number}


def scripted(script: list[int]) -> tuple[Trace, dict[int, list[int]]]:
    """A trace of commits and removals, and for each commit the uids that stood before it."""
    from workbench.trace import Record

    trace = Trace({"run_id": "x", "requests": {"r0": {}}})
    live: list[int] = []
    stood: dict[int, list[int]] = {}

    def emit(kind: str, step: int, position: int, **fields: Any) -> None:
        about = {"run_id": "x", "request_id": "r0", "seq": len(trace.records)}
        trace(Record(step=step, position=position, kind=kind, **about, **fields))

    emit("prefilled", 0, 0, tokens=(1, 2), text="ab", data={"max_new_tokens": 9})
    for step, count in enumerate(script, start=1):
        if count > 0:
            position = 2 + len(live)
            for _ in range(count):
                stood[len(stood)] = list(live)
                live.append(len(stood) - 1)
            data = {"texts": ["t"] * count}
            emit("added", step, position, tokens=(5,) * count, origin="forced", mod="m", data=data)
        elif live:
            gone = min(-count, len(live))
            del live[-gone:]
            emit("removed", step, 2 + len(live), tokens=(5,) * gone, mod="m")
    return trace, stood


def test_the_frame_agrees_with_the_trace(reading: Reading, trace: Trace) -> None:
    frame = reading.frame().query("uid >= 0").set_index("uid").sort_index()
    tokens = trace.tokens().set_index("uid")
    assert frame["text"].tolist() == tokens["text"].tolist()
    assert frame["visible"].tolist() == tokens["visible"].tolist()
    chances = tokens["raw_logprob"].astype(float).map(math.exp)
    np.testing.assert_allclose(frame["model_probability"], chances, rtol=1e-12)
    np.testing.assert_allclose(frame["entropy"], tokens["entropy"].astype(float), equal_nan=True)


def test_prompt_tokens_have_texts_and_negative_numbers(reading: Reading) -> None:
    assert "".join(life.text for life in reading.prompt) == "Say <i>it</i>."
    assert reading.life(-1).text == "."
    with pytest.raises(ReportError, match=r"no token number 99 in request r0; uids go from -14 .* to 26"):
        reading.life(99)


def test_the_records_of_a_token_are_those_of_its_step_and_of_its_removal(reading: Reading) -> None:
    kinds = [(record.kind, record.action) for record in reading.records_of(reading.life(1))]
    assert ("sampled", None) in kinds
    assert kinds[-2:] == [("action", "backtrack"), ("removed", None)]
    assert [r.step for r in reading.records_of(reading.life(1))] == [2, 2, 2, 2, 4, 4]
    assert [r.kind for r in reading.records_of(reading.life(-1))] == ["prefilled"]


# Distributions -------------------------------------------------------------------------------------------------


def test_candidates_before_the_mods_are_those_of_the_pass(reading: Reading) -> None:
    step = StepView(reading, reading.life(12))
    frame = step.candidates().set_index("token")
    assert step.decision is not None
    for token, logprob in step.decision.top:
        assert frame.loc[token, "model_probability"] == pytest.approx(math.exp(logprob), rel=1e-5)
    for token, logprob in step.drawn.top if step.drawn else ():
        assert frame.loc[token, "probability"] == pytest.approx(math.exp(logprob))
    assert frame["model_probability"].notna().all(), "filled in from the last layer's residual"
    assert frame["model_probability"].is_monotonic_decreasing


def test_a_token_that_came_along_with_others_has_only_the_models_own_distribution(reading: Reading) -> None:
    step = StepView(reading, reading.life(5))
    assert (step.decision, step.drawn, step.removed_mass) == (None, None, None)
    frame = step.candidates()
    lens = logit_lens(reading.model, reading.trace, reading.life(5)).iloc[-1]  # type: ignore[arg-type]
    assert frame["probability"].isna().all()
    assert frame["model_probability"][0] == pytest.approx(lens["p_1"], rel=1e-5)
    assert reading.life(5).token in set(frame["token"])


def test_without_a_model_what_was_not_recorded_is_unknown(trace: Trace) -> None:
    reading = Reading(trace)
    step = StepView(reading, reading.life(12))
    assert set(step.candidates()["token"]) >= {token for token, _ in step.decision.top}  # type: ignore[union-attr]
    assert reading.prompt[0].text.startswith("#")


def test_the_mass_that_a_mask_took_is_the_banned_tokens_probability(reading: Reading, model: Any) -> None:
    life = reading.life(12)
    raw = model.unembed(reading.trace.activation("blocks.2.hook_resid_post", life)[None])[0].softmax(-1)
    assert StepView(reading, life).removed_mass == pytest.approx(float(raw[40:90].sum()), rel=1e-4)


# Layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", [-3, 0, 2, 5, 20])
def test_layers_are_the_logit_lens_with_cosines(reading: Reading, uid: int) -> None:
    import torch

    life = reading.life(uid)
    directions = checked_directions({"x": np.arange(32.0)}, 32)
    frame = LayerView(reading, life, directions).frame()
    expected = logit_lens(reading.model, reading.trace, life)  # type: ignore[arg-type]
    assert frame[expected.columns.tolist()].equals(expected)
    for layer in range(3):
        value = reading.trace.activation(f"blocks.{layer}.hook_resid_post", life)
        cosine = torch.nn.functional.cosine_similarity(value, torch.arange(32.0), dim=0)
        assert frame["cosine x"][layer] == pytest.approx(float(cosine), abs=1e-6)


def test_the_quick_norms_are_the_plain_ones(reading: Reading, trace: Trace) -> None:
    layers, matrix = norm_matrix(reading)
    plain = residual_norms(trace, "r0").set_index(["uid", "layer"])["norm"]
    assert layers == [0, 1, 2]
    for place, item in enumerate(reading.items):
        for column, layer in enumerate(layers):
            if item.life.uid >= 0:
                assert matrix[place, column] == pytest.approx(plain[item.life.uid, layer], rel=1e-6)
    assert np.isnan(matrix[0]).all()


def test_attention_is_the_captured_pattern_over_the_tokens_that_stood_there(reading: Reading) -> None:
    life = reading.life(3)  # taken back
    frame = LayerView(reading, life).attention(1, 2)
    captured = reading.trace.activation("blocks.1.attn.hook_pattern", life)[2]
    np.testing.assert_array_equal(frame["weight"].to_numpy("f4"), captured[: len(frame)].numpy())
    assert frame["uid"].tolist() == [*range(-14, 0), 0, 1, 2]
    assert frame["weight"].sum() == pytest.approx(1, abs=1e-5)


def test_what_is_missing_is_named(model: Any, trace: Trace) -> None:
    reading = Reading(trace, None, model)
    with pytest.raises(UnknownHookError, match=r"no attention pattern of layer 0 .* captured layers: 1\. Run with"):
        LayerView(reading, reading.life(3)).attention(0)
    with pytest.raises(ReportError, match="no head 9 in layer 1; heads go from 0 to 3"):
        LayerView(reading, reading.life(3)).attention(1, 9)
    with pytest.raises(TraceError, match="nothing was computed before it"):
        LayerView(reading, reading.life(-14)).frame()
    bare = Reading(workbench.Session(model).generate("a", max_new_tokens=2, seed=0).trace)
    with pytest.raises(TraceError, match=r"Run with capture='blocks\.\*\.hook_resid_post'"):
        LayerView(bare, bare.life(0)).frame()
    with pytest.raises(ReportError, match=r"recorded with tiny-llama \(d_model 64\)"):
        Reading(Trace({**trace.run, "model": {**trace.run["model"], "d_model": 64}}, trace.records), None, model)


@pytest.mark.parametrize(
    ("vector", "says"),
    [([1.0] * 3, "one finite vector of 32"), ([0.0] * 32, "length 0"), ([math.nan] * 32, "one finite vector")],
)
def test_a_direction_that_is_none_is_refused(vector: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked_directions({"bad": vector}, 32)


# Pages -----------------------------------------------------------------------------------------------------------


def unpacked(found: dict[str, Any]) -> dict[str, list[float]]:
    numbers = np.frombuffer(found["numbers"], dtype="<f4").reshape(len(COLUMNS), found["count"])
    return dict(zip(COLUMNS, numbers.tolist(), strict=True))


def test_pages_hold_the_frame_and_are_small() -> None:
    trace = long_trace(tokens=3000, layers=1)
    reading = Reading(trace)
    frame = reading.frame()
    start = 0
    while start < len(reading.items):
        found = page(reading, start)
        columns = unpacked(found)
        rows = frame.iloc[start : start + PAGE]
        assert columns["uid"] == rows["uid"].tolist()
        np.testing.assert_allclose(columns["model_p"], rows["model_probability"], rtol=1e-6, equal_nan=True)
        assert len(found["numbers"]) + len(str({**found, "numbers": None})) < 256_000
        start += found["count"]
    assert found["total"] == len(frame)


def test_a_page_tells_branches_tags_and_glyphs(reading: Reading) -> None:
    found = page(reading, 0)
    assert found["branches"] == [{"start": 15, "count": 3, "told": "3 tokens taken back by second_thoughts at step 4"}]
    place = reading.index[7 + 3]  # the last byte of the emoji
    assert found["glyphs"] == {str(place): "😀"}
    tags = [found["tags"][n] for n in found["tagged"][str(place)]]
    assert "mod:second_thoughts" in tags
    assert "action:force_tokens" in tags
    later = page(reading, 16)
    assert later["branches"] == []


def test_a_detail_is_json_but_for_one_buffer(reading: Reading) -> None:
    import json

    for item in reading.items:
        found = detail(reading, item.life.uid, directions={})
        weights = found["attention"].pop("weights", b"")
        assert isinstance(weights, bytes)
        json.dumps(found, allow_nan=False)


def test_the_code_of_a_detail_names_only_what_is_there(reading: Reading) -> None:
    assert "attention(5, layer=1, head=3)" in detail(reading, 5, layer=1, head=3)["code"]
    assert "attention" not in detail(reading, -14)["code"]
    compile(detail(reading, 5)["code"], "cell", "exec")
