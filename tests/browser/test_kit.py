"""What holds for every window in a notebook: the form that stays when the kernel is gone, static display, no leaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_driver import Lab, Notebook
from offline_pages import accessibility_faults
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.slow

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
FORMS = {
    "explorer": "Tokens in order",
    "residual": "Logit lens at position",
    "live": "Tokens in order",
    "flow": "Flow ask",
    "carry": "What can be read",
    "mcmc": "Decisions of the run",
}
"""Each kind of window, and words of the form that stands in for it."""
SETUP = f"""
import gc, sys, time, weakref
import torch, workbench, widgets
from IPython.display import display
from ipywidgets.widgets.widget import _instances
sys.path.insert(0, {str(Path(__file__).parents[1] / "widgets")!r})
from window_kinds import KINDS

torch.set_num_threads(1)
shown = {{kind: make("Say it.") for kind, make in KINDS.items() if kind in {tuple(FORMS)!r}}}
before = len(_instances)
"""
CELLS = [SETUP, *(f"shown['{kind}']" for kind in FORMS)]


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Iterator[Notebook]:
    with lab.notebook("kit", CELLS) as notebook:
        notebook.run_all()
        yield notebook


def last_cell(notebook: Notebook) -> Locator:
    return notebook.page.locator(".jp-Notebook .jp-Cell").last


@pytest.mark.usefixtures("no_faults")
def test_a_live_window_hides_its_html_form(notebook: Notebook) -> None:
    for kind in FORMS:
        notebook.window(kind)
    forms = notebook.page.locator(".wb-fallback")
    expect(forms).to_have_count(len(FORMS))
    for number in range(len(FORMS)):
        expect(forms.nth(number)).to_be_hidden()


@pytest.mark.usefixtures("no_faults")
@pytest.mark.parametrize("kind", FORMS)
def test_windows_of_other_kinds_in_the_page_do_not_change_the_looks(notebook: Notebook, kind: str) -> None:
    """All styles of a page hold for all of it; a rule of one kind of window must not reach another kind."""
    window = notebook.window(kind)
    expect(window).to_be_visible()
    found = window.evaluate(_LOOKS_WITHOUT_OTHERS, kind)
    assert found["off"] >= len(FORMS) - 1, "the styles of the other kinds were not found"
    assert found["measured"] > 40
    assert found["changed"] == []


@pytest.mark.usefixtures("no_faults")
@pytest.mark.parametrize("kind", FORMS)
def test_a_warning_is_a_row_in_the_window_until_it_is_dismissed(notebook: Notebook, kind: str) -> None:
    window = notebook.window(kind)
    row = window.locator(".wb-notices:not(.wb-silent)")
    expect(row).to_be_hidden()
    notebook.ask(f"for text in ('<b>first</b>', 'second'): shown['{kind}'].notice(text)")
    expect(row.locator("p")).to_have_text(["<b>first</b>", "second"])
    assert accessibility_faults(window.locator(".wb-notices").first) == []
    row.get_by_role("button", name="Dismiss").click()
    expect(row).to_be_hidden()
    assert notebook.value(f"shown['{kind}'].notices") == []


@pytest.mark.usefixtures("no_faults")
def test_a_view_that_nobody_answers_says_so_after_three_seconds_and_offers_the_form(notebook: Notebook) -> None:
    """As where a page shows a window, but no message gets through. An answer takes it all back."""
    notebook.ask("live = shown['live']; live.on_msg(live._heard, remove=True)")
    notebook.run_cell("live")
    cell = last_cell(notebook)
    window, form = cell.locator(".wb-live"), cell.locator(".wb-fallback")
    silent = window.locator(".wb-silent")
    expect(window).to_be_visible()
    expect(silent).to_be_hidden()
    expect(silent).to_be_visible(timeout=10_000)
    expect(form).to_be_hidden()
    assert accessibility_faults(silent) == []
    silent.get_by_role("button", name="Show the plain form").click()
    expect(form.locator("table")).to_be_visible()
    expect(window).to_be_visible()
    notebook.screenshot("kit-silent", cell)
    notebook.ask("live.on_msg(live._heard); live.tell('pong', {})")
    expect(silent).to_be_hidden()
    expect(form).to_be_hidden()
    notebook.run_cell("pass")


@pytest.mark.usefixtures("no_faults")
def test_a_page_that_knows_no_widgets_shows_the_form(notebook: Notebook) -> None:
    """As a front end without a widget manager: nothing there draws the view."""
    notebook.page.evaluate(_WITHOUT_WIDGETS, WIDGET_VIEW)
    notebook.run_cell("for window in shown.values(): display(window)")
    cell = last_cell(notebook)
    forms = cell.locator(".wb-fallback")
    expect(forms).to_have_count(len(FORMS))
    for number, text in enumerate(FORMS.values()):
        expect(forms.nth(number)).to_be_visible()
        expect(forms.nth(number)).to_contain_text(text)
    assert cell.locator(".wb").count() == 0
    notebook.page.evaluate("() => window.withWidgets()")
    notebook.run_cell("shown['flow']")
    expect(last_cell(notebook).locator(".wb-flow")).to_be_visible()
    notebook.run_cell("pass")


_WITHOUT_WIDGETS = """type => {
  const { rendermime } = jupyterapp.shell.currentWidget.content;
  const factory = rendermime.getFactory(type), rank = rendermime._ranks[type].rank;
  rendermime.removeMimeType(type);
  window.withWidgets = () => rendermime.addFactory(factory, rank);
}"""

SHOW = """
kept = [make("Say it.") for kind, make in KINDS.items() if kind in shown for _ in range(2)]
for window in kept: display(window)
"""
CLOSE = """
refs = [weakref.ref(window) for window in kept]
for window in kept: window.close()
del window, kept
for _ in range(100):  # a thread of a window's that is just ending may hold it for a moment
    gc.collect()
    alive = [type(ref()).__name__ for ref in refs if ref() is not None]
    if not alive:
        break
    time.sleep(0.05)
print(*alive, len(_instances) - before)
"""


@pytest.mark.usefixtures("no_faults")
def test_fifty_windows_opened_and_closed_leave_nothing_alive(notebook: Notebook) -> None:
    """Neither in the kernel nor in the page: no view, no model, no listener. Ten at a time, six times."""
    views = notebook.page.locator(".jp-NotebookPanel .wb")
    for kind in FORMS:
        notebook.window(kind)
    own = int(notebook.ask("gc.collect(); print(len(_instances) - before)"))  # a layout of each that is shown
    listeners = []
    for _ in range(6):
        notebook.run_cell(SHOW)
        expect(views).to_have_count(3 * len(FORMS), timeout=60_000)
        assert notebook.ask(CLOSE) == str(own)
        expect(views).to_have_count(len(FORMS), timeout=60_000)
        notebook.run_cell("pass")
        listeners.append(notebook.listeners())
    # The first round loads what is loaded once; each of the fifty windows after it has more than ten listeners.
    assert listeners[-1] - listeners[0] < 100


def test_static_windows_are_plain_html(notebook: Notebook) -> None:
    notebook.run_cell("widgets.display(static=True)\nfor window in shown.values(): display(window)")
    outputs = last_cell(notebook).locator(".jp-OutputArea-output")
    expect(outputs).to_have_count(len(FORMS))
    for number, text in enumerate(FORMS.values()):
        expect(outputs.nth(number)).to_contain_text(text)
    assert last_cell(notebook).locator(".wb").count() == 0
    notebook.ask("widgets.display(static=None)")


def test_a_saved_notebook_shows_the_forms_when_its_kernel_is_gone(notebook: Notebook, lab: Lab) -> None:
    notebook.run_cell("pass")
    notebook.save()
    assert notebook.path.stat().st_size < 1_000_000
    lab.stop_kernels()
    notebook.faults()
    notebook.open(kernel=False)
    forms = notebook.page.locator(".wb-fallback")
    expect(forms).to_have_count(len(FORMS), timeout=60_000)
    notebook.page.wait_for_timeout(2000)
    for number, text in enumerate(FORMS.values()):
        expect(forms.nth(number)).to_be_visible()
        expect(forms.nth(number)).to_contain_text(text)
    for message in ("Error displaying widget", "Loading widget"):
        for found in notebook.page.get_by_text(message).all():
            expect(found).to_be_hidden()
    notebook.screenshot("reopened")
    # JupyterLab's own complaint about the missing model is the only one.
    faults = notebook.faults()
    assert [fault for fault in faults if "model not found" not in fault and "widget model" not in fault] == []


_LOOKS_WITHOUT_OTHERS = """(root, kind) => {
  const looks = () => {
    const { x: left, y: top } = root.getBoundingClientRect();
    return [...root.querySelectorAll('*')].filter((each) => each.checkVisibility()).map((each) => {
      const { x, y, width, height } = each.getBoundingClientRect(), style = getComputedStyle(each);
      const place = [x - left, y - top, width, height].map((value) => value.toFixed(1));
      return [each.tagName, each.className, ...place, style.color, style.backgroundColor, style.fontWeight].join(' ');
    });
  };
  const others = [...document.styleSheets].filter((sheet) => {
    const text = sheet.ownerNode?.textContent ?? '';
    return text.includes('--wb-paper:') && !text.includes(`.wb-${kind} `);
  });
  const before = looks();
  others.forEach((sheet) => (sheet.disabled = true));
  const after = looks();
  others.forEach((sheet) => (sheet.disabled = false));
  return {
    off: others.length, measured: before.length,
    changed: before.flatMap((each, i) => (each === after[i] ? [] : [`${each} | ${after[i]}`])).slice(0, 10),
  };
}"""
