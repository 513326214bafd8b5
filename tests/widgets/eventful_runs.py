"""A run of the tiny model in which much happens, for tests of the windows on a trace."""

from __future__ import annotations

from typing import Any

from eventful_mods import having_second_thoughts

import workbench
from workbench.mods import ban_tokens
from workbench.trace import Trace

__all__ = ["eventful_run"]

EVERYTHING = ("blocks.*.hook_resid_post", "blocks.1.attn.hook_pattern")

second_thoughts = having_second_thoughts("<b>", "😀\n")
"""Takes three tokens back once, then forces an emoji, which is four tokens."""


def eventful_run(model: Any, *, seed: int = 4, capture: Any = EVERYTHING, **options: Any) -> Trace:
    """Tokens taken back, forced and banned, in a prompt with angle brackets."""
    mods = [second_thoughts, ban_tokens(tokens=list(range(40, 90)))]
    session = workbench.Session(model, mods, capture=capture)
    result = session.generate("Say <i>it</i>.", **{"max_new_tokens": 24, "seed": seed, **options})
    return Trace(result.trace.run, result.trace.records)
