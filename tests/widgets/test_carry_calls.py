"""CarryInspector from Python: its tables are the readings of the carry, heavy ones run in a worker and stop."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import workbench
from widgets import CarryInspector
from widgets.base.assets import LARGEST_SCRIPT
from widgets.base.window import LARGEST_MESSAGE
from widgets.carry_inspector.results import ablation_frame, read_results, system_cost
from widgets.carry_inspector.worker import Stopped, Watch
from workbench.bundled import bundled
from workbench.carry import (
    CarryModel,
    attention_shares,
    band_warning,
    check_trace,
    cost_panel,
    decodability,
    effect_grid,
    loop_motion,
    make_adapter,
    measure_controls,
    orbit,
    readings,
    step_concepts,
    token_layers,
    trajectories,
    wilson,
    zero,
)
from workbench.carry.experiment import demo_model
from workbench.carry.task import stream
from workbench.carry.toy import EIGHT_NODES
from workbench.errors import CarryError

PROBLEMS = EIGHT_NODES.sample(16, stream("inspector", 0))
PROMPTS = PROBLEMS.prompts.tolist()
PAUSES = 4


@pytest.fixture(scope="module")
def toy() -> Iterator[CarryModel]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield demo_model(bundled("carry"))
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def inspector(toy: CarryModel) -> Iterator[CarryInspector]:
    window = make(toy)
    yield window
    window.close()


def rows(hops: int) -> list[tuple[list[int], list[int]]]:
    return [(prompt, [answer]) for prompt, answer in zip(PROMPTS, PROBLEMS.answers(hops).tolist(), strict=True)]


def make(toy: CarryModel, **given: Any) -> CarryInspector:
    donor = toy.run(PROMPTS[1], pauses=PAUSES)
    options: dict[str, Any] = {
        "concepts": [int(PROBLEMS.answers(hops)[0]) for hops in range(1, PAUSES + 2)],
        "rows": rows(PAUSES + 1), "known": rows(1), "others": {"donor": donor}, "results": bundled("carry"),
    }  # fmt: skip
    return CarryInspector(toy, toy.run(PROMPTS[0], pauses=PAUSES, attention=True), **{**options, **given})


def looped(model: Any) -> CarryModel:
    """A tiny random model whose prompt is looped and whose adapter does something."""
    adapter = make_adapter("interpolate", model.d_model, start=0.3)
    return CarryModel(model, band=(1, 2), adapter=adapter, pause_token=5, pauses=3, loops=2)


# What can be read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclude", [False, True])
def test_the_chain_is_the_readings(toy: CarryModel, inspector: CarryInspector, exclude: bool) -> None:
    found = readings(toy, inspector.trace, k=3, exclude_mouth=exclude)
    frame = inspector.chain(3, exclude_mouth=exclude)
    lens = frame[frame["source"] == "logit lens"]
    assert lens["token_id"].tolist() == [guess.token for reading in found for guess in reading.lens]
    np.testing.assert_allclose(lens["probability"], [g.probability for r in found for g in r.lens], rtol=1e-6)
    now = frame[frame["source"] == "answer now"]
    assert now["text"].tolist() == [guess.text for reading in found for guess in reading.now]
    assert inspector.frame().equals(inspector.chain())


def test_on_the_toy_each_step_reads_as_its_own_hop(inspector: CarryInspector) -> None:
    frame = inspector.concepts()
    diagonal = np.diag(frame.to_numpy())
    assert diagonal.min() > 0.9
    off = frame.to_numpy()[: len(diagonal)] - np.diag(diagonal)
    assert off.max() < 0.05
    assert frame.columns.tolist() == [inspector.subject.text(token) for token in inspector.subject.concepts]


def test_trajectories_and_concepts_are_the_library_s(toy: CarryModel, inspector: CarryInspector) -> None:
    tokens = list(inspector.subject.watched)
    expected = trajectories(toy, inspector.trace, tokens)
    frame = inspector.trajectories()
    assert frame["rank"].tolist() == [g.rank for one in expected for g in (*one.loops, *one.steps[1:])]
    first = frame[frame["first"]].groupby("token_id")["step"].first().to_dict()
    assert first == {one.token: one.first_decodable for one in expected if one.first_decodable is not None}
    concepts = step_concepts(toy, inspector.trace, inspector.subject.concepts)
    np.testing.assert_allclose(inspector.concepts(), concepts, rtol=1e-6)


def test_with_loops_the_columns_are_loops_and_then_steps(model: Any) -> None:
    carry = looped(model)
    window = CarryInspector(carry, "Once upon a", max_new_tokens=2)
    told = window.state["read"]
    names = [(column["phase"], column["loop"], column["step"]) for column in told["columns"]]
    assert names == [("prompt", 0, 0), ("prompt", 1, 0), ("prompt", 2, 0)] + [
        ("pause" if step < 4 else "answer", 0, step) for step in range(1, 6)
    ]
    assert [len(line["p"]) for line in told["series"][0]] == [len(names)] * len(told["series"][0])
    motion = loop_motion(window.trace)
    frame = window.loops()
    np.testing.assert_allclose(frame["move"], motion.residual.flatten(), rtol=1e-6)
    np.testing.assert_allclose(frame.query("loop == 2")["second_difference"], motion.second_difference[0], rtol=1e-6)
    assert frame.query("loop == 1")["second_difference"].isna().all()
    window.close()


def test_concepts_that_nobody_named_are_called_no_finding(toy: CarryModel) -> None:
    window = CarryInspector(toy, PROMPTS[0])
    assert not window.state["read"]["concepts"]["given"]
    assert "a diagonal is no finding" in window.static_html()
    window.close()


# How states move ----------------------------------------------------------------------------------------------------


def test_motion_tables_are_those_of_the_trace(inspector: CarryInspector) -> None:
    assert inspector.dynamics().drop(columns="token").isna().sum().sum() == 2
    trace = inspector.trace
    np.testing.assert_allclose(inspector.dynamics()["norm_s"], trace.states.norm(dim=-1), rtol=1e-5)
    expected = orbit([trace, inspector.subject.others["donor"]])
    frame = inspector.orbit()
    np.testing.assert_allclose(frame.query("run == 'donor'")[["x", "y"]], expected.points[1], rtol=1e-5)
    assert frame.attrs["explained"] == list(expected.explained)


def test_attention_is_the_share_of_each_group(inspector: CarryInspector) -> None:
    shares = attention_shares(inspector.trace, inspector.subject.windows)
    frame = inspector.attention(layer=2, head=1)
    np.testing.assert_allclose(frame.drop(columns="sees_from"), shares.shares[:, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(inspector.attention().drop(columns="sees_from").sum(axis=1), 1, rtol=1e-5)
    with pytest.raises(CarryError, match=r"layers 1\.\.3, not for 0"):
        inspector.attention(layer=0)
    with pytest.raises(CarryError, match="heads go from 0 to 3, got 9"):
        inspector.attention(head=9)


def test_a_sliding_window_s_edge_is_told() -> None:
    gemma = workbench.load("tiny-gemma3", progress=False)
    carry = CarryModel(gemma, band=(0, 2), pause_token=5, pauses=3, loops=0)
    window = CarryInspector(carry, list(range(10, 40)))
    size = next(size for size in window.subject.windows if size is not None)
    assert window.attention()["sees_from"].tolist() == [max(29 + step - size + 1, 0) for step in range(5)]
    window.close()


# What is needed -----------------------------------------------------------------------------------------------------


def test_effects_are_those_of_the_grid_and_never_act_backwards(toy: CarryModel, inspector: CarryInspector) -> None:
    settings = toy.with_(pauses=PAUSES)
    expected = effect_grid(toy, PROMPTS, zero, settings=settings)
    frame = inspector.effects("zero")
    np.testing.assert_allclose(frame["kl"], [effect.kl for effect in expected], rtol=1e-6)
    np.testing.assert_allclose(frame["high"], [effect.high for effect in expected], rtol=1e-6)
    assert (frame.query("read <= edited")["kl"] == 0).all()
    assert (frame.query("read > edited")["kl"] > 1).all()
    assert inspector.effects().equals(frame)


def test_freezing_the_first_state_changes_nothing_at_step_0_and_all_later(inspector: CarryInspector) -> None:
    frame = inspector.effects("frozen")
    assert (frame.query("edited == 0")["kl"] < 1e-6).all()
    assert (frame.query("edited > 0 and read > edited")["kl"] > 1).all()


@pytest.mark.parametrize("kind", ["mean", "shuffle", "noise", "patch", "gain"])
def test_every_other_intervention_moves_the_toy_s_answers(inspector: CarryInspector, kind: str) -> None:
    frame = inspector.effects(kind)
    assert (frame.query("read > edited")["flip_rate"] > 0.5).all()
    assert inspector.effects(kind).equals(frame), "the random ones are seeded"


def test_swapping_two_tokens_coordinates_flips_only_rows_that_hold_one(inspector: CarryInspector) -> None:
    frame = inspector.effects("swap", first="a", second="b").query("read == edited + 1")
    assert frame["flip_rate"].between(0.01, 0.7).all()


def test_interventions_that_can_not_be_made_say_why(toy: CarryModel, inspector: CarryInspector) -> None:
    with pytest.raises(CarryError, match="Did you mean 'zero'"):
        inspector.effects("zer")
    with pytest.raises(CarryError, match="'a b' is 2 tokens of this model"):
        inspector.effects("swap", first="a b", second="c")
    alone = make(toy, rows=(), known=(), others=None)
    with pytest.raises(CarryError, match="needs at least two rows"):
        alone.effects("shuffle")
    with pytest.raises(CarryError, match="a patch needs another run"):
        alone.effects("patch")
    with pytest.raises(CarryError, match="nothing of that yet"):
        alone.effects()
    alone.close()


def test_controls_are_the_library_s(toy: CarryModel, inspector: CarryInspector) -> None:
    expected = measure_controls(toy, rows(PAUSES + 1), toy.with_(pauses=PAUSES))
    frame = inspector.controls()
    assert frame["name"].tolist() == [control.name for control in expected]
    assert frame["accuracy"].tolist() == [control.accuracy for control in expected]
    own = frame.set_index("name")
    assert own.loc["carry", "accuracy"] == 1
    assert own.loc["carry, zero", "accuracy"] < 0.5


def test_results_are_what_the_file_says_with_intervals(inspector: CarryInspector) -> None:
    told = json.loads((bundled("carry") / "results.json").read_text("utf-8"))
    runs = [run for run in told["runs"] if run["system"] == "carry"]
    hits, n = sum(run["correct"][6] for run in runs), sum(run["problems"] for run in runs)
    row = inspector.results().query("system == 'carry' and hops == 7").iloc[0]
    assert row["accuracy"] == hits / n
    assert (row["low"], row["high"]) == wilson(hits, n)
    assert row["seeds"] == len(runs)
    frozen = ablation_frame(told).query("change == 'carry, states frozen at step 0'")["accuracy"].tolist()
    assert frozen[1] > 0.9 > 0.1 > frozen[2]


def test_a_system_s_cost_is_what_the_model_counts(toy: CarryModel) -> None:
    told = read_results(bundled("carry"))
    by_name = {control.name: control for control in measure_controls(toy, rows(PAUSES), toy.with_(pauses=PAUSES - 1))}
    pairs = {"base": "base, pauses", "carry": "carry", "depth": "depth loop, k = p"}
    for name, control in pairs.items():
        cost, measured = system_cost(told, told["systems"][name], PAUSES - 1), by_name[control]
        # The controls also feed the answer's token, which passes once through every layer.
        again = 2 * (PAUSES - 1) if name == "depth" else 0
        assert cost["token_layers"] + toy.n_layers + again == measured.token_layers, name
        assert cost["depth"] == measured.depth, name
    whole = token_layers(4, (1, 3), prompt=26, pauses=3, answer=0, loops=0, training=True).fast
    assert system_cost(told, told["systems"]["carry"], 3)["token_layers"] == whole


def test_results_of_something_else_are_refused(tmp_path: Any) -> None:
    with pytest.raises(CarryError, match="can't be read as results"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text('{"runs": []}')
    with pytest.raises(CarryError, match="holds no results of a carry demonstration"):
        read_results(tmp_path)


# Band, cost, lens ---------------------------------------------------------------------------------------------------


def test_layers_warn_of_a_band_that_ends_too_early(toy: CarryModel, inspector: CarryInspector) -> None:
    expected = decodability(toy, rows(1))
    assert inspector.layers()["lens_accuracy"].tolist() == [reading.lens_accuracy for reading in expected]
    assert inspector.band_warning(1, 3) is None
    early = inspector.band_warning(0, 1)
    assert early == band_warning(expected, (0, 1))
    assert early is not None
    assert "a band that ends at 3 or later" in early
    with pytest.raises(CarryError, match="got 3:3"):
        inspector.band_warning(3, 3)


def test_gradients_are_those_of_the_loss_by_each_state(toy: CarryModel, inspector: CarryInspector) -> None:
    """Against a difference quotient along the gradient of one row's last state."""
    frame = inspector.gradients()
    assert frame["step"].tolist() == list(range(PAUSES))
    assert (frame["gradient"] > 0).all()
    alone = make(toy, rows=rows(PAUSES + 1)[:1], known=())
    expected = alone.gradients()["gradient"].iloc[-1]
    ids = torch.tensor([[*PROMPTS[0], *[toy.pause.id] * PAUSES, rows(PAUSES + 1)[0][1][0]]])
    mask, lengths = torch.ones_like(ids), torch.tensor([len(PROMPTS[0])])

    def loss(offset: torch.Tensor) -> torch.Tensor:
        do = {PAUSES - 1: lambda state: state + offset}
        logits = toy.logits(ids, mask, lengths, do=do)[0, len(PROMPTS[0]) - 1 + PAUSES]
        return torch.nn.functional.cross_entropy(logits[None].double(), ids[0, -1:])

    zeros = torch.zeros(toy.d_model, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(zeros), zeros)
    direction = gradient / gradient.norm()
    with torch.no_grad():
        slope = float(loss(0.5 * direction) - loss(-0.5 * direction))
    assert expected == pytest.approx(float(gradient.norm()), rel=1e-3)
    assert slope == pytest.approx(expected, rel=0.2)
    alone.close()


def test_cost_and_check_are_the_panel_s(toy: CarryModel, inspector: CarryInspector) -> None:
    panel, check = cost_panel(toy, inspector.trace), check_trace(toy, inspector.trace)
    found = inspector.check()
    values = inspector.cost().set_index("what")["value"]
    assert values["token-layers, incremental, generating"] == panel.generating.fast
    assert values["ratio, teacher-forced"] == panel.cost.ratio
    assert values["keys and values at the end"] == panel.cache_bytes
    assert found == check
    assert values["largest difference of a logit"] == check.logits < 1e-4


def test_a_fitted_lens_joins_every_reading_beside_its_baseline(toy: CarryModel) -> None:
    window = make(toy, rows=rows(2)[:4], known=())
    window.fit_lens()
    assert window.chain(1)["source"].unique().tolist() == [
        "logit lens", "answer now", "Jacobian lens", "shuffled Jacobian lens",
    ]  # fmt: skip
    own, baseline = (np.diag(window.concepts(name)) for name in ("Jacobian lens", "shuffled Jacobian lens"))
    assert own.mean() > 0.8 > 0.4 > baseline.mean()
    window.close()
    with pytest.raises(CarryError, match="fit_lens"):
        make(toy).concepts("Jacobian lens")


# What is refused ----------------------------------------------------------------------------------------------------


def test_a_trace_of_another_carry_is_refused(toy: CarryModel, inspector: CarryInspector, model: Any) -> None:
    other = CarryModel(toy.base, band=(1, 2), pause_token="<unused0>")
    with pytest.raises(CarryError, match="made with band 1:3"):
        CarryInspector(other, inspector.trace)
    untrained = CarryModel(toy.base, band=(1, 3), pause_token="<unused0>")
    with pytest.raises(CarryError, match="give the model that made it"):
        CarryInspector(untrained, inspector.trace)
    with pytest.raises(CarryError, match="looks at a CarryModel, got"):
        CarryInspector(model, "text")
    with pytest.raises(CarryError, match="an answer of at least one token"):
        make(toy, rows=[("? a", [])])
    with pytest.raises(CarryError, match="outside the vocabulary"):
        make(toy, target=999)


def test_an_adapter_that_adds_nothing_is_said_to(model: Any) -> None:
    window = CarryInspector(CarryModel(model, band=(1, 2), pause_token=5, pauses=2, loops=1), "Once")
    assert "adds nothing, as before any training" in window.notes[0]
    assert "adds nothing, as before any training" in window.static_html()
    window.close()


def test_nothing_says_that_a_model_thinks() -> None:
    folder = bundled("carry").parents[1] / "widgets" / "carry_inspector"
    for path in folder.iterdir():
        if path.suffix in (".py", ".js"):
            assert not re.search(r"\bth(ink|ought)", path.read_text("utf-8"), re.IGNORECASE), path


# The browser's side -------------------------------------------------------------------------------------------------


@pytest.fixture
def heard(inspector: CarryInspector, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the window tells the browser."""
    messages: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(inspector, "tell", lambda kind, content, buffers=(): messages.append((kind, dict(content))))
    return messages


def test_messages_and_the_script_are_bounded(inspector: CarryInspector, heard: Any) -> None:
    assert len(inspector._esm.encode()) < LARGEST_SCRIPT
    assert len(json.dumps(inspector.state, allow_nan=False)) + len(inspector._esm) < LARGEST_MESSAGE
    inspector._heard(inspector, {"type": "hello"}, [])
    assert {kind for kind, _ in heard} >= {"motion", "orbit", "attention", "costs", "work"}
    for _, content in heard:
        assert len(json.dumps(content, allow_nan=False)) < LARGEST_MESSAGE


def test_a_long_run_is_cut_for_the_browser_and_whole_in_the_calls(model: Any) -> None:
    carry = CarryModel(model, band=(1, 2), pause_token=5, pauses=0, loops=0)
    window = CarryInspector(carry, carry.run(list(range(10, 20)), answer=[20 + i % 90 for i in range(230)]))
    told = window.state["read"]
    assert len(told["columns"]) == 200
    assert told["cut"] == 31
    assert len(window.concepts()) == 231
    assert len(json.dumps(window.state)) + len(window._esm) < LARGEST_MESSAGE
    window.close()


@pytest.mark.parametrize("study", ["effects", "controls", "layers", "check", "ablated"])
def test_a_study_of_the_browser_s_runs_in_a_worker_and_tells_its_progress(
    inspector: CarryInspector, heard: Any, study: str
) -> None:
    inspector._heard(inspector, {"type": "start", "study": study, "kind": "zero"}, [])
    assert inspector.wait(120)
    work = [content for kind, content in heard if kind == "work"]
    assert work[0]["state"] == "running"
    assert work[-1]["state"] == "idle"
    assert work[-1]["done"] == pytest.approx(work[-1]["total"], rel=0.6)
    assert {"ablated": "orbit", "check": "costs"}.get(study, study) in [kind for kind, _ in heard]


@pytest.mark.parametrize("study", ["lens", "controls"])
def test_a_study_stops_between_two_blocks_and_leaves_the_model_as_it_was(
    toy: CarryModel, inspector: CarryInspector, heard: Any, study: str
) -> None:
    before = inspector.controls()
    inspector._heard(inspector, {"type": "start", "study": study}, [])
    inspector._heard(inspector, {"type": "start", "study": "check"}, [])  # a second one does nothing
    while not inspector.worker.done:
        time.sleep(0.005)
    pressed = time.monotonic()
    inspector.stop()
    inspector.stop()
    assert inspector.wait(10)
    assert time.monotonic() - pressed < 2
    assert inspector.worker.state == "idle"
    assert inspector.worker.name == study
    assert inspector.worker.done < inspector.worker.total
    assert inspector.controls().equals(before)
    assert toy.blocks.lock.acquire(timeout=1)  # type: ignore[attr-defined]
    toy.blocks.lock.release()  # type: ignore[attr-defined]
    assert check_trace(toy, inspector.trace).relative < 1e-4


def test_while_a_study_runs_the_browser_is_answered(inspector: CarryInspector, heard: Any) -> None:
    """Other tokens are followed from logits that were kept: no wait for the model's lock, which the study holds."""
    with inspector.model.blocks.lock:
        done = threading.Event()

        def ask() -> None:
            inspector._heard(inspector, {"type": "watch", "text": "d"}, [])
            inspector._heard(inspector, {"type": "hello"}, [])
            inspector._heard(inspector, {"type": "attention", "layer": 1, "head": 2, "asked": 7}, [])
            done.set()

        threading.Thread(target=ask, daemon=True).start()
        assert done.wait(10)
    told = next(content for kind, content in heard if kind == "read")
    assert told["series"][0][-1]["label"] == "d"


def test_a_study_that_can_not_be_made_is_refused_at_once(inspector: CarryInspector) -> None:
    with pytest.raises(CarryError, match="no study 'tea'"):
        inspector._heard(inspector, {"type": "start", "study": "tea"}, [])
    with pytest.raises(CarryError, match="no intervention 'tea'"):
        inspector._heard(inspector, {"type": "start", "study": "effects", "kind": "tea"}, [])


def test_an_error_in_the_worker_is_shown(inspector: CarryInspector, heard: Any, monkeypatch: Any) -> None:
    def broken() -> None:
        raise CarryError("the ridge broke")

    assert inspector.worker.start("layers", 1, broken, lambda made: None)
    inspector.wait(10)
    assert inspector.worker.state == "failed"
    assert inspector.error == "the ridge broke"
    inspector.error = ""


def test_warnings_of_a_study_are_in_the_window_and_in_no_cell(
    inspector: CarryInspector, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        work = lambda: warnings.warn("the ridge is thin", stacklevel=1)  # noqa: E731  # why: one line, as studies are
        assert inspector.worker.start("layers", 1, work, lambda made: None)
        inspector.wait(10)
    assert "the ridge is thin" in inspector.notices
    assert capsys.readouterr().err == ""
    inspector.notices = []


def test_a_closed_window_leaves_nothing_behind(toy: CarryModel) -> None:
    window = make(toy)
    window._heard(window, {"type": "start", "study": "controls"}, [])
    alive = weakref.ref(window)
    window.close()
    window.close()  # twice does no harm
    assert "was closed" in window._fallback()["text/html"]
    del window
    gc.collect()
    assert alive() is None
    assert [thread for thread in threading.enumerate() if thread.name.startswith("workbench-carry-")] == []


def test_a_watch_leaves_other_threads_alone(toy: CarryModel) -> None:
    watch = Watch(lambda: None)
    watch.stop()
    errors: list[BaseException] = []
    with watch.on(toy):
        other = threading.Thread(target=lambda: toy.run(PROMPTS[0], pauses=1))
        other.start()
        other.join()
        try:
            toy.run(PROMPTS[0], pauses=1)
        except Stopped as stopped:
            errors.append(stopped)
    assert len(errors) == 1
    toy.run(PROMPTS[0], pauses=1)


def test_the_static_form_holds_every_view_and_no_script(inspector: CarryInspector) -> None:
    inspector.effects("zero")
    inspector.controls()
    inspector.layers()
    html = inspector.static_html()
    assert not re.search(r"<(script|img|iframe)|https?:", html)
    for caption in ("likeliest tokens of each state", "Probability of each concept", "followed tokens", "Lengths",
                    "Attention of each step", "in the plane of", "Effects of handing on zeros", "Trained controls",
                    "with, without and against the carry", "each layer of the plain model", "Cost"):  # fmt: skip
        assert caption in html, caption
    assert "does not show that they are needed" in html


@pytest.mark.real
@pytest.mark.slow
def test_it_opens_on_a_real_model_with_a_fresh_adapter() -> None:
    base = workbench.load("smollm2-135m-instruct", progress=False)
    carry = CarryModel(base, band=(10, 20), pause_token="<empty_output>", pauses=3, loops=1)
    window = CarryInspector(carry, [{"role": "user", "content": "Name a colour."}], max_new_tokens=2)
    assert "adds nothing" in window.notes[0]
    assert (window.dynamics()["share"].dropna() == 0).all()
    assert (window.effects("zero")["kl"] == 0).all()
    assert window.check().relative < 1e-4
    assert len(json.dumps(window.state)) + len(window._esm) < LARGEST_MESSAGE
    window.close()
