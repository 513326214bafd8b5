"""A model that writes what a test wants, and a run of it under mods that checks the engine's promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from workbench import Added, ForwardPass, Result, Sampled, SamplingParams, Session, mod
from workbench.engine import FunctionMod, Mod

GREEDY = SamplingParams(temperature=0)


def writes(text: str | Sequence[int]) -> FunctionMod:
    """Placed first, it makes the model draw these tokens one after the other, then its end token.

    What is drawn is spent, also when another mod puts something in its place or takes it back. A token that
    another mod masks is not drawn: the end token comes instead.
    """

    @mod(name="script")
    def script(event: Any, actions: Any, tokenizer: Any) -> Any:
        state = event.state
        if "left" not in state:
            state["left"] = tokenizer.encode(text) if isinstance(text, str) else list(text)
        if isinstance(event, Sampled):
            state["left"] = state["left"][1:]
        if not isinstance(event, ForwardPass):
            return None
        logits = torch.zeros(len(event.logits))
        logits[tokenizer.eos_token_ids[0]] = 10
        if state["left"]:
            logits[state["left"][0]] = 50
        return actions.adjust_logits(logits)

    return script


def run(model: Any, mods: Sequence[Mod], text: str | Sequence[int], prompt: Any = "p:\n", **options: Any) -> Result:
    """The model writes ``text`` under ``mods``; the four views of its tokens are checked to agree at the end."""
    passes: list[tuple[tuple[int, ...], torch.Tensor]] = []

    @mod(name="notes")
    def notes(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass):
            passes.append((event.request.tokens, event.raw_logits))

    session = Session(model)
    result: Result = session.generate(
        prompt, mods=[notes, writes(text), *mods], sampling=GREEDY, seed=0, **{"max_new_tokens": 100, **options}
    )
    history = result.trace.history(result.request_id)
    assert history.tokens == [*result.prompt_tokens, *result.tokens]
    for tokens, logits in passes[-2:]:
        fresh = model.forward([list(tokens)], model.new_cache(1)).logits[0][-1]
        assert float((fresh - logits).abs().max()) < 1e-3
    return result


def actions_of(result: Result, name: str) -> list[tuple[str | None, str | None]]:
    """What a mod answered in the run: (action, status) in order."""
    return [(r.action, r.status) for r in result.trace.records if r.kind == "action" and r.mod == name]


def takes_back_once(n: int, after: str) -> FunctionMod:
    """A mod that takes back ``n`` tokens the first time that the text ends with ``after``."""

    @mod(name="eraser")
    def eraser(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Added) and event.request.text.endswith(after) and event.state.setdefault("due", True):
            event.state["due"] = False
            return actions.backtrack(n)
        return None

    return eraser
