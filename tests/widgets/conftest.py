"""One tiny model, and two runs of it in which much happens, for all tests here."""

from __future__ import annotations

from typing import Any

import pytest
from eventful_runs import eventful_run

import workbench
from workbench.trace import Trace


@pytest.fixture(scope="session")
def model() -> Any:
    return workbench.load("tiny-llama", progress=False)


@pytest.fixture(scope="session")
def trace(model: Any) -> Trace:
    return eventful_run(model)


@pytest.fixture(scope="session")
def other(model: Any) -> Trace:
    return eventful_run(model, seed=5)
