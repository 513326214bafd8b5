"""Bad input, end to end: a clear error, the model and the session usable after it, the trace kept.

One place that goes through the whole list on both backends; the details of each check are tested in its room.
Longer than 300 lines because the list is meant to be seen whole.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from unchanged import traces_of_use

from workbench import Added, ForwardPass, Prefilled, Result, Sampled, SamplingParams, Session, Trace, load, mod, replay
from workbench.errors import (
    BudgetError,
    InvalidActionError,
    ModelFileError,
    ModError,
    PromptError,
    TraceError,
    UnknownHookError,
    UnknownModelError,
    UnsupportedModelError,
    WorkbenchError,
)
from workbench.trace import Record

HAS_HOOKED = importlib.util.find_spec("transformer_lens.HookedTransformer") is not None
HOOK = "blocks.1.hook_resid_post"
PROMPT, TOKENS, SEED, STEP = "hello there", 8, 3, 4
"""A run of eight tokens; what a mod does wrong it does in step 4."""


@pytest.fixture(scope="module", params=["bridge", "hooked"])
def model(request: pytest.FixtureRequest) -> Any:
    if request.param == "hooked" and not HAS_HOOKED:
        pytest.skip("TransformerLens 4 no longer has HookedTransformer")
    return load("tiny-llama", backend=request.param)


def generate(session: Session, **settings: Any) -> Result:
    result: Result = session.generate(PROMPT, max_new_tokens=TOKENS, seed=SEED, **settings)
    return result


def events(trace: Trace) -> list[Record]:
    """The records but for what differs between two runs that do the same: names of runs and times."""
    return [replace(record, run_id="", duration_ns=0) for record in trace.records]


@pytest.fixture(scope="module")
def plain(model: Any) -> Result:
    """What an untouched session makes of the prompt."""
    return generate(Session(model, capture=HOOK))


@pytest.fixture
def session(model: Any, plain: Result) -> Iterator[Session]:
    """A session to mistreat. Afterwards it, the model, torch and Python must be as if nothing had been."""
    session = Session(model, capture=HOOK)
    before = traces_of_use(model)
    yield session
    assert traces_of_use(model) == before
    assert events(generate(session).trace) == events(plain.trace)
    assert generate(Session(model)).tokens == plain.tokens


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of which half is missing, and a model beside a tokenizer with one token more."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    from workbench.models.tiny import tiny_checkpoint

    made = tmp_path_factory.mktemp("files")
    (made / "truncated.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + (7).to_bytes(8, "little") * 2)
    hf_model, tokenizer = tiny_checkpoint("llama")
    logging.disable_progress_bar()
    hf_model.save_pretrained(made / "wrong tokenizer")
    logging.enable_progress_bar()
    tokenizer.hf.save_pretrained(made / "wrong tokenizer")
    wider = AutoTokenizer.from_pretrained(made / "wrong tokenizer")
    wider.add_tokens(["<extra>"])
    wider.save_pretrained(made / "wrong tokenizer")
    return made


class TestModels:
    """No model comes of it, and those that are loaded do not notice."""

    @pytest.mark.parametrize(
        ("name", "error", "message"),
        [
            ("smollm2-135m-instuct", UnknownModelError, r"unknown model .*Did you mean 'smollm2-135m-instruct'\?"),
            ("somebody/some-model", UnknownModelError, r"not in the local hub cache, and offline mode is on"),
            ("tiny-lama", UnknownModelError, r"no tiny model 'lama'; .*Did you mean 'llama'"),
            (
                "truncated.gguf",
                ModelFileError,
                r"truncated\.gguf is corrupt .*its header claims 7 tensors, which a file of 24",
            ),
            ("wrong tokenizer", ModelFileError, r"has 261 tokens but the model only 260: it belongs to another model"),
        ],
    )
    def test_a_model_that_can_not_be_had(
        self, session: Session, files: Path, name: str, error: type[WorkbenchError], message: str
    ) -> None:
        given = files / name
        with pytest.raises(error, match=message):
            load(given if given.exists() else name, backend=session.model.backend)

    def test_an_unknown_backend_and_hook(self, session: Session) -> None:
        with pytest.raises(UnsupportedModelError, match=r"no backend 'briges'; choose from bridge, hooked"):
            load("tiny-llama", backend="briges")
        with pytest.raises(UnknownHookError, match=r"no hook matches 'blocks.1.hook_resid_pots'.*Did you mean"):
            Session(session.model, capture="blocks.1.hook_resid_pots")


@pytest.mark.parametrize(
    ("prompt", "settings", "error", "message"),
    [
        ("", {}, PromptError, r"the prompt is empty: give some text, chat messages or token ids"),
        ([], {}, PromptError, r"the prompt is empty"),
        (["hi", ""], {}, PromptError, r"the prompt is empty"),
        ("x" * 300, {}, PromptError, r"has \d+ tokens; tiny-llama holds n_ctx=256.*Shorten the prompt"),
        ([5, 260], {}, PromptError, r"token id 260 in the prompt is outside the vocabulary 0\.\.259"),
        ([5, -1], {}, PromptError, r"token id -1 in the prompt is outside the vocabulary 0\.\.259"),
        (None, {}, PromptError, r"a prompt is text, .*got NoneType"),
        pytest.param("a\ud800b", {}, PromptError, r"half a character"),
        pytest.param(["hi", 5], {}, PromptError, r"one is int 5"),
        ([{"role": "user"}], {}, PromptError, r"the model's chat template refuses these messages"),
        ("hi", {"max_new_tokens": 0}, ValueError, r"max_new_tokens must be .*1 or more, got 0"),
        (["a", "b"], {"seed": [1]}, ValueError, r"got 1 seeds for 2 prompts"),
        ("hi", {"mods": [print]}, TypeError, r"is not a mod: decorate its handler"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_run_that_can_not_begin_leaves_nothing(
    session: Session, tmp_path: Path, prompt: Any, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    results = [generate(session)]
    with pytest.raises(error, match=message):
        session.generate(prompt, save=tmp_path / "run", **settings)
    assert session.last_results == results, "the run before is still there"
    assert not (tmp_path / "run").exists()


def test_activations_that_do_not_fit_are_refused_before_the_run(session: Session) -> None:
    session.activation_budget = 1000
    with pytest.raises(BudgetError, match=r"capturing 1 hooks over \d+ positions needs about .* raise it"):
        generate(session)
    session.activation_budget = 1 << 30


def fail(error: BaseException) -> Any:
    raise error


BREAKING = {
    "NaN logits": (ForwardPass, lambda e, a: a.adjust_logits(e.logits * torch.nan), r"adjust_logits\(\) got NaN"),
    "no token left": (ForwardPass, lambda e, a: a.adjust_logits(e.logits - torch.inf), r"bans every token"),
    "a list too short": (ForwardPass, lambda e, a: a.adjust_logits([0.0] * 7), r"shape \(7,\); it must be \(260,\)"),
    "token id too high": (Added, lambda e, a: a.force_tokens([260]), r"token id 260 is outside the vocabulary"),
    "token id below zero": (Added, lambda e, a: a.backtrack(1, [-1]), r"token id -1 is outside the vocabulary"),
    "text for ids": (Sampled, lambda e, a: a.force_tokens("no"), r"needs token ids .*got 'n'; encode text first"),
    "back into the prompt": (Added, lambda e, a: a.backtrack(9), r"reaches past the first generated token"),
    "a wrong answer": (Added, lambda e, a: {"force": 5}, r"it answered with dict .*return None, what a method of"),
    "a generator": (Added, lambda e, a: (x for x in ()), r"it answered with generator"),
    "a wrong moment": (Added, lambda e, a: a.adjust_prefill([5]), r"adjust_prefill\(\) can't answer this event"),
    "two answers": (Added, lambda e, a: [a.backtrack(1), a.force_tokens([5])], r"more than one action besides"),
    "no such hook": (Added, lambda e, a: a.steer("blocks.9.hook_resid_post", torch.ones(32)), r"no hook .*Did you"),
    "a steer of NaN": (Added, lambda e, a: a.steer(HOOK, torch.ones(32) * torch.nan), r"that is not finite"),
    "an exception": (Added, lambda e, a: 1 / 0, r"mod 'bad' raised ZeroDivisionError on Added at step 4 .*by zero"),
    "a StopIteration": (Added, lambda e, a: next(iter(())), r"mod 'bad' raised StopIteration on Added at step 4"),
    "a deep recursion": (Added, lambda e, a: deeper(), r"mod 'bad' raised RecursionError"),
    "a lack of memory": (Sampled, lambda e, a: fail(MemoryError("none left")), r"raised MemoryError on Sampled"),
    "an edit of another shape": (Added, lambda e, a: a.edit(HOOK, lambda x: x[:, :3]), r"mod 'bad' .*\(1, 3\)"),
    "an edit of no tensor": (Added, lambda e, a: a.edit(HOOK, lambda x: "x"), r"returned str; it must be a tensor"),
    "an edit that raises": (Added, lambda e, a: a.edit(HOOK, lambda x: 1 / 0), r"edit e0 of mod 'bad' .*ZeroDivision"),
}  # fmt: skip


def deeper() -> Any:
    return deeper()


def bad_mod(kind: type, give: Callable[[Any, Any], Any]) -> Any:
    """A mod that looks at everything and once, in step 4, does something wrong."""

    @mod(name="bad", capture=HOOK)
    def handler(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, kind) and event.step == STEP and not event.state.get("done"):
            event.state["done"] = True
            return give(event, actions)
        return None

    return handler


@pytest.mark.parametrize("wrong", BREAKING)
def test_a_mod_that_does_something_wrong(session: Session, plain: Result, tmp_path: Path, wrong: str) -> None:
    kind, give, message = BREAKING[wrong]
    with pytest.raises((InvalidActionError, ModError), match=message) as caught:
        generate(session, mods=[bad_mod(kind, give)], save=tmp_path / "run")
    trace = caught.value.trace
    keep_so_far(trace, plain)
    assert session.last_results[0].trace is trace
    assert session.last_results[0].reason == "error"
    assert trace.run["status"] == "failed"
    on_disk = Trace.load(tmp_path / "run")
    assert events(on_disk) == events(trace)
    assert on_disk.run["status"] == "failed"
    assert replay(on_disk, session.model, [bad_mod(kind, give)]).agrees


def keep_so_far(trace: Trace, plain: Result) -> None:
    """A trace holds, up to what went wrong, what an untouched run holds there, activations too."""
    records = [record for record in events(trace) if record.kind != "action"]
    assert records[-1].kind == "finished"
    so_far = records[:-1]
    assert len([record for record in so_far if record.kind == "forward_pass"]) == STEP
    assert so_far == events(plain.trace)[: len(so_far)]
    life, original = trace.history().live[2], plain.trace.history().live[2]
    assert torch.equal(trace.activation(HOOK, life), plain.trace.activation(HOOK, original))


@pytest.mark.parametrize("wrong", BREAKING)
def test_with_disable_the_run_goes_on_as_if_the_mod_were_not_there(model: Any, plain: Result, wrong: str) -> None:
    kind, give, message = BREAKING[wrong]
    result = generate(Session(model, [bad_mod(kind, give)], on_mod_error="disable"))
    assert result.tokens == plain.tokens
    [refused] = [record for record in result.trace.records if record.status == "refused"]
    assert refused.mod == "bad"
    assert re.search(message, refused.data["error"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_edit_that_makes_the_logits_nan(session: Session, plain: Result, temperature: float) -> None:
    spoil = bad_mod(Added, lambda e, a: a.edit(HOOK, lambda x: x * torch.nan))
    with pytest.raises((InvalidActionError, ModError), match=r"(?i)'bad'.*(nan|finite)"):
        generate(session, mods=[spoil], sampling=SamplingParams(temperature=temperature))


@pytest.mark.parametrize(
    ("kind", "give"),
    [
        (Added, lambda e, a: a.backtrack(1)),
        (Added, lambda e, a: a.backtrack(1, [9])),
        (Sampled, lambda e, a: a.backtrack(0)),
    ],
    ids=["takes back", "puts in place", "draws again"],
)
def test_a_mod_that_never_lets_it_end_is_ended_by_the_budget(
    session: Session, kind: type, give: Callable[[Any, Any], Any]
) -> None:
    @mod(name="restless")
    def restless(event: Any, actions: Any, tokenizer: Any) -> Any:
        return give(event, actions) if isinstance(event, kind) else None

    result = generate(session, mods=[restless], max_forward_tokens=40)
    assert result.reason == "budget"
    assert result.trace.history().reason == "budget"


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
def test_a_mod_that_hangs_is_ended_by_ctrl_c(session: Session, plain: Result) -> None:
    def hang(event: Any, actions: Any) -> Any:
        pressed = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        pressed.start()
        while True:
            pass

    with pytest.raises(KeyboardInterrupt):
        generate(session, mods=[bad_mod(Added, hang)])
    [result] = session.last_results
    assert result.reason == "interrupted"
    keep_so_far(result.trace, plain)


def test_one_bad_mod_in_a_batch_leaves_a_whole_trace_of_both(session: Session) -> None:
    with pytest.raises(ModError) as caught:
        session.generate(
            [PROMPT, "hi"], mods=[[bad_mod(Added, lambda e, a: 1 / 0)], []], seed=SEED, max_new_tokens=TOKENS
        )
    assert caught.value.trace.request_ids == ("r0", "r1")
    assert [result.reason for result in session.last_results] == ["error", "error"]
    assert all(history.reason == "error" for history in caught.value.trace.histories.values())


class TestDisk:
    """A place that can't be written is said at once; one that fills up later costs no record."""

    @staticmethod
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def test_full_from_the_start(self, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("workbench.trace.writing.replace_file", self.full)
            with pytest.raises(TraceError, match=r"can't write the trace to .*: No space left on device"):
                generate(session, save=tmp_path / "run")

    def test_full_in_the_middle(
        self, session: Session, plain: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("workbench.trace.writing._write_part", self.full)
            patch.setattr("workbench.trace.writing.FLUSH_RECORDS", 10)
            with pytest.warns(UserWarning, match=r"No space left on device. The trace is still in memory"):
                result = generate(session, save=tmp_path / "run")
        assert events(result.trace) == events(plain.trace)

    def test_full_at_the_end(
        self, session: Session, plain: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("workbench.trace.writing._write_part", self.full)
            with pytest.warns(UserWarning, match=r"No space left on device. The trace is still in memory"):
                result = generate(session, save=tmp_path / "run")
        assert events(result.trace) == events(plain.trace)
        shutil.rmtree(tmp_path / "run")
        assert len(Trace.load(result.trace.save(tmp_path / "run"))) == len(result.trace)

    def test_full_while_saving(
        self, session: Session, plain: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = generate(session)
        with monkeypatch.context() as patch:
            patch.setattr("workbench.trace.writing.replace_file", self.full)
            with pytest.raises(TraceError, match=r"No space left on device. The trace is still in memory"):
                result.trace.save(tmp_path / "run")
        assert not (tmp_path / "run").exists()
        assert events(Trace.load(result.trace.save(tmp_path / "run"))) == events(plain.trace)

    @pytest.mark.parametrize("place", ["a file", "a file/below"])
    def test_no_directory(self, session: Session, tmp_path: Path, place: str) -> None:
        (tmp_path / "a file").write_text("mine")
        with pytest.raises(TraceError, match=r"can't write the trace to .*a file"):
            generate(session, save=tmp_path / place)
        assert (tmp_path / "a file").read_text() == "mine"


def test_a_first_event_that_fails_leaves_a_trace_too(session: Session) -> None:
    @mod(name="early")
    def early(event: Any, actions: Any, tokenizer: Any) -> Any:
        return 1 / 0 if isinstance(event, Prefilled) else None

    with pytest.raises(ModError, match=r"mod 'early' raised ZeroDivisionError on Prefilled at step 0") as caught:
        generate(session, mods=[early])
    assert [record.kind for record in caught.value.trace.records] == ["prefilled", "action", "finished"]
