"""What a report keeps can be run again from the file, and a file that somebody made up can do no harm."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import torch

import workbench
from workbench.bundled import bundled
from workbench.carry import CarryModel, PointerChase, demo_model, make_adapter, zero
from workbench.errors import ReportError
from workbench.flows import FlowDefinition, FlowEngine, FlowQuestion
from workbench.mcmc import PowerSampler
from workbench.mods import ask_when_unsure, ban_tokens, calculator
from workbench.reports import Report, Reproduction, reproduce
from workbench.trace import Trace

KEPT = re.compile(r"(<a download='reproduce\.json' href='data:application/json;charset=utf-8,)([^']*)'")


@pytest.fixture(scope="module")
def model() -> Any:
    return workbench.load("tiny-llama")


@pytest.fixture
def again(model: Any, tmp_path: Path) -> Callable[..., Reproduction]:
    """Write a report and run it again with the models that are loaded already."""

    def run(report: Report, **options: Any) -> Reproduction:
        return reproduce(report.save(tmp_path / "report.html"), loader=lent(model), **options)

    return run


def lent(model: Any) -> Any:
    return lambda name, backend, dtype: model if name == "tiny-llama" else workbench.load(name, progress=False)


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The report with what it keeps changed by hand."""

    def replaced(found: re.Match[str]) -> str:
        told = json.loads(unquote(found[2]))
        change(told)
        return f"{found[1]}{quote(json.dumps(told))}'"

    text, count = KEPT.subn(replaced, path.read_text("utf-8"))
    assert count == 1
    path.write_text(text, "utf-8")
    return path


@pytest.fixture
def trace_file(model: Any, tmp_path: Path) -> Path:
    result = workbench.Session(model, [calculator()]).generate("12*3=", max_new_tokens=6, seed=1)
    return Report("x").trace(result.trace).save(tmp_path / "trace.html")


# What agrees ---------------------------------------------------------------------------------------------------


def test_a_trace_with_ready_mods_and_a_flow_agrees(model: Any, again: Any) -> None:
    question = FlowQuestion("mood", "How are you? ", ["good", "bad"], erase_mode="all")
    mods = [FlowEngine(FlowDefinition("talk", question)).as_mod(), calculator(), ban_tokens(words=["foo"])]
    session = workbench.Session(model, mods, capture="blocks.*.hook_resid_post")
    results = session.generate(["12*3=", "hello"], max_new_tokens=6, seed=1)
    done = again(Report("x").trace(results[0].trace, model).trace(results[0].trace, request_id="r1"))
    assert done.verdict == "agrees", str(done)
    assert [outcome.kind for outcome in done.outcomes] == ["trace", "trace"]
    assert f"agrees in all {len(results[0].trace)} records" in str(done)


def test_more_than_ten_requests_of_a_saved_run_agree(model: Any, again: Any, tmp_path: Path) -> None:
    session = workbench.Session(model)
    session.generate([f"prompt {n}" for n in range(12)], max_new_tokens=2, seed=1, save=tmp_path / "run")
    assert again(Report("x").trace(Trace.load(tmp_path / "run"))).verdict == "agrees"


def test_chains_agree_decision_by_decision(model: Any, again: Any) -> None:
    chains = PowerSampler(model, "hello", alpha=2, block_size=3, n_mcmc=3, max_tokens=6, chains=2, tries=2).run()
    done = again(Report("x").chains(chains, model))
    assert str(done) == f"agrees: {done.outcomes[0].name}: agrees in all 12 decisions and 2 texts"


def test_an_unfinished_run_of_chains_is_compared_as_far_as_it_went(model: Any, again: Any) -> None:
    sampler = PowerSampler(model, "hello", alpha=2, block_size=3, n_mcmc=3, max_tokens=6)
    for _, _ in zip(range(4), sampler.steps(), strict=False):
        pass
    kept = len(sampler.result().decisions)
    assert f"agrees in all {kept} decisions that were kept" in str(again(Report("x").chains(sampler.result(), model)))


def test_a_carried_prompt_agrees_with_the_weights_that_the_report_keeps(again: Any) -> None:
    toy = demo_model(bundled("carry"))
    prompt = PointerChase().sample(1, torch.Generator().manual_seed(1)).prompts[0].tolist()
    done = again(Report("x").carry(toy.run(prompt, pauses=2, max_new_tokens=2), toy))
    assert done.verdict == "agrees", str(done)
    assert "agrees in all 30 tokens and 5 states" in str(done)
    given = again(Report("x").carry(toy.run(prompt, pauses=1, answer=[9, 9]), toy))
    assert given.verdict == "agrees"
    assert "its answer was fed as recorded, not generated" in str(given)


def test_a_run_through_the_engine_with_a_carry_agrees(model: Any, again: Any) -> None:
    carry = CarryModel(model, band=(1, 2), pauses=2, loops=1)
    trace = workbench.Session(carry, [carry.pausing()]).generate("hi", max_new_tokens=4, seed=0).trace
    assert again(Report("x").trace(trace, carry)).verdict == "agrees"


def test_the_call_on_the_page_makes_the_same_run(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is for people; here a test plays one."""
    from workbench.reports.calls import chain_call, trace_call

    monkeypatch.setattr(workbench, "load", lambda *_, **__: model)
    session = workbench.Session(model, [ban_tokens(words=["foo"])])
    results = session.generate(["one", "two"], max_new_tokens=5, seed=3)
    made: dict[str, Any] = {}
    exec(trace_call(results[0].trace.run), made)
    assert [one.tokens for one in made["results"]] == [one.tokens for one in results]
    chains = PowerSampler(model, "hello", alpha=2, block_size=3, n_mcmc=3, max_tokens=6, chains=2).run()
    exec(chain_call(chains.settings.to_json(), model.source), made)
    assert [text.tokens for text in made["chains"]] == [text.tokens for text in chains]


# What differs --------------------------------------------------------------------------------------------------


def test_a_changed_outcome_is_found(trace_file: Path, model: Any) -> None:
    text = trace_file.read_text("utf-8")
    before = re.search(r'"kind": "added", "tokens": \[(\d+)', unquote(text))
    assert before is not None
    other = f'"kind": "added", "tokens": [{int(before[1]) + 1}'
    trace_file.write_text(_swap(text, before[0], other), "utf-8")
    done = reproduce(trace_file, loader=lent(model))
    assert done.verdict == "differs"
    assert "differs at record" in str(done)


def _swap(text: str, old: str, new: str) -> str:
    """The same in a percent-encoded attachment."""
    from workbench.reports.embed import PLAIN

    assert quote(old, safe=PLAIN) in text
    return text.replace(quote(old, safe=PLAIN), quote(new, safe=PLAIN), 1)


def test_a_changed_seed_of_chains_is_found(model: Any, tmp_path: Path) -> None:
    chains = PowerSampler(model, "hello", alpha=2, block_size=3, n_mcmc=3, max_tokens=6).run()
    path = Report("x").chains(chains, model).save(tmp_path / "c.html")
    changed(path, lambda told: told["parts"][0]["settings"].update(seed=5))
    done = reproduce(path, loader=lent(model))
    assert done.verdict == "differs"
    assert "differs at decision" in str(done)


def test_a_changed_state_of_a_carry_is_found(model: Any, tmp_path: Path) -> None:
    carry = CarryModel(model, band=(1, 2), pauses=2, loops=1)
    path = Report("x").carry(carry.run("hi", max_new_tokens=1), carry).save(tmp_path / "c.html")
    changed(path, lambda told: told["parts"][0]["rows"][1].update(norm_s=1.0))
    assert "differs at state 1: norm_s was 1.0" in str(reproduce(path, loader=lent(model)))


# What can't be made again --------------------------------------------------------------------------------------


def test_code_is_never_made_again_and_that_is_said(model: Any, again: Any) -> None:
    @workbench.mod
    def mine(event: Any, actions: Any, tokenizer: Any) -> None:
        return None

    trace = workbench.Session(model, [mine]).generate("hi", max_new_tokens=2, seed=0).trace
    done = again(Report("x").trace(trace))
    assert done.verdict == "could not"
    assert "a mod that the report can't make again: mod 'mine' can't be rebuilt" in str(done)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ask_when_unsure(threshold=99.0), "asked a person"),
        (
            lambda: FlowEngine(FlowQuestion("q", "q? ", ["a", "b"]).then(lambda state: None)).as_mod(),
            "mod 'flow:q' can't be rebuilt",
        ),
    ],
)
def test_what_hangs_on_a_person_or_on_a_nameless_function_is_said(
    model: Any, again: Any, make: Callable[[], Any], says: str
) -> None:
    trace = workbench.Session(model, [make()]).generate("hi", max_new_tokens=2, seed=0).trace
    assert says in str(again(Report("x").trace(trace)))


def test_an_intervention_and_weights_that_are_not_there_are_said(model: Any, again: Any) -> None:
    carry = CarryModel(model, band=(1, 2), pauses=2, loops=0)
    changed_states = carry.run("hi", do=zero())
    assert "changed on their way by code" in str(again(Report("x").carry(changed_states, carry)))
    adapter = make_adapter("linear_add", carry.d_model)
    torch.nn.init.constant_(adapter.state_weight, 0.01)
    other = CarryModel(model, band=(1, 2), adapter=adapter, pauses=2, loops=0)
    done = again(Report("x").carry(other.run("hi")))
    assert "keeps no weights of the adapter" in str(done)
    assert "--adapter" in str(done)


# Files of strangers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc", "../somewhere", "someone/model", "tiny-llama/../x", "bundled:../../etc"])
def test_no_path_or_address_is_opened_on_a_files_word(trace_file: Path, name: str) -> None:
    def change(told: dict[str, Any]) -> None:
        told["parts"][0]["run"]["model"]["source"]["name"] = name

    def refuse(*_: Any) -> Any:
        pytest.fail("loaded")

    done = reproduce(changed(trace_file, change), loader=refuse)
    assert done.verdict == "could not"
    assert "no path or address is opened on a report's word" in str(done)


def test_the_model_that_a_person_names_is_taken_instead(trace_file: Path, model: Any) -> None:
    def change(told: dict[str, Any]) -> None:
        told["parts"][0]["run"]["model"]["source"]["name"] = "elsewhere"

    done = reproduce(changed(trace_file, change), model="tiny-llama", loader=lent(model))
    assert done.verdict == "agrees", str(done)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda told: told["parts"][0]["run"]["requests"]["r0"].update(max_forward_tokens=10**12), "tokens to be fed"),
        (lambda told: told["parts"][0].update(kind="shell"), "of kind 'shell'"),
        (lambda told: told["parts"][0].update(run=[]), "is damaged"),
        (lambda told: told["parts"][0]["run"].update(requests={}), "names no request"),
        (lambda told: told["parts"][0].update(records=["/etc/passwd"]), "is not in it"),
        (lambda told: told["parts"][0]["run"]["requests"]["r0"].update(mods=[7]), "is not described"),
        (
            lambda told: told["parts"][0]["run"]["requests"]["r0"].update(
                mods=[{"name": "calculator", "params": {"command": "rm"}}]
            ),
            "can't make again",
        ),
        (lambda told: told["parts"][0]["run"]["requests"]["r0"].update(prompt_tokens=["x"]), "could not"),
        (lambda told: told["parts"][0]["run"]["model"]["source"].update(dtype="evil"), "number type 'evil'"),
    ],
)
def test_a_part_that_was_tampered_with_is_not_run(
    trace_file: Path, model: Any, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    done = reproduce(changed(trace_file, change), loader=lent(model))
    assert done.verdict == "could not"
    assert says in str(done)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "keeps nothing to run again"),
        (b"\x89PNG\r\n" + bytes(range(256)) * 40, "keeps nothing to run again"),
        (b"<html>" + b"<a download='" * 5000, "keeps nothing to run again"),
        (b"<a download='reproduce.json' href='data:application/json;charset=utf-8,{'>", "reproduce.json is damaged"),
        (b"<a download='reproduce.json' href='data:application/json;charset=utf-8,[]'>", "in format 'None'"),
        (
            b"<a download='reproduce.json' href='data:application/json;charset=utf-8," + b"[" * 100_000 + b"'>",
            "reproduce.json is damaged",
        ),
        (
            b"<a download='reproduce.json' href='data:application/json;charset=utf-8,"
            b"{%22format%22:1,%22parts%22:[3]}'>",
            "part 1 of the report is damaged",
        ),
        (b"<a download='a' href='data:text/csv;charset=utf-8,'>" * 2, "holds two files named 'a'"),
    ],
)
def test_a_file_that_is_no_report_is_refused_at_once(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.html"
    path.write_bytes(content)
    with pytest.raises(ReportError, match=re.escape(says)):
        reproduce(path)


def test_a_file_that_is_gone_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReportError, match="can't be read"):
        reproduce(tmp_path / "gone.html")
    monkeypatch.setattr("workbench.reports.reading_back.MOST_BYTES", 10)
    (tmp_path / "large.html").write_bytes(b"x" * 11)
    with pytest.raises(ReportError, match="is not read"):
        reproduce(tmp_path / "large.html")


# The same bytes ------------------------------------------------------------------------------------------------

MAKE = """
import sys, torch
torch.set_num_threads(1)
import workbench
from workbench.bundled import bundled
from workbench.carry import demo_model
from workbench.flows import FlowDefinition, FlowEngine, FlowQuestion
from workbench.mcmc import PowerSampler
from workbench.reports import Report
model = workbench.load("tiny-llama")
flow = FlowDefinition("f", FlowQuestion("q", "q? ", ["a", "b"], erase_mode="all"))
session = workbench.Session(model, [FlowEngine(flow).as_mod()], capture="blocks.*.hook_resid_post")
trace = session.generate("hi", max_new_tokens=4, seed=0).trace
chains = PowerSampler(model, "hi", alpha=2, block_size=2, n_mcmc=2, max_tokens=4, chains=2).run()
toy = demo_model(bundled("carry"))
report = Report("Same").trace(trace, model).flow(flow, trace, model).chains(chains, model)
report.carry(toy.run(list(range(5, 13)), max_new_tokens=1), toy).compare(trace, trace)
report.save(sys.argv[1] + ".html")
report.save(sys.argv[1] + ".md")
"""


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        subprocess.run([sys.executable, "-c", MAKE, str(tmp_path / name / "r")], check=True)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) > 10
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
