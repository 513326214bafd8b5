"""TraceExplorer as a person uses it: in JupyterLab, by mouse and by keyboard, in both themes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_driver import Lab, Notebook, shown
from offline_pages import accessibility_faults
from playwright.sync_api import Locator, expect

pytestmark = [pytest.mark.usefixtures("no_faults"), pytest.mark.slow]

TESTS = Path(__file__).parents[1]
HOSTILE = '<img src=x onerror=\\"window.pwned=1\\"><script>window.pwned=1</script>'
SETUP = f"""
import sys
import torch, workbench
from workbench.mods import ban_tokens
from widgets import TraceExplorer
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / "widgets")!r}]
from eventful_mods import having_second_thoughts
from long_traces import long_trace

torch.set_num_threads(1)
model = workbench.load("tiny-llama", progress=False)

second_thoughts = having_second_thoughts("<b>", "😀\\n{HOSTILE}")
capture = ["blocks.*.hook_resid_post", "blocks.1.attn.hook_pattern"]
session = workbench.Session(model, [second_thoughts, ban_tokens(tokens=list(range(40, 90)))], capture=capture)
trace = session.generate("Say <i>it</i>.", max_new_tokens=110, seed=4).trace
other = session.generate("Say <i>it</i>.", max_new_tokens=110, seed=5).trace
long = long_trace()
"""
CELLS = [
    SETUP,
    "explorer = TraceExplorer(trace, model, directions={'ones': torch.ones(32)})\nexplorer",
    "both = TraceExplorer(trace, model, compare=other)\nboth",
    "explorer",
    "asked = TraceExplorer(trace, model)\nasked.select(9)\nasked",
    "far = TraceExplorer(long)\nfar.select(int(far.frame().uid.iloc[-1]))\nfar",
]


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Iterator[Notebook]:
    with lab.notebook("explorer", CELLS) as notebook:
        notebook.run_all()
        yield notebook


@pytest.fixture
def window(notebook: Notebook) -> Locator:
    found = notebook.window("explorer")
    expect(found.locator("[role=option]").first).to_be_visible()
    return found


def to(window: Locator, uid: int) -> None:
    """Move to a token by keyboard, and wait for its details."""
    strip = window.locator("[role=listbox]").first
    strip.focus()
    strip.press("Home")
    prompt = len(window.locator("[role=option].wb-prompt").all())
    options = window.locator(f'[role=option][aria-label^="token {uid} \'"]')
    if options.count() == 0:
        strip.press("End")
    options.click()
    assert prompt
    expect(window.locator(".wb-facts div", has_text="uid").locator("dd")).to_have_text(str(uid))


def column(window: Locator, card: str, number: int) -> list[str]:
    return window.locator(f".{card} tbody tr :is(td, th):nth-child({number})").all_inner_texts()


def test_the_first_picture_needs_no_click(window: Locator) -> None:
    expect(window.locator("[aria-selected=true]")).to_have_count(1)
    expect(window.locator(".wb-layers tbody tr")).to_have_count(3)
    expect(window.locator(".wb-events li").first).to_contain_text("forward pass")


@pytest.mark.parametrize("uid", [0, 2, 5, 95])
def test_the_numbers_in_the_window_are_those_of_the_python_call(notebook: Notebook, window: Locator, uid: int) -> None:
    """Tokens that were drawn, taken back, forced, and drawn under a mask."""
    to(window, uid)
    frame = notebook.value(
        f"explorer.candidates({uid}).astype(object).where(lambda f: f.notna(), None).to_dict('list')"
    )
    assert column(window, "wb-candidates", 2) == shown(frame["model_probability"])
    assert column(window, "wb-candidates", 3) == shown(frame["probability"])
    layers = notebook.value(f"explorer.layers({uid}).to_dict('list')")
    for place, name in enumerate(("layer", "norm", "rank", "probability", "cosine ones"), start=1):
        assert column(window, "wb-layers", place) == shown(layers[name][::-1]), name
    chances = window.locator(".wb-layers tbody tr").first.locator("small").all_inner_texts()
    assert chances == shown([layers[f"p_{place}"][-1] for place in range(1, 6)])
    weights = notebook.value(f"sorted(explorer.attention({uid}, 1, 0).weight, reverse=True)[:12]")
    assert column(window, "wb-attended", 3) == shown(weights)
    steps = notebook.value(f"[int(s) for s in explorer.events({uid}).step]")
    assert window.locator(".wb-events .wb-step").all_inner_texts() == [f"step {step}" for step in steps]


def test_a_mask_is_shown_with_the_mass_that_it_took(notebook: Notebook, window: Locator) -> None:
    to(window, 95)
    removed = notebook.value("explorer.removed_mass(95)")
    assert removed > 0
    expect(window.locator(".wb-removed .wb-bar")).to_have_text(f"{removed:.4g}")


def test_tokens_that_were_taken_back_are_struck_through_and_say_by_whom(notebook: Notebook, window: Locator) -> None:
    gone = window.locator(".wb-row.wb-gone")
    expect(gone).to_contain_text("3 tokens taken back by second_thoughts at step 4")
    line = gone.locator(".wb-t").first.evaluate("e => getComputedStyle(e).textDecorationLine")
    assert line == "line-through"
    to(window, 2)
    expect(window.locator(".wb-facts")).to_contain_text("taken back")
    expect(window.locator(".wb-events")).to_contain_text("backtrack")
    notebook.screenshot("explorer-taken-back", window)


def test_hostile_text_is_text_and_a_split_emoji_shows_bytes_and_glyph(notebook: Notebook, window: Locator) -> None:
    assert window.locator("img, script").count() == 0
    assert notebook.page.evaluate("() => window.pwned") is None
    labels = [label.replace("\n", "") for label in window.locator(".wb-forced").all_inner_texts()]
    assert labels[:5] == ["F0", "9F", "98", "80😀", "↵"]
    assert "".join(labels[5:16]) == "<img·src=x·"
    assert window.locator(".wb-glyph", has_text="😀").count() == 1


def test_keys_move_the_cursor_and_the_layer(window: Locator) -> None:
    to(window, 0)
    strip = window.locator("[role=listbox]")
    strip.press("ArrowRight")
    expect(window.locator(".wb-facts div", has_text="uid").locator("dd")).to_have_text("1")
    expect(window.locator(".wb-spoken")).to_contain_text("token 1 '")
    assert strip.get_attribute("aria-activedescendant") == window.locator("[aria-selected=true]").get_attribute("id")
    strip.press("ArrowDown")
    expect(window.locator(".wb-layers tr.wb-here th")).to_have_text("1")
    expect(window.locator(".wb-spoken")).to_contain_text("layer 1, norm")
    strip.press("ArrowUp")
    strip.press("ArrowUp")
    expect(window.locator(".wb-layers tr.wb-here th")).to_have_text("2")
    strip.press("End")
    expect(window.locator(".wb-facts div", has_text="uid").locator("dd")).to_have_text(
        window.locator("[role=option]").last.get_attribute("aria-label").split()[1]  # type: ignore[union-attr]
    )
    strip.press("Home")
    expect(window.locator(".wb-facts")).to_contain_text("prompt")


def test_everything_is_reached_by_the_tab_key_alone(notebook: Notebook, window: Locator) -> None:
    window.locator(".wb-tabletoggle").focus()
    reached = []
    for _ in range(14):
        reached.append(notebook.page.evaluate(_FOCUSED))
        notebook.page.keyboard.press("Tab")
    text = " | ".join(reached)
    for part in (
        "Tokens as table",
        "Copy as code",
        "List the keys",
        "Previous match",
        "Tokens, tiny-llama",
        "Show as table",
    ):
        assert part in text, text


def test_a_question_mark_lists_the_keys(window: Locator) -> None:
    strip = window.locator("[role=listbox]")
    strip.press("?")
    expect(window.locator(".wb-keys")).to_be_visible()
    expect(window.locator(".wb-keys")).to_contain_text("Home, End")
    window.locator(".wb-keys").press("Escape")
    expect(window.locator(".wb-keys")).to_be_hidden()


def test_filters_dim_the_others_and_n_jumps_to_the_next_match(notebook: Notebook, window: Locator) -> None:
    frame = notebook.value("explorer.frame().origin.tolist()")
    window.get_by_label("Origin", exact=True).select_option("forced")
    expect(window.locator(".wb-count")).to_have_text(f"{frame.count('forced')} of {len(frame)} tokens")
    strip = window.locator("[role=listbox]")
    strip.press("Home")
    strip.press("n")
    expect(window.locator("[aria-selected=true]")).to_have_class("wb-t wb-k5 wb-forced")
    assert window.locator(".wb-dim").count() == window.locator("[role=option]:not(.wb-forced)").count()
    window.get_by_label("Origin", exact=True).select_option("")
    window.get_by_label("Action", exact=True).select_option("backtrack")
    expect(window.locator(".wb-count")).not_to_have_text(f"{len(frame)} of {len(frame)} tokens")
    window.get_by_label("Action", exact=True).select_option("")
    expect(window.locator(".wb-dim")).to_have_count(0)


@pytest.mark.parametrize("colour", ["entropy", "origin", "mod", "probability"])
def test_each_colouring_has_a_legend_in_words(window: Locator, colour: str) -> None:
    window.get_by_label("Colour by", exact=True).select_option(colour)
    words = {"entropy": "nats", "origin": "reinjected", "mod": "second_thoughts", "probability": "below 0.01"}
    expect(window.locator(".wb-legend").first).to_contain_text(words[colour])


def test_the_table_of_tokens_is_the_frame(notebook: Notebook, window: Locator) -> None:
    window.locator(".wb-tabletoggle").click()
    frame = notebook.value("explorer.frame()[:100].astype(object).where(lambda f: f.notna(), None).to_dict('list')")
    window.locator("[role=listbox]").press("Home")
    expect(window.locator(".wb-itemstable tbody tr")).to_have_count(100)
    assert column(window, "wb-itemstable", 1) == [str(uid) for uid in frame["uid"]]
    assert column(window, "wb-itemstable", 4) == frame["origin"]
    assert column(window, "wb-itemstable", 8) == shown(frame["model_probability"])
    window.get_by_role("button", name="Later").click()
    expect(window.locator(".wb-itemstable")).to_contain_text("Tokens 101 to")
    window.locator(".wb-tabletoggle").click()


def test_the_norms_can_be_read_as_a_table(notebook: Notebook, window: Locator) -> None:
    to(window, 1)
    window.get_by_role("button", name="Show as table").click()
    norms = notebook.value("explorer.norms().query('uid == 1').norm.tolist()")
    table = window.locator("section", has_text="Residual norm of every token").locator("table")
    heads = table.locator("thead th").all_inner_texts()
    assert table.locator(f"tbody td:nth-child({heads.index('1') + 1})").all_inner_texts() == shown(norms[::-1])
    window.get_by_role("button", name="Show as table").click()


def test_the_copied_code_gives_the_same_numbers(notebook: Notebook, window: Locator) -> None:
    to(window, 5)
    window.get_by_role("button", name="Copy as code").click()
    code = window.locator(".wb-code").inner_text()
    assert "TraceExplorer(trace, model=model, request_id='r0')" in code
    notebook.ask(
        f"scope = dict(trace=trace, model=model)\nexec({code!r}, scope)\n"
        "assert scope['explorer'].candidates(5).equals(explorer.candidates(5))"
    )
    window.get_by_role("button", name="Close").click()


def test_python_moves_the_cursor(notebook: Notebook, window: Locator) -> None:
    notebook.ask("explorer.select(7)")
    expect(window.locator("[aria-selected=true]")).to_have_attribute(
        "data-item", notebook.value("str(explorer.frame().uid.tolist().index(7))")
    )


def test_a_cursor_that_was_moved_before_the_window_opened_is_there(notebook: Notebook) -> None:
    asked, far = notebook.window("explorer", 3), notebook.window("explorer", 4)
    uid = asked.locator(".wb-facts div", has_text="uid").locator("dd")
    expect(uid).to_have_text("9")
    expect(asked.locator("[aria-selected=true]")).to_have_attribute("aria-label", re.compile("^token 9 "))
    last = notebook.value("str(int(far.frame().uid.iloc[-1]))")
    expect(far.locator("[aria-selected=true]")).to_have_attribute("aria-label", re.compile(f"^token {last} "))


def test_two_views_of_one_window_have_cursors_of_their_own(notebook: Notebook, window: Locator) -> None:
    second = notebook.window("explorer", 2)
    to(window, 1)
    to(second, 0)
    expect(window.locator("[aria-selected=true]")).to_have_attribute(
        "aria-label", window.locator('[aria-label^="token 1 \'"]').get_attribute("aria-label") or "?"
    )


def test_two_traces_stand_aligned_at_their_first_difference(notebook: Notebook) -> None:
    window = notebook.window("explorer", 1)
    frame = notebook.value("both.differences().head(20).astype(object).to_dict('list')")
    parting = frame["same"].index(False)
    expect(window.locator(".wb-parting")).to_contain_text(f"The outputs part at position {parting}")
    expect(window.locator(".wb-parted")).to_have_count(2)
    window.locator("[role=listbox]").first.press("d")
    expect(window.locator(".wb-facts div", has_text="position").first.locator("dd")).to_have_text(str(parting))
    window.locator("[role=listbox]").nth(1).locator("[role=option].wb-sampled").nth(1).click()
    expect(window.locator(".wb-facts div", has_text="uid").locator("dd")).to_have_text("1")
    notebook.screenshot("explorer-two-traces", window)


def test_an_error_is_a_row_that_goes_away_when_dismissed(notebook: Notebook, window: Locator) -> None:
    notebook.ask("kept = explorer.answers['detail']\nexplorer.answers['detail'] = lambda content: 1 / 0")
    window.locator("[role=listbox]").press("Home")
    expect(window.locator(".wb-error")).to_contain_text("ZeroDivisionError: division by zero")
    notebook.ask("explorer.answers['detail'] = kept")
    window.get_by_role("button", name="Dismiss").click()
    expect(window.locator(".wb-error")).to_be_hidden()
    assert notebook.value("explorer.error") == ""
    to(window, 1)


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_are_readable_and_every_part_is_accessible(notebook: Notebook, theme: str) -> None:
    notebook.theme(theme)
    window, both = notebook.window("explorer"), notebook.window("explorer", 1)
    to(window, 5)
    for colour in ("entropy", "mod", "origin", "probability"):
        window.get_by_label("Colour by", exact=True).select_option(colour)
        assert accessibility_faults(window.locator(".wb-strip")) == [], colour
    notebook.screenshot(f"explorer-{theme}", window)
    window.get_by_label("Origin", exact=True).select_option("forced")
    window.locator(".wb-tabletoggle").click()
    window.locator("[role=listbox]").press("?")
    window.get_by_role("button", name="Copy as code").click()
    notebook.ask("explorer.report('an error for the test')")
    expect(window.locator(".wb-error")).to_be_visible()
    assert accessibility_faults(window) == []
    assert accessibility_faults(both) == []
    notebook.ask("explorer.error = ''")
    window.get_by_role("button", name="Close").click()
    window.locator("[role=listbox]").press("?")
    window.locator(".wb-tabletoggle").click()
    window.get_by_label("Origin", exact=True).select_option("")


def test_a_trace_of_4096_tokens_and_32_layers_opens_at_once_and_scrolls(notebook: Notebook) -> None:
    """The bound of the specification is 2 s; a shared machine is no stopwatch, so only twice that fails."""
    seconds = notebook.page.evaluate(_OPEN_LONG)
    assert seconds < 4
    window = notebook.window("explorer", 5)
    expect(window.locator(".wb-count")).to_have_text("4099 of 4099 tokens", timeout=20_000)
    frames = window.locator("[role=listbox]").evaluate(_SCROLL)
    assert frames["rows"] < 60
    assert frames["median"] < 50
    notebook.screenshot("explorer-long", window)
    window.locator("[role=listbox]").press("End")
    expect(window.locator(".wb-facts div", has_text="uid").locator("dd")).to_have_text("4095")


_FOCUSED = """() => {
  const { activeElement: element } = document;
  return element.getAttribute('aria-label') || element.textContent.slice(0, 20);
}"""
_OPEN_LONG = """async () => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const panel = jupyterapp.shell.currentWidget.content;
  panel.activeCellIndex = panel.widgets.length - 1;
  await jupyterapp.commands.execute('notebook:insert-cell-below');
  panel.activeCell.model.sharedModel.setSource('TraceExplorer(long)');
  const start = performance.now();
  jupyterapp.commands.execute('notebook:run-cell');
  const cell = panel.activeCell.node;
  while (!cell.querySelector('[aria-selected=true]') || !cell.querySelector('.wb-layers')) {
    if (performance.now() - start > 60000) throw new Error('never drawn');
    await new Promise(requestAnimationFrame);
  }
  return (performance.now() - start) / 1000;
}"""
_SCROLL = """async (strip) => {
  const times = [];
  let rows = 0, last = performance.now();
  for (let i = 0; i < 120; i++) {
    strip.scrollTop += 220;
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - last);
    last = performance.now();
    rows = Math.max(rows, strip.querySelectorAll('.wb-row').length);
  }
  times.sort((a, b) => a - b);
  return { median: times[60], rows };
}"""
