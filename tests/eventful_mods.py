"""A mod for runs in which much happens."""

from __future__ import annotations

from typing import Any

import workbench

__all__ = ["having_second_thoughts"]


def having_second_thoughts(instead: str, later: str) -> Any:
    """Takes three tokens back once and puts ``instead`` there; forces ``later`` the next time it hears four tokens."""

    @workbench.mod
    def second_thoughts(event: Any, actions: Any, tokenizer: Any) -> Any:
        count = len(event.request.generated)
        if isinstance(event, workbench.Added) and count == 4 and event.state.setdefault("turn", 0) < 2:
            event.state["turn"] += 1
            if event.state["turn"] == 1:
                return actions.backtrack(3, tokenizer.encode(instead))
            return actions.force_tokens(tokenizer.encode(later))
        return None

    return second_thoughts
