"""The Triton kernels under Triton's interpreter, in a process of its own: triton reads the variable when imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).with_name("kernel_cases.py")
ROOT = Path(__file__).resolve().parents[2]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is optional and not installed")


def run(program: list[str], **more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *program], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **more}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def found() -> Any:
    return json.loads(run([str(CASES), "cpu"], TRITON_INTERPRET="1", PYTHONPATH=str(ROOT)))


@pytest.mark.slow
@needs_triton
def test_row_stats_are_those_of_float64_for_every_size_type_and_shape(found: Any) -> None:
    assert found["rows"]["stats"] < 2e-6
    assert found["rows"]["trace"] < 1e-5


@pytest.mark.slow
@needs_triton
def test_decisions_are_those_of_float64_outside_the_margin(found: Any) -> None:
    decisions = found["decisions"]
    assert decisions["clear"] >= 58
    assert 10 < decisions["accepted"] < 50  # both verdicts occur
    assert decisions["wrong"] == 0
    assert decisions["log_a"] < 1e-3
    assert decisions["sums"] < 1e-11  # the same stats in another order of adding
    assert decisions["terms"] < 1e-12
    assert decisions["again"]


@pytest.mark.slow
@needs_triton
def test_the_kernels_random_numbers_are_those_of_numpy_bit_for_bit(found: Any) -> None:
    assert found["decisions"]["random"]
    assert found["decisions"]["uniforms"]


@pytest.mark.slow
@needs_triton
def test_the_sampler_can_take_its_scalars_from_the_kernel(found: Any) -> None:
    assert found["sampler"]["tokens"]
    assert found["sampler"]["scalars"] < 1e-4
    assert found["sampler"]["refused"].startswith("row 1: the logit of token 3 is -inf")


def test_the_room_is_imported_without_triton() -> None:
    program = "import sys, workbench.mcmc; print('triton' in sys.modules)"
    assert run(["-W", "ignore", "-c", program]).strip() == "False"
