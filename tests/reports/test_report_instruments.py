"""Flows, chains, carried prompts and comparisons in a report: the page says the numbers that the calls give."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest
import torch
from report_traces import Page, real_trace, written_carry, written_chains

import workbench
from workbench.bundled import bundled
from workbench.carry import PointerChase, demo_model, effect_grid, readings, zero
from workbench.errors import ReportError
from workbench.flows import FlowDefinition, FlowEngine, FlowQuestion
from workbench.mcmc import PowerSampler, acceptance_by_pivot, effective_sample_size, split_r_hat, token_terms
from workbench.reports import Report, number, report_of
from workbench.reports.decisions import chosen_decisions


@pytest.fixture(scope="module")
def model() -> Any:
    return workbench.load("tiny-llama")


def table(page: Page, start: str) -> list[dict[str, str]]:
    """Rows of the one table whose caption starts so, by column."""
    (rows,) = [rows for caption, rows in page.tables.items() if caption.startswith(start)]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


# Flows ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asked(model: Any) -> tuple[FlowDefinition, Any, FlowEngine]:
    why = FlowQuestion("why", "Why so? ", ["sun", "rain"], erase_mode="prompt")
    mood = FlowQuestion("mood", "How are you? ", ["good", "bad"], erase_mode="all").on("good", why).on("bad", why)
    flow = FlowDefinition("small talk", mood)
    engine = FlowEngine(flow)
    result = workbench.Session(model, [engine.as_mod()]).generate("Hello.", max_new_tokens=6, seed=1)
    return flow, result.trace, engine


def test_a_flow_says_its_visits_probabilities_and_what_it_erased(model: Any, asked: Any) -> None:
    flow, trace, engine = asked
    page = Page(Report("x").flow(flow, trace, model).html())
    (state,) = engine.states.values()
    rows = table(page, "Questions asked, in order")
    assert [(row["question"], row["answer"], row["tokens spent"]) for row in rows] == [
        (visit.question, visit.answer, str(visit.spent)) for visit in state.history
    ]
    assert [row["p"] for row in rows] == [number(visit.probs[visit.answer]) for visit in state.history]
    ways = {(row["question"], row["answer"]): row for row in table(page, "Answers: where each leads")}
    for visit in state.history:
        for answer, probability in visit.probs.items():
            way = ways[visit.question, answer]
            assert way["mean p"] == number(probability)
            assert way["given"] == str(int(answer == visit.answer))
    assert ways["mood", "good"]["leads to"] == "question why"
    assert ways["why", "sun"]["leads to"] == "back to the text"
    erased = " ".join(row["text"] for row in table(page, "Text that the flow took back"))
    assert "How are you? " in erased
    assert "asked 1×" in page.text


def test_the_report_of_a_trace_brings_its_flow_along(asked: Any) -> None:
    flow, trace, _ = asked
    page = Page(report_of(trace).html())
    assert "Flow small talk" in page.text
    (link,) = [a for _, a in page.having("download") if str(a["download"]).endswith("flow.json")]
    assert link is not None
    assert flow.to_json().splitlines()[0] in "{"


def test_a_flow_without_a_run_is_drawn_without_counts(asked: Any) -> None:
    page = Page(Report("x").flow(asked[0]).html())
    assert "no run given" in page.text
    assert "given 0×" not in page.text
    assert {row["given"] for row in table(page, "Answers: where each leads")} == {"–"}


def test_a_flow_of_another_run_is_said_to_have_asked_nothing(model: Any, asked: Any) -> None:
    assert "asked nothing in this run" in Page(Report("x").flow(asked[0], real_trace(model)).html()).text


def test_a_flow_with_functions_of_no_name_is_said_not_to_be_data() -> None:
    flow = FlowDefinition("f", FlowQuestion("q", "q? ", ["a", "b"]).then(lambda state: None))
    page = Page(Report("x").flow(flow).html())
    assert "holds functions without a name" in page.text
    assert "function &lt;lambda&gt;" in Report("x").flow(flow).html()


# Chains --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chains(model: Any) -> Any:
    settings = {"block_size": 4, "n_mcmc": 4, "max_tokens": 8, "chains": 3, "seed": 0}
    return PowerSampler(model, "hello there", alpha=2, **settings).run()


def test_chains_say_every_decision_and_the_diagnostics(model: Any, chains: Any) -> None:
    page = Page(Report("x").chains(chains, model).html())
    rows = table(page, "Every decision")
    assert len(rows) == len(chains.decisions) == 24
    for row, decision in zip(rows, chains.decisions, strict=True):
        told = [row[name] for name in ("chain", "block", "iteration", "pivot", "kind", "log A", "log p")]
        plain = [decision.chain, decision.block, decision.iteration, decision.pivot]
        assert told == [*map(str, plain), decision.kind, number(decision.log_a), number(decision.log_p)]
    sizes = [row["effective sample size of log p"] for row in table(page, "Has each chain moved?")]
    assert sizes == [number(effective_sample_size(path)) for path in chains.log_p_paths()]
    stretches = acceptance_by_pivot(chains.decisions)
    assert [row["share"] for row in table(page, "Acceptance by pivot")] == [number(one.rate) for one in stretches]
    assert number(split_r_hat(chains.log_p_paths())) in page.text
    assert sum(int(row["n"]) for row in table(page, "log A, histogram")) == 24
    assert [row["text"] for row in table(page, "Where each chain stands")] == [text.text for text in chains]


def test_chosen_decisions_are_there_with_every_number(model: Any, chains: Any) -> None:
    decision = max(chains.decisions, key=lambda one: len(one.new_tokens))
    page = Page(Report("x").chains(chains, model, decisions=[decision]).html())
    rows = table(page, "Token by token")
    for side in ("old", "new"):
        told = token_terms(getattr(decision, f"{side}_scalars"), decision.alpha, decision.tau)
        assert [row["share"] for row in rows if row["suffix"] == side] == [number(a - b) for a, b in told]
    assert f"{decision.log_a:.9g}" in page.text
    for name in decision.terms.__dataclass_fields__:
        assert f"{getattr(decision.terms, name):.9g}" in page.text


def test_by_default_no_decision_is_chosen_that_changed_nothing(chains: Any) -> None:
    chosen = chosen_decisions(chains)
    assert 1 <= len(chosen) <= 4
    assert all(decision.kind != "null" for decision in chosen)
    assert min(abs(d.margin) for d in chains.decisions if d.kind != "null") == min(abs(d.margin) for d in chosen)


def test_without_a_model_chains_show_numbers_of_tokens_and_say_so(chains: Any) -> None:
    page = Page(Report("x").chains(chains).html())
    assert "The model was not given along" in page.text
    assert table(page, "Every decision")[0]["old"].startswith("#")


def test_an_unfinished_run_and_one_without_decisions_say_so(model: Any) -> None:
    assert "The run is not finished" in Page(Report("x").chains(written_chains("t")).html()).text
    none = PowerSampler(model, "hello", block_size=2, n_mcmc=0, max_tokens=2).run()
    assert "No decision was made" in Page(Report("x").chains(none, model).html()).text


# Carry ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy() -> Any:
    model, task = demo_model(bundled("carry")), PointerChase()
    problems = task.sample(8, torch.Generator().manual_seed(1))
    return model, problems.prompts.tolist(), problems.answers(3).tolist()


def test_a_carried_prompt_says_its_readings_states_controls_and_effects(toy: Any) -> None:
    model, prompts, goals = toy
    trace = model.run(prompts[0], pauses=2, max_new_tokens=1)
    controls = model.controls([(prompt, [goal]) for prompt, goal in zip(prompts, goals, strict=True)], pauses=2)
    effects = effect_grid(model, prompts, zero, settings=model.with_(pauses=2))
    page = Page(Report("x").carry(trace, model, controls=controls, effects=effects).html())
    rows = table(page, "Readings by loop and step")
    for row, reading in zip(rows, readings(model, trace, k=5), strict=True):
        assert (row["lens 1"], row["p 1"]) == (reading.lens[0].text, number(reading.lens[0].probability))
    states = table(page, "Every state")
    for row, told in zip(states, trace.rows(), strict=True):
        assert (row["norm s"], row["share"]) == (number(told["norm_s"]), number(told["share"]))
    shown = {row["name"]: row for row in table(page, "Controls")}
    for control in controls:
        assert shown[control.name]["accuracy"] == number(control.accuracy)
        assert shown[control.name]["low"] == number(control.low)
    assert [row["kl"] for row in table(page, "Effects of editing one state")] == [number(one.kl) for one in effects]
    assert "sha256" in page.text


def test_an_untrained_carry_is_said_to_show_nothing(model: Any) -> None:
    from workbench.carry import CarryModel

    carry = CarryModel(model, band=(1, 2), pauses=2, loops=1)
    text = Page(Report("x").carry(carry.run("hi", max_new_tokens=1), carry).html()).text
    assert "The adapter adds nothing" in text
    assert "None were measured" in text
    assert "No state was edited" in text


def test_another_carry_than_the_traces_is_refused(toy: Any, model: Any) -> None:
    from workbench.carry import CarryModel

    carry = CarryModel(model, band=(1, 2), pauses=2, loops=0)
    with pytest.raises(ReportError, match=r"was made with band .* but the model given has"):
        Report("x").carry(toy[0].run(toy[1][0], pauses=2), carry)


def test_the_toys_measured_controls_are_the_tables_of_its_page() -> None:
    results = json.loads((bundled("carry") / "results.json").read_text("utf-8"))
    page = Page(Report("x").carry_results(results).html())
    rows = table(page, "Every system by hops")
    assert rows[0]["system"] == next(iter(results["systems"].values()))["title"]
    runs = [run["correct"][0] for run in results["runs"] if run["system"] == next(iter(results["systems"]))]
    mean = sum(runs) / len(runs) / results["budget"]["problems"]
    assert float(rows[0]["hop 1"].split()[0]) == pytest.approx(mean, abs=0.006)
    with pytest.raises(ReportError, match="no results of `workbench carry controls`"):
        Report("x").carry_results({"runs": 3})


# Comparisons ---------------------------------------------------------------------------------------------------


def test_two_traces_are_aligned_at_their_first_difference(model: Any) -> None:
    def run(seed: int) -> Any:
        return workbench.Session(model).generate("Once", max_new_tokens=10, seed=seed).trace

    first, second = run(0), run(1)
    pairs = list(zip(first.history().live, second.history().live, strict=True))
    at = next(i for i, (a, b) in enumerate(pairs) if a.token != b.token)
    page = Page(Report("x").compare(first, second, ("seed 0", "seed 1")).html())
    assert f"The outputs are the same for {at} tokens and then part" in page.text
    rows = table(page, "Output tokens of both runs")
    assert [row["same"] for row in rows] == ["yes" if a.token == b.token else "no" for a, b in pairs]
    told = {row["what"]: row for row in table(page, "What was asked of the two runs")}
    assert (told["r0: seed"]["same"], told["model name"]["same"]) == ("no", "yes")
    same = Page(Report("x").compare(first, run(0)).html()).text
    assert "Every record agrees" in same
    assert "The two outputs are the same, token for token" in same


def test_two_runs_of_chains_are_aligned_at_their_first_difference(model: Any, chains: Any) -> None:
    settings = {"block_size": 4, "n_mcmc": 4, "max_tokens": 8, "chains": 3, "alpha": 2}
    other = PowerSampler(model, "hello there", seed=9, **settings).run()
    page = Page(Report("x").compare(chains, other, ("a", "b"), model).html())
    assert "differs." in page.text
    assert "All 24 decisions are the same" in Page(Report("x").compare(chains, chains).html()).text


def test_only_things_of_one_kind_are_compared(model: Any, chains: Any) -> None:
    with pytest.raises(ReportError, match="got Trace and Chains"):
        Report("x").compare(real_trace(model), chains)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "says"),
    [("flow", "takes a FlowDefinition, got str"), ("chains", "got str"), ("carry", "got str")],
)
def test_what_is_no_such_thing_is_refused(method: str, says: str) -> None:
    with pytest.raises(ReportError, match=says):
        getattr(Report("x"), method)("something else")


def test_every_attached_file_has_a_name_of_its_own(model: Any, chains: Any) -> None:
    trace = real_trace(model, ["one", "two"])
    report = Report("x").trace(trace).trace(trace, request_id="r0").chains(chains).chains(chains)
    report.carry(written_carry("t")).carry(written_carry("t")).compare(trace, trace).table(pd.DataFrame([1]), "t")
    names = [a["download"] for _, a in Page(report.html()).having("download")]
    assert len(names) == len(set(names))
