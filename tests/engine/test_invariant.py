"""The product's first promise: after any script of actions, tokens, cache, trace and logits agree."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workbench import (
    Added,
    Finished,
    ForwardPass,
    Prefilled,
    Removed,
    Result,
    Sampled,
    SamplingParams,
    Session,
    load,
)
from workbench.engine import Action, ActionBuilder, Event
from workbench.models import Edit, HookedModel, Tokenizer
from workbench.trace import Record

LOGITS = 1e-3
HOOKS = ("blocks.0.hook_resid_post", "blocks.2.hook_resid_pre")
FAMILIES = ("llama", "gemma3", "gpt2", "gpt_neox")


@cache
def tiny(family: str, backend: str) -> Any:
    return load(f"tiny-{family}", backend=backend)


class Script:
    """A mod that answers with what a list of numbers says, and checks the invariant at every pass.

    It keeps its own account of the tokens from the events it hears, so that a missing or doubled event
    shows, and of the edits at each position from the records of the trace.
    """

    name = "script"
    capture: tuple[str, ...] = ()

    def __init__(self, model: HookedModel, moves: list[tuple[int, int, int]], request_id: str, *, steer: bool) -> None:
        self.model = model
        self.moves = iter(moves)
        self.steer = steer
        self.request_id = request_id
        self.heard: list[int] = []
        self.prompt: list[int] = []
        self.steers: list[tuple[str, Tensor]] = []
        self.edits_at: dict[int, list[str]] = {}
        self.passes = 0

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "params": None, "source": None}

    def listen(self, record: Record) -> None:
        """A sink: where which edit was active, as the trace says."""
        if record.request_id == self.request_id and record.kind == "forward_pass":
            start = record.data["fed_start"]
            for position in range(start, start + record.data["fed"]):
                self.edits_at.pop(position, None)
            for begin, end, labels in record.data.get("edits", ()):
                self.edits_at.update(dict.fromkeys(range(begin, end), labels))

    def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        if isinstance(event, Prefilled):
            self.prompt = list(event.tokens)
        elif isinstance(event, ForwardPass):
            self.check(event)
        elif isinstance(event, Added):
            self.heard += event.tokens
            assert event.request.generated == tuple(self.heard)
        elif isinstance(event, Removed):
            assert tuple(self.heard[-event.n :]) == event.tokens
            del self.heard[-event.n :]
            for position in [p for p in self.edits_at if p >= event.position]:
                del self.edits_at[position]
        if isinstance(event, (Removed, Finished)):
            return None
        return self.answer(event, actions)

    def check(self, event: ForwardPass) -> None:
        self.passes += 1
        tokens = [*self.prompt, *self.heard]
        assert list(event.request.tokens) == tokens
        assert event.position == len(tokens) - 1
        assert (event.raw_logits - self.twin(tokens)[-1]).abs().max() < LOGITS

    def twin(self, tokens: list[int]) -> Tensor:
        """Logits of a fresh prefill with the same edits at the same positions."""
        edits = []
        for position, labels in self.edits_at.items():
            for label in labels:
                hook, vector = self.steers[int(label[1:])]
                edits.append(Edit(hook=hook, row=0, start=position, stop=position + 1, fn=lambda x, v=vector: x + v))
        return self.model.forward([tokens], self.model.new_cache(), edits=edits, keep=[len(tokens)]).logits[0]

    def answer(self, event: Event, actions: ActionBuilder) -> Any:
        kind, size, content = next(self.moves, (0, 0, 0))
        tokens = [4 + (content * 37 + i) % 250 for i in range(size)]
        back = min(size, len(self.heard))
        other: Action | None = None
        match kind:
            case 1 if isinstance(event, Prefilled):
                other = actions.adjust_prefill([5, *tokens])
                self.prompt = [5, *tokens]
            case 1 if size and not isinstance(event, Prefilled):
                other = actions.force_tokens(tokens)
            case 2 if not isinstance(event, Prefilled):
                other = actions.backtrack(back, tokens[: content % 4])
            case 3 if not isinstance(event, Prefilled):
                other = actions.backtrack(back)
            case 4 if isinstance(event, ForwardPass):
                logits = event.logits.clone()
                logits[:: size + 2] = -torch.inf
                other = actions.adjust_logits(logits, token_temp=[None, 0, 0.5][content % 3])
            case _:
                pass
        return [*self.edit(actions, kind, content), *([other] if other else [])]

    def edit(self, actions: ActionBuilder, kind: int, content: int) -> list[Action]:
        if not self.steer or content % 3:
            return []
        if content % 2:
            return [actions.clear_edits()]
        hook = HOOKS[kind % 2]
        vector = torch.linspace(-1, 1, self.model.d_model) * (1 + content)
        self.steers.append((hook, vector))
        return [actions.steer(hook, vector)]


moves = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 9)), max_size=40)


def run(
    model: Any, scripts: list[list[tuple[int, int, int]]], prompts: list[list[int]], *, steer: bool
) -> tuple[list[Script], list[Result]]:
    mods = [Script(model, own, f"r{i}", steer=steer) for i, own in enumerate(scripts)]
    session = Session(model, capture="blocks.*.hook_resid_post", sinks=[mod.listen for mod in mods])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*edits active at once")  # the script does not mind
        results = session.generate(
            prompts, max_new_tokens=16, seed=[7] * len(prompts), mods=[[mod] for mod in mods],
            sampling=SamplingParams(temperature=0.8), max_forward_tokens=300,
        )  # fmt: skip
    return mods, results


def agrees(script: Script, result: Result, *, steered: bool) -> None:
    """Everything that must hold once a run is over."""
    history = result.trace.history(result.request_id)
    assert history.tokens == [*result.prompt_tokens, *result.tokens] == [*script.prompt, *script.heard]
    assert history.reason == result.reason
    assert len(result.tokens) <= 16
    assert result.lane is not None
    assert result.lane.cache is not None
    held = result.lane.cache.lengths[result.lane.writer.row]
    assert held <= len(history.tokens)
    assert [life.uid for life in history.every] == list(range(len(history.every)))
    logprobs = torch.log_softmax(script.twin(history.tokens), dim=-1)
    for life in history.live:
        if life.raw_logprob is None:  # put there at the very end: nothing was fed after it
            assert life.position >= held
        else:
            expected = float(logprobs[life.position - 1, life.token])
            assert life.raw_logprob == pytest.approx(expected, abs=2e-3)
        if life.origin == "sampled":
            assert life.raw_logprob is not None
        if life.position < held:
            assert list(life.edits) == list(script.edits_at.get(life.position, []))
    if not steered:
        residuals_agree(script, result)


def residuals_agree(script: Script, result: Result) -> None:
    """The residual kept for a visible token is that of a fresh pass at the position it was chosen from."""
    history = result.trace.history(result.request_id)
    hook = "blocks.1.hook_resid_post"
    fresh = script.model.forward([history.tokens], script.model.new_cache(), capture=[hook]).activations[hook][0]
    for life in history.live:
        if life.source_row is not None:
            kept = result.trace.activation(hook, life)
            assert (kept - fresh[life.position - 1]).norm() < 1e-4 * fresh[life.position - 1].norm()


@pytest.mark.parametrize("backend", ["bridge", "hooked"])
@settings(max_examples=60)
@given(
    family=st.sampled_from(FAMILIES),
    script=moves,
    prompt=st.lists(st.integers(4, 250), min_size=1, max_size=12),
)
def test_any_script_of_actions_keeps_the_invariant(
    backend: str, family: str, script: list[tuple[int, int, int]], prompt: list[int]
) -> None:
    scripts, results = run(tiny(family, backend), [script], [prompt], steer=False)
    agrees(scripts[0], results[0], steered=False)


@pytest.mark.parametrize("backend", ["bridge", "hooked"])
@settings(max_examples=40)
@given(
    family=st.sampled_from(FAMILIES),
    script=moves,
    prompt=st.lists(st.integers(4, 250), min_size=1, max_size=12),
)
def test_steered_tokens_equal_a_fresh_prefill_with_the_same_edits(
    backend: str, family: str, script: list[tuple[int, int, int]], prompt: list[int]
) -> None:
    scripts, results = run(tiny(family, backend), [script], [prompt], steer=True)
    agrees(scripts[0], results[0], steered=True)


@settings(max_examples=30)
@given(
    family=st.sampled_from(FAMILIES),
    backend=st.sampled_from(["bridge", "hooked"]),
    scripts=st.lists(moves, min_size=2, max_size=4),
    steer=st.booleans(),
)
def test_a_row_of_a_batch_does_what_it_does_alone(
    family: str, backend: str, scripts: list[list[tuple[int, int, int]]], steer: bool
) -> None:
    model = tiny(family, backend)
    prompts = [[5 + 11 * i] * (1 + 3 * i) for i in range(len(scripts))]
    mods, together = run(model, scripts, prompts, steer=steer)
    for script, mod, prompt, result in zip(scripts, mods, prompts, together, strict=True):
        agrees(mod, result, steered=steer)
        [alone_mod], [alone] = run(model, [script], [prompt], steer=steer)
        assert (result.tokens, result.reason) == (alone.tokens, alone.reason)
        assert mod.passes == alone_mod.passes


def test_the_invariant_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that forgets to rewind is caught: the check above is not empty."""
    model = load("tiny-llama")
    from workbench.models.kv_rows import KVRows

    monkeypatch.setattr(KVRows, "rewind", lambda self, row, n: None)
    monkeypatch.setattr(
        "workbench.engine.request.Request.plan",
        lambda self, cache: min(cache.lengths[self.row], len(self.tokens) - 1),
    )
    with pytest.raises(Exception, match="script"):
        run(model, [[(0, 0, 1)] * 7 + [(2, 3, 7)] + [(0, 0, 1)] * 9], [[5, 6, 7]], steer=False)


@pytest.mark.real
@settings(max_examples=4)
@given(script=moves, steer=st.booleans())
def test_the_real_model_keeps_the_invariant(script: list[tuple[int, int, int]], steer: bool) -> None:
    model = real()
    prompt = model.tokenizer.chat([{"role": "user", "content": "Name three colours."}])
    scripts, results = run(model, [script], [prompt], steer=steer)
    agrees(scripts[0], results[0], steered=steer)


@cache
def real() -> Any:
    return load("smollm2-135m-instruct")


def test_events_cover_every_kind() -> None:
    """The script hears all six kinds of event over a run with a backtrack in it."""
    kinds = set()

    class Listener(Script):
        def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
            kinds.add(type(event))
            return super().handle(event, actions, tokenizer)

    model = tiny("llama", "bridge")
    script = Listener(model, [(0, 0, 1)] * 8 + [(3, 2, 1)], "r0", steer=False)
    Session(model, [script]).generate([5, 6], max_new_tokens=6, seed=0)
    assert kinds == {Prefilled, ForwardPass, Sampled, Added, Removed, Finished}
