"""The three parsers of what strangers write: whatever comes in, a result or an error of the tree comes out, and soon.

Flow documents, trace directories, and the calculator's expressions: any bytes at all, and sound ones changed in one
place or several. ``WORKBENCH_SOAK`` multiplies the examples.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile_files import PART
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak_scale import scaled

import workbench
from workbench.errors import WorkbenchError
from workbench.flows import FlowDefinition
from workbench.mods import calculator
from workbench.mods.arithmetic import ArithmeticRefused, evaluate, format_number
from workbench.reports import Report
from workbench.trace import Trace
from workbench.trace.files import SCHEMA

SECONDS = 10.0
"""Of its thread's time for one example; milliseconds are usual."""
DATA = Path(__file__).resolve().parents[2] / "data"


@contextmanager
def soon() -> Iterator[None]:
    began = time.thread_time()
    yield
    assert time.thread_time() - began < SECONDS


def fuzzing(examples: int) -> Any:
    return settings(max_examples=scaled(examples), deadline=None, suppress_health_check=list(HealthCheck))


# Values and places ------------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 10**40, -(10**40), 0.5, 1e308, -1e308, "", "x", "0",
    "-1", "\x00", "\ud800", "x" * 5000, "q", "r0", "r9", "added", "removed", "../x", "<b>", "__class__", [], {},
    [0], [[]], [None], {"": 0}, ["x"] * 50, {"kind": "regex"}, {"question": "q"}, list(range(40)),
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to everything within a JSON value."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield from places(held, (*at, key))


def odd(data: st.DataObject) -> Any:
    """A value of its own: what is put into a document may be changed there."""
    return copy.deepcopy(data.draw(st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=20)))


def changed(value: Any, data: st.DataObject) -> Any:
    """The value with one thing in it replaced, removed, doubled, or taken from elsewhere in it."""
    every = list(places(value))
    at = data.draw(st.sampled_from(every))
    if not at:
        return odd(data)
    *above, key = at
    holder = value
    for step in above:
        holder = holder[step]
    match data.draw(st.sampled_from(["replace", "remove", "double", "other"])):
        case "replace":
            holder[key] = odd(data)
        case "remove":
            del holder[key]
        case "double" if isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(holder[key])))
        case _:
            found = value
            for step in data.draw(st.sampled_from(every)):
                found = found[step]
            holder[key] = json.loads(json.dumps(found))
    return value


# Flows --------------------------------------------------------------------------------------------------------------


@lru_cache
def flow_texts() -> tuple[str, ...]:
    found = [
        path.read_text("utf-8") for path in sorted(DATA.rglob("*.json")) if '"questions"' in path.read_text("utf-8")
    ]
    assert found
    return tuple(found)


def check_flow(text: Any) -> None:
    with soon():
        try:
            flow = FlowDefinition.from_json(text)
        except WorkbenchError as error:
            assert len(str(error)) < 3000  # noqa: PT017
            return
        again = flow.to_json()
        assert FlowDefinition.from_json(again).to_json() == again


@fuzzing(150)
@given(text=st.text(max_size=300) | st.binary(max_size=300).map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_no_text_is_more_than_a_flow_or_an_error(text: str) -> None:
    check_flow(text)


@fuzzing(200)
@given(data=st.data())
def test_no_changed_flow_is_more_than_a_flow_or_an_error(data: st.DataObject) -> None:
    document = json.loads(data.draw(st.sampled_from(flow_texts())))
    for _ in range(data.draw(st.integers(1, 4))):
        document = changed(document, data)
    check_flow(json.dumps(document))


@fuzzing(100)
@given(data=st.data())
def test_no_damaged_flow_text_is_more_than_a_flow_or_an_error(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(flow_texts()))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 20))
        text = text[:at] + data.draw(st.text(alphabet='[]{}",:0e9\\\x00ud8 -tn', max_size=6)) + text[at + cut :]
    check_flow(text)


# Trace directories -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fuzzed") / "run"
    model = workbench.load("tiny-llama", progress=False)
    mods = [calculator()]
    session = workbench.Session(model, mods, capture="blocks.*.hook_resid_post")
    session.generate(["12*3=", "hi"], max_new_tokens=4, seed=1, save=place)
    return place


def check_trace(run: Path) -> None:
    """Read it, and look at all of it: what was let in has to bear it."""
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    with soon(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trace = Trace.load(run)
        except WorkbenchError as error:
            assert len(str(error)) < 3000  # noqa: PT017
            return
        repr(trace), trace._repr_html_(), trace.frame(), trace.tokens()
        for name in trace.request_ids:
            for life in trace.history(name).every:
                with suppress(WorkbenchError):
                    trace.residuals(life)
        with suppress(WorkbenchError):
            Report("x").trace(trace)
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def fresh(saved: Path, run: Path) -> Path:
    shutil.rmtree(run, ignore_errors=True)
    return Path(shutil.copytree(saved, run))


@fuzzing(60)
@given(data=st.data())
def test_no_changed_byte_of_a_trace_is_more_than_a_trace_or_an_error(
    saved: Path, run: Path, data: st.DataObject
) -> None:
    fresh(saved, run)
    path = data.draw(st.sampled_from(sorted(path for path in run.iterdir() if path.stat().st_size)))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # Most of a file is data; its ends are what says how the data is to be read.
        near = data.draw(st.sampled_from([min(200, len(content)), min(3000, len(content)), len(content)]))
        at = data.draw(st.integers(0, near - 1))
        content[at if data.draw(st.booleans()) else len(content) - 1 - at] = data.draw(st.integers(0, 255))
    if data.draw(st.integers(0, 4)) == 0:
        content = content[: data.draw(st.integers(0, len(content)))]
    path.write_bytes(content)
    check_trace(run)


@fuzzing(60)
@given(data=st.data())
def test_no_changed_manifest_is_more_than_a_trace_or_an_error(saved: Path, run: Path, data: st.DataObject) -> None:
    fresh(saved, run)
    told = json.loads((run / "run.json").read_text("utf-8"))
    for _ in range(data.draw(st.integers(1, 3))):
        told = changed(told, data)
    (run / "run.json").write_text(json.dumps(told), "utf-8")
    check_trace(run)


@fuzzing(60)
@given(data=st.data())
def test_no_changed_records_are_more_than_a_trace_or_an_error(saved: Path, run: Path, data: st.DataObject) -> None:
    fresh(saved, run)
    rows = pq.read_table(run / PART).to_pylist()
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.sampled_from(rows))
        name = data.draw(st.sampled_from([*SCHEMA.names, "data", "data"]))
        if name == "data":
            with suppress(ValueError):
                row["data"] = json.dumps(changed(json.loads(row["data"]), data))
        else:
            row[name] = odd(data)
        if data.draw(st.integers(0, 5)) == 0:
            rows.insert(data.draw(st.integers(0, len(rows))), dict(row))
    try:
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError, TypeError, ValueError):
        return  # no file can hold that
    pq.write_table(table, run / PART)
    check_trace(run)


@fuzzing(60)
@given(content=st.binary(max_size=400), name=st.sampled_from(["run.json", PART, "activations-00000.safetensors"]))
def test_no_bytes_are_more_than_a_trace_or_an_error(saved: Path, run: Path, content: bytes, name: str) -> None:
    fresh(saved, run)
    (run / name).write_bytes(content)
    check_trace(run)


# The calculator ----------------------------------------------------------------------------------------------------

PIECES = [
    "1", "9", "0", ".", ",", "e", "E", "+", "-", "*", "**", "/", "//", "%", "^", "(", ")", "sqrt", "abs",
    "round", "min", "max", "x", "×", "÷", "·", "−", "\\times", "\\left(", "\\,", " ", "\u00a0", "\t", "\n",
    "1e300", "1e-300", "9" * 50, "0.1", "1,000", "sqrt(", "max(", ", ", "_", "j", "\x00", "\ud800", "²", "٣",
    "=", "!", "__import__", "lambda:", "[", "]", "{", "'", '"',
]  # fmt: skip


def check_sum(text: str) -> None:
    began = time.thread_time()
    try:
        value = evaluate(text)
    except ArithmeticRefused as refusal:
        assert len(str(refusal)) < 1000  # noqa: PT017
    else:
        assert math.isfinite(value)
        assert math.isclose(evaluate(format_number(value)), value, rel_tol=1e-9)
    assert time.thread_time() - began < 1


@fuzzing(1500)
@given(text=st.lists(st.sampled_from(PIECES), max_size=80).map("".join))
def test_no_row_of_pieces_is_more_than_a_number_or_a_refusal(text: str) -> None:
    check_sum(text)


@fuzzing(800)
@given(text=st.text(max_size=400) | st.binary(max_size=400).map(lambda raw: raw.decode("latin-1")))
def test_no_text_is_more_than_a_number_or_a_refusal(text: str) -> None:
    check_sum(text)
