"""The demonstration: every control runs, work is not done twice, and page, numbers and weights agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.carry import CarryModel, wilson
from workbench.carry.experiment import Budget, demo_model, export_demo, run_controls, train_demo
from workbench.carry.measuring import ABLATIONS, Bench, ablate, correct_by_hops, diagonal, donor_patch, exit_readout
from workbench.carry.systems import SYSTEMS
from workbench.carry.tables import STUDENT_T, TABLES, fill_page, interval
from workbench.carry.task import PointerChase, stream
from workbench.errors import CarryError

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "data" / "carry"
PAGE = ROOT / "docs" / "carry_demo.md"
TASK = PointerChase()
TINY = Budget(base_steps=2, steps=1, problems=3, hops=3)
TRIED = (
    "base",
    "carry",
    "feedforward",
    "feedforward_all",
    "depth",
    "no_pauses",
    "query_loop",
    "base_wide",
    "prompt_loops",
    "carry_two_layer",
)
"""Every way of running and training; the systems left out differ from these in numbers only."""
FEW = 96


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SHIPPED / "results.json").read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def model() -> CarryModel:
    return demo_model(SHIPPED)


@pytest.fixture(scope="module")
def bench(model: CarryModel) -> Bench:
    """The shipped model on problems that it was measured on by nobody."""
    return Bench(model=model, task=TASK, problems=TASK.sample(FEW, stream("fresh problems", 1)))


# --- running it ---


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Systems with next to no training: numbers that mean nothing, from code paths that do."""
    out = tmp_path_factory.mktemp("controls")
    run_controls([3], out, systems=TRIED, budget=TINY, progress=False)
    return out


def test_every_control_runs_and_leaves_a_result(tiny: Path) -> None:
    told = json.loads((tiny / "results.json").read_text("utf-8"))
    assert [run["system"] for run in told["runs"]] == [name for name in SYSTEMS if name in TRIED]
    for run in told["runs"]:
        assert (run["seed"], run["problems"], len(run["correct"])) == (3, 3, 3)
        assert ("last_loss" in run) is (SYSTEMS[run["system"]].plan is not None)
    runs = {run["system"]: run for run in told["runs"]}
    assert set(runs["carry"]["ablations"]) == set(ABLATIONS)
    assert set(runs["depth"]["run_as"]) == {"carry", "depth_tail", "no_pauses", "query_loop"}
    assert [name for name, run in runs.items() if "exit_readout" in run] == ["base", "base_wide"]
    assert [told["bases"][f"seed3/{name}"]["repeats"] for name in ("base", "base_8")] == [3, 8]
    assert told["systems"]["carry"]["adapter_weights"] == 8256
    for make in TABLES.values():
        assert make(told).startswith("| ")


def test_work_that_is_there_is_not_done_again(tiny: Path) -> None:
    files = sorted(path for path in tiny.rglob("*") if path.is_file() and path.name != "results.json")
    before = {path: path.stat().st_mtime_ns for path in files if path.name != "budget.json"}
    again = run_controls([3], tiny, systems=["depth", "carry"], budget=TINY, progress=False)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(again["runs"]) == len(TRIED)
    carried = train_demo(3, tiny, budget=TINY, progress=False)
    assert carried.adapter.fingerprint() == demo_model(tiny / "seed3").adapter.fingerprint()


def test_a_lost_result_is_made_again_from_the_same_weights(tiny: Path) -> None:
    path = tiny / "seed3" / "carry" / "result.json"
    told = json.loads(path.read_text("utf-8"))
    path.unlink()
    run_controls([3], tiny, systems=["carry"], budget=TINY, progress=False)
    again = json.loads(path.read_text("utf-8"))
    assert {**again, "measuring_cpu_seconds": 0} == {**told, "measuring_cpu_seconds": 0}


def test_a_folder_of_another_budget_and_an_unknown_system_are_refused(tiny: Path) -> None:
    with pytest.raises(CarryError, match=r"holds a run by .* use another folder"):
        run_controls([3], tiny, budget=Budget(), progress=False)
    with pytest.raises(CarryError, match=r"no system 'dept'; .*Did you mean 'depth'"):
        run_controls([3], tiny, systems=["dept"], budget=TINY, progress=False)


def test_the_systems_cover_every_mode_and_every_way_of_training() -> None:
    tried = [SYSTEMS[name] for name in TRIED]
    for field in ("mode", "pauses", "query_looped", "adapter", "base_repeats", "train_base"):
        assert {getattr(system, field) for system in tried} == {getattr(system, field) for system in SYSTEMS.values()}


def test_a_result_by_other_settings_is_refused(tiny: Path) -> None:
    path = tiny / "seed3" / "depth" / "result.json"
    told = path.read_text("utf-8")
    path.write_text(told.replace('"max_pauses": 4', '"max_pauses": 3'), encoding="utf-8")
    with pytest.raises(CarryError, match="holds a result by other settings of 'depth'"):
        run_controls([3], tiny, systems=["depth"], budget=TINY, progress=False)
    path.write_text(told, encoding="utf-8")


def test_an_exported_demo_is_the_one_that_was_trained(tiny: Path, tmp_path: Path) -> None:
    target = export_demo(tiny, 3, tmp_path / "demo")
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()) == [
        "adapter.safetensors",
        "base/config.json",
        "base/model.safetensors",
        "base/tokenizer.json",
        "base/tokenizer_config.json",
        "base/toy.json",
        "results.json",
    ]
    assert demo_model(target).adapter.fingerprint() == demo_model(tiny / "seed3").adapter.fingerprint()
    with pytest.raises(CarryError, match="holds no trained carry of seed 4: run train_demo"):
        export_demo(tiny, 4, tmp_path)


# --- intervals and pages ---


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=len(STUDENT_T) + 1))
def test_an_interval_holds_the_mean_and_lies_between_none_and_all(counts: list[int]) -> None:
    mean, low, high = interval(counts, 50)
    assert mean == pytest.approx(sum(counts) / (50 * len(counts)))
    assert 0 <= low <= mean <= high <= 1
    pooled = wilson(sum(counts), 50 * len(counts))
    assert low <= pooled[0] + 1e-12
    assert high >= pooled[1] - 1e-12


def test_an_interval_over_seeds_is_students_and_never_narrower_than_the_problems_allow() -> None:
    mean, low, high = interval([40, 50, 60], 100)
    half = 4.303 * 0.1 / 3**0.5
    assert (mean, low, high) == (0.5, pytest.approx(0.5 - half), pytest.approx(0.5 + half))
    assert interval([90, 90, 90], 100)[1:] == wilson(270, 300)
    assert interval([7], 10)[1:] == wilson(7, 10)
    with pytest.raises(CarryError, match="takes 1 to 10 seeds, got 0"):
        interval([], 10)


def test_a_page_that_asks_for_an_unknown_table_is_refused(results: dict[str, Any]) -> None:
    with pytest.raises(CarryError, match="the page asks for table 'nothing'; there are controls"):
        fill_page("<!-- begin nothing -->\nx\n<!-- end nothing -->", results)


def test_the_pages_tables_are_those_of_the_results(results: dict[str, Any]) -> None:
    page = PAGE.read_text("utf-8")
    assert fill_page(page, results) == page
    assert all(f"<!-- begin {name} -->" in page for name in TABLES)
    changed = json.loads(json.dumps(results))
    changed["runs"][-1]["correct"][0] -= 100
    assert fill_page(page, changed) != page


# --- what is shipped ---


def test_the_shipped_weights_are_small_and_made_by_the_shipped_plan(model: CarryModel) -> None:
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 2_000_000
    assert sum(weight.numel() for weight in model.adapter.parameters()) == 8256
    assert (model.settings.band, model.settings.loops) == ((1, 3), 0)


def test_the_shipped_weights_give_the_shipped_row(bench: Bench, results: dict[str, Any]) -> None:
    run = next(run for run in results["runs"] if (run["system"], run["seed"]) == ("carry", 0))
    for hop, count in enumerate(correct_by_hops(bench, SYSTEMS["carry"], 9)):
        low, high = wilson(count, FEW)
        told_low, told_high = wilson(run["correct"][hop], run["problems"])
        assert low <= told_high, f"hop {hop + 1}: {count} of {FEW}"
        assert high >= told_low, f"hop {hop + 1}: {count} of {FEW}"


def test_an_answer_follows_the_donors_node_through_the_recipients_map(bench: Bench) -> None:
    found = donor_patch(bench, 6)
    assert min(found["donor"]) >= 0.9 * FEW
    assert max(found["own"]) <= 0.3 * FEW


def test_without_its_states_the_shipped_carry_is_lost(bench: Bench) -> None:
    whole = correct_by_hops(bench, SYSTEMS["carry"], 5)
    for name in ("zero", "mean", "noise", "feedforward"):
        assert max(ablate(bench, name, 5, 0)[1:]) <= 0.4 * FEW, name
    kept = ablate(bench, "frozen", 5, 0)
    assert kept[:2] == whole[:2]
    assert max(kept[2:]) <= 0.4 * FEW
    for pause in (1, 2, 3):
        shuffled = ablate(bench, f"shuffle_{pause}", 5, 0)
        assert shuffled[:pause] == whole[:pause]
        assert max(shuffled[pause:]) <= 0.4 * FEW


def test_each_state_reads_as_the_node_of_its_step_and_no_other(bench: Bench) -> None:
    found = diagonal(bench, 5)
    for step, row in enumerate(found["matrix"]):
        assert row[step] >= 0.9 * FEW
        assert sum(row) - row[step] <= 0.1 * FEW
    assert min(found["norms"]) > 0
    assert len(found["cosines"]) == 4


def test_the_bases_exit_holds_its_one_hop_answer(bench: Bench) -> None:
    assert min(exit_readout(bench, 3)) >= 0.95 * FEW


def test_the_toy_runs_from_text_like_any_model(model: CarryModel) -> None:
    problems = TASK.sample(4, stream("text"))
    for row in range(4):
        trace = model.run(TASK.text(problems, row), pauses=3)
        assert trace.prompt_length == TASK.prompt_length
        assert trace.ids[-1] == int(problems.answers(4)[row])


# --- what the page says in words ---


def shares(results: dict[str, Any], name: str, what: str = "correct") -> list[list[float]]:
    """By seed and hop; ``what`` may be the name of a system that the weights are run as."""
    runs = [run for run in results["runs"] if run["system"] == name]
    assert runs, f"the page speaks of {name}, which was not run"
    rows = [run["run_as"][what] if what in SYSTEMS else run[what] for run in runs]
    return [[count / results["budget"]["problems"] for count in row] for row in rows]


def test_the_carry_answers_hops_that_it_was_not_trained_on_and_feedforward_none(results: dict[str, Any]) -> None:
    assert min(min(row[:7]) for row in shares(results, "carry")) >= 0.9
    assert max(max(row[1:]) for row in shares(results, "feedforward")) <= 0.25


def test_depth_loops_without_pauses_reach_as_far_as_the_carry(results: dict[str, Any]) -> None:
    for name in ("no_pauses", "query_loop"):
        assert min(min(row) for row in shares(results, name)) >= 0.9, name


def test_a_wider_base_gives_the_depth_loop_back_its_reach_in_two_seeds_of_three(results: dict[str, Any]) -> None:
    narrow, wide = shares(results, "depth"), shares(results, "depth_wide")
    assert max(max(row[6:]) for row in narrow) <= 0.75
    assert [min(row[6:]) >= 0.85 for row in wide] == [True, False, True]
    for narrow_row, wide_row in zip(narrow, wide, strict=True):
        assert all(one < other for one, other in zip(narrow_row[5:], wide_row[5:], strict=True))


def test_the_carrys_weights_as_a_loop_reach_as_far_as_the_bases_own_answer(results: dict[str, Any]) -> None:
    loops, exits = shares(results, "carry", "depth_tail"), shares(results, "base", "exit_readout")
    for loop, readout in zip(loops, exits, strict=True):
        assert min(loop[:4]) >= 0.99
        assert max(abs(one - other) for one, other in zip(loop, readout, strict=True)) <= 0.05
        assert max(readout[5:]) <= 0.5
