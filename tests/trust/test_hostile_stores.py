"""Chains, carries, adapters and sweeps that somebody edited: refused with a sentence, no file elsewhere touched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import workbench
from workbench.carry import CarryModel, CarryTrace, load_adapter, make_adapter, save_adapter
from workbench.errors import CarryError, ChainError, SweepError, TraceError, WorkbenchError
from workbench.mcmc import PowerSampler, load_chains, resume
from workbench.sweeps import Sweep, load_sweep, sweep

NAMES = ["../x", "/etc/passwd", "", ".", "..", "a/b", "a\\b", "\0", 7, None, ["a"], {"a": 1}]
"""What is no name of a file in a directory."""


@pytest.fixture(scope="module")
def model() -> Any:
    return workbench.load("tiny-llama", progress=False)


def edited(path: Path, change: Callable[[Any], Any]) -> None:
    told = json.loads(path.read_text("utf-8"))
    change(told)
    path.write_text(json.dumps(told), "utf-8")


# Chains --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("chains") / "run"
    sampler = PowerSampler(
        model, "hello", alpha=2, block_size=3, n_mcmc=2, max_tokens=6, chains=2, save=place,
        capture="blocks.*.hook_resid_post",
    )  # fmt: skip
    sampler.run()
    return place


@pytest.fixture
def chains(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "chains"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda told: told.update(format=[1]), r"has format \[1\]"),
        (lambda told: told.pop("settings"), "can't be read"),
        (lambda told: told.update(settings=[]), "can't be read"),
        (lambda told: told["settings"].update(chains=10**12), "is no whole number from 0 to 65536"),
        (lambda told: told["settings"].update(chains="2"), "is no whole number"),
        (lambda told: told["settings"].update(prompt=["a"]), "is no whole number"),
        (lambda told: told["settings"].update(capture=[7]), "hooks that are no text"),
        (lambda told: told["settings"]["target"].update(alpha=-1), "alpha"),
        (lambda told: told["settings"]["target"].update(evil=1), "can't be read"),
        (lambda told: told["texts"][0].update(chain=9), "it tells of chain 9; there are 2"),
        (lambda told: told["texts"][0].update(text=["<b>"]), "a chain's text is none"),
        (lambda told: told["texts"][0].update(tokens=[-1]), "is no whole number"),
        (lambda told: told["texts"][0].update(scalars=[[1, 2, 3]] * 1000), "have 1000 rows of scalars"),
        (lambda told: told["texts"][0].update(scalars="x"), "can't be read"),
        (lambda told: told["texts"][0].update(log_p="x"), "'x' is no number"),
        (lambda told: told.update(texts=[7]), "can't be read"),
        (lambda told: told.update(swaps=[{"first": 0}]), "can't be read"),
        (lambda told: told.update(prefilled=-1), "is no whole number"),
        (lambda told: told.update(parts="decisions"), "can't be read"),
    ],
)
def test_a_head_of_another_form_is_refused(chains: Path, change: Any, says: str) -> None:
    edited(chains / "chain.json", change)
    with pytest.raises(ChainError, match=says):
        load_chains(chains)


@pytest.mark.parametrize("name", NAMES)
def test_a_head_names_files_of_its_own_directory_only(chains: Path, model: Any, name: Any) -> None:
    for key in ("parts", "activations"):
        shutil.copy(chains / "chain.json", chains / "kept.json")
        edited(chains / "chain.json", lambda told, key=key: told.update({key: [name]}))
        with pytest.raises(ChainError, match=r"is not the name of a file|can't be read"):
            load_chains(chains)
        shutil.move(chains / "kept.json", chains / "chain.json")
    edited(chains / "chain.json", lambda told: told.update(state=name))
    with pytest.raises(ChainError, match=r"is not the name of a file|can't be read|without its state"):
        resume(chains, model)


def test_a_state_that_belongs_to_another_run_is_neither_read_nor_removed(chains: Path, kept: Path, model: Any) -> None:
    """A resumed run removes its old state: by a path in the head that could have been anybody's file."""
    (state,) = (path for path in kept.iterdir() if path.name.startswith("state-"))
    (chains / state.name).unlink()
    (chains / state.name).symlink_to(state)
    with pytest.raises(ChainError, match="is a link that leads out of"):
        resume(chains, model)
    edited(chains / "chain.json", lambda told: told.update(state=f"../{kept.parent.name}/run/{state.name}"))
    with pytest.raises(ChainError, match=r"is not the name of a file"):
        resume(chains, model)
    assert state.is_file()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("chain", 7, "it tells of chain 7"), ("chain", None, "is no whole number"), ("pivot", -1, "is no whole number"),
        ("pivot", 10**12, "is about more than 6 tokens"), ("length", 10**15, "is about more than 6 tokens"),
        ("old_tokens", [1] * 100, "is about more than 6 tokens"), ("old_tokens", None, "can't be read"),
        ("new_tokens", [-1], "is no whole number"), ("new_scalars", [1.0], "can't be read"),
        ("log_a", None, "is no number"),
        ("cache_kept", -1, "is no whole number"),
    ],
)  # fmt: skip
def test_a_decision_of_another_form_is_refused(chains: Path, name: str, value: Any, says: str) -> None:
    path = next(path for path in chains.iterdir() if path.name.startswith("decisions-"))
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0][name] = value
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    with pytest.raises(ChainError, match=says):
        load_chains(chains)


def test_decisions_that_unfold_to_terabytes_are_refused(chains: Path) -> None:
    path = next(path for path in chains.iterdir() if path.name.startswith("decisions-"))
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"kind": column}), path, compression="zstd")
    before = pa.total_allocated_bytes()
    with pytest.raises(ChainError, match=r"bytes once decompressed"):
        load_chains(chains)
    assert pa.total_allocated_bytes() - before < 64 << 20


def test_contrasts_of_another_form_are_refused(chains: Path) -> None:
    path = chains / "activations-00009.safetensors"
    edited(chains / "chain.json", lambda told: told.update(activations=[path.name]))
    about = [dict.fromkeys(("chain", "block", "iteration", "position", "old_token", "new_token"), 0)]
    for tensors, told in (
        ({"0/old/a": torch.zeros(2)}, "7"), ({"9/old/a": torch.zeros(2)}, json.dumps(about)),
        ({"0/other/a": torch.zeros(2)}, json.dumps(about)), ({"a": torch.zeros(2)}, json.dumps(about)),
        ({"0/old/a": torch.zeros(2, dtype=torch.int64)}, json.dumps(about)),
        ({"0/old/a": torch.zeros(2)}, "[" * 99_999),
        ({"0/old/a": torch.zeros(2)}, json.dumps([{"evil": 1}])),
        ({"0/old/a": torch.zeros(2)}, json.dumps([{"chain": "x"}])),
    ):  # fmt: skip
        save_file(tensors, path, metadata={"contrasts": told})
        with pytest.raises(ChainError, match=r"can't be read"):
            load_chains(chains)


# Carries and adapters --------------------------------------------------------------------------------------------


@pytest.fixture
def carried(model: Any, tmp_path: Path) -> Path:
    return CarryModel(model, band=(1, 2), pauses=2, loops=1).run("hi", attention=True).save(tmp_path / "carry")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda told: told.update(prompt_length=10**12), "its spans do not fit its tokens"),
        (lambda told: told.update(prompt_length=0), "its spans do not fit"),
        (lambda told: told.update(pauses=-1), "its spans do not fit"),
        (lambda told: told.update(pauses="2"), "its spans do not fit"),
        (lambda told: told.update(ids=["a"] * 5), "its spans do not fit"),
        (lambda told: told.update(texts=[]), "one text for each token"),
        (lambda told: told.update(texts=[7] * len(told["ids"])), "one text for each token"),
        (lambda told: told.update(config=[]), "is damaged"),
        (lambda told: told["config"].update(band=[0, 10**9]), "its band 0:1000000000 is none of 3 layers"),
        (lambda told: told["config"].update(band=[-1, 2]), "its spans do not fit"),
        (lambda told: told["config"].update(band=[1, 3]), "loop_residuals has shape|attention has shape"),
        (lambda told: told["config"].update(mode=7), "its config is of another form"),
        (lambda told: told.pop("config"), "is damaged"),
        (lambda told: told.update(format=9), "is no carry trace of format 1"),
    ],
)
def test_a_carry_trace_of_another_form_is_refused(carried: Path, change: Any, says: str) -> None:
    edited(carried / "carry.json", change)
    with pytest.raises(TraceError, match=says):
        CarryTrace.load(carried)


def test_states_of_another_shape_are_refused(carried: Path) -> None:
    tensors = load_file(carried / "carry.safetensors")
    for name, value in tensors.items():
        for other in (value[..., :-1].contiguous(), value.long(), value[None].contiguous(), torch.zeros(0)):
            save_file({**tensors, name: other}, carried / "carry.safetensors")
            with pytest.raises(TraceError, match="is damaged"):
                CarryTrace.load(carried)


@pytest.mark.parametrize("name", ["carry.json", "carry.safetensors"])
def test_a_carry_trace_is_read_from_its_own_directory(carried: Path, name: str) -> None:
    (carried / name).rename(carried.parent / name)
    (carried / name).symlink_to(carried.parent / name)
    with pytest.raises(TraceError, match="leads out of"):
        CarryTrace.load(carried)


@pytest.mark.parametrize(
    "told",
    [
        "7", "[]", "{", "[" * 99_999, '{"kind": "evil", "d_model": 4}', '{"kind": "linear_add"}',
        '{"kind": "linear_add", "d_model": 4, "evil": 1}', '{"kind": "linear_add", "d_model": "x"}',
        '{"kind": "linear_add", "d_model": -4}', '{"kind": "linear_add", "d_model": 1000000000000}',
        '{"kind": "concat_linear", "d_model": 1000000}', '{"kind": ["linear_add"], "d_model": 4}',
        '{"kind": "__class__", "d_model": 4}', '{"kind": "linear_add", "d_model": 4, "gain": NaN}',
    ],
)  # fmt: skip
def test_an_adapter_of_another_form_is_refused(tmp_path: Path, told: str) -> None:
    """A million channels would have been a matrix of terabytes, made before its weights were looked at."""
    path = save_adapter(make_adapter("linear_add", 4), tmp_path / "a.safetensors")
    save_file(load_file(path), path, metadata={"adapter": told})
    with pytest.raises(CarryError, match=r"."):
        load_adapter(path)


# Sweeps --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sweep") / "s"
    sweep(Sweep(models=["tiny-llama"], prompts=["a", "b"], max_new_tokens=2, keep_traces=True), place, workers=0)
    return place


@pytest.fixture
def table(swept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(swept, tmp_path / "s"))


def with_column(table: Path, name: str, value: Any) -> None:
    path = next((table / "results").glob("part-*.parquet"))
    old = pq.read_table(path)
    rows = [{**row, name: value} for row in old.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=old.schema), path)


@pytest.mark.parametrize("trace", ["../other", "/etc", "traces/../../x", "..", "a\0b"])
def test_a_sweeps_traces_lie_in_its_directory(table: Path, trace: str) -> None:
    with_column(table, "trace", trace)
    with pytest.raises(SweepError, match=r"does not lie in it"):
        load_sweep(table)


def test_a_sweeps_table_is_bounded_and_of_its_own_types(table: Path) -> None:
    path = next((table / "results").glob("part-*.parquet"))
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"text": column}), path, compression="zstd")
    before = pa.total_allocated_bytes()
    with pytest.raises(SweepError, match=r"bytes once decompressed"):
        load_sweep(table)
    assert pa.total_allocated_bytes() - before < 64 << 20
    pq.write_table(pa.table({"seed": pa.array(["a"])}), path)
    with pytest.raises(SweepError, match="the column 'seed' is of type string, not int64"):
        load_sweep(table)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(SweepError, match="leads out of"):
        load_sweep(table)


@pytest.mark.parametrize(
    "content", ["", "7", "[]", "{", "[" * 99_999, '{"models": "x"}', '{"models": ["tiny-llama"], "prompts": {"a": 7}}',
                '{"models": ["a"], "prompts": ["a"], "seeds": [1e400]}',
                '{"models": ["a"], "prompts": ["a"], "mods": {"x": ["evil"]}}',
                '{"models": ["a"], "prompts": ["a"], "max_new_tokens": "1"}',
                '{"models": ["a"], "prompts": ["a"], "evil": 1}'],
)  # fmt: skip
def test_a_plan_of_another_form_is_refused(table: Path, content: str) -> None:
    (table / "sweep.json").write_text(content)
    with pytest.raises(WorkbenchError, match=r"."):
        load_sweep(table)


@pytest.mark.parametrize("content", ["7", "[7]", "{", "[" * 99_999, '[{"model": 1}]', '[{"a": 1, "a": 2}]'])
def test_failures_of_another_form_are_refused(table: Path, content: str) -> None:
    (table / "failures.json").write_text(content)
    with pytest.raises(SweepError, match="is damaged"):
        load_sweep(table)
