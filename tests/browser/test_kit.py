"""What holds for every window in a notebook: the form that stays when the kernel is gone, static display, no leaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_driver import Lab, Notebook
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

SETUP = """
import gc, weakref
import torch, workbench, widgets
from ipywidgets.widgets.widget import _instances
from widgets import LiveRun, ResidualView, TraceExplorer

torch.set_num_threads(1)
model = workbench.load("tiny-llama", progress=False)
capture = "blocks.*.hook_resid_post"
trace = workbench.Session(model, capture=capture).generate("Say it.", max_new_tokens=8, seed=1).trace
before = len(_instances)
"""
CELLS = [SETUP, "TraceExplorer(trace, model)", "ResidualView(model, 'Say it.')", "LiveRun(model)"]


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Iterator[Notebook]:
    with lab.notebook("kit", CELLS) as notebook:
        notebook.run_all()
        yield notebook


@pytest.mark.usefixtures("no_faults")
def test_a_live_window_hides_its_html_form(notebook: Notebook) -> None:
    for kind in ("explorer", "residual", "live"):
        notebook.window(kind)
    forms = notebook.page.locator(".wb-fallback")
    expect(forms).to_have_count(3)
    for number in range(3):
        expect(forms.nth(number)).to_be_hidden()


SHOW = """
from IPython.display import display

made = [lambda: TraceExplorer(trace, model), lambda: ResidualView(model, "a"), lambda: LiveRun(model)]
kept = [make() for make in made for _ in range(3)]
for window in kept: display(window)
"""
CLOSE = """
refs = [weakref.ref(window) for window in kept]
for window in kept: window.close()
del window, kept
gc.collect()
print(sum(ref() is not None for ref in refs), len(_instances) - before)
"""


@pytest.mark.usefixtures("no_faults")
def test_fifty_windows_opened_and_closed_leave_nothing_alive(notebook: Notebook) -> None:
    """Neither in the kernel nor in the page: no view, no model, no listener. Nine at a time, six times."""
    shown = notebook.page.locator(".jp-NotebookPanel .wb")
    for kind in ("explorer", "residual", "live"):
        notebook.window(kind)
    listeners = []
    for _ in range(6):
        notebook.run_cell(SHOW)
        expect(shown).to_have_count(3 + 9, timeout=60_000)
        # The three of the notebook's own cells have a layout each.
        assert notebook.ask(CLOSE) == "0 6"
        expect(shown).to_have_count(3, timeout=60_000)
        notebook.run_cell("pass")
        listeners.append(notebook.listeners())
    # The first round loads what is loaded once; each of the 45 windows after it has more than ten listeners.
    assert listeners[-1] - listeners[0] < 100


def test_static_windows_are_plain_html(notebook: Notebook) -> None:
    notebook.run_cell("widgets.display(static=True)\nTraceExplorer(trace, model)")
    output = notebook.page.locator(".jp-Cell").last.locator(".jp-OutputArea-output")
    expect(output.locator("table")).to_be_visible()
    expect(output.locator("table")).to_contain_text("sampled")
    assert notebook.page.locator(".jp-Cell").last.locator(".wb").count() == 0
    notebook.ask("widgets.display(static=None)")


def test_a_saved_notebook_shows_the_forms_when_its_kernel_is_gone(notebook: Notebook, lab: Lab) -> None:
    notebook.run_cell("pass")
    notebook.save()
    assert notebook.path.stat().st_size < 1_000_000
    lab.stop_kernels()
    notebook.faults()
    notebook.open(kernel=False)
    forms = notebook.page.locator(".wb-fallback")
    expect(forms).to_have_count(3, timeout=60_000)
    notebook.page.wait_for_timeout(2000)
    for number, text in enumerate(("Tokens in order", "Logit lens at position", "nothing was run")):
        expect(forms.nth(number)).to_be_visible()
        expect(forms.nth(number)).to_contain_text(text)
    for message in ("Error displaying widget", "Loading widget"):
        for found in notebook.page.get_by_text(message).all():
            expect(found).to_be_hidden()
    notebook.screenshot("reopened")
    # JupyterLab's own complaint about the missing model is the only one.
    faults = notebook.faults()
    assert [fault for fault in faults if "model not found" not in fault and "widget model" not in fault] == []
