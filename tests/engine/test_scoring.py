"""Asking about continuations, and tokens that a mod promises to take back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench import Added, ForwardPass, Prefilled, SamplingParams, Session, load, mod
from workbench.errors import InvalidActionError, ModError
from workbench.models import Edit

GREEDY = SamplingParams(temperature=0)
PROMPT = [5, 6, 7, 8]
TAILS = [[68], [69, 70], [71, 72, 73, 74, 75], [68, 69]]


def by_hand(model: Any, tokens: list[int], tail: list[int], edits: Any = ()) -> tuple[list[float], torch.Tensor]:
    """Teacher-forced log-probabilities of a tail, one sequence at a time, from a fresh cache."""
    whole = [*tokens, *tail]
    logits = model.forward([whole], model.new_cache(), edits=edits, keep=[len(whole)]).logits[0].log_softmax(-1)
    return [float(logits[len(tokens) - 1 + i, token]) for i, token in enumerate(tail)], logits[-1]


@pytest.mark.parametrize("backend", ["bridge", "hooked"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "gpt_neox"])
def test_scores_equal_scoring_each_tail_by_hand(family: str, backend: str) -> None:
    model = load(f"tiny-{family}", backend=backend)
    seen: list[Any] = []

    @mod
    def asks(event: Any, actions: Any, tokenizer: Any) -> None:
        if isinstance(event, ForwardPass):
            seen.append((list(event.request.tokens), event.request.score(TAILS)))

    # Two rows of different length, so that the fork is of a row in a ragged batch.
    plain = Session(model).generate([PROMPT * 3, PROMPT], max_new_tokens=4, sampling=GREEDY)
    scored = Session(model, [asks]).generate([PROMPT * 3, PROMPT], max_new_tokens=4, sampling=GREEDY)
    assert [result.tokens for result in scored] == [result.tokens for result in plain]
    assert len(seen) == 8
    for tokens, answers in seen:
        for tail, answer in zip(TAILS, answers, strict=True):
            logprobs, after = by_hand(model, tokens, tail)
            assert answer.logprobs.tolist() == pytest.approx(logprobs, abs=1e-4)
            assert (answer.after - after).abs().max() < 1e-3
    assert scored[0].forward_tokens == plain[0].forward_tokens + 4 * sum(map(len, TAILS))


def test_scores_are_under_the_edits_that_are_active(model: Any) -> None:
    hook, vector = "blocks.1.hook_resid_post", torch.linspace(-4, 4, 32)

    @mod
    def asks(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Prefilled):
            return actions.steer(hook, vector)
        if isinstance(event, ForwardPass):
            tokens = list(event.request.tokens)
            edit = Edit(hook=hook, row=0, start=0, stop=len(tokens) + 2, fn=lambda value: value + vector)
            [answer] = event.request.score([[69, 70]])
            assert answer.logprobs.tolist() == pytest.approx(by_hand(model, tokens, [69, 70], [edit])[0], abs=1e-4)
        return None

    Session(model, [asks]).generate(PROMPT, max_new_tokens=3)


def test_it_says_when_it_can_not_be_asked(model: Any, answer: Any) -> None:
    with pytest.raises(InvalidActionError, match="possible on ForwardPass and Sampled only"):
        Session(model, [answer(Added, lambda e, a, t: e.request.score([[68]]))]).generate(PROMPT)
    with pytest.raises(InvalidActionError, match="at least one token each"):
        Session(model, [answer(ForwardPass, lambda e, a, t: e.request.score([[68], []]))]).generate(PROMPT)


@given(st.lists(st.lists(st.integers(4, 250), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(1, 3))
def test_a_fork_grows_like_a_row_of_its_own(parts: list[list[int]], copies: int) -> None:
    model = TINY
    store = model.new_cache(2)
    model.forward([PROMPT, PROMPT * 2], store)
    fork = store.fork(1, copies)
    rows = [list(PROMPT * 2) for _ in range(copies)]
    for number, part in enumerate(parts):
        fed = [part[: 1 + (number + row) % len(part)] for row in range(copies)]
        logits = model.forward(fed, fork).logits
        for row, tokens in enumerate(fed):
            rows[row] += tokens
            fresh = model.forward([rows[row]], model.new_cache()).logits[0][-1]
            assert (logits[row][-1] - fresh).abs().max() < 1e-3
    assert store.lengths == (4, 8)
    with pytest.raises(ValueError, match="can't rewind row 0"):
        fork.rewind(0, len(rows[0]) - 7)


TINY = load("tiny-gemma3")


@pytest.mark.parametrize("grown", [0, 1, 3])
def test_a_fork_of_a_fork_goes_on_where_that_one_stood(grown: int) -> None:
    store = TINY.new_cache()
    TINY.forward([PROMPT], store)
    fork = store.fork(0, 2)
    own = [70, 71, 72][:grown]
    TINY.forward([[], own], fork)
    again = fork.fork(1, 2)
    assert again.lengths == (len(PROMPT) + grown,) * 2
    logits = TINY.forward([[80, 81], [82]], again).logits
    for row, tail in enumerate(([80, 81], [82])):
        fresh = TINY.forward([[*PROMPT, *own, *tail]], TINY.new_cache()).logits[0][-1]
        assert (logits[row][-1] - fresh).abs().max() < 1e-3


class TestScratch:
    QUESTION = [68] * 12

    def asker(self, at_step: int = 3, passes: int = 2) -> Any:
        """Puts a question into the text, lets the model go on, and takes all of it back."""

        @mod
        def asks(event: Any, actions: Any, tokenizer: Any) -> Any:
            if isinstance(event, ForwardPass) and event.step == at_step:
                event.state["before"] = len(event.request.generated)
                return actions.force_tokens(self.QUESTION, scratch=True)
            if isinstance(event, Added) and event.step == at_step + passes:
                return actions.backtrack(len(event.request.generated) - event.state["before"])
            return None

        return asks

    @pytest.mark.parametrize("limit", [3, 5, 8, 40])
    def test_it_does_not_count_and_leaves_no_mark(self, model: Any, limit: int) -> None:
        plain = Session(model).generate(PROMPT, max_new_tokens=limit, sampling=GREEDY)
        asked = Session(model, [self.asker()]).generate(PROMPT, max_new_tokens=limit, sampling=GREEDY)
        assert (asked.tokens, asked.reason) == (plain.tokens, plain.reason)
        assert sum(r.kind == "removed" for r in asked.trace.records) == 1

    def test_what_is_left_of_it_at_the_end_is_taken_back(self, model: Any) -> None:
        plain = Session(model).generate(PROMPT, max_new_tokens=8, sampling=GREEDY)
        cut = Session(model, [self.asker(passes=500)]).generate(
            PROMPT, max_new_tokens=8, sampling=GREEDY, max_forward_tokens=30
        )
        assert cut.reason == "budget"
        assert cut.tokens == plain.tokens[:2]
        assert cut.trace.history().tokens == list(cut.prompt_tokens + cut.tokens)

    def test_an_end_token_in_it_does_not_end_the_output(self, model: Any) -> None:
        asker = self.asker()
        self.QUESTION = [68, 2]
        plain = Session(model).generate(PROMPT, max_new_tokens=8, sampling=GREEDY)
        asked = Session(model, [asker]).generate(PROMPT, max_new_tokens=8, sampling=GREEDY)
        assert asked.tokens == plain.tokens

    def test_it_can_not_outgrow_the_context(self) -> None:
        model = load("tiny-llama")
        with_context = Session(model, [self.asker(passes=5000)])
        result = with_context.generate([5] * 230, max_new_tokens=8, sampling=GREEDY)
        assert result.reason == "max_tokens"
        assert len(result.tokens) == 2


def test_a_mods_random_numbers_come_from_the_requests_stream(model: Any) -> None:
    def run(seed: int) -> list[float]:
        drawn: list[float] = []

        @mod
        def draws(event: Any, actions: Any, tokenizer: Any) -> None:
            if isinstance(event, ForwardPass):
                drawn.append(event.request.uniform())

        Session(model, [draws]).generate(PROMPT, max_new_tokens=5, seed=seed)
        return drawn

    assert run(1) == run(1) != run(2)
    assert all(0 <= number < 1 for number in run(1))


def test_a_cache_that_is_switched_off_can_not_be_asked(answer: Any) -> None:
    model = load("tiny-llama")
    model.cache_works = False
    with pytest.raises(ModError, match="score\\(\\) needs the KV cache"):
        Session(model, [answer(ForwardPass, lambda e, a, t: e.request.score([[68]]))]).generate(PROMPT)
