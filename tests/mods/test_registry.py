"""Laws of the registry: a ready mod is made by name, and made again from what a trace says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mod_scripts import run, writes

from workbench import SamplingParams, Session, load, mod, replay
from workbench.errors import WorkbenchError
from workbench.flows import FlowDefinition, FlowEngine, FlowQuestion
from workbench.mods import MODS, ModSpecError, ban_tokens, build, calculator, parse, rebuild, watch

MOOD = FlowDefinition("mood", FlowQuestion("mood", "Good or bad? ", ["good", "bad"], erase_mode="all"))

READY: dict[str, dict[str, Any]] = {
    "ask_when_unsure": {"threshold": 3.0},
    "ban_tokens": {"words": ["foo"], "tokens": [3]},
    "calculator": {},
    "canned_output": {"text": "no", "when": "weather"},
    "flow": {"flow": MOOD.to_json(), "max_visits": 2},
    "reasoning_with_sampling": {"alpha": 2.0, "block_size": 4, "n_mcmc": 2, "seed": 1},
    "replace_phrase": {"old": "a", "new": "b"},
    "replace_prefill": {"system": "be brief"},
    "steer": {"direction": [0.5, 1.25], "layer": 1, "scale": 2.0},
    "tool_call": {"max_rolls": 1},
    "valid_json": {},
}


def test_the_table_of_mods_is_whole() -> None:
    assert set(READY) == set(MODS) - {"watch"}


@pytest.mark.parametrize("name", READY)
def test_a_ready_mod_is_rebuilt_from_its_description(name: str) -> None:
    made = build(name, **READY[name])
    told = json.loads(json.dumps(made.describe()))
    assert told["name"] == ("flow:mood" if name == "flow" else name)
    again = rebuild(told)
    assert again.describe() == made.describe()
    assert parse(f"{name}:{json.dumps(told['params'])}").describe() == made.describe()


def test_the_command_line_names_a_mod() -> None:
    assert parse("calculator").name == "calculator"
    assert parse('ban_tokens:{"words": ["foo", "a:b"]}').params == {"words": ["foo", "a:b"], "tokens": []}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("calculater", "no ready mod 'calculater'.*Did you mean 'calculator'"),
        ("", "no ready mod ''"),
        ("calculator:", "comes a JSON object, such as"),
        ("ban_tokens:words=foo", r"comes a JSON object, such as ban_tokens:\{"),
        ("ban_tokens:[1]", "comes a JSON object"),
        ('ban_tokens:{"word": ["foo"]}', "takes words, tokens. Did you mean 'words'"),
        ('calculator:{"a": 1}', "It takes nothing"),
        ("ban_tokens", "ban_tokens: .*at least one word"),
        ("watch", "missing a required argument: 'fn'"),
        ('watch:{"fn": "print"}', "needs a function of an event"),
        ('valid_json:{"max_rolls": -1}', "whole number"),
        ('flow:{"flow": "{}"}', "flow: .*format"),
    ],
)
def test_a_name_or_params_that_fit_nothing_are_refused(spec: str, why: str) -> None:
    with pytest.raises(ModSpecError, match=why):
        parse(spec)
    assert issubclass(ModSpecError, WorkbenchError)
    assert issubclass(ModSpecError, ValueError)


def test_code_in_a_description_is_never_run() -> None:
    @mod
    def calculator_of_mine(event: Any, actions: Any, tokenizer: Any) -> None: ...

    for told in (
        calculator_of_mine.describe(),
        watch(print).describe(),
        {"name": "calculator", "params": None, "source": "import os"},
        {},
    ):
        with pytest.raises(ModSpecError, match="made of code, not of parameters"):
            rebuild(told)


def test_a_run_is_repeated_with_mods_rebuilt_from_its_trace(model: Any) -> None:
    prompt = "What is 17 * 23 ="
    session = Session(model, [calculator(), ban_tokens(["a", "b"]), build("replace_phrase", old="9", new="[9]")])
    trace = session.generate(prompt, max_new_tokens=30, sampling=SamplingParams(temperature=1), seed=3).trace
    mods = [rebuild(told) for told in trace.run["requests"]["r0"]["mods"]]
    assert replay(trace, model, mods).agrees


def test_a_chain_that_ran_as_a_mod_is_repeated_from_its_trace() -> None:
    model = load("tiny-llama")
    chain = build("reasoning_with_sampling", **READY["reasoning_with_sampling"])
    trace = Session(model, [chain]).generate("A letter: ", max_new_tokens=8, seed=0).trace
    mods = [rebuild(told) for told in trace.run["requests"]["r0"]["mods"]]
    assert replay(trace, model, mods).agrees


def test_a_flow_is_repeated_from_its_trace() -> None:
    model = load("tiny-llama")
    trace = Session(model, [FlowEngine(MOOD).as_mod()]).generate("Today: ", max_new_tokens=6, seed=0).trace
    told = trace.run["requests"]["r0"]["mods"]
    assert replay(trace, model, [rebuild(each) for each in told]).agrees


def test_a_flow_with_functions_of_ones_own_is_said_to_be_made_of_code() -> None:
    question = FlowQuestion("mood", "Good or bad? ", ["good", "bad"]).on("good", lambda state: "fine")
    told = FlowEngine(question).as_mod().describe()
    assert told["params"] is None
    with pytest.raises(ModSpecError, match="made of code, not of parameters"):
        rebuild(told)


def test_ready_mods_work_together(model: Any) -> None:
    mods = [calculator(), build("replace_phrase", old="391", new="<391>"), ban_tokens(["the"])]
    assert run(model, mods, "17 * 23 =. On the").text == "17 * 23 = <391>. On th"
    assert writes("x").name == "script"
