"""The SDK's names in place for a test, and a tiny model whose tokens are bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from workbench import compat, load


@pytest.fixture(autouse=True)
def sdk() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture(scope="session")
def model() -> Any:
    return load("tiny-llama", progress=False)
