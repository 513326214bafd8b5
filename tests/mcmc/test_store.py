"""A run on disk: read back whole, gone on with bit for bit, and honest about what it can't do."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workbench import load
from workbench.errors import ChainError
from workbench.mcmc import Chains, PowerSampler, load_chains, resume, resume_chains, run_chains
from workbench.mcmc import store as store_module

PROMPT = "A letter: "
SETTINGS: dict[str, Any] = {"alpha": 2.0, "block_size": 4, "n_mcmc": 4, "max_tokens": 8, "seed": 9, "chains": 3}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several tries": {"tries": 2},
    "a ladder": {"ladder": (2.0, 1.5, 1.0), "tau": 0.5},
    "captured": {"capture": "blocks.*.hook_resid_post"},
}


class Killed(BaseException):
    """Nothing in the product may catch this one, as nothing catches a kill."""


def same_bits(one: Chains, other: Chains) -> bool:
    """Equal in all there is, arrays and activations too."""
    arrays = [
        (getattr(a, name), getattr(b, name))
        for pairs, names in (
            (zip(one.texts, other.texts, strict=True), ("scalars",)),
            (zip(one.decisions, other.decisions, strict=True), ("old_scalars", "new_scalars")),
        )
        for a, b in pairs
        for name in names
    ]
    held = [
        (getattr(a, side)[hook], getattr(b, side)[hook])
        for a, b in zip(one.contrasts, other.contrasts, strict=True)
        for side in ("old", "new")
        for hook in a.old
    ]
    return (
        one == other and all(np.array_equal(a, b) for a, b in arrays) and all(torch.equal(a, b) for a, b in held)
    )  # fmt: skip


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(model: Any, variant: str, tmp_path: Path) -> None:
    settings = SETTINGS | VARIANTS[variant]
    whole = PowerSampler(model, PROMPT, **settings).run()
    total = len(whole.decisions)
    assert total == 24
    random = np.random.default_rng(sum(map(ord, variant)))
    cuts = sorted(random.choice(total - 1, size=3, replace=False).tolist())
    sampler = PowerSampler(model, PROMPT, save=tmp_path / "run", **settings)
    for cut in cuts:
        for _ in sampler.steps():
            if len(sampler.decisions) > cut:
                break
        assert not load_chains(tmp_path / "run").finished
        sampler = resume(tmp_path / "run", model)
    assert same_bits(sampler.run(), whole)
    assert same_bits(load_chains(tmp_path / "run"), whole)


@pytest.mark.parametrize("backend", ["bridge", "hooked", "lean"])
def test_a_run_on_every_backend_is_kept_and_resumed(backend: str, tmp_path: Path) -> None:
    model = load("tiny-llama", backend=backend)
    whole = PowerSampler(model, PROMPT, **SETTINGS).run()
    for decision in PowerSampler(model, PROMPT, save=tmp_path / "run", **SETTINGS).steps():
        if decision.iteration == 2:
            break
    assert same_bits(resume(tmp_path / "run", model).run(), whole)


def test_a_run_killed_while_it_writes_goes_on_from_its_last_whole_write(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = PowerSampler(model, PROMPT, **SETTINGS).run()
    monkeypatch.setattr(store_module, "SECONDS_BETWEEN", 0.0)
    write, calls = store_module._write_json, []

    def dies(path: Path, data: Any) -> None:
        calls.append(path)
        if len(calls) >= 25:
            raise Killed
        write(path, data)

    monkeypatch.setattr(store_module, "_write_json", dies)
    sampler = PowerSampler(model, PROMPT, save=tmp_path / "run", **SETTINGS)
    with pytest.raises(Killed):
        sampler.run()
    kept = load_chains(tmp_path / "run")
    monkeypatch.undo()
    assert 0 < len(kept.decisions) < len(whole.decisions)
    assert same_bits(resume(tmp_path / "run", model).run(), whole)


@pytest.mark.parametrize("whose", ["_write_json", "replace_file", "replace_table"])
def test_a_disk_that_is_full_for_a_while_costs_nothing(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    whole = PowerSampler(model, PROMPT, **SETTINGS).run()
    monkeypatch.setattr(store_module, "SECONDS_BETWEEN", 0.0)
    write, calls = getattr(store_module, whose), []

    def full_for_a_while(*given: Any) -> None:
        calls.append(given)
        if 5 < len(calls) < 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*given)

    monkeypatch.setattr(store_module, whose, full_for_a_while)
    sampler = PowerSampler(model, PROMPT, save=tmp_path / "run", **SETTINGS)
    with pytest.warns(UserWarning, match="No space left on device. What they did since the last write is in memory"):
        assert same_bits(sampler.run(), whole)
    assert same_bits(load_chains(tmp_path / "run"), whole)


def test_a_disk_that_is_full_at_the_end_leaves_the_result_in_memory(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "replace_file", full)
        with pytest.raises(ChainError, match=r"can't write the chains to .*No space left on device"):
            PowerSampler(model, PROMPT, save=tmp_path / "never", **SETTINGS)
    sampler = PowerSampler(model, PROMPT, save=tmp_path / "run", **SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "replace_file", full)
        with pytest.warns(UserWarning, match="save the result somewhere else"):
            done = sampler.run()
    assert same_bits(load_chains(done.save(tmp_path / "other")), done)
    assert same_bits(resume(tmp_path / "run", model).run(), done)


def test_of_two_that_go_on_with_one_run_the_second_to_write_is_stopped(model: Any, tmp_path: Path) -> None:
    for _ in PowerSampler(model, PROMPT, save=tmp_path / "run", **SETTINGS).steps():
        break
    first, second = resume(tmp_path / "run", model), resume(tmp_path / "run", model)
    done = first.run()
    with pytest.raises(ChainError, match="was written by another run meanwhile: this one has stopped"):
        second.run()
    assert same_bits(load_chains(tmp_path / "run"), done)
    assert same_bits(second.result(), done)  # it was done, and is in memory


def test_a_finished_run_is_given_as_it_is_and_without_a_model(model: Any, tmp_path: Path) -> None:
    heard = []
    done = run_chains(
        model, PROMPT, out=tmp_path / "run", on_decision=lambda d, sampler: heard.append(sampler.total), **SETTINGS
    )
    assert heard == [24] * 24
    again = resume_chains(tmp_path / "run")  # loads tiny-llama by the name that the run holds
    assert same_bits(again, done)
    assert again.finished
    files = sorted(path.name.split("-")[0] for path in (tmp_path / "run").iterdir())
    assert files == [".lock", "chain.json", "decisions", "state"]


def test_a_result_can_be_saved_by_itself_but_not_resumed(model: Any, tmp_path: Path) -> None:
    result = PowerSampler(model, PROMPT, **(SETTINGS | {"capture": "blocks.1.hook_resid_post"})).run()
    result.save(tmp_path / "kept")
    assert same_bits(load_chains(tmp_path / "kept"), result)
    with pytest.raises(ChainError, match="holds a result without its state: only a run with save= can be resumed"):
        resume(tmp_path / "kept")
    with pytest.raises(ChainError, match="holds a result without its state"):
        resume(tmp_path / "kept", model)


def test_what_is_there_is_not_overwritten_unasked(model: Any, tmp_path: Path) -> None:
    run_chains(model, PROMPT, out=tmp_path / "run", **SETTINGS)
    with pytest.raises(ChainError, match=r"is not empty: give another directory, resume it, or pass overwrite=True"):
        run_chains(model, PROMPT, out=tmp_path / "run", **SETTINGS)
    run_chains(model, PROMPT, out=tmp_path / "run", overwrite=True, **SETTINGS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("dear to me")
    with pytest.raises(ChainError, match=r"is not empty: give another directory$"):
        run_chains(model, PROMPT, out=tmp_path / "other", overwrite=True, **SETTINGS)
    assert (tmp_path / "other" / "mine.txt").read_text() == "dear to me"


def test_broken_files_and_other_models_are_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ChainError, match=r"holds no readable chain \(chain\.json\)"):
        load_chains(tmp_path)
    run_chains(model, PROMPT, out=tmp_path / "run", **SETTINGS)
    head = tmp_path / "run" / "chain.json"
    about = json.loads(head.read_text())
    head.write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(ChainError, match="has format 99; this version reads 1"):
        load_chains(tmp_path / "run")
    head.write_text(json.dumps(about | {"tokenizer": "another"}))
    with pytest.raises(ChainError, match="load the same one, with the same backend and dtype"):
        resume(tmp_path / "run", model)
    head.write_text(json.dumps(about))
    (tmp_path / "run" / about["state"]).write_bytes(b"nothing")
    with pytest.raises(ChainError, match="can't be read"):
        resume(tmp_path / "run", model)
    (tmp_path / "run" / about["parts"][0]).write_bytes(b"nothing")
    with pytest.raises(ChainError, match="can't be read"):
        load_chains(tmp_path / "run")
