"""``workbench trace export`` and ``import``: a trace as the public engine's request log and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench import Session, Trace, load

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "two"
    Session(load("tiny-llama", progress=False)).generate(["One", "Two"], max_new_tokens=4, seed=1, save=place)
    return place


def test_a_trace_goes_out_to_a_file_and_comes_back(command: Command, saved: Path, tmp_path: Path) -> None:
    code, out, err = command("trace", "export", saved, "--ingest-json", "-o", tmp_path / "log.json")
    assert (code, out) == (0, "")
    assert "log.json (2 requests)" in err
    code, out, err = command("trace", "import", tmp_path / "log.json", "--out", tmp_path / "back")
    assert (code, err) == (0, "")
    assert "2 requests, 8 tokens" in out
    before, after = Trace.load(saved), Trace.load(tmp_path / "back")
    assert before.records == after.records
    assert before.run["requests"].keys() == after.run["requests"].keys()


def test_one_request_goes_to_standard_output(command: Command, saved: Path) -> None:
    code, out, err = command("trace", "export", saved, "--ingest-json", "--request", "r1")
    assert (code, err) == (0, "")
    assert json.loads(out)["request"]["request_id"].endswith(".r1")
    code, out, err = command("trace", "export", saved, "--ingest-json", "--request", "r7")
    assert (code, out) == (2, "")
    assert "no request 'r7'" in err


def test_an_old_log_is_imported_with_what_it_lacks_said_aloud(command: Command, tmp_path: Path) -> None:
    log = {
        "request": {"request_id": "old"},
        "events": [
            {"event_type": "Prefilled", "step": 0, "sequence_order": 0, "prompt_length": 3},
            {"event_type": "Added", "step": 1, "sequence_order": 1, "added_tokens": [68, 69], "forced": True},
        ],
    }
    (tmp_path / "old.json").write_text(json.dumps(log))
    code, _, err = command("trace", "import", tmp_path / "old.json", "--out", tmp_path / "plain")
    assert code == 0
    assert "old: the log does not hold the prompt's 3 tokens" in err
    assert [life.text for life in Trace.load(tmp_path / "plain").history().live] == ["#68", "#69"]
    code, _, err = command(
        "trace", "import", tmp_path / "old.json", "--out", tmp_path / "spelt", "--model", "tiny-llama", "-q"
    )
    assert (code, err) == (0, "")
    assert [life.text for life in Trace.load(tmp_path / "spelt").history().live] == ["a", "b"]


def test_what_is_wrong_is_said_before_anything_is_written(command: Command, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"request": {}}')
    code, out, err = command("trace", "import", tmp_path / "bad.json", "--out", tmp_path / "no")
    assert (code, out) == (2, "")
    assert "bad.json: request of the log has no 'request_id'" in err
    assert not (tmp_path / "no").exists()
    code, _, err = command("trace", "import", tmp_path / "gone.json", "--out", tmp_path / "no")
    assert code == 2
    assert "can't read" in err
    code, _, err = command("trace", "import", tmp_path / "bad.json", "--out", saved)
    assert code == 2
    assert "already holds files" in err
    code, _, err = command("trace", "export", saved)
    assert code == 2
    assert "--ingest-json" in err
