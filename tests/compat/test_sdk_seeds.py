"""The three mods that this workbench began with, under their own names, written anew without their faults.

As they were printed none of them runs anywhere: see docs/compat.md for what is wrong in each.
"""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from enum import Enum
from typing import Any

import numpy as np

from workbench import Session
from workbench.mods import evaluate


def test_simple_calculator_writes_the_answer_behind_the_equals_sign(model: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass, mod
    from quote_mod_sdk.mod import ActionBuilder

    sums = re.compile(r"[-+*/0-9(). ]+=$")

    class Calculator:
        def __init__(self) -> None:
            self.accumulated_text: defaultdict[str, str] = defaultdict(str)

        def maybe_calculate(self, request_id: str) -> str | None:
            found = sums.search(self.accumulated_text[request_id])
            return None if found is None else f"{evaluate(found[0].rstrip('= '))}"

    calc = Calculator()
    begun: set[str] = set()

    @mod
    def simple_calculator(event: Any, actions: ActionBuilder, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass) and event.request_id not in begun:
            begun.add(event.request_id)
            return actions.force_tokens(tokenizer.encode("(5 - 1) * 234 ="))
        if isinstance(event, Added):
            calc.accumulated_text[event.request_id] += tokenizer.decode(event.tokens)
            result = calc.maybe_calculate(event.request_id)
            if result:
                return actions.force_tokens(tokenizer.encode(" " + result))
        return actions.noop()

    text = Session(model, mods=[simple_calculator]).generate("Go", max_new_tokens=24, seed=1).text
    assert text.startswith("(5 - 1) * 234 = 936")


class Tool:
    def __init__(self, name: str) -> None:
        self.name = name

    def fn(self, actions: Any, tokenizer: Any) -> Any:
        return actions.force_tokens(tokenizer.encode(f"[{self.name}]"))


def test_runtime_tools_asks_itself_and_calls_the_tool_that_was_chosen(model: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass, Prefilled, mod
    from quote_mod_sdk.flow import FlowEngine, FlowQuestion
    from quote_mod_sdk.mod import ActionBuilder

    available = [Tool("search"), Tool("clock")]

    def call_runtime_tool(ctx: Any, actions: ActionBuilder, tokenizer: Any) -> Any:
        chosen = ctx.answers["runtime_tool_router"]
        return next(tool for tool in available if tool.name == chosen).fn(actions, tokenizer)

    runtime_tool_caller_router = FlowQuestion(
        name="runtime_tool_router",
        prompt=f" Which one: {', '.join(tool.name for tool in available)}?",
        responses=[tool.name for tool in available],
        erase_mode="all",
    ).then(call_runtime_tool)
    should_call_runtime_tool = (
        FlowQuestion(name="runtime_tool_calls", prompt=" Is a tool of use?", responses=["yes", "no"], erase_mode="all")
        .on("yes", runtime_tool_caller_router)
        .on("no", None)
    )
    ENGINE = FlowEngine(entry_question=should_call_runtime_tool)

    @mod
    def runtime_tools(event: Any, actions: ActionBuilder, tokenizer: Any) -> Any:
        if isinstance(event, (Prefilled, ForwardPass, Added)):
            return ENGINE.handle_event(event, actions, tokenizer)
        return actions.noop()

    texts = {}
    for seed in range(12):
        text = Session(model, mods=[runtime_tools]).generate("Go", max_new_tokens=12, seed=seed).text
        answers = next(reversed(ENGINE._states.values())).answers
        texts[answers["runtime_tool_calls"]] = text
        assert "Is a tool" not in text
        if answers["runtime_tool_calls"] == "yes":
            assert text.startswith(f"[{answers['runtime_tool_router']}]")
        else:
            assert "runtime_tool_router" not in answers
    assert set(texts) == {"yes", "no"}


class Phase(Enum):
    OLD = "old"
    NEW = "new"
    REV = "rev"
    DECIDE = "decide"
    DONE = "done"


def log_softmax(logits: Any) -> Any:
    row = np.asanyarray(logits.to_numpy()).astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


class ReasoningWithSamplingState:
    """One block and some rounds; the old end is forced back token by token, to be scored behind the new beginning."""

    def __init__(self, alpha: float = 4.0, block_size: int = 6, nmcmc: int = 3) -> None:
        self.alpha, self.tau, self.block_size, self.nmcmc = alpha, 1 / alpha, block_size, nmcmc
        self.random = random.Random(5)
        self.phase = Phase.OLD
        self.base_logits_old: list[Any] = []
        self.old_tokens: list[int] = []
        self.pivot_m = self.iter_idx = 0
        self.base_logits_new: list[Any] = []
        self.new_tokens: list[int] = []
        self.base_logits_rev: list[Any] = []
        self.accepted = 0

    @property
    def suf_len(self) -> int:
        return self.block_size - self.pivot_m

    def start_iteration(self, actions: Any) -> Any:
        if self.iter_idx == self.nmcmc:
            self.phase = Phase.DONE
            return actions.force_output(self.old_tokens)
        self.iter_idx += 1
        self.pivot_m = self.random.randrange(self.block_size)
        self.base_logits_new, self.new_tokens, self.base_logits_rev = [], [], []
        self.phase = Phase.NEW
        return actions.backtrack(self.suf_len)

    def decide_and_apply(self, actions: Any) -> Any:
        m = self.pivot_m

        def log_p(tokens: list[int], rows: list[Any], heat: float) -> float:
            return float(sum(log_softmax(row / heat)[t] for t, row in zip(tokens, rows, strict=True)))

        old = self.old_tokens[m:]
        gain = log_p(self.new_tokens, self.base_logits_new, 1) - log_p(old, self.base_logits_old[m:], 1)
        proposal = log_p(old, self.base_logits_rev, self.tau) - log_p(self.new_tokens, self.base_logits_new, self.tau)
        self.phase = Phase.DECIDE
        if math.log(self.random.random()) < self.alpha * gain + proposal:
            self.accepted += 1
            self.old_tokens[m:], self.base_logits_old[m:] = self.new_tokens, self.base_logits_new
        return actions.backtrack(self.suf_len, self.old_tokens[m:])


def test_reasoning_with_sampling_walks_through_its_phases(model: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass, mod
    from quote_mod_sdk.mod import ActionBuilder

    RWS: dict[str, ReasoningWithSamplingState] = {}
    phases: set[Phase] = set()

    @mod
    def reasoning_with_sampling(event: Any, actions: ActionBuilder, tokenizer: Any) -> Any:
        state = RWS.setdefault(event.request_id, ReasoningWithSamplingState())
        phases.add(state.phase)
        if isinstance(event, ForwardPass):
            logits = event.logits
            if state.phase is Phase.OLD:
                state.base_logits_old.append(logits)
            if state.phase is Phase.NEW:
                state.base_logits_new.append(logits)
                return actions.adjusted_logits(logits / state.tau)
            if state.phase is Phase.REV:
                state.base_logits_rev.append(logits)
                return actions.force_tokens([state.old_tokens[state.pivot_m + len(state.base_logits_rev) - 1]])
            return actions.noop()
        if isinstance(event, Added):
            if state.phase is Phase.OLD:
                state.old_tokens.extend(event.added_tokens)
                return state.start_iteration(actions) if len(state.old_tokens) == state.block_size else None
            if state.phase is Phase.NEW:
                state.new_tokens.extend(event.added_tokens)
                if len(state.new_tokens) == state.suf_len:
                    state.phase = Phase.REV
                    return actions.backtrack(state.suf_len)
            elif state.phase is Phase.REV and len(state.base_logits_rev) == state.suf_len:
                return state.decide_and_apply(actions)
            elif state.phase is Phase.DECIDE:
                return state.start_iteration(actions)
        return actions.noop()

    result = Session(model, mods=[reasoning_with_sampling]).generate("Go", max_new_tokens=8, seed=2)
    (state,) = RWS.values()
    assert phases == set(Phase)
    assert state.phase is Phase.DONE
    assert list(result.tokens) == state.old_tokens
    assert (len(result.tokens), state.iter_idx, result.reason) == (6, 3, "force_output")
    scored = list(map(log_softmax, state.base_logits_old))
    for token, row, life in zip(state.old_tokens, scored, result.trace.history().live, strict=True):
        assert life.token == token
        assert np.isfinite(row[token])
