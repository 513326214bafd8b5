"""MCMCStepper as a person uses it: the timeline, a decision in full, a live chain, what if, branches, both themes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_driver import Lab, Notebook, shown
from offline_pages import accessibility_faults
from playwright.sync_api import Locator, expect

pytestmark = [pytest.mark.usefixtures("no_faults"), pytest.mark.slow]

SETUP = """
import dataclasses
import gc
import tempfile
import weakref
import torch
import workbench
from IPython.display import display
from ipywidgets.widgets.widget import _instances
from widgets import MCMCStepper
from workbench.mcmc import PowerSampler, state_before

torch.set_num_threads(1)
folder = tempfile.mkdtemp()
model = workbench.load("tiny-llama", progress=False)
prompt = "A <b>letter</b>\\n: \U0001f600"
kept = PowerSampler(model, prompt, alpha=2.0, block_size=8, n_mcmc=6, max_tokens=16, chains=2, seed=3,
                    capture="blocks.*.hook_resid_post", save=folder).run()
lively = PowerSampler(model, prompt, alpha=2.0, block_size=6, n_mcmc=4, max_tokens=12, chains=2, seed=5)
rejected = next(d for d in reversed(kept.of(0)) if not d.accepted)
state = state_before(kept, kept.decisions.index(rejected))
first = (dataclasses.replace(kept.texts[0], tokens=state.tokens, scalars=state.scalars),)
accepted = dataclasses.replace(rejected, new_tokens=rejected.old_tokens, accepted=True)
many = dataclasses.replace(
    kept, texts=first, settings=dataclasses.replace(kept.settings, chains=1),
    decisions=tuple(dataclasses.replace((rejected, accepted)[i % 2], block=0, iteration=i + 1) for i in range(2000)),
)
"""
CELLS = [
    SETUP,
    "stepper = MCMCStepper(kept, model, tile=64)\nstepper",
    "live = MCMCStepper(lively, tile=64)\nlive",
    "saved = MCMCStepper(folder)\nsaved",
    "long = MCMCStepper(many, model)\nlong",
    "stepper",
]


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Iterator[Notebook]:
    with lab.notebook("mcmc", CELLS) as notebook:
        notebook.run_all(seconds=400)
        yield notebook


@pytest.fixture
def window(notebook: Notebook) -> Locator:
    found = notebook.window("mcmc")
    expect(found.locator(".wb-headline")).to_be_visible()
    return found


def timeline(window: Locator) -> Locator:
    return window.get_by_role("slider", name="Decisions")


def card(window: Locator, title: str) -> Locator:
    return window.locator("section.wb-card", has=window.page.get_by_role("heading", name=title, exact=True)).first


def go(window: Locator, index: int) -> None:
    """To a decision, and wait until all about it is there."""
    window.get_by_label("Go to decision").fill(str(index))
    window.get_by_label("Go to decision").press("Enter")
    expect(window.locator(".wb-headline")).to_contain_text(f"decision {index} of")


def rows(found: Locator) -> list[list[str]]:
    return [row.locator("th, td").all_inner_texts() for row in found.locator("tbody tr").all()]


def of_kind(notebook: Notebook, kind: str, least: int = 1) -> int:
    frame = notebook.value("stepper.frame()[['kind', 'new']].values.tolist()")
    return next(i for i, (own, count) in enumerate(frame) if own == kind and count >= least)


# A decision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["accepted", "rejected"])
def test_everything_about_a_decision_is_what_the_calls_say(notebook: Notebook, window: Locator, kind: str) -> None:
    index = of_kind(notebook, kind, least=3)
    go(window, index)
    expect(window.locator(".wb-headline")).to_contain_text(kind)
    terms = notebook.value(f"stepper.terms({index}).values.tolist()")
    assert rows(card(window, "Terms of log A")) == [[row[0], *shown(row[1:])] for row in terms]
    verdict = notebook.value(f"stepper.verdict({index})")
    facts = card(window, "u against A").locator(".wb-facts dd").all_inner_texts()
    assert facts == [*shown([verdict[name] for name in ("u", "log_u", "log_a", "margin")]), kind]
    assert verdict["accepted"] == (verdict["log_u"] < verdict["log_a"]) == (kind == "accepted")
    for side, columns in (("old", slice(1, 5)), ("new", slice(5, 9))):
        frame = notebook.value(
            f"stepper.tokens({index}).query('side == \"{side}\"')[['log_p', 'log_q', 'share']].values.tolist()"
        )
        lines = [row[columns] for row in rows(card(window, "Old and new suffix")) if row[columns][0]]
        assert [line[1:] for line in lines] == [shown(row) for row in frame]
    cache = notebook.value(f"stepper.cache({index}).values.tolist()")
    assert rows(card(window, "Keys and values")) == [[name, *shown([count])] for name, count in cache]
    decide = card(window, "Inside the kernel").locator(".wb-facts dd").all_inner_texts()
    for name, place in (("key", 0), ("counter", 1), ("random", 3)):
        assert decide[place] == " ".join(f"{word:08x}" for word in verdict[name])
    programs = notebook.value(f"stepper.programs({index})[['x_tok', 'lse_1', 'lse_tau']].values.tolist()")
    assert [row[4:] for row in rows(window.locator(".wb-programs"))] == [shown(row) for row in programs]


def test_a_program_is_traced_tile_by_tile(notebook: Notebook, window: Locator) -> None:
    index = of_kind(notebook, "rejected", least=3)
    go(window, index)
    for side in ("new", "old"):
        window.locator(f".wb-programs button[data-side={side}][data-row='1']").click()
        expect(window.locator(".wb-tiles")).to_contain_text(f"{side} row 1")
        names = "['rescale_1', 'rescale_tau', 'max', 'sum_1', 'sum_tau']"
        frame = notebook.value(f"stepper.kernel({index}, 1, '{side}')[{names}].values.tolist()")
        assert len(frame) == 5
        assert [row[2:] for row in rows(window.locator(".wb-tilestable"))] == [shown(row) for row in frame]
        about = notebook.value(f"stepper.kernel({index}, 1, '{side}').attrs")
        given = rows(window.locator(".wb-given"))
        assert [row[1] for row in given] == shown([about[name] for name in ("x_tok", "lse_1", "lse_tau")])
        assert [row[2] for row in given] == shown(about["kept"])
        expect(window.locator(".wb-tiles")).to_contain_text("workbench.mcmc.reference, float32 on the CPU")


def test_the_contrast_is_the_runs_own_or_computed_on_demand(notebook: Notebook, window: Locator) -> None:
    for kind, source in (("accepted", "kept by the run"), ("rejected", "computed now")):
        index = of_kind(notebook, kind)
        go(window, index)
        if kind == "rejected":
            card(window, "Residual difference").get_by_role("button", name="Compute now").click()
        expect(card(window, "Residual difference")).to_contain_text(source)
        names = "['difference', 'relative', 'cosine']"
        frame = notebook.value(f"stepper.contrast({index})[{names}].values.tolist()")
        found = [row[4:] for row in rows(window.locator(".wb-contrast"))]
        assert found == [shown(row) for row in reversed(frame)]


def test_the_strip_strikes_out_the_suffix_that_lost_and_shows_text_as_text(notebook: Notebook, window: Locator) -> None:
    index = of_kind(notebook, "rejected", least=2)
    go(window, index)
    strip = window.locator(".wb-strip")
    pivot, new = notebook.value(f"stepper.frame().loc[{index}, ['pivot', 'new']].tolist()")
    expect(strip.locator(".wb-gone").first).to_contain_text("new suffix, rejected")
    assert strip.locator(".wb-gone .wb-t").count() == new
    expect(strip.locator(".wb-parted")).to_have_count(1)
    assert f"old suffix, position {pivot}" in str(strip.locator(".wb-parted").get_attribute("aria-label"))
    strip.press("Home")
    prompt = "".join(strip.locator(".wb-prompt.wb-t").all_inner_texts())
    assert "<b>letter</b>" in prompt
    assert "F0" in prompt
    assert window.locator("b", has_text="letter").count() == 0


# Going through ------------------------------------------------------------------------------------------------------


def test_keys_go_through_the_decisions(notebook: Notebook, window: Locator) -> None:
    kinds = notebook.value("stepper.frame().kind.tolist()")
    line = timeline(window)
    line.press("Home")
    expect(line).to_have_attribute("aria-valuenow", "0")
    for key, kind in (("a", "accepted"), ("r", "rejected"), ("r", "rejected")):
        at = int(str(line.get_attribute("aria-valuenow")))
        line.press(key)
        expect(line).to_have_attribute("aria-valuenow", str(kinds.index(kind, at + 1)))
    at = int(str(line.get_attribute("aria-valuenow")))
    line.press("Shift+A")
    before = max(i for i in range(at) if kinds[i] == "accepted")
    expect(line).to_have_attribute("aria-valuenow", str(before))
    line.press("ArrowRight")
    line.press("End")
    expect(line).to_have_attribute("aria-valuenow", str(len(kinds) - 1))
    expect(window.locator(".wb-headline")).to_contain_text(f"decision {len(kinds) - 1} of {len(kinds)}")
    line.press("ArrowLeft")
    assert f"decision {len(kinds) - 2} of" in str(line.get_attribute("aria-valuetext"))
    window.get_by_label("Go to decision").press("a")  # a letter in a field is a letter, and moves nothing
    assert line.get_attribute("aria-valuenow") == str(len(kinds) - 2)


def test_space_plays_and_pauses(notebook: Notebook, window: Locator) -> None:
    line = timeline(window)
    line.press("Home")
    line.press("Space")
    expect(window.get_by_role("button", name="Pause (Space)")).to_be_visible()
    expect(line).to_have_attribute("aria-valuenow", "2", timeout=10_000)
    line.press("Space")
    expect(window.get_by_role("button", name="Play through the decisions (Space)")).to_be_visible()
    at = line.get_attribute("aria-valuenow")
    notebook.page.wait_for_timeout(1500)
    assert line.get_attribute("aria-valuenow") == at


def test_one_chain_at_a_time_and_the_table_of_decisions(notebook: Notebook, window: Locator) -> None:
    window.get_by_label("Chain", exact=True).select_option("1")
    window.get_by_role("button", name="Decisions as table").click()
    names = "['pivot', 'old', 'new', 'log_a', 'log_u', 'log_p']"
    frame = notebook.value(f"stepper.frame().query('chain == 1')[{names}].values.tolist()")
    found = rows(window.locator(".wb-decisions"))
    assert [row[5:] for row in found] == [shown(row) for row in frame]
    assert {row[2] for row in found} == {"1"}
    window.locator(".wb-decisions tbody tr").nth(2).click()
    expect(timeline(window)).to_have_attribute("aria-valuenow", "2")
    window.get_by_role("button", name="Decisions as table").click()
    window.get_by_label("Chain", exact=True).select_option("")


def test_thousands_of_decisions_stay_usable(notebook: Notebook) -> None:
    long = notebook.window("mcmc", 3)
    line = timeline(long)
    expect(line).to_have_attribute("aria-valuemax", "1999")
    line.press("End")
    expect(long.locator(".wb-headline")).to_contain_text("decision 1999 of 2000")
    milliseconds = notebook.page.evaluate(
        """async () => {
          const line = document.querySelectorAll('.wb-mcmc')[3].querySelector('.wb-timeline');
          const begun = performance.now();
          const left = () => new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true });
          for (let i = 0; i < 60; i++) line.dispatchEvent(left());
          await new Promise(requestAnimationFrame);
          return performance.now() - begun;
        }"""
    )
    assert milliseconds < 3000
    expect(long.locator(".wb-headline")).to_contain_text("decision 1939 of 2000")
    assert long.locator("canvas").evaluate("canvas => canvas.clientWidth") < 1400
    assert long.locator("*").count() < 4000


# A live chain -------------------------------------------------------------------------------------------------------


def test_a_live_chain_is_stepped_run_and_stopped(notebook: Notebook) -> None:
    live = notebook.window("mcmc", 1)
    if notebook.value("live.tracks[0].shown") == 0:
        expect(live).to_contain_text("No decision yet. Step makes one, Run makes all.")
    live.get_by_role("button", name="One more decision (s)").click()
    expect(live.locator(".wb-headline")).to_contain_text("decision 0 of 1")
    expect(live.get_by_role("button", name="One more decision (s)")).to_be_enabled()
    timeline(live).press("s")
    expect(live.locator(".wb-headline")).to_contain_text("decision 1 of 2")
    assert notebook.value("live.tracks[0].shown") == 2
    expect(live.get_by_role("button", name="One more decision (s)")).to_be_enabled()
    # Slow the model down: a pass takes a tenth of a second, a decision up to 0.6.
    notebook.ask(
        "import time\nfast = type(model).forward\n"
        "def slow(self, *args, **named):\n    time.sleep(0.1)\n    return fast(self, *args, **named)\n"
        "type(model).forward = slow"
    )
    live.get_by_role("button", name="Go on to the end").click()
    expect(live.locator(".wb-livebar")).to_contain_text("running…")
    expect(live.get_by_role("button", name="One more decision (s)")).to_be_disabled()
    assert notebook.value("1 + 1") == 2  # the kernel answers meanwhile
    expect(live.locator(".wb-headline")).not_to_contain_text("decision 1 of 2")
    live.get_by_role("button", name="Stop within one pass (x)").click()
    expect(live.locator(".wb-livebar")).to_contain_text("idle", timeout=5000)
    made = notebook.value("live.tracks[0].shown")
    assert 2 < made < 16
    notebook.ask("type(model).forward = fast")
    live.get_by_role("button", name="Go on to the end").click()
    expect(live.locator(".wb-livebar")).to_contain_text("finished")
    expect(live.locator(".wb-headline")).to_contain_text("decision 15 of 16")
    whole = "PowerSampler(model, prompt, alpha=2.0, block_size=6, n_mcmc=4, max_tokens=12, chains=2, seed=5).run()"
    assert notebook.value(f"live.tracks[0].chains == {whole}")


# What if ------------------------------------------------------------------------------------------------------------


def test_what_if_is_marked_as_no_sample_and_says_what_the_call_says(notebook: Notebook, window: Locator) -> None:
    index = of_kind(notebook, "rejected")
    go(window, index)
    what = card(window, "What if")
    what.get_by_label("Verdict").select_option("accept")
    answer = what.locator(".wb-supposed")
    expect(answer).to_contain_text("accepted")
    expect(answer).to_contain_text("It was the other way round.")
    expect(answer).to_contain_text("Not a sample of the target. Verdict set by hand (accept)")
    what.get_by_label("Verdict").select_option("")
    what.get_by_role("button", name="Redraw u").click()
    found = notebook.value(f"(lambda w: [w.u, w.log_a, w.accepted])(stepper.what_if({index}, redraw=1))")
    expect(answer).to_contain_text(f"u {shown([found[0]])[0]}, drawn again (1)")
    expect(answer).to_contain_text("u was drawn again (draw 1)")
    what.get_by_role("button", name="As it was").click()
    expect(answer).to_contain_text("Nothing is changed")
    what.get_by_label("alpha").fill("1.25")
    what.get_by_label("alpha").press("Enter")
    log_a = notebook.value(f"stepper.what_if({index}, alpha=1.25).log_a")
    expect(answer).to_contain_text(f"log A {shown([log_a])[0]} at alpha 1.25")
    expect(answer).to_contain_text("another target")
    what.get_by_label("alpha").fill("-1")
    what.get_by_label("alpha").press("Enter")
    expect(answer).to_contain_text("alpha must be above 0")
    what.get_by_role("button", name="As it was").click()


def test_a_branch_is_a_chain_of_its_own_and_is_compared(notebook: Notebook, window: Locator) -> None:
    before = notebook.value("stepper.frame().log_p.tolist()")
    index = of_kind(notebook, "rejected")
    go(window, index)
    card(window, "What if").get_by_label("Verdict").select_option("accept")
    card(window, "What if").get_by_role("button", name="Branch from here").click()
    expect(window.locator(".wb-sidetitle")).to_contain_text("branch 1")
    expect(window.locator(".wb-body > div > .wb-warned")).to_contain_text("no longer a sample of the target")
    seed = notebook.value("str(stepper.tracks[1].chains.settings.seed)")
    expect(window.locator(".wb-sidetitle")).to_contain_text(f"seed {seed}")
    window.get_by_role("button", name="Go on to the end").click()
    expect(window.locator(".wb-livebar")).to_contain_text("finished")
    expect(window.locator(".wb-compared")).to_be_visible()
    names = "['log_a_run', 'log_a_branch', 'log_p_run', 'log_p_branch']"
    frame = notebook.value(f"stepper.compare(1)[{names}].values.tolist()")
    expect(window.locator(".wb-compared tbody tr")).to_have_count(len(frame))
    assert [row[4:8] for row in rows(window.locator(".wb-compared"))] == [shown(row) for row in frame]
    expect(card(window, "Against the chain it left")).to_contain_text(f"key (seed) {seed}")
    terms = notebook.value("stepper.terms(-1, track=1).value.tolist()")
    expect(window.locator(".wb-headline")).to_contain_text(f"of {len(stepper_frame(notebook, 1))}")
    assert [row[1] for row in rows(card(window, "Terms of log A"))] == shown(terms)
    window.get_by_label("Track").select_option("0")
    expect(window.locator(".wb-sidetitle")).to_contain_text("the run")
    assert notebook.value("stepper.frame().log_p.tolist()") == before


def stepper_frame(notebook: Notebook, track: int) -> list[float]:
    return list(notebook.value(f"stepper.frame({track}).log_p.tolist()"))


# Without a model, errors, the window as a whole ---------------------------------------------------------------------


def test_a_saved_run_without_its_model_says_what_is_missing(notebook: Notebook) -> None:
    saved = notebook.window("mcmc", 2)
    expect(saved.locator(".wb-sidetitle")).to_contain_text("no model: token ids only, no tiles, no branches")
    expect(saved.locator(".wb-livebar")).to_be_hidden()
    index = of_kind(notebook, "rejected")
    go(saved, index)
    terms = notebook.value(f"saved.terms({index}).value.tolist()")
    assert [row[1] for row in rows(card(saved, "Terms of log A"))] == shown(terms)
    expect(card(saved, "Residual difference")).to_contain_text("give the model, or run with capture=")
    saved.locator(".wb-programs button").first.click()
    expect(saved.locator(".wb-tiles")).to_contain_text("MCMCStepper(chains, model) computes them")
    expect(card(saved, "What if").get_by_role("button", name="Branch from here")).to_be_disabled()
    assert "#" in saved.locator(".wb-suffixes .wb-word").first.inner_text()


def test_copied_code_gives_the_same_numbers(notebook: Notebook, window: Locator) -> None:
    go(window, 5)
    window.get_by_role("button", name="Copy as code").click()
    code = window.locator(".wb-code").inner_text()
    assert "stepper.terms(5)" in code
    notebook.ask(f"scope = dict(chains=kept, model=model)\nexec({code!r}, scope)\nscope['stepper'].close()")
    window.get_by_role("button", name="Close").click()


def test_two_views_have_cursors_of_their_own_and_share_branches(notebook: Notebook, window: Locator) -> None:
    second = notebook.window("mcmc", 4)
    timeline(window).press("Home")
    timeline(second).press("End")
    expect(window.locator(".wb-headline")).to_contain_text("decision 0 of")
    expect(second.locator(".wb-headline")).to_contain_text("decision 23 of")
    notebook.ask("stepper.branch(3)")
    for view in (window, second):
        count = notebook.value("len(stepper.tracks)")
        expect(view.get_by_label("Track").locator("option")).to_have_count(count)


def test_everything_can_be_done_by_keys(notebook: Notebook, window: Locator) -> None:
    timeline(window).focus()
    notebook.page.keyboard.press("?")
    expect(window.locator(".wb-keys")).to_be_visible()
    notebook.page.keyboard.press("Escape")
    window.get_by_role("button", name="First decision (Home)").focus()
    reached = []
    for _ in range(120):
        notebook.page.keyboard.press("Tab")
        reached.append(
            notebook.page.evaluate(
                "() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
            )
        )
    for part in (
        "Next accepted (a)",
        "Go to decision",
        "Decisions",
        "Decisions as table",
        "Redraw u",
        "Branch from here",
    ):
        assert part in reached, (part, reached)


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_are_readable_and_accessible(notebook: Notebook, window: Locator, theme: str) -> None:
    notebook.theme(theme)
    index = of_kind(notebook, "rejected", least=3)
    go(window, index)
    window.locator(".wb-programs button").nth(1).click()
    expect(window.locator(".wb-given")).to_be_visible()
    card(window, "What if").get_by_label("Verdict").select_option("accept")
    expect(card(window, "What if").locator(".wb-warned")).to_be_visible()
    window.get_by_role("button", name="Decisions as table").click()
    notebook.page.wait_for_timeout(400)
    assert accessibility_faults(window) == []
    notebook.screenshot(f"mcmc-{theme}", window)
    timeline(window).press("?")
    window.get_by_role("button", name="Copy as code").click()
    notebook.ask("stepper.report('an error for the test')")
    expect(window.locator(".wb-error")).to_be_visible()
    assert accessibility_faults(window) == []
    notebook.ask("stepper.error = ''")
    window.get_by_role("button", name="Close").click()
    timeline(window).press("?")
    window.get_by_role("button", name="Decisions as table").click()
    if notebook.value("len(stepper.tracks)") > 1:
        window.get_by_label("Track").select_option("1")
        notebook.page.wait_for_timeout(400)
        assert accessibility_faults(window) == []
        notebook.screenshot(f"mcmc-branch-{theme}", window)
        window.get_by_label("Track").select_option("0")
    assert accessibility_faults(notebook.window("mcmc", 2)) == []


SHOW = """
shown_now = [MCMCStepper(kept, model) for _ in range(5)]
for each in shown_now: display(each)
"""
CLOSE = """
refs = [weakref.ref(each) for each in shown_now]
for each in shown_now: each.close()
del each, shown_now
gc.collect()
print(sum(ref() is not None for ref in refs), len(_instances) - before)
"""


def test_fifty_opened_and_closed_leave_nothing_alive(notebook: Notebook) -> None:
    views = notebook.page.locator(".jp-NotebookPanel .wb")
    notebook.ask("gc.collect(); before = len(_instances)")
    listeners = []
    for _ in range(10):
        notebook.run_cell(SHOW)
        expect(views).to_have_count(5 + 5, timeout=60_000)
        expect(views.nth(9).locator(".wb-headline")).to_be_visible()
        assert notebook.ask(CLOSE) == "0 0"
        expect(views).to_have_count(5, timeout=60_000)
        notebook.run_cell("pass")
        listeners.append(notebook.listeners())
    assert listeners[-1] - listeners[0] < 100


def test_a_saved_notebook_shows_the_form_when_its_kernel_is_gone(notebook: Notebook, lab: Lab) -> None:
    notebook.run_cell("pass")
    notebook.save()
    assert notebook.path.stat().st_size < 1_000_000
    lab.stop_kernels()
    notebook.faults()
    notebook.open(kernel=False)
    form = notebook.page.locator(".wb-fallback").first
    expect(form).to_be_visible(timeout=60_000)
    expect(form).to_contain_text("Terms of log A")
    expect(form).to_contain_text("Decisions of the run")
    faults = notebook.faults()
    assert [fault for fault in faults if "model not found" not in fault and "widget model" not in fault] == []
