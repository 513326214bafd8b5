"""One tiny model, and a run of it in which much happens, for all tests here."""

from __future__ import annotations

from typing import Any

import pytest

import workbench
from workbench.mods import ban_tokens
from workbench.trace import Trace

EVERYTHING = ("blocks.*.hook_resid_post", "blocks.1.attn.hook_pattern")


@workbench.mod
def second_thoughts(event: Any, actions: Any, tokenizer: Any) -> Any:
    """Takes three tokens back once, then forces an emoji, which is four tokens."""
    count = len(event.request.generated)
    if isinstance(event, workbench.Added) and count == 4 and event.state.setdefault("turn", 0) < 2:
        event.state["turn"] += 1
        if event.state["turn"] == 1:
            return actions.backtrack(3, tokenizer.encode("<b>"))
        return actions.force_tokens(tokenizer.encode("😀\n"))
    return None


@pytest.fixture(scope="session")
def model() -> Any:
    return workbench.load("tiny-llama", progress=False)


def run(model: Any, *, seed: int = 4, capture: Any = EVERYTHING, **options: Any) -> Trace:
    mods = [second_thoughts, ban_tokens(tokens=list(range(40, 90)))]
    session = workbench.Session(model, mods, capture=capture)
    result = session.generate("Say <i>it</i>.", **{"max_new_tokens": 24, "seed": seed, **options})
    return Trace(result.trace.run, result.trace.records)


@pytest.fixture(scope="session")
def trace(model: Any) -> Trace:
    return run(model)


@pytest.fixture(scope="session")
def other(model: Any) -> Trace:
    return run(model, seed=5)
