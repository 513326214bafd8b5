"""Every kind of window, made of the same tiny models, for what must hold for all of them. Add a new one here."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import workbench
from widgets import CarryInspector, FlowEditor, LiveRun, MCMCStepper, ResidualView, TraceExplorer, Window
from workbench.carry import CarryModel, make_adapter
from workbench.flows import FlowQuestion
from workbench.mcmc import Chains, PowerSampler

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'


@lru_cache
def tiny_model() -> Any:
    return workbench.load("tiny-llama", progress=False)


@lru_cache
def tiny_carry() -> CarryModel:
    base = workbench.load("tiny-gemma3", progress=False)
    adapter = make_adapter("interpolate", base.d_model, start=0.3)
    return CarryModel(base, band=(0, 2), adapter=adapter, pause_token=5, pauses=3, loops=1)


@workbench.mod
def echo(event: Any, actions: Any, tokenizer: Any) -> Any:
    """Says what the prompt said, so that the output holds it too."""
    if isinstance(event, workbench.ForwardPass) and event.step == 1:
        return actions.force_tokens(event.request.tokens[-60:])
    return None


@lru_cache
def tiny_trace(prompt: str) -> Any:
    session = workbench.Session(tiny_model(), [echo], capture="blocks.*.hook_resid_post")
    return session.generate(prompt, max_new_tokens=min(len(prompt), 62) + 2, seed=1).trace


@lru_cache
def tiny_carry_trace(prompt: str) -> Any:
    return tiny_carry().run(prompt, attention=True)


@lru_cache
def tiny_chains(prompt: str) -> Chains:
    return PowerSampler(tiny_model(), prompt, alpha=2.0, block_size=4, n_mcmc=3, max_tokens=8, seed=1).run()


def _live(prompt: str) -> Window:
    live = LiveRun(tiny_model(), prompt, mods=[echo])
    live.run(prompt, max_new_tokens=min(len(prompt), 62) + 2, seed=1)
    assert live.wait(60)
    return live


KINDS: dict[str, Callable[[str], Window]] = {
    "explorer": lambda prompt: TraceExplorer(tiny_trace(prompt), tiny_model()),
    "residual": lambda prompt: ResidualView(tiny_model(), prompt),
    "live": _live,
    "flow": lambda prompt: FlowEditor(FlowQuestion("ask", prompt, ["yes", "no"]).then(None), tiny_model()),
    "carry": lambda prompt: CarryInspector(tiny_carry(), tiny_carry_trace(prompt)),
    "mcmc": lambda prompt: MCMCStepper(tiny_chains(prompt), tiny_model()),
}
"""By the class of the window's root element, what makes one of a prompt. A flow is kept in the current folder."""
