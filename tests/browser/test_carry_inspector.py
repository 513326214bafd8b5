"""CarryInspector as a person uses it: the chain, its cursor, the tabs, what is measured and stopped, both themes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_driver import Lab, Notebook, shown
from offline_pages import accessibility_faults
from playwright.sync_api import Locator, expect

pytestmark = [pytest.mark.usefixtures("no_faults"), pytest.mark.slow]

SETUP = """
import torch
import workbench
from widgets import CarryInspector
from workbench.bundled import bundled
from workbench.carry import CarryModel, load_adapter, make_adapter
from workbench.carry.task import stream
from workbench.carry.toy import EIGHT_NODES

torch.set_num_threads(1)
base = workbench.load(bundled("carry/base"), device="cpu", threads=1, progress=False)
adapter = load_adapter(bundled("carry/adapter.safetensors"))
model = CarryModel(base, band=(1, 3), adapter=adapter, pause_token="<unused0>", pauses=6, loops=0)
problems = EIGHT_NODES.sample(30, stream("inspector", 0))
prompts = problems.prompts.tolist()
rows = [(prompt, [answer]) for prompt, answer in zip(prompts, problems.answers(7).tolist())]
known = [(prompt, [answer]) for prompt, answer in zip(prompts, problems.answers(1).tolist())]
concepts = [int(problems.answers(hops)[0]) for hops in range(1, 8)]
trace = model.run(prompts[0], attention=True)
others = {"donor": model.run(prompts[1])}

tiny = workbench.load("tiny-gemma3", progress=False)
mixing = make_adapter("interpolate", tiny.d_model, start=0.3)
small = CarryModel(tiny, band=(0, 2), adapter=mixing, pause_token=5, pauses=3, loops=2)
"""
CELLS = [
    SETUP,
    "inspector = CarryInspector(model, trace, concepts=concepts, rows=rows, known=known, others=others, "
    "results=bundled('carry'))\ninspector",
    "looped = CarryInspector(small, 'A <b>prompt</b>\\nof \U0001f600', max_new_tokens=2)\nlooped",
    "inspector",
]
TABS = ("What can be read", "How states move", "Where steps look", "What is needed", "Band", "Cost")


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Iterator[Notebook]:
    with lab.notebook("carry", CELLS) as notebook:
        notebook.run_all()
        yield notebook


@pytest.fixture
def window(notebook: Notebook) -> Iterator[Locator]:
    found = notebook.window("carry")
    yield found
    notebook.ask("inspector.stop(); assert inspector.wait(60)")
    expect(found.locator(".wb-busy")).to_be_hidden()


def tab(window: Locator, name: str) -> Locator:
    """Open a tab; its pane."""
    window.get_by_role("tab", name=name, exact=True).click()
    return window.get_by_role("tabpanel", name=name, exact=True)


def card(pane: Locator, title: str) -> Locator:
    return pane.locator("section.wb-card", has=pane.page.get_by_role("heading", name=title)).last


def numbers(pane: Locator, title: str) -> list[list[str]]:
    """All numbers of a figure, from its table, by row."""
    figure = card(pane, title)
    figure.get_by_role("button", name="Show as table").click()
    rows = figure.locator("div > div > .wb-scroll tbody tr").all()
    found = [row.locator("td").all_inner_texts() for row in rows]
    figure.get_by_role("button", name="Show as table").click()
    return found


def measure(notebook: Notebook, pane: Locator, name: str) -> None:
    """Press a button that begins a study, and wait for its end."""
    pane.get_by_role("button", name=name, exact=True).click()
    expect(pane.page.locator(".wb-busy").first).to_be_hidden(timeout=120_000)
    assert notebook.value("inspector.worker.state") == "idle"


# What can be read ---------------------------------------------------------------------------------------------------


def test_it_opens_on_the_diagonal(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[0])
    values = notebook.value("inspector.concepts().to_numpy().tolist()")
    cells = pane.locator(".wb-matrix tbody tr")
    for step, line in enumerate(values):
        texts = cells.nth(step).locator("td").all_inner_texts()
        assert texts == [f"{p:.2f}" if p >= 0.005 else "·" for p in line]
    framed = pane.locator("td.wb-expected")
    expect(framed).to_have_count(7)
    assert all(float(text) > 0.9 for text in framed.all_inner_texts())
    assert [row[1:] for row in numbers(pane, "Steps by concepts")] == [shown(line) for line in values]
    expect(card(pane, "Steps by concepts")).to_contain_text("It is the likeliest of these at 7 of 7 steps")


@pytest.mark.parametrize("hidden", [True, False])
def test_the_chain_says_what_the_call_says(notebook: Notebook, window: Locator, hidden: bool) -> None:
    pane = tab(window, TABS[0])
    pane.get_by_label("leave out the token about to be said").set_checked(hidden)
    frame = notebook.value(
        f"inspector.chain(3, exclude_mouth={hidden})[['source', 'rank', 'text', 'probability']].to_dict('list')"
    )
    for source in ("logit lens", "answer now"):
        for rank in range(3):
            row = pane.locator(f".wb-chain tr[data-source='{source}'][data-rank='{rank}'] .wb-lens")
            own = [i for i, name in enumerate(frame["source"]) if name == source and frame["rank"][i] == rank]
            assert row.locator(".wb-word").all_inner_texts() == [frame["text"][i] for i in own]
            assert row.locator("small").all_inner_texts() == shown([frame["probability"][i] for i in own])
    ranks = notebook.value(
        "inspector.trajectories([inspector.subject.target])[['rank', 'probability']].to_dict('list')"
    )
    target = pane.locator(".wb-target")
    assert target.nth(0).locator("td").all_inner_texts() == shown(ranks["rank"])
    assert target.nth(1).locator("td").all_inner_texts() == shown(ranks["probability"])


def test_arrows_move_one_cursor_through_all_views(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[0])
    chain = pane.locator(".wb-chainbox")
    chain.press("Home")
    chain.press("ArrowRight")
    chain.press("ArrowRight")
    expect(window.locator(".wb-spoken")).to_contain_text("s_2, pause: logit lens '")
    expect(pane.locator(".wb-matrix tr.wb-on th")).to_have_text("s_2")
    state = notebook.value("inspector.dynamics().iloc[2].to_dict()")
    facts = dict(
        zip(pane.locator(".wb-facts dt").all_inner_texts(), pane.locator(".wb-facts dd").all_inner_texts(), strict=True)
    )
    assert facts["state"] == "s_2"
    for name, key in (("‖s‖", "norm_s"), ("carry share", "share"), ("cos to previous", "cosine_previous")):
        assert facts[name] == shown([state[key]])[0], name
    pane.locator(".wb-chain td[data-column='4']").first.click()
    expect(pane.locator(".wb-matrix tr.wb-on th")).to_have_text("s_4")
    chain.press("End")
    expect(pane.locator(".wb-matrix tr.wb-on th")).to_have_text("s_7")


def test_a_token_typed_in_is_followed_and_can_be_dropped(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[0])
    watched = notebook.value("[inspector.subject.text(token) for token in inspector.subject.watched]")
    new = next(letter for letter in "abcdefgh" if letter not in watched)
    field = pane.get_by_label("Follow a token")
    field.fill(new)
    field.press("Enter")
    expect(pane.get_by_role("button", name=f"Stop following {new}")).to_be_visible()
    frame = notebook.value(f"inspector.trajectories(['{new}'])[['probability', 'rank']].to_dict('list')")
    table = numbers(pane, "Tokens over loops and steps")
    assert table[-2][2:] == shown(frame["probability"])
    assert table[-1][2:] == shown(frame["rank"])
    pane.get_by_label("Show", exact=True).select_option("rank")
    expect(pane.locator("svg.wb-chart")).to_have_attribute(
        "aria-label", f"Rank of {len(watched) + 1} tokens over 8 states"
    )
    pane.get_by_label("Show", exact=True).select_option("p")
    pane.get_by_role("button", name=f"Stop following {new}").click()
    expect(pane.get_by_role("button", name=f"Stop following {new}")).to_have_count(0)
    pane.get_by_label("Follow a token").fill("no such token")
    pane.get_by_role("button", name="Add", exact=True).click()
    expect(window.locator(".wb-error")).to_contain_text("tokens of this model")
    window.get_by_role("button", name="Dismiss").click()


def test_loops_come_before_steps_and_hostile_text_is_text(notebook: Notebook) -> None:
    window = notebook.window("carry", 1)
    names = window.locator(".wb-statename").all_inner_texts()
    assert names == ["loop 0", "loop 1", "s_0", "s_1", "s_2", "s_3", "s_4", "s_5"]
    assert window.locator("b", has_text="prompt").count() == 0
    pane = tab(window, TABS[1])
    moves = notebook.value("looped.loops().pivot(index='position', columns='loop', values='move').to_numpy().tolist()")
    assert [row[2:4] for row in numbers(pane, "Moves of the prompt")] == [shown(line) for line in moves]
    labels = pane.locator(".wb-matrix tbody th .wb-word").all_inner_texts()
    assert "".join(labels[1:]).startswith("A·<b>prompt</b>↵") or "".join(labels).startswith("A·<b>prompt</b>↵")
    look = tab(window, TABS[2])
    seen = notebook.value("looped.attention()['sees_from'].tolist()")
    assert [row[-1] for row in numbers(look, "Where each step looks")] == shown(seen)
    assert max(seen) > 0
    expect(look.locator(".wb-edge").first).to_be_attached()
    tab(window, TABS[0])


# How states move, where they look -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "keys"),
    [
        ("Lengths", ["norm_s", "norm_x", "norm_e"]),
        ("Against what enters", ["x_over_e", "share"]),
        ("Cosines of s", ["cosine_previous", "cosine_first", "cosine_e"]),
    ],
)
def test_motion_is_that_of_the_call(notebook: Notebook, window: Locator, title: str, keys: list[str]) -> None:
    pane = tab(window, TABS[1])
    frame = notebook.value(
        f"inspector.dynamics()[{keys}].astype(object).where(lambda f: f.notna(), None).to_numpy().tolist()"
    )
    assert [row[1:] for row in numbers(pane, title)] == [shown(line) for line in frame]


def test_runs_share_one_plane(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[1])
    measure(notebook, pane, "Add ablated runs")
    expect(pane.locator(".wb-plane .wb-name")).to_have_count(5)
    points = notebook.value("inspector.orbit()[['x', 'y']].to_numpy().tolist()")
    assert [row[2:] for row in numbers(pane, "States in a plane")] == [shown(line) for line in points]


@pytest.mark.parametrize(("layer", "head"), [("2", "1"), ("", "3"), ("", "")])
def test_attention_by_layer_and_head(notebook: Notebook, window: Locator, layer: str, head: str) -> None:
    pane = tab(window, TABS[2])
    pane.get_by_label("Layer", exact=True).select_option(layer)
    pane.get_by_label("Head", exact=True).select_option(head)
    expect(pane.get_by_label("Head", exact=True)).to_have_value(head)
    notebook.page.wait_for_timeout(500)
    call = f"inspector.attention({layer or None}, {head or None})"
    values = notebook.value(f"{call}.to_numpy().tolist()")
    assert [row[1:] for row in numbers(pane, "Where each step looks")] == [shown(line) for line in values]


# What is needed -----------------------------------------------------------------------------------------------------


def test_effects_of_an_edit_are_the_grid_of_the_call(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[3])
    pane.get_by_label("Hand on", exact=True).select_option("noise")
    measure(notebook, pane, "Measure effects")
    frame = notebook.value("inspector.effects().to_numpy().tolist()")
    assert notebook.value("inspector.found.question.kind") == "noise"
    assert numbers(pane, "Handed on") == [shown(line) for line in frame]
    assert notebook.value("inspector.effects('noise').to_numpy().tolist()") == frame
    cells = card(pane, "Handed on").locator(".wb-matrix tbody tr").nth(2).locator("td")
    assert cells.all_inner_texts()[:3] == ["0", "0", "0"]
    pane.get_by_label("Show", exact=True).select_option("flip_rate")
    rates = notebook.value("inspector.effects().query('edited == 2').flip_rate.tolist()")
    assert cells.all_inner_texts()[3:] == [f"{rate:.2f}" for rate in rates[3:]]
    expect(card(pane, "Handed on")).to_contain_text("all effects are exactly 0")


def test_a_swap_asks_for_two_tokens_and_says_what_is_wrong(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[3])
    pane.get_by_label("Hand on", exact=True).select_option("swap")
    pane.get_by_label("First token").fill("a b")
    pane.get_by_role("button", name="Measure effects").click()
    expect(window.locator(".wb-error")).to_contain_text("'a b' is 2 tokens of this model")
    window.get_by_role("button", name="Dismiss").click()
    pane.get_by_label("First token").fill("a")
    pane.get_by_label("Second token").fill("b")
    measure(notebook, pane, "Measure effects")
    expect(card(pane, "Handed on")).to_contain_text("(a and b)")


def test_trained_controls_are_the_results_of_the_file(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[3])
    lines = notebook.value(
        "inspector.results().pivot(index='system', columns='hops', values='accuracy')"
        ".reindex(inspector.results().system.unique()).to_numpy().tolist()"
    )
    rows = card(pane, "Trained controls").locator(".wb-matrix tbody tr")
    for place, line in enumerate(lines):
        # Python and the browser round a tie (0.125) each in its own way.
        texts = rows.nth(place).locator("td").all_inner_texts()[:9]
        assert [float(text) for text in texts] == pytest.approx(line, abs=0.00501)
    pane.get_by_label("Cost at hops").select_option("3")
    costs = notebook.value(
        "inspector.results().query('hops == 3')"
        "[['positions', 'band_passes', 'token_layers', 'depth']].to_numpy().tolist()"
    )
    for place, line in enumerate(costs):
        assert rows.nth(place).locator("td").all_inner_texts()[9:13] == shown(line)


def test_controls_are_measured_in_a_worker_and_can_be_stopped(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[3])
    button = pane.get_by_role("button", name="Measure controls")
    button.click()
    expect(window.locator(".wb-busy")).to_contain_text("Measuring controls")
    expect(button).to_be_disabled()
    window.get_by_role("button", name="Stop", exact=True).click()
    expect(window.locator(".wb-busy")).to_be_hidden(timeout=10_000)
    assert notebook.value("inspector.found.controls is None")
    measure(notebook, pane, "Measure controls")
    frame = notebook.value("inspector.controls()[['name', 'accuracy', 'low', 'high']].to_numpy().tolist()")
    rows = pane.locator(".wb-controlstable tbody tr")
    for place, (name, *values) in enumerate(frame):
        assert rows.nth(place).locator("td").all_inner_texts()[:4] == [name, *shown(values)]


# Lens, band, cost --------------------------------------------------------------------------------------------------


def test_a_lens_is_fitted_with_progress_and_stands_beside_its_baseline(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[0])
    pane.get_by_role("button", name="Fit Jacobian lens").click()
    expect(window.locator(".wb-busy progress")).to_be_visible()
    expect(window.get_by_role("button", name="Stop", exact=True)).to_be_focused()
    notebook.page.keyboard.press("x")
    expect(window.locator(".wb-busy")).to_be_hidden(timeout=10_000)
    expect(window.get_by_role("tab", name=TABS[0])).to_be_focused()
    assert notebook.value("inspector.subject.jacobian is None")
    notebook.ask("inspector.subject.rows = inspector.subject.rows[:4]")
    measure(notebook, pane, "Fit Jacobian lens")
    sources = pane.locator(".wb-chain tbody tr.wb-first th").all_inner_texts()
    assert sources[:4] == ["logit lens 1", "Jacobian lens 1", "shuffled Jacobian lens 1", "answer now 1"]
    pane.get_by_label("Lens of the charts").select_option("1")
    values = notebook.value("inspector.concepts('Jacobian lens').to_numpy().tolist()")
    assert [row[1:] for row in numbers(pane, "Steps by concepts, Jacobian lens")] == [shown(line) for line in values]
    pane.get_by_label("Lens of the charts").select_option("0")


def test_the_band_chooser_warns_where_the_answer_is_not_readable(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[4])
    measure(notebook, pane, "Read every layer")
    layers = notebook.value("inspector.layers().astype(object).where(lambda f: f.notna(), None).to_numpy().tolist()")
    assert numbers(pane, "Where a band may end") == [shown(line) for line in layers]
    gradients = notebook.value("inspector.gradients().gradient.tolist()")
    assert [row[1] for row in numbers(pane, "Gradient of the answer")] == shown(gradients)
    expect(pane.locator(".wb-verdict")).to_contain_text("✓ By the logit lens")
    last = pane.get_by_label("ends before")
    last.press("ArrowLeft")
    expect(pane.locator(".wb-verdict")).to_contain_text(notebook.value("inspector.band_warning(1, 2)"))
    last.press("ArrowLeft")
    expect(pane.locator(".wb-verdict")).to_contain_text("A band needs at least one layer")
    last.press("End")
    expect(pane.locator(".wb-verdict")).to_contain_text("✓")


def test_the_check_button_compares_with_the_slow_scan(notebook: Notebook, window: Locator) -> None:
    pane = tab(window, TABS[5])
    expect(pane.locator(".wb-verdict")).to_contain_text("Not compared")
    measure(notebook, pane, "Check against the slow scan")
    values = notebook.value("inspector.cost().value.tolist()")
    assert pane.locator(".wb-costs tbody td:nth-child(2)").all_inner_texts() == shown(values)
    expect(pane.locator(".wb-verdict")).to_contain_text("✓ Compared")


# The window as a whole ------------------------------------------------------------------------------------------------


def test_tabs_are_reached_and_turned_by_keys(notebook: Notebook, window: Locator) -> None:
    tab(window, TABS[0])
    first = window.get_by_role("tab", name=TABS[0])
    first.press("ArrowRight")
    expect(window.get_by_role("tab", name=TABS[1])).to_be_focused()
    expect(window.get_by_role("tabpanel", name=TABS[1])).to_be_visible()
    window.get_by_role("tab", name=TABS[1]).press("End")
    expect(window.get_by_role("tabpanel", name=TABS[5])).to_be_visible()
    window.get_by_role("tab", name=TABS[5]).press("Home")
    first.press("?")
    expect(window.locator(".wb-keys")).to_be_visible()
    window.locator(".wb-keys").press("Escape")
    reached = []
    first.focus()
    for _ in range(9):
        notebook.page.keyboard.press("Tab")
        reached.append(
            notebook.page.evaluate(
                "() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
            )
        )
    for part in ("Lens of the charts", "Chain of states; left and right choose a state", "Tokens", "Show as table"):
        assert part in reached, reached


def test_the_copied_code_gives_the_same_numbers(notebook: Notebook, window: Locator) -> None:
    tab(window, TABS[1])
    window.get_by_role("button", name="Copy as code").click()
    code = window.locator(".wb-code").inner_text()
    assert "CarryInspector(model, trace)" in code
    notebook.ask(
        f"scope = dict(model=model, trace=trace)\nexec({code!r}, scope)\n"
        "assert scope['inspector'].dynamics().equals(inspector.dynamics())\nscope['inspector'].close()"
    )
    window.get_by_role("button", name="Close").click()


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_are_readable_and_accessible(notebook: Notebook, window: Locator, theme: str) -> None:
    notebook.theme(theme)
    for place, name in enumerate(TABS):
        pane = tab(window, name)
        notebook.page.wait_for_timeout(300)
        assert accessibility_faults(pane) == [], name  # what is around it is looked at below
        notebook.screenshot(f"carry-{place}-{theme}", window)
    tab(window, TABS[0])
    window.locator(".wb-chainbox").press("?")
    window.get_by_role("button", name="Copy as code").click()
    notebook.ask("inspector.report('an error for the test')")
    expect(window.locator(".wb-error")).to_be_visible()
    assert accessibility_faults(window) == []
    notebook.ask("inspector.error = ''")
    window.get_by_role("button", name="Close").click()
    window.locator(".wb-chainbox").press("?")
    looped = notebook.window("carry", 1)
    assert accessibility_faults(looped) == []


def test_two_views_of_one_window_have_cursors_of_their_own_and_the_same_findings(
    notebook: Notebook, window: Locator
) -> None:
    second = notebook.window("carry", 2)
    tab(window, TABS[0]).locator(".wb-chainbox").press("Home")
    tab(second, TABS[0]).locator(".wb-chainbox").press("End")
    expect(window.locator(".wb-matrix tr.wb-on th").first).to_have_text("s_0")
    notebook.ask("inspector.effects('zero')")
    expect(card(tab(second, TABS[3]), "Handed on")).to_contain_text("zeros")
