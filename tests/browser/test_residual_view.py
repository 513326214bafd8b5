"""ResidualView as a person uses it: the grid, its modes, the keys, the numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_driver import Lab, Notebook, shown
from offline_pages import accessibility_faults
from playwright.sync_api import Locator, expect

pytestmark = [pytest.mark.usefixtures("no_faults"), pytest.mark.slow]

SETUP = """
import torch, workbench
from widgets import ResidualView

torch.set_num_threads(1)
model = workbench.load("tiny-llama", progress=False)
directions = {"ones": torch.ones(32)}
"""
CELLS = [
    SETUP,
    "view = ResidualView(model, 'A <b>prompt</b> of some\\nlength, with 😀 in it.', directions=directions)\nview",
]


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Iterator[Notebook]:
    with lab.notebook("residuals", CELLS) as notebook:
        notebook.run_all()
        yield notebook


@pytest.fixture
def window(notebook: Notebook) -> Locator:
    found = notebook.window("residual")
    expect(found.locator(".wb-cell.wb-cursor")).to_have_count(1)
    return found


def cell(window: Locator, place: int, layer: int) -> Locator:
    return window.locator(f".wb-cell[data-place='{place}'][data-layer='{layer}']")


def view(window: Locator, mode: str) -> None:
    window.get_by_label("View", exact=True).select_option(mode)


def test_each_cell_says_what_the_python_call_says(notebook: Notebook, window: Locator) -> None:
    grid = window.locator(".wb-gridscroll")
    grid.press("Home")
    frame = notebook.value("view.frame().head(3).astype(object).to_dict('list')")
    window.get_by_label("Cells show", exact=True).select_option("follow")
    assert [cell(window, 0, layer).inner_text() for layer in range(3)] == shown(frame["next_probability"])
    window.get_by_label("Cells show", exact=True).select_option("top")
    titles = [cell(window, 0, layer).get_attribute("title") or "" for layer in range(3)]
    assert [title.rsplit(" ", 1)[1] for title in titles] == shown(frame["p_1"])


@pytest.mark.parametrize(("mode", "call"), [("norm", "norms()"), ("direction ones", "cosines('ones')")])
def test_norms_and_cosines_are_those_of_the_python_call(
    notebook: Notebook, window: Locator, mode: str, call: str
) -> None:
    view(window, mode)
    window.locator(".wb-gridscroll").press("Home")
    values = notebook.value(f"view.{call}.iloc[2].tolist()")
    expect(cell(window, 2, 0)).to_have_text(shown(values)[0])
    assert [cell(window, 2, layer).inner_text() for layer in range(3)] == shown(values)
    view(window, "lens")


def test_the_chosen_position_is_told_layer_by_layer(notebook: Notebook, window: Locator) -> None:
    window.locator(".wb-gridscroll").press("Home")
    window.locator(".wb-gridscroll").press("ArrowRight")
    expect(window.locator(".wb-facts div").first.locator("dd")).to_have_text("1")
    layers = notebook.value("view.lens(1).to_dict('list')")
    rows = window.locator(".wb-layers tbody tr")
    for place, name in enumerate(("layer", "norm", "rank", "probability", "cosine ones"), start=1):
        assert rows.locator(f":is(td, th):nth-child({place})").all_inner_texts() == shown(layers[name][::-1]), name


def test_keys_move_over_positions_and_layers_and_say_where(window: Locator) -> None:
    grid = window.locator(".wb-gridscroll")
    grid.press("Home")
    grid.press("ArrowRight")
    grid.press("ArrowDown")
    expect(window.locator(".wb-spoken")).to_contain_text("position 1 '·', layer 1: '")
    grid.press("End")
    expect(window.locator(".wb-cursor")).to_have_attribute("data-layer", "1")
    cell(window, int(window.locator(".wb-cursor").get_attribute("data-place") or 0) - 2, 0).click()
    expect(window.locator(".wb-cursor")).to_have_attribute("data-layer", "0")
    expect(window.locator(".wb-layers tr.wb-here th").first).to_have_text("0")


def test_attention_shows_a_map_and_what_the_position_looked_at(notebook: Notebook, window: Locator) -> None:
    view(window, "attention")
    expect(window.locator("canvas.wb-map")).to_have_attribute(
        "aria-label", "Attention of layer 0, head 0: 48 by 48 cells, queries down, keys to the right"
    )
    window.get_by_label("Head", exact=True).select_option("2")
    expect(window.locator(".wb-square")).to_contain_text("layer 0, head 2")
    place = notebook.value("len(view.attention(0)) - 1")
    told = window.locator(".wb-square .wb-note").first.inner_text()
    position = int(told.split()[1])
    assert 0 <= position <= place
    weights = notebook.value(f"sorted(view.attention(0, 2).iloc[{position}, :{position + 1}], reverse=True)[:12]")
    assert window.locator(".wb-attended td:nth-child(3)").all_inner_texts() == shown(weights)
    notebook.screenshot("residual-attention", window)
    assert accessibility_faults(window) == []
    view(window, "lens")


def test_hostile_text_is_text(window: Locator) -> None:
    assert window.locator(".wb-gridbody b").count() == 0
    window.locator(".wb-gridscroll").press("Home")
    heads = window.locator(".wb-gridhead").all_inner_texts()
    assert "".join(heads[:11]) == "A·<b>prompt"


def test_the_copied_code_gives_the_same_numbers(notebook: Notebook, window: Locator) -> None:
    window.get_by_role("button", name="Copy as code").click()
    code = window.locator(".wb-code").inner_text()
    position = int(code.rsplit("(", 1)[1].rstrip(")"))
    notebook.ask(
        f"scope = dict(model=model)\nexec({code!r}, scope)\n"
        f"same = view.lens({position}).drop(columns='cosine ones').equals(scope['view'].lens({position}))\nassert same"
    )
    window.get_by_role("button", name="Close").click()


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_are_readable_and_accessible(notebook: Notebook, window: Locator, theme: str) -> None:
    notebook.theme(theme)
    for mode in ("norm", "direction ones", "lens"):
        view(window, mode)
        expect(window.locator(".wb-waiting")).to_have_count(0)
        assert accessibility_faults(window) == [], mode
    notebook.screenshot(f"residual-{theme}", window)
