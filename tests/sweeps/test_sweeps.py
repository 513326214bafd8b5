"""A sweep runs each combination once, keeps it, and says what failed; wherever the runs are made."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from workbench import SamplingParams, Session, load
from workbench.cli import main
from workbench.errors import SweepError
from workbench.mods import build
from workbench.sweeps import Cell, Sweep, load_sweep, running, sweep

ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {
    "models": ["tiny-llama"],
    "prompts": {"sum": "2 * 3 =", "sea": "The sea"},
    "mods": {"none": [], "calculator": ["calculator"]},
    "seeds": (0, 1),
    "max_new_tokens": 4,
}


def small(**changes: Any) -> Sweep:
    return Sweep(**{**SMALL, **changes})


def run(plan: Sweep, directory: Path, **options: Any) -> Any:
    return sweep(plan, directory, **{"workers": 0, "progress": False, **options})


def told(result: Any) -> list[dict[str, Any]]:
    """The rows without what differs from run to run."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in result.table().to_pylist()]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests of the runs that are really made in this process."""
    made: list[str] = []
    real = running.run_cell

    def counting(text: str, *rest: Any) -> Any:
        made.append(Cell.from_json(text).digest)
        return real(text, *rest)

    monkeypatch.setattr(running, "run_cell", counting)
    return made


# --- what is run ---


def test_every_combination_is_one_row_and_equals_a_run_by_hand(tmp_path: Path) -> None:
    plan = small(sampling=SamplingParams(temperature=0.5))
    result = run(plan, tmp_path)
    rows = told(result)
    assert result.finished
    assert len(rows) == len(plan) == 8
    assert len({(row["prompt"], row["mods"], row["seed"]) for row in rows}) == 8
    model = load("tiny-llama")
    for row in rows:
        mods = [build("calculator")] if row["mods"] == "calculator" else []
        prompt = SMALL["prompts"][row["prompt"]]
        own = Session(model, mods).generate(
            prompt, max_new_tokens=4, sampling=SamplingParams(temperature=0.5), seed=row["seed"]
        )
        live = own.trace.history().live
        assert (row["tokens"], row["text"], row["reason"]) == (list(own.tokens), own.text, own.reason)
        assert row["by_mods"] == sum(life.origin != "sampled" for life in live)
        assert row["log_p"] == pytest.approx(sum(life.raw_logprob for life in live), abs=1e-6)  # type: ignore[misc]
    assert any(row["by_mods"] for row in rows)
    assert not all(row["by_mods"] for row in rows)


def test_the_table_is_one_parquet_data_set(tmp_path: Path) -> None:
    result = run(small(), tmp_path)
    table = pq.read_table(tmp_path / "results")
    assert table.num_rows == 8
    assert set(table.column_names) == set(result.table().column_names)
    assert list(result.frame().columns) == result.table().column_names


def test_traces_are_kept_where_asked_with_their_activations(tmp_path: Path) -> None:
    hook = "blocks.1.hook_resid_post"
    result = run(small(keep_traces=True, capture=(hook,), prompts=["a"], mods={"none": []}), tmp_path)
    trace = result.trace(prompt="0", mods="none", seed=1)
    assert trace.tokens().token.tolist() == told(result)[1]["tokens"]
    assert hook in trace.run["requests"]["r0"]["capture"]
    with pytest.raises(SweepError, match=r"0 runs are .*'seed': 7"):
        result.trace(prompt="0", mods="none", seed=7)
    with pytest.raises(SweepError, match="kept no traces"):
        run(small(), tmp_path / "without").trace(prompt="sum", mods="none", seed=0)


# --- once ---


def test_what_is_done_is_not_done_again(tmp_path: Path, counted: list[str]) -> None:
    first = run(small(seeds=[0]), tmp_path)
    assert len(counted) == 4
    both = run(small(seeds=[0, 1]), tmp_path)
    assert len(counted) == 8
    assert len(set(counted)) == 8
    assert [row for row in told(both) if row["seed"] == 0] == told(first)
    assert told(run(small(seeds=[0, 1]), tmp_path)) == told(both)
    assert len(counted) == 8


def test_whatever_decides_a_run_decides_its_digest(tmp_path: Path) -> None:
    plain = small()
    for change in (
        {"max_new_tokens": 5},
        {"sampling": SamplingParams(temperature=0.5)},
        {"sampling": SamplingParams(stop=("x",))},
        {"backend": "lean"},
        {"max_forward_tokens": 9},
        {"keep_traces": True},
        {"models": ["tiny-gpt2"]},
        {"prompts": {"sum": "2 * 4 =", "sea": "The  sea"}},
        {"mods": {"none": ["calculator"], "calculator": []}},
    ):
        before, after = ({cell.digest for cell in plan.cells()} for plan in (plain, replace(plain, **change)))
        assert len(before) == len(after) == 8, change
        assert not before & after, change


def test_a_model_whose_files_changed_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"1")
    plan = small(models=[str(tmp_path)])
    before = {cell.digest for cell in plan.cells()}
    assert before == {cell.digest for cell in plan.cells()}
    file.write_bytes(b"22")
    assert not before & {cell.digest for cell in plan.cells()}


def test_a_run_whose_trace_was_lost_is_run_again(tmp_path: Path, counted: list[str]) -> None:
    plan = small(keep_traces=True, prompts=["a"], mods={"none": []})
    result = run(plan, tmp_path)
    (tmp_path / told(result)[0]["trace"] / "run.json").unlink()
    again = run(plan, tmp_path)
    assert len(counted) == 3
    assert told(again) == told(result)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5, unique=True), st.text(min_size=1, max_size=20))
def test_a_cell_survives_the_way_to_another_process(seeds: list[int], text: str) -> None:
    for cell in small(seeds=seeds, prompts={text: text}).cells():
        assert Cell.from_json(cell.to_json()).digest == cell.digest


# --- what goes wrong ---


def test_a_run_that_fails_is_told_and_tried_again_and_the_others_are_kept(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small(prompts={"short": "a", "long": "a" * 5000}, mods={"none": []}, seeds=[0])
    result = run(plan, tmp_path)
    assert not result.finished
    assert [row["prompt"] for row in told(result)] == ["short"]
    (failure,) = result.failures
    assert (failure["prompt"], failure["mods"], failure["seed"]) == ("long", "none", 0)
    assert "PromptError" in failure["failed"]
    assert load_sweep(tmp_path).failures == result.failures
    assert len(run(plan, tmp_path).failures) == 1
    assert len(counted) == 3


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = running.run_cell
    left = [3]

    def interrupted(*arguments: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(running, "run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(small(), tmp_path)
    assert len(load_sweep(tmp_path)) == 2
    assert run(small(), tmp_path).finished


def test_two_sweeps_do_not_write_to_one_directory(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(SweepError, match="another sweep is writing to"):
        run(small(), tmp_path)
    assert run(small(), tmp_path).finished


def test_a_directory_that_is_none_or_damaged_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SweepError, match="is a file"):
        run(small(), file)
    with pytest.raises(SweepError, match="holds no sweep"):
        load_sweep(tmp_path)
    run(small(seeds=[0]), tmp_path / "good")
    (tmp_path / "good" / "results" / "part-0.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(SweepError, match="damaged"):
        load_sweep(tmp_path / "good")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"models": []}, "models is empty"),
        ({"models": [3]}, "models is a list of texts"),
        ({"models": ["a", "a"]}, "models names 'a' twice"),
        ({"prompts": "one"}, "prompts is a list, or a table"),
        ({"prompts": {}}, "prompts is empty"),
        ({"prompts": {"a": ""}}, "prompt 'a' must be text"),
        ({"prompts": [[{"role": "user"}]]}, "prompt '0' must be text, token ids, or chat messages"),
        ({"mods": ["calculator"]}, "mods is a table"),
        ({"mods": {"a": "calculator"}}, "must be a list of mods"),
        ({"mods": {"a": ["calculater"]}}, "mods 'a': no ready mod 'calculater'.*Did you mean 'calculator'"),
        ({"mods": {"a": [print]}}, "a mod is a name or"),
        ({"mods": {"a": [{"name": "watch", "params": {"fn": print}}]}}, "was given a function"),
        ({"seeds": [-1]}, "whole numbers from 0 on"),
        ({"seeds": range(2_000_000)}, "the limit is 1,000,000"),
        ({"backend": "fast"}, "backend must be bridge, hooked, lean; got 'fast'"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1"),
        ({"capture": ["blocks.0.hook_resid_post"]}, "set keep_traces too"),
    ],
)
def test_a_plan_that_can_not_be_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SweepError, match=says):
        small(**change)


# --- files and the command line ---


def test_a_plan_is_written_and_read(tmp_path: Path) -> None:
    plan = small(sampling=SamplingParams(temperature=0.3, stop=("x",)), prompts=[[{"role": "user", "content": "hi"}]])
    again = Sweep.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "one JSON object"),
        ("{}", "lacks 'models'"),
        ('{"model": []}', "no 'model'.*Did you mean 'models'"),
        ('{"models": ["a"], "prompts": ["b"], "sampling": {"temp": 1}}', "sampling has no 'temp'"),
        ('{"models": ["a"], "prompts": ["b"], "sampling": {"temperature": -1}}', "sampling: .*temperature"),
        ('{"models": ["a"], "prompts": ["b"], "sampling": 3}', "sampling is a table"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(text: str, says: str) -> None:
    with pytest.raises(SweepError, match=says):
        Sweep.from_json(text)


def test_the_command_runs_a_file_and_says_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**SMALL, "prompts": {"a": "a", "long": "b" * 5000}, "mods": {"none": []}}))
    command = ["sweep", str(file), "--out", str(tmp_path / "out"), "--workers", "0"]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out == ("4 runs: 1 models x 2 prompts x 1 sets of mods x 2 seeds, at most 16 tokens\n")
    assert not (tmp_path / "out").exists()
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out.startswith("2 of 4 runs in ")
    assert "failed: model tiny-llama, prompt long, mods none, seed 0: PromptError" in err
    assert main(["sweep", str(tmp_path / "none.json"), "--out", str(tmp_path / "out")]) == 2


def test_the_shipped_plan_is_one() -> None:
    assert len(Sweep.from_json((ROOT / "data" / "sweeps" / "sums.json").read_text("utf-8"))) == 12


# --- other processes ---


@pytest.mark.slow
def test_processes_give_the_same_rows(tmp_path: Path) -> None:
    assert told(run(small(), tmp_path / "many", workers=2)) == told(run(small(), tmp_path / "one"))


@pytest.mark.slow
def test_a_worker_that_dies_is_said_and_what_was_done_is_kept(tmp_path: Path) -> None:
    run(small(seeds=[0]), tmp_path)
    pool = running.ProcessPool(tmp_path, 1, 1)
    try:
        pool.submit(next(iter(small(seeds=[1]).cells())).to_json())
        while not multiprocessing.active_children():
            pass
        for worker in multiprocessing.active_children():
            worker.kill()
        with pytest.raises(SweepError, match="a worker process died"):
            next(rows for rows in iter(pool.next_rows, None) if rows)
    finally:
        pool.close()
    assert len(load_sweep(tmp_path)) == 4


@pytest.mark.slow
def test_ray_gives_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "240")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        result = run(small(), tmp_path / "cluster", ray=True)
    finally:
        ray.shutdown()
    assert told(result) == told(run(small(), tmp_path / "one"))


def test_without_ray_its_absence_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SweepError, match=r"Ray is not installed: pip install 'interp-workbench\[ray\]'"):
        run(small(), tmp_path, ray=True)


def test_a_worker_leaves_ctrl_c_to_the_first_process() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        running._ignore_interrupts()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
