"""Shared by the engine's tests: one tiny model, and a mod made of a table of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench import Session, load, mod
from workbench.engine import FunctionMod


@pytest.fixture(scope="session")
def model() -> Any:
    return load("tiny-llama")


@pytest.fixture
def session(model: Any) -> Session:
    return Session(model)


@pytest.fixture
def answer() -> Callable[..., FunctionMod]:
    """A mod that answers the first event of a type (optionally at a step) once, with what a function gives."""

    def make(kind: type, give: Callable[..., Any], *, step: int | None = None, name: str = "tester") -> FunctionMod:
        done: set[str] = set()

        @mod(name=name)
        def handler(event: Any, actions: Any, tokenizer: Any) -> Any:
            if isinstance(event, kind) and event.request_id not in done and step in (None, event.step):
                done.add(event.request_id)
                return give(event, actions, tokenizer)
            return None

        return handler

    return make
