"""The logit lens reads the very pass in which a token was chosen; its last layer is the model's own answer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from report_traces import HOOKS, LAYERS, real_trace, written_trace

import workbench
from workbench.errors import ReportError, TraceError
from workbench.reports import logit_lens, residual_norms
from workbench.trace import Trace


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gemma3", "tiny-gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    return workbench.load(request.param)


@pytest.fixture(scope="module")
def trace(model: Any) -> Trace:
    return real_trace(model)


def test_the_last_layer_is_the_recorded_distribution(model: Any, trace: Trace) -> None:
    passes = {r.step: r for r in trace.records if r.kind == "forward_pass"}
    sampled = [life for life in trace.history().every if life.origin == "sampled"]
    assert any(not life.visible for life in sampled)
    for life in sampled:
        last = logit_lens(model, trace, life).iloc[-1]
        top = passes[life.added_step].top
        assert [last[f"top_{i + 1}"] for i in range(5)] == [model.tokenizer.token_text(t) for t, _ in top]
        assert [last[f"p_{i + 1}"] for i in range(5)] == pytest.approx([math.exp(v) for _, v in top], abs=1e-4)


def test_the_committed_token_has_its_recorded_probability_and_its_rank(model: Any, trace: Trace) -> None:
    origins = set()
    for life in trace.history().every:
        if life.source_row is None or life.raw_logprob is None:
            continue
        origins.add(life.origin)
        frame = logit_lens(model, trace, life.uid, k=1000)
        last = frame.iloc[-1]
        assert math.log(last["probability"]) == pytest.approx(life.raw_logprob, abs=1e-4)
        named = [last[f"p_{i + 1}"] for i in range(model.vocab_size)]
        assert sum(p > last["probability"] for p in named) == last["rank"] - 1
        assert list(frame.columns[:4]) == ["layer", "norm", "rank", "probability"]
        assert sum(named) == pytest.approx(1, abs=1e-5)
    assert origins == {"sampled", "forced", "reinjected"}


def test_every_layer_is_read_as_if_it_were_the_last(model: Any, trace: Trace) -> None:
    history = trace.history()
    life = history.live[-1]
    forward = model.forward([history.tokens[: life.position]], model.new_cache(), capture=HOOKS)
    frame = logit_lens(model, trace, life, k=1)
    assert list(frame["layer"]) == list(range(LAYERS))
    for layer, hook in enumerate(HOOKS):
        residual = forward.activations[hook][0][-1]
        best = torch.softmax(model.unembed(residual[None])[0], dim=-1).max()
        assert frame["p_1"][layer] == pytest.approx(float(best), abs=1e-4)
        assert frame["norm"][layer] == pytest.approx(float(residual.norm()), rel=1e-4)


def test_norms_are_those_of_the_residuals_also_of_tokens_that_went(trace: Trace, tmp_path: Path) -> None:
    frame = residual_norms(trace)
    for life in trace.history().every:
        own = frame[frame["uid"] == life.uid]
        if life.source_row is None:
            assert own.empty
            continue
        assert own["norm"].tolist() == pytest.approx(trace.residuals(life).norm(dim=-1).tolist(), rel=1e-6)
        assert own["visible"].tolist() == [life.visible] * LAYERS
    assert not frame["visible"].all()
    loaded = Trace.load(trace.save(tmp_path / "run"))
    assert residual_norms(loaded).equals(frame)


def test_each_request_has_its_own_rows() -> None:
    model = workbench.load("tiny-llama")
    trace = real_trace(model, ["one", "another one"])
    both = residual_norms(trace)
    assert set(both["request_id"]) == {"r0", "r1"}
    own = residual_norms(trace, "r1")
    assert own.reset_index(drop=True).equals(both[both["request_id"] == "r1"].reset_index(drop=True))
    life = trace.history("r1").live[0]
    assert logit_lens(model, trace, life.uid, request_id="r1").equals(logit_lens(model, trace, life))


def test_layers_keep_their_numbers_when_only_some_were_captured() -> None:
    model = workbench.load("tiny-llama")
    session = workbench.Session(model, capture=["blocks.2.hook_resid_post", "blocks.0.hook_resid_post"])
    trace = session.generate("x", max_new_tokens=2, seed=0).trace
    assert list(logit_lens(model, trace, 0)["layer"]) == [0, 2]
    assert list(residual_norms(trace)["layer"].unique()) == [0, 2]


def test_without_residuals_it_says_what_to_capture() -> None:
    model = workbench.load("tiny-llama")
    trace = workbench.Session(model).generate("x", max_new_tokens=2, seed=0).trace
    with pytest.raises(TraceError, match=r"capture='blocks\.\*\.hook_resid_post'"):
        residual_norms(trace)
    with pytest.raises(TraceError, match="captured"):
        logit_lens(model, trace, 0)


def test_a_token_that_is_not_there_is_named(model: Any, trace: Trace) -> None:
    with pytest.raises(ReportError, match=r"no token number 999 .* are 0 to \d+"):
        logit_lens(model, trace, 999)


def test_another_models_trace_is_refused(trace: Trace) -> None:
    other = workbench.load("tiny-gpt_neox")
    changed = Trace({**trace.run, "model": {**trace.run["model"], "d_model": 64}}, trace.records)
    with pytest.raises(ReportError, match="load the one that made the trace"):
        logit_lens(other, changed, 0)
    with pytest.raises(ReportError, match="d_model 8"):
        logit_lens(other, written_trace("x"), 0)
