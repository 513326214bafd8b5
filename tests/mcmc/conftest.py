"""Shared by the chains' tests: one tiny model."""

from __future__ import annotations

from typing import Any

import pytest

from workbench import load


@pytest.fixture(scope="session")
def model() -> Any:
    return load("tiny-llama")
