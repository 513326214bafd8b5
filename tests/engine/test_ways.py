"""What one pass costs is paid once, and a trace says which way each pass took."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import SamplingParams, Session, load, mod
from workbench.engine.sampling import TOP_K, Stream, draw_token, warp
from workbench.models import summarize_row


@pytest.fixture(scope="module")
def lean() -> Any:
    return load("tiny-llama", backend="lean", threads=1)


def test_a_trace_says_which_gear_ran_each_pass_and_why(lean: Any) -> None:
    trace: list[Any] = []
    Session(lean, sinks=[trace.append]).generate([5 + n % 90 for n in range(120)], max_new_tokens=3, seed=0)
    ways = [record.data.get("way") for record in trace if record.kind == "forward_pass"]
    assert ways == ["twin: many tokens", "compiled", "compiled"]


def test_a_backend_with_one_way_says_nothing() -> None:
    trace: list[Any] = []
    Session(load("tiny-llama", threads=1), sinks=[trace.append]).generate([5, 6], max_new_tokens=2, seed=0)
    assert all("way" not in record.data for record in trace)


@pytest.mark.parametrize("batch", [1, 3])
def test_activations_are_the_mods_to_keep_whatever_they_or_the_model_do_next(lean: Any, batch: int) -> None:
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    @mod
    def keeper(event: Any, actions: Any, tokenizer: Any) -> None:
        for value in getattr(event, "span_activations", {}).values():
            assert not value.is_inference()
            kept.append((value, value.clone()))
            torch.nn.functional.mse_loss(value.clone().requires_grad_(), value).backward()

    prompts = [[5, 6, 7 + row] for row in range(batch)]
    Session(lean, [keeper], capture="blocks.*.hook_resid_post").generate(
        prompts if batch > 1 else prompts[0], max_new_tokens=4, seed=0
    )
    assert len(kept) >= 4 * batch
    assert all(torch.equal(value, before) for value, before in kept)


def test_mods_get_logits_of_their_own(lean: Any) -> None:
    seen = []

    @mod
    def vandal(event: Any, actions: Any, tokenizer: Any) -> None:
        if type(event).__name__ == "ForwardPass":
            seen.append((event.logits.clone(), event.raw_logits.clone()))
            assert event.logits.data_ptr() != event.span_logits.data_ptr()
            event.raw_logits.zero_()

    alone = Session(lean).generate([5, 6, 7], max_new_tokens=6, sampling=SamplingParams(temperature=0)).tokens
    again = Session(lean, [vandal]).generate([5, 6, 7], max_new_tokens=6, sampling=SamplingParams(temperature=0)).tokens
    assert again == alone
    assert all(torch.equal(*pair) for pair in seen)


@settings(max_examples=60, deadline=None)
@given(
    vocab=st.sampled_from([40, 6000]),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    token_temp=st.sampled_from([None, 1.0, 0.0]),
)
def test_a_known_summary_changes_nothing_of_a_draw(
    vocab: int, seed: int, temperature: float, top_k: int, top_p: float, token_temp: float | None
) -> None:
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    known = draw_token(logits, params, token_temp, Stream(seed, 0), summarize_row(logits, TOP_K))
    plain = draw_token(logits, params, token_temp, Stream(seed, 0), None)
    logprobs = warp(logits, params, token_temp)
    assert known.token == plain.token
    assert known.logprob == pytest.approx(float(logprobs[known.token]), abs=2e-5)
    assert known.entropy == pytest.approx(plain.entropy, abs=1e-4)
    assert known.entropy == pytest.approx(float(torch.special.entr(logprobs.exp()).sum()), abs=1e-4)
    assert [token for token, _ in known.top] == [token for token, _ in plain.top]
    assert [value for _, value in known.top] == pytest.approx([value for _, value in plain.top], abs=2e-5)
