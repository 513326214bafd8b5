"""ResidualView from Python: the grid's numbers are those of the trace's logit lens, for prompts and traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import workbench
from widgets import ResidualView
from workbench.errors import PromptError, ReportError, TraceError, UnknownHookError
from workbench.reports import logit_lens
from workbench.trace import Trace


def test_the_lens_at_a_position_is_that_of_the_token_after_it(trace: Trace, model: Any) -> None:
    view = ResidualView(model, trace)
    life = trace.history().live[9]
    expected = logit_lens(model, trace, life)
    found = view.lens(life.position - 1)
    assert found["top_1"].tolist() == expected["top_1"].tolist()
    assert found["rank"].tolist() == expected["rank"].tolist()
    np.testing.assert_allclose(found["probability"], expected["probability"], rtol=1e-4)
    np.testing.assert_allclose(found["norm"], expected["norm"], rtol=1e-5)


def test_the_frame_holds_every_cell(model: Any) -> None:
    view = ResidualView(model, "A prompt of more than twenty-four tokens, so two pages.")
    frame = view.frame()
    positions = 55
    assert len(frame) == positions * 3
    one = frame.query("position == 30")
    lens = view.lens(30)
    assert one["top_1"].tolist() == lens["top_1"].tolist()
    np.testing.assert_allclose(one["p_1"], lens["p_1"], rtol=1e-5)
    np.testing.assert_allclose(one["next_probability"], lens["probability"], rtol=1e-4)
    np.testing.assert_allclose(view.norms().loc[30], lens["norm"], rtol=1e-6)


def test_the_last_layer_is_the_model_itself(model: Any) -> None:
    text = "Some words."
    tokens = model.tokenizer.prompt(text)
    logits = model.forward([tokens], model.new_cache(1), keep=[len(tokens)]).logits[0]
    frame = ResidualView(model, text).frame().query("layer == 2")
    np.testing.assert_allclose(frame["p_1"], logits.softmax(-1).max(-1).values, rtol=1e-3)


def test_prompts_may_be_text_chats_or_tokens(model: Any) -> None:
    chat = [{"role": "user", "content": "hi"}]
    tokens = model.tokenizer.chat(chat)
    assert ResidualView(model, chat).norms().equals(ResidualView(model, tokens).norms())
    with pytest.raises(PromptError, match="the prompt is empty"):
        ResidualView(model, "")
    with pytest.raises(PromptError, match="the prompt is empty"):
        ResidualView(model, [])


def test_attention_is_the_models_own_pattern(model: Any) -> None:
    view = ResidualView(model, "Look here.")
    hook = "blocks.1.attn.hook_pattern"
    tokens = model.tokenizer.prompt("Look here.")
    expected = model.forward([tokens], model.new_cache(1), capture=(hook,)).activations[hook][0][:, 3]
    np.testing.assert_allclose(view.attention(1, 3), expected, atol=1e-6)
    with pytest.raises(UnknownHookError, match="layers go to 2"):
        view.attention(7)
    with pytest.raises(ReportError, match="no head 4 in layer 1; heads go from 0 to 3"):
        view.attention(1, 4)


def test_cosines_with_a_direction(model: Any) -> None:
    view = ResidualView(model, "Look here.", directions={"ones": [1.0] * 32})
    cosines = view.cosines("ones")
    assert view.lens(4)["cosine ones"].tolist() == pytest.approx(cosines.loc[4].tolist())
    assert cosines.abs().to_numpy().max() <= 1
    with pytest.raises(ReportError, match="no direction 'two'; there are ones"):
        view.cosines("two")


def test_what_can_not_be_shown_is_refused(model: Any, trace: Trace) -> None:
    bare = workbench.Session(model).generate("a", max_new_tokens=2, seed=0).trace
    with pytest.raises(TraceError, match="Run with capture="):
        ResidualView(model, bare)
    with pytest.raises(ReportError, match="Did you mean 'lens'"):
        ResidualView(model, "a", mode="lense")
    view = ResidualView(model, trace)
    with pytest.raises(ReportError, match="no position 500 to look at; computed ones go from 0 to"):
        view.lens(500)
