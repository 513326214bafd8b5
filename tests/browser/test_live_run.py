"""LiveRun as a person uses it: run, hold, step, act by hand, stop, branch, compare."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from lab_driver import Lab, Notebook
from offline_pages import accessibility_faults
from playwright.sync_api import Locator, expect

pytestmark = [pytest.mark.usefixtures("no_faults"), pytest.mark.slow]

SETUP = """
import torch, workbench
from widgets import LiveRun

torch.set_num_threads(1)
model = workbench.load("tiny-llama", progress=False)
"""
CELLS = [SETUP, "live = LiveRun(model, 'Hello', directions={'ones': torch.ones(32)})\nlive"]


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Iterator[Notebook]:
    with lab.notebook("live", CELLS) as notebook:
        notebook.run_all()
        yield notebook


@pytest.fixture
def window(notebook: Notebook) -> Iterator[Locator]:
    found = notebook.window("live")
    expect(button(found, "Run")).to_be_enabled(timeout=20_000)
    yield found
    notebook.ask("live.stop(); live.wait(20)")
    expect(button(found, "Run")).to_be_enabled(timeout=20_000)


def button(window: Locator, name: str) -> Locator:
    return window.get_by_role("button", name=name, exact=True)


def field(window: Locator, name: str) -> Locator:
    return window.locator(f"input[aria-label='{name}'], textarea[aria-label='{name}']").first


def state(window: Locator, text: str) -> None:
    expect(window.locator(".wb-controls [role=status]")).to_contain_text(text, timeout=20_000)


def run(notebook: Notebook, window: Locator) -> None:
    """Press Run and wait for the end, of the run and of its being shown."""
    before = notebook.value("len(live.runs)")
    button(window, "Run").click()
    notebook.ask("assert live.wait(30)")
    assert notebook.value("len(live.runs)") == before + 1
    expect(window.get_by_label("Shown run", exact=True)).to_have_value(str(before), timeout=20_000)
    state(window, "ended by")


def hold(window: Locator, on: bool = True) -> None:
    window.get_by_label("Hold after each event").set_checked(on)


def test_a_run_shows_its_tokens_and_the_numbers_of_its_trace(notebook: Notebook, window: Locator) -> None:
    hold(window, False)
    window.get_by_label("As", exact=True).select_option("raw")
    field(window, "Prompt").fill("Hello")
    expect(window.locator(".wb-controls")).to_contain_text("5 prompt tokens, at most 64 new")
    field(window, "New tokens").fill("12")
    run(notebook, window)
    frame = notebook.value("live.trace.tokens().text.tolist()")
    assert len(frame) == 12
    expect(window.locator("[role=option].wb-sampled")).to_have_count(12)
    uid = window.locator(".wb-facts div", has_text="uid").locator("dd")
    expect(uid).to_have_text("11")  # the cursor goes with the run, to its last token
    window.locator("[role=option].wb-sampled").nth(3).click()
    p = notebook.value("float(live.trace.tokens().logprob[3])")
    expect(uid).to_have_text("3")
    shown = window.locator(".wb-candidates tr", has_text="chosen").locator("td").nth(2).inner_text()
    assert float(shown) == pytest.approx(2.718281828459045**p, rel=1e-3)


def test_pressing_run_twice_runs_once(notebook: Notebook, window: Locator) -> None:
    before = notebook.value("len(live.runs)")
    hold(window)
    window.evaluate(
        "w => { const b = [...w.querySelectorAll('button')].find(b => b.textContent === 'Run'); b.click(); b.click(); }"
    )
    state(window, "held")
    assert notebook.value("[live.run('again'), len(live.runs)]") == [False, before + 1]
    expect(button(window, "Run")).to_be_disabled()


def test_a_held_run_is_stepped_and_changed_by_hand(notebook: Notebook, window: Locator) -> None:
    hold(window)
    button(window, "Run").click()
    held = window.locator(".wb-held")
    expect(held).to_contain_text("Held after Prefilled")
    button(window, "Step").click()
    expect(held).to_contain_text("Held after ForwardPass · step 1")
    expect(held.locator("tbody tr")).to_have_count(8)
    notebook.screenshot("live-held", window)
    assert accessibility_faults(window) == []
    first = held.get_by_role("button", name="Force ").first
    name = (first.get_attribute("aria-label") or "").removeprefix("Force ")
    first.click()
    expect(held).to_contain_text("Held after Added")
    field(window, "Text").fill("xyz")
    button(window, "Force").click()
    expect(window.locator("[role=option].wb-forced")).to_have_count(4)
    field(window, "Take back").fill("2")
    field(window, "Text").fill("Q")
    button(window, "Backtrack").click()
    expect(window.locator(".wb-row.wb-gone .wb-t")).to_have_count(2)
    button(window, "Go on").click()
    state(window, "ended by")
    tokens = notebook.value(
        "live.trace.tokens()[['text', 'origin', 'visible', 'added_by']].astype(object).values.tolist()"
    )
    by_hand = [[text, origin, visible] for text, origin, visible, by in tokens if by == "hand"]
    assert [text for text, *_ in by_hand][1:] == ["x", "y", "z", "Q"]
    assert by_hand[2:] == [["y", "forced", False], ["z", "forced", False], ["Q", "reinjected", True]]
    assert name == window.locator("[role=option].wb-forced").first.inner_text()


def test_a_ban_and_steering_by_hand_are_in_the_trace(notebook: Notebook, window: Locator) -> None:
    hold(window)
    button(window, "Run").click()
    button(window, "Step").click()
    held = window.locator(".wb-held")
    expect(held).to_contain_text("ForwardPass")
    held.get_by_role("button", name="Ban ").first.click()
    field(window, "Scale").fill("3")
    button(window, "Steer").click()
    button(window, "Go on").click()
    state(window, "ended by")
    actions = notebook.value("live.trace.frame().query(\"kind == 'action'\").action.tolist()")
    assert "steer" in actions
    assert "adjust_logits" in actions
    removed = notebook.value("[r.data['removed_mass'] for r in live.trace.records if 'removed_mass' in r.data]")
    assert removed
    assert max(removed) > 0


def test_stop_ends_a_long_run_within_one_token_and_keeps_what_there_is(notebook: Notebook, window: Locator) -> None:
    hold(window, False)
    field(window, "New tokens").fill("240")
    button(window, "Run").click()
    expect(window.locator("[role=option].wb-sampled").first).to_be_visible()
    pressed = time.monotonic()
    button(window, "Stop").click()
    button(window, "Stop").click(force=True, no_wait_after=True)
    state(window, "ended by interrupted")
    assert time.monotonic() - pressed < 5
    kept = notebook.value("[live.runs[-1].result.reason, len(live.runs[-1].result.tokens)]")
    assert kept[0] == "interrupted"
    assert 0 < kept[1] < 240
    field(window, "New tokens").fill("12")


def test_space_holds_and_goes_on_and_x_stops_from_the_keyboard(window: Locator) -> None:
    hold(window, False)
    field(window, "New tokens").fill("240")
    field(window, "Prompt").press("Control+Enter")
    strip = window.locator("[role=listbox]").first
    strip.press("Space")
    state(window, "held")
    strip.press("s")
    expect(window.locator(".wb-held")).to_be_visible()
    strip.press("Space")
    strip.press("x")
    state(window, "ended by interrupted")
    field(window, "New tokens").fill("12")


def test_letters_typed_into_the_prompt_are_letters(notebook: Notebook, window: Locator) -> None:
    cells = notebook.page.locator(".jp-Notebook .jp-Cell").count()
    prompt = field(window, "Prompt")
    prompt.fill("")
    prompt.press_sequentially("xbs?dd ")
    prompt.press("Control+Backspace")
    prompt.press("Enter")
    assert prompt.input_value().startswith("xbs?")
    assert notebook.page.locator(".jp-Notebook .jp-Cell").count() == cells
    expect(window.locator(".wb-keys")).to_be_hidden()
    prompt.fill("Hello")


def test_a_branch_shares_the_tokens_before_it_and_is_compared(notebook: Notebook, window: Locator) -> None:
    hold(window, False)
    run(notebook, window)
    window.locator("[role=option].wb-sampled").nth(4).click()
    field(window, "then").fill("!")
    button(window, "Branch here").click()
    expect(window.get_by_label("Shown run", exact=True).locator("option:checked")).to_contain_text("branch of run")
    state(window, "ended by")
    one, two = notebook.value("[list(run.result.tokens) for run in live.runs[-2:]]")
    assert one[:5] == two[:5]
    assert one[5:] != two[5:]
    runs = notebook.value("len(live.runs)")
    window.get_by_label("Compare with", exact=True).select_option(str(runs - 2))
    expect(window.locator(".wb-parted")).to_have_count(2)
    expect(window).to_contain_text("The outputs part at position")
    notebook.screenshot("live-branch", window)
    window.get_by_label("Compare with", exact=True).select_option("")
    expect(window.locator(".wb-parted")).to_have_count(0)
    window.get_by_label("Compare with", exact=True).select_option(str(runs - 2))
    expect(window.locator(".wb-parted")).to_have_count(2)
    run(notebook, window)
    expect(window.locator(".wb-parted")).to_have_count(0)


def test_a_field_that_was_emptied_is_named_and_what_the_engine_warns_of_is_a_row(
    notebook: Notebook, window: Locator
) -> None:
    field(window, "Temperature").fill("")
    button(window, "Run").click()
    expect(window.locator(".wb-error")).to_contain_text("the field 'temperature' is empty; type a number")
    field(window, "Temperature").fill("1")
    notebook.ask(
        "@workbench.mod\ndef in_vain(event, actions, tokenizer):\n"
        "    if isinstance(event, workbench.Prefilled): return actions.edit('blocks.1.hook_resid_post', lambda v: v)\n"
        "live.run('Hello', max_new_tokens=3, mods=[in_vain]); assert live.wait(30)"
    )
    expect(window.locator(".wb-notices:not(.wb-silent)")).to_contain_text("blocks.1.hook_resid_post changed nothing")
    assert notebook.page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    run(notebook, window)
    expect(window.locator(".wb-notices:not(.wb-silent)")).to_be_hidden()


def test_a_mod_is_picked_and_a_bad_one_is_an_error_row(notebook: Notebook, window: Locator) -> None:
    window.get_by_label("Add mod", exact=True).select_option("ban_tokens")
    field(window, "with").fill('{"tokens": [70], "wrods": []}')
    button(window, "Add").click()
    button(window, "Run").click()
    expect(window.locator(".wb-error")).to_contain_text("Did you mean 'words'")
    window.get_by_role("button", name="Dismiss").click()
    window.get_by_role("button", name="Remove ban_tokens").click()
    field(window, "with").fill('{"tokens": [70]}')
    button(window, "Add").click()
    hold(window, False)
    run(notebook, window)
    assert notebook.value("[mod['name'] for mod in live.trace.run['requests']['r0']['mods']]") == ["hand", "ban_tokens"]
    window.get_by_role("button", name="Remove ban_tokens").click()


def test_few_messages_of_small_size_reach_the_browser(notebook: Notebook, window: Locator) -> None:
    notebook.ask(
        "import time\nsent = []\nreal = live.send\n"
        "live.send = lambda content, buffers=None: (sent.append((time.monotonic(), sum(map(len, buffers or [])) + "
        "len(str(content)))), real(content, buffers))[1]\n"
        "live.run('Hello', max_new_tokens=230, seed=3); live.wait(60); time.sleep(0.5); del live.send"
    )
    times, sizes = notebook.value("[[t for t, _ in sent], [s for _, s in sent]]")
    assert len(times) > 1
    assert max(sizes) < 256_000
    for first in times:
        assert sum(first <= other < first + 0.999 for other in times) <= 10


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_are_readable_and_accessible(notebook: Notebook, window: Locator, theme: str) -> None:
    notebook.theme(theme)
    window.locator("[role=listbox]").first.press("Home")
    window.locator("[role=listbox]").first.press("?")
    assert accessibility_faults(window) == []
    notebook.screenshot(f"live-{theme}", window)
    window.locator("[role=listbox]").first.press("?")


LATE = """
from widgets.reading import page
reading = live._reading(live._run_shown())
found = page(reading, 3)
numbers = found.pop("numbers")
live.tell("progress", {**live.progress(), "shown": 999, "page": found}, [numbers])
"""


def test_a_page_that_begins_after_what_the_view_has_is_asked_for_from_the_start(
    notebook: Notebook, window: Locator
) -> None:
    """A message that was under way when the view opened: the view has nothing of what came before it."""
    hold(window, False)
    field(window, "New tokens").fill("8")
    run(notebook, window)
    options = window.locator(".wb-strip [role=option]")
    before = options.all_inner_texts()
    notebook.ask(LATE)
    expect(window.get_by_label("Shown run", exact=True)).to_have_value(str(notebook.value("len(live.runs) - 1")))
    strip = window.locator(".wb-strip").first
    strip.evaluate("element => { element.style.width = '60%'; }")  # has it drawn anew
    notebook.page.wait_for_timeout(500)
    expect(options).to_have_count(len(before), timeout=20_000)
    assert options.all_inner_texts() == before
    strip.evaluate("element => { element.style.width = ''; }")
