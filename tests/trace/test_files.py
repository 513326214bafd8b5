"""A trace on disk: nothing lost, nothing half-written, nothing executed, every failure explained."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench import Session, Trace, load, replay
from workbench.engine import Result
from workbench.errors import TraceError
from workbench.trace import Record, TraceWriter, first_difference
from workbench.trace.record import data_texts


@pytest.fixture(scope="module")
def result() -> Result:
    session = Session(load("tiny-llama"), capture=["blocks.*.hook_resid_post", "blocks.0.attn.hook_pattern"])
    found: Result = session.generate(["hello", "hi"], max_new_tokens=6, seed=1)[0]
    return found


def same(one: Trace, two: Trace) -> None:
    assert first_difference(one, two, tolerance=0) is None
    assert [dict(r.data) for r in one.records] == json.loads(json.dumps([dict(r.data) for r in two.records]))
    assert [(r.text, r.top, r.duration_ns) for r in one.records] == [
        (r.text, r.top, r.duration_ns) for r in two.records
    ]
    assert one.hooks == two.hooks
    for before, after in zip(one.records, two.records, strict=True):
        for hook, value in (before.activations or {}).items():
            assert torch.equal(value, after.activations[hook])  # type: ignore[index]


def test_what_is_saved_is_what_is_loaded(result: Result, tmp_path: Path) -> None:
    result.trace.save(tmp_path / "run")
    loaded = Trace.load(tmp_path / "run")
    same(loaded, result.trace)
    assert loaded.run["requests"] == json.loads(json.dumps(result.trace.run["requests"]))
    assert loaded.history("r1").tokens == result.trace.history("r1").tokens


def test_the_requests_of_a_large_batch_keep_their_order(tmp_path: Path) -> None:
    model = load("tiny-llama")
    prompts = [f"number {n}" for n in range(12)]
    results = Session(model).generate(prompts, max_new_tokens=2, seed=3, save=tmp_path / "run")
    loaded = Trace.load(tmp_path / "run")
    assert list(loaded.run["requests"]) == [result.request_id for result in results] == [f"r{n}" for n in range(12)]
    assert replay(loaded, model).agrees


def test_tables_have_a_row_per_record_and_per_token(result: Result) -> None:
    frame, tokens = result.trace.frame(), result.trace.tokens()
    assert len(frame) == len(result.trace)
    assert list(tokens.request_id.value_counts()) == [6, 6]
    assert bool(tokens.visible.all())
    assert tokens.raw_logprob.notna().all()


@given(
    st.lists(
        st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=4) | st.lists(st.none()), max_size=3)
    )
)
def test_data_is_told_as_it_would_be_one_by_one(data: list[dict[str, Any]]) -> None:
    records = [
        Record(run_id="a", request_id="r0", seq=n, step=0, position=0, kind="x", data=d) for n, d in enumerate(data)
    ]
    assert data_texts(records).to_pylist() == [json.dumps(each) for each in data]


def test_a_run_saved_as_it_goes_equals_one_saved_at_the_end(tmp_path: Path) -> None:
    session = Session(load("tiny-llama"), capture="blocks.1.hook_resid_post")
    result = session.generate("hello", max_new_tokens=6, seed=1, save=tmp_path / "live")
    same(Trace.load(tmp_path / "live"), result.trace)
    assert json.loads((tmp_path / "live" / "run.json").read_text())["status"] == "finished"


def test_parts_join_up(result: Result, tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "run", result.trace.run)
    for index, record in enumerate(result.trace.records):
        writer(record)
        if index % 5 == 0:
            writer.flush()
    writer.close(result.trace.run)
    assert len(list((tmp_path / "run").glob("records-*.parquet"))) > 5
    same(Trace.load(tmp_path / "run"), result.trace)


KILLED = """
import sys, warnings
warnings.simplefilter("ignore")
import torch; torch.set_num_threads(1)
from workbench import Session, load, mod
from workbench.trace import writing
writing.FLUSH_SECONDS = 0.02
@mod
def slow(event, actions, tokenizer):
    import time; time.sleep(0.002)
    if event.step == 10: print("going", flush=True)
Session(load("tiny-llama"), [slow], capture="blocks.*.hook_resid_post").generate(
    "hello", max_new_tokens=240, seed=1, save=sys.argv[1])
"""


def test_a_killed_run_leaves_a_trace_of_all_but_its_last_moments(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"going"
    time.sleep(0.3)
    process.kill()
    process.wait()
    process.stdout.close()
    trace = Trace.load(tmp_path / "run")
    assert trace.run["status"] == "running"
    assert trace.records[-1].step > 10
    whole = Session(load("tiny-llama")).generate("hello", max_new_tokens=240, seed=1)
    tokens = [life.token for life in trace.history().live]
    assert tokens == list(whole.tokens[: len(tokens)])
    assert trace.residuals(trace.history().live[-2]).shape == (3, 32)


class TestRefusals:
    def test_files_of_somebody_else_are_not_overwritten(self, result: Result, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(TraceError, match="already holds files"):
            result.trace.save(tmp_path)
        with pytest.raises(TraceError, match="files that are not a trace"):
            result.trace.save(tmp_path, overwrite=True)
        assert (tmp_path / "thesis.txt").read_text() == "mine"

    def test_an_old_trace_is_overwritten_only_if_asked(self, result: Result, tmp_path: Path) -> None:
        result.trace.save(tmp_path / "run")
        with pytest.raises(TraceError, match="pass overwrite=True"):
            result.trace.save(tmp_path / "run")
        result.trace.save(tmp_path / "run", overwrite=True)
        same(Trace.load(tmp_path / "run"), result.trace)

    def test_a_full_disk_is_said_and_leaves_nothing(
        self, result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("workbench.trace.whole_files.os.replace", full)
        with pytest.raises(TraceError, match=r"No space left on device. The trace is still in memory"):
            result.trace.save(tmp_path / "run")
        assert list(tmp_path.iterdir()) == []

    def test_a_disk_that_fills_during_a_run_does_not_lose_the_result(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("workbench.trace.writing._write_part", full)
        monkeypatch.setattr("workbench.trace.writing.FLUSH_RECORDS", 5)
        session = Session(load("tiny-llama"))
        with pytest.warns(UserWarning, match="No space left on device") as said:
            result = session.generate("hello", max_new_tokens=20, seed=1, save=tmp_path / "run")
        assert len(said) == 2  # once while it went, once at the end
        assert len(result.tokens) == 20
        assert result.trace.history().reason == "max_tokens"

    def test_a_disk_that_has_room_again_gets_everything(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from workbench.trace import writing

        real, calls = writing._write_part, []

        def full_at_first(*args: Any) -> None:
            calls.append(1)
            if len(calls) < 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(*args)

        monkeypatch.setattr(writing, "_write_part", full_at_first)
        monkeypatch.setattr(writing, "FLUSH_RECORDS", 5)
        session = Session(load("tiny-llama"))
        with pytest.warns(UserWarning, match="No space left"):
            result = session.generate("hello", max_new_tokens=20, seed=1, save=tmp_path / "run")
        same(Trace.load(tmp_path / "run"), result.trace)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda d: (d / "run.json").unlink(), "holds no trace: there is no run.json"),
            (lambda d: (d / "run.json").write_text("{"), "run.json is damaged"),
            (lambda d: (d / "run.json").write_text("[1]"), "run.json is damaged"),
            (
                lambda d: (d / "run.json").write_text('{"format": 99}'),
                "has trace format 99; this version reads format 1",
            ),
            (lambda d: (d / "records-00000.parquet").write_bytes(b"PAR1junk"), "records-00000.parquet is damaged"),
            (lambda d: (d / "activations-00000.safetensors").write_bytes(b"\xff" * 64), "is damaged"),
        ],
    )
    def test_damage_is_named(self, result: Result, tmp_path: Path, damage: Any, message: str) -> None:
        result.trace.save(tmp_path / "run")
        damage(tmp_path / "run")
        with pytest.raises(TraceError, match=message):
            Trace.load(tmp_path / "run")

    def test_a_lost_activations_file_loses_only_activations(self, result: Result, tmp_path: Path) -> None:
        result.trace.save(tmp_path / "run")
        (tmp_path / "run" / "activations-00000.safetensors").unlink()
        loaded = Trace.load(tmp_path / "run")
        assert loaded.history("r0").tokens == result.trace.history("r0").tokens
        with pytest.raises(TraceError, match=r"3 of 3 'blocks\.N\.hook_resid_post' were not captured"):
            loaded.residuals(loaded.history("r0").every[0])

    def test_records_hold_text_not_code(self, result: Result, tmp_path: Path) -> None:
        result.trace.save(tmp_path / "run")
        schema = pq.read_schema(tmp_path / "run" / "records-00000.parquet")
        assert {str(t) for t in schema.types} <= {
            "string",
            "int64",
            "double",
            "list<element: int64>",
            "list<element: double>",
        }

    def test_a_lone_surrogate_breaks_no_table_and_no_file(self, result: Result, tmp_path: Path) -> None:
        [first, *_] = result.trace.records
        odd = dataclasses.replace(first, text="a\ud800b", mod="m\udfff")
        trace = Trace(result.trace.run, [odd])
        assert trace.frame().text[0] == "a?b"
        trace.save(tmp_path / "run")
        assert Trace.load(tmp_path / "run").records[0].mod == "m?"

    def test_unknown_requests_hooks_and_rows_are_named(self, result: Result) -> None:
        trace = result.trace
        with pytest.raises(TraceError, match="no request 'r7' in this trace; it has r0, r1"):
            trace.history("r7")
        with pytest.raises(TraceError, match="no request None"):
            trace.history()
        with pytest.raises(TraceError, match=r"hook 'blocks.1.hook_resid_pre' was not captured"):
            trace.activation("blocks.1.hook_resid_pre", trace.history("r0").every[0])
        with pytest.raises(TraceError, match="activation row 9999 is not in this trace"):
            trace.activation_row("blocks.1.hook_resid_post", 9999)
