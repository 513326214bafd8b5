"""A trace directory that somebody edited: refused with a sentence, in bounded memory and time; nothing in it runs."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hostile_files import PART, copied, outcome_within, with_data, with_manifest, with_rows
from safetensors.torch import load_file, save_file

import workbench
from workbench.errors import TraceError, WorkbenchError
from workbench.mods import calculator
from workbench.trace import Allowance, Trace, files, read_table
from workbench.trace.files import SCHEMA
from workbench.trace.parquet_pages import count_pages

ACTIVATIONS = "activations-00000.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = workbench.load("tiny-llama", progress=False)
    place = tmp_path_factory.mktemp("saved") / "run"
    session = workbench.Session(model, [calculator()], capture="blocks.*.hook_resid_post")
    session.generate(["12*3=", "hello"], max_new_tokens=5, seed=1, save=place)
    return place


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    return copied(saved, tmp_path / "run")


def put(name: str, value: Any, which: int = 0) -> Callable[[list[dict[str, Any]]], None]:
    """An edit that sets one field of one record."""
    return lambda rows: rows[which].update({name: value})


def refused(run: Path, says: str) -> None:
    began = time.thread_time()
    with pytest.raises(TraceError, match=says):
        Trace.load(run)
    assert time.thread_time() - began < 5


# Records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put("seq", -1), "its number is not above"),
        (put("seq", 7, which=3), r"record 7 \(.*\)|record 4 .*its number is not above"),
        (lambda rows: rows.reverse(), "its number is not above the one before it"),
        (lambda rows: rows.append(rows[-1]), "its number is not above the one before it"),
        (put("seq", None), "its number is not above"),
        (put("request_id", "r9"), "'r9', which is not there|damaged or not part"),
        (put("request_id", None), "which is not there|damaged or not part"),
        (put("kind", "executed"), "there is no such kind; known are action, added"),
        (put("kind", None), "there is no such kind"),
        (put("step", -5), "its step or position is no whole number"),
        (put("position", 2**62), "its step or position is no whole number"),
        (put("text", None), "its text is none"),
        (put("tokens", None), "damaged or not part of a trace"),
        (put("tokens", [-1]), "its tokens are no token ids"),
        (put("tokens", [2**40]), "its tokens are no token ids"),
        (put("top_ids", [1, 2, 3]), "damaged or not part of a trace"),
        (put("duration_ns", None), "its duration is no whole number"),
        (put("logprob", 1e308), "its logprob is no logarithm of a probability"),
        (put("raw_logprob", float("inf")), "its raw_logprob is no logarithm of a probability"),
        (lambda rows: rows[1].update(top_ids=[1], top_logprobs=[1e308]), "no pairs of token id and log-probability"),
        (put("data", None), "damaged or not part of a trace"),
        (put("data", "[]"), "its data is no object|damaged or not part of a trace"),
        (put("data", "{"), "damaged or not part of a trace"),
        (put("data", '{"a": 1, "a": 2}'), "an object has a key twice"),
        (put("data", '{"a": ' + "1" * 1_000_000 + "}"), "Exceeds the limit"),
        (put("data", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"), "nested too deeply"),
        (put("data", '{"a": ' + "[" * 200 + "]" * 200 + "}"), "its data is no object, or too deep"),
    ],
)
def test_a_record_of_another_form_is_refused(run: Path, change: Any, says: str) -> None:
    refused(with_rows(run, change), says)


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("forward_pass", lambda data: data.update(fed=10**15), r"it feeds 10+ positions from 0 on, and there are"),
        ("forward_pass", lambda data: data.update(fed=-1), "it feeds -1 positions"),
        ("forward_pass", lambda data: data.update(fed=True), "it feeds True positions"),
        ("forward_pass", lambda data: data.update(fed=1.0), "it feeds 1.0 positions"),
        ("forward_pass", lambda data: data.update(fed_start="0"), "positions from 0 on"),
        ("forward_pass", lambda data: data.pop("fed_start"), "from None on"),
        ("forward_pass", lambda data: data.update(row=-3), "its activation row is no whole number"),
        ("forward_pass", lambda data: data.update(row=10**300), "its activation row is no whole number"),
        ("forward_pass", lambda data: data.update(scored={"0": 1.0}), "it scores position '0' of"),
        ("forward_pass", lambda data: data.update(scored={"9" * 5000: 1.0}), "it scores position '9{20}' of"),
        ("forward_pass", lambda data: data.update(scored={"٣": 1.0}), "it scores position"),
        ("forward_pass", lambda data: data.update(scored=[1]), "its scores or edits are of another type"),
        ("forward_pass", lambda data: data.update(edits=[[0, 10**15, ["x"]]]), "an edit is no span and names"),
        ("forward_pass", lambda data: data.update(edits=[[0]]), "an edit is no span and names"),
        ("added", lambda data: data.update(texts=["x"] * 10_000), "it has not one text for each token"),
        ("added", lambda data: data.update(texts=[7, 7]), "it has not one text for each token"),
        ("added", lambda data: data.pop("texts"), "it has not one text for each token"),
        ("finished", lambda data: data.update(reason={"$ref": "x"}), "it gives no reason"),
        ("action", lambda data: data.update(event=["x"]), "its event is no text"),
    ],
)
def test_a_record_that_speaks_of_what_is_not_there_is_refused(run: Path, kind: str, change: Any, says: str) -> None:
    (run / ACTIVATIONS).unlink()  # of which there would be too few, which is said first

    def edit(data: dict[str, Any]) -> None:
        change(data)

    refused(with_data(run, kind, edit), says)


def test_a_record_that_takes_back_more_than_there_is_is_refused(run: Path) -> None:
    def edit(rows: list[dict[str, Any]]) -> None:
        added = next(row for row in rows if row["kind"] == "added")
        added.update(kind="removed", tokens=[1] * 100)

    refused(with_rows(run, edit), "it removes 100 tokens of 0")


def test_a_record_at_another_position_is_refused(run: Path) -> None:
    def edit(rows: list[dict[str, Any]]) -> None:
        next(row for row in rows if row["kind"] == "added")["position"] = 10**12

    refused(with_rows(run, edit), r"it adds at position 1000000000000 of \d+")


# The manifest ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda told: told.update(model=[]), "names no model or no requests"),
        (lambda told: told.update(requests=["r0"]), "names no model or no requests"),
        (lambda told: told["model"].update(n_layers=10**12), "the model's n_layers is no number of such things"),
        (lambda told: told["model"].update(n_layers="3"), "the model's n_layers is no number of such things"),
        (lambda told: told["model"].update(name={"a": 1}), "the model's name is no text"),
        (lambda told: told["model"].update(eos_token_ids=7), "eos_token_ids are no token ids"),
        (lambda told: told["requests"].update(r0=[]), "request 'r0' is no object"),
        (lambda told: told["requests"]["r0"].update(capture="blocks.*"), "capture is no list"),
        (lambda told: told["requests"]["r0"].update(capture=[["a"]]), "capture names no hooks"),
        (lambda told: told["requests"]["r0"].update(prompt_tokens=["a"]), "prompt_tokens are no token ids"),
        (lambda told: told["requests"]["r0"].update(mods=[7]), "a mod has no name"),
        (lambda told: told["requests"]["r0"].update(sampling=[1]), "sampling is no dict"),
        (lambda told: told.update(format="1" * 10_000), "has trace format '1{39}; this version reads"),
        (lambda told: told.update(run_id=["x"]), "run_id is no text"),
    ],
)
def test_a_manifest_of_another_form_is_refused(run: Path, change: Any, says: str) -> None:
    refused(with_manifest(run, change), says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is damaged"),
        (b"\xff\xfe{", "is damaged"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"format": 1, "format": 1}', "an object has a key twice"),
        (b'{"format": 1' + b"0" * 5000 + b"}", "is damaged"),
        (b"null", "is damaged"),
        (b'{"format": NaN}', "has trace format nan"),
        (b'{"format": 1, "model": "\\ud800", "requests": {}}', "names no model"),
    ],
)
def test_a_manifest_that_is_no_json_object_is_refused(run: Path, content: bytes, says: str) -> None:
    (run / "run.json").write_bytes(content)
    refused(run, says)


def test_a_manifest_of_gigabytes_is_refused_unread(run: Path) -> None:
    os.truncate(run / "run.json", 40 << 30)  # zeros that no disk holds
    refused(run, "it has more than 268,435,456 bytes, the most that is read")


# Activations ----------------------------------------------------------------------------------------------------


def header_of(told: Any, data: bytes = b"") -> bytes:
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 2**63) + b"{}",
        header_of({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}),
        header_of({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 16]}}, bytes(16)),
        header_of({"a": {"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}}, bytes(16)),
        header_of({"a": {"dtype": "object", "shape": [2], "data_offsets": [0, 16]}}, bytes(16)),
        header_of({n: {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} for n in "ab"}, bytes(16)),
        header_of({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 0]}}, bytes(16)),
        header_of(b"[" * 100_000),
        header_of({"a": {"dtype": "I64", "shape": [1, 2], "data_offsets": [0, 16]}}, bytes(16)),
        b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x8c\x06system\x93\x8c\x04exit\x85R.",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
    ],
)
def test_activations_of_another_form_are_refused(run: Path, content: bytes) -> None:
    (run / ACTIVATIONS).write_bytes(content)
    refused(run, "damaged or not part of a trace")


def test_activations_of_other_passes_are_refused(run: Path) -> None:
    tensors = load_file(run / ACTIVATIONS)
    hook = sorted(tensors)[0]
    save_file({**tensors, hook: tensors[hook][:-1].clone()}, run / ACTIVATIONS)
    refused(run, r"it tells of \d+ rows of 'blocks.0.hook_resid_post', \d+ are there")
    save_file({**tensors, hook: torch.tensor(1.0)}, run / ACTIVATIONS)
    refused(run, "holds no activations by position")


# Where files lie ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.json", PART, ACTIVATIONS])
def test_a_link_out_of_the_trace_is_not_followed(saved: Path, run: Path, name: str) -> None:
    (run / name).unlink()
    (run / name).symlink_to(saved / name)
    refused(run, "is a link that leads out of .*: copy the file there")


@pytest.mark.parametrize("name", [PART, ACTIVATIONS])
def test_what_is_no_ordinary_file_is_not_opened(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    refused(run, "is no ordinary file")
    (run / name).unlink()
    (run / name).symlink_to("/dev/zero")
    refused(run, "is a link that leads out of")


def test_a_trace_in_a_linked_folder_is_read(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(saved)
    assert len(Trace.load(tmp_path / "link")) == len(Trace.load(saved))


# Bombs -----------------------------------------------------------------------------------------------------------


def test_a_text_told_a_million_times_is_refused_before_it_is_written_out(run: Path) -> None:
    """A dictionary of one text of 16 MB and a million references: sixteen terabytes in a file of sixteen kilobytes."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), pa.array(["x" * (16 << 20)]))
    pq.write_table(pa.table({"text": column}), run / PART, compression="zstd")
    assert (run / PART).stat().st_size < 20_000
    said, taken = outcome_within(1500, f"workbench.trace.Trace.load({str(run)!r})")
    assert "values and 17,1" in said or "bytes once decompressed" in said, said
    assert taken < 500


@pytest.mark.parametrize(
    ("column", "options", "says"),
    [
        (["x" * (40 << 20)] * 4, {}, "167,77"),
        (["x" * 1000] * 9000, {"column_encoding": {"text": "DELTA_BYTE_ARRAY"}}, "a page has the encoding 7"),
    ],
)
def test_a_compressed_text_column_is_refused_by_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: list[str], options: Any, says: str
) -> None:
    path = tmp_path / PART
    pq.write_table(pa.table({"text": pa.array(column)}), path, compression="zstd", use_dictionary=False, **options)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(ValueError, match=says):
        read_table(path, SCHEMA, Allowance(size=100 << 20))


def test_a_hundred_million_numbers_in_some_kilobytes_are_refused(run: Path) -> None:
    pq.write_table(pa.table({"step": pa.nulls(100_000_000, pa.int64())}), run / PART, compression="zstd")
    assert (run / PART).stat().st_size < 1_000_000
    said, taken = outcome_within(1500, f"workbench.trace.Trace.load({str(run)!r})")
    assert "refused: " in said
    assert "values and" in said
    assert taken < 300


def test_all_parts_share_one_allowance(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(path.stat().st_size for path in run.iterdir())
    monkeypatch.setattr(files, "Allowance", lambda: Allowance(values=5000, size=40 * size))
    assert len(Trace.load(run)) > 10
    monkeypatch.setattr(files, "Allowance", lambda: Allowance(values=900, size=40 * size))
    for part in range(1, 9):
        (run / f"records-{part:05}.parquet").write_bytes((run / PART).read_bytes())
    refused(run, "values and .* once decompressed")


def test_a_footer_that_claims_more_rows_than_its_pages_hold_is_refused(run: Path) -> None:
    table = pq.read_table(run / PART)
    rows = table.num_rows
    content = (run / PART).read_bytes()
    length = struct.unpack("<I", content[-8:-4])[0]
    footer = bytearray(content[-8 - length : -8])
    claim = bytes([rows << 1]) if rows < 64 else bytes([(rows << 1) & 127 | 128, rows >> 6])
    other = bytes([0x7E]) if rows < 64 else bytes([255, 127])
    changed = footer.replace(claim, other)
    assert changed != footer
    (run / PART).write_bytes(content[: -8 - length] + changed + content[-8:])
    refused(run, "damaged or not part of a trace")


@pytest.mark.parametrize(
    "content", [b"\x15", b"\x15\x80", b"\xff" * 40, b"\x1c" * 40, b"\x15\x00\x15\x02\x15\x7f\x00", b"\x19\x00"]
)
def test_headers_of_pages_that_are_none_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"page|column|too long"):
        count_pages(content, 0, len(content))
    with pytest.raises(ValueError, match="outside of the file"):
        count_pages(content, 0, len(content) + 1)


def test_the_pages_of_a_sound_file_are_counted_exactly(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([[1, 2], [], None, [3]], pa.list_(pa.int64()))}), tmp_path / "a.parquet")
    column = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0)
    found = count_pages(
        (tmp_path / "a.parquet").read_bytes(), column.dictionary_page_offset, column.total_compressed_size
    )
    assert found.values == column.num_values == 5


# Columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (pa.schema([("seq", pa.string())]), "the column 'seq' is of type string, not int64"),
        (pa.schema([("text", pa.binary())]), "the column 'text' is of type binary"),
        (pa.schema([("tokens", pa.list_(pa.list_(pa.int64())))]), "the column 'tokens' is of type list<"),
        (pa.schema([("seq", pa.int64()), ("seq", pa.int64())]), "or there twice"),
        (pa.schema([("other", pa.int64())]), "it has none of the columns run_id"),
        (pa.schema([("seq", pa.int64())]), "damaged"),
    ],
)
def test_columns_of_another_type_are_refused(run: Path, schema: pa.Schema, says: str) -> None:
    arrays = [pa.nulls(2, field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), run / PART)
    refused(run, says)


def test_an_extension_type_in_the_schema_is_not_made(run: Path) -> None:
    """Older versions of pyarrow unpickled these; the canary would be a class of this test."""
    field = pa.field(
        "seq", pa.int64(),
        metadata={b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": b"cos\nsystem\n."},
    )  # fmt: skip
    pq.write_table(pa.Table.from_arrays([pa.array([1])], schema=pa.schema([field])), run / PART)
    refused(run, "damaged")


# What a sound but hostile trace may do ----------------------------------------------------------------------------

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def test_names_and_texts_of_a_trace_are_shown_and_never_run(run: Path, tmp_path: Path) -> None:
    """All that a stranger can write into a trace that still loads, in every form that it is shown in."""
    from widgets import TraceExplorer
    from workbench.reports import Report

    def texts(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row.update(text=SCRIPT, mod=row["mod"] and SCRIPT, run_id=SCRIPT)
            data = json.loads(row["data"])
            for name in ("texts", "reason", "message"):
                if name in data:
                    data[name] = [SCRIPT] * len(data[name]) if name == "texts" else SCRIPT
            row["data"] = json.dumps(data)

    def manifest(told: dict[str, Any]) -> None:
        told.update(run_id=SCRIPT, status=SCRIPT)
        told["model"]["name"] = SCRIPT
        for request in told["requests"].values():
            request["mods"] = [{"name": SCRIPT, "params": {SCRIPT: SCRIPT}, "source": SCRIPT}]

    trace = Trace.load(with_manifest(with_rows(run, texts), manifest))
    page = Report(SCRIPT).trace(trace).save(tmp_path / "report.html").read_text("utf-8")
    for shown in (page, trace._repr_html_(), TraceExplorer(trace).static_html()):
        assert "<script>alert" not in shown
        assert "<img src=x" not in shown


def test_a_mod_named_in_a_trace_is_never_made_of_its_source(run: Path, tmp_path: Path) -> None:
    from workbench.mods import rebuild

    canary = tmp_path / "canary"
    source = f"open({str(canary)!r}, 'w')"

    def manifest(told: dict[str, Any]) -> None:
        for request in told["requests"].values():
            request["mods"] = [{"name": "mine", "params": None, "source": source}]

    trace = Trace.load(with_manifest(run, manifest))
    told = trace.run["requests"]["r0"]["mods"][0]
    for name in ("mine", "os.system", "builtins.exec", "../mine", "calculator\0", "__import__"):
        with pytest.raises(WorkbenchError, match=r"can't be rebuilt|no ready mod|no mod"):
            rebuild({**told, "name": name, "params": {"source": source}})
    with pytest.raises(WorkbenchError, match="pass the same mods"):
        workbench.replay(trace, workbench.load("tiny-llama", progress=False))
    assert not canary.exists()
