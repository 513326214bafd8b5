"""Reports opened as files in a real browser with the network cut: complete, readable, harmless, printable."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import plotly.graph_objects as go
import pytest
import torch
from offline_pages import accessibility, browser_or_skip, look_at, open_all, picture, wider_than_the_page
from report_traces import real_trace, written_carry, written_chains, written_flow, written_trace

import workbench
from workbench.bundled import bundled
from workbench.carry import PointerChase, demo_model, effect_grid, zero
from workbench.flows import FlowDefinition, FlowEngine, FlowQuestion
from workbench.mcmc import PowerSampler
from workbench.reports import Report

pytestmark = pytest.mark.slow

NASTY = (
    "<script>window.hacked = 1</script> <img src=x onerror='window.hacked = 2'> \x1b[31mred \u202eevil\u202c \ud800 "
    "javascript:alert(1) </style></title> é\u0301"
)
each_scheme = pytest.mark.parametrize("scheme", ["light", "dark"])
Scheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def everything() -> Report:
    """A report with a part of every kind, from tiny models."""
    model = workbench.load("tiny-llama")
    why = FlowQuestion("why", "Why so? ", ["sun", "rain"], erase_mode="prompt")
    mood = FlowQuestion("mood", "How are you? ", ["good", "bad"], erase_mode="all").on("good", why).on("bad", why)
    flow = FlowDefinition("small talk", mood)
    asked = workbench.Session(model, [FlowEngine(flow).as_mod()]).generate("Hello.", max_new_tokens=6, seed=1).trace
    trace = real_trace(model)
    chains = PowerSampler(model, "hello", alpha=2, block_size=4, n_mcmc=4, max_tokens=8, chains=3).run()
    toy, task = demo_model(bundled("carry")), PointerChase()
    problems = task.sample(6, torch.Generator().manual_seed(1))
    prompts, goals = problems.prompts.tolist(), problems.answers(3).tolist()
    rows = [(prompt, [goal]) for prompt, goal in zip(prompts, goals, strict=True)]
    report = Report("Everything at once").note("# A study\n\nWith **all** instruments.\n\n- one\n- two")
    report.figure(go.Figure(go.Scatter(x=[1, 2, 3], y=[2, 1, 3])), "A line that plotly draws")
    report.trace(trace, model).trace(asked, model).flow(flow, asked, model).chains(chains, model)
    report.carry(
        toy.run(prompts[0], pauses=2, max_new_tokens=1),
        toy,
        controls=toy.controls(rows, pauses=2),
        effects=effect_grid(toy, prompts, zero, settings=toy.with_(pauses=2)),
    )
    return report.compare(trace, real_trace(model, seed=5), ("seed 4", "seed 5"), model)


@pytest.fixture(scope="module")
def file(everything: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return everything.save(tmp_path_factory.mktemp("report") / "everything.html")


@each_scheme
def test_a_report_opens_offline_is_complete_and_accessible(file: Path, scheme: Scheme) -> None:
    def act(page: Any) -> dict[str, Any]:
        page.locator(".plot .main-svg").first.wait_for()
        picture(page, f"report-{scheme}")
        open_all(page)
        for index, heading in enumerate(("Flow small talk", "Chains towards", "Carry through", "Comparison of")):
            page.locator("h2", has_text=heading).first.scroll_into_view_if_needed()
            page.evaluate("window.scrollBy(0, 700)")
            picture(page, f"report-{scheme}-{index}")
        page.locator("h2").first.scroll_into_view_if_needed()
        return {"axe": accessibility(page), "wide": wider_than_the_page(page), "text": page.inner_text("main")}

    look = look_at(file, act, scheme=scheme)
    assert look.faults == []
    assert look.result["axe"] == []
    assert look.result["wide"] == 0
    for words in ("How are you?", "Split R-hat of log p", "carry, zero", "and then part", "Running it again"):
        assert words in look.result["text"]


def test_headings_go_down_one_step_at_a_time_and_every_drawing_has_a_table(file: Path) -> None:
    def act(page: Any) -> tuple[list[int], int]:
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((one) => Number(one.tagName[1]))")
        bare = page.evaluate(
            "[...document.querySelectorAll('figure')].filter((one) => !one.querySelector('details.twin table')).length"
        )
        return levels, bare

    levels, bare = look_at(file, act).result
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert bare == 0


def test_it_can_be_gone_through_with_the_keyboard_alone(file: Path) -> None:
    def act(page: Any) -> tuple[str, bool, bool]:
        page.keyboard.press("Tab")
        first = page.evaluate("document.activeElement.textContent")
        summary = page.locator("summary").first
        summary.focus()
        page.keyboard.press("Enter")
        opened = page.evaluate("document.querySelector('details').open")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle !== 'none'")
        return first, opened, outline

    assert look_at(file, act).result == ("Skip to the content", True, True)


def test_on_paper_what_is_folded_is_open_and_nothing_is_cut(file: Path) -> None:
    def act(page: Any) -> dict[str, Any]:
        hidden = "[...document.querySelectorAll('details table')].filter((one) => !one.checkVisibility()).length"
        on_screen = page.evaluate(hidden)
        page.emulate_media(media="print")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        picture(page, "report-print")
        return {"screen": on_screen, "paper": page.evaluate(hidden), "ground": ground}

    found = look_at(file, act, scheme="dark").result
    assert found["screen"] > 0
    assert found["paper"] == 0
    assert found["ground"] == "rgb(255, 255, 255)"


@each_scheme
def test_a_hostile_run_is_shown_and_does_nothing(tmp_path: Path, scheme: Scheme) -> None:
    report = Report(f"T {NASTY}").note(NASTY).trace(written_trace(NASTY)).flow(written_flow(NASTY))
    report.chains(written_chains(NASTY)).carry(written_carry(NASTY))
    report.compare(written_trace(NASTY), written_trace("b" * 100_000), (NASTY, "b"))

    def act(page: Any) -> dict[str, Any]:
        open_all(page)
        picture(page, f"report-hostile-{scheme}")
        return {
            "hacked": page.evaluate("window.hacked"),
            "elements": page.evaluate("document.querySelectorAll('script, img, iframe, object, embed').length"),
            "text": page.inner_text("main"),
            "wide": wider_than_the_page(page),
            "axe": accessibility(page),
        }

    look = look_at(report.save(tmp_path / "hostile.html"), act, scheme=scheme)
    assert look.faults == []
    assert look.result["hacked"] is None
    assert look.result["elements"] == 0
    assert "<script>window.hacked = 1</script>" in look.result["text"]
    assert "␛[31mred <U+202E>evil<U+202C> <U+D800>" in look.result["text"]
    assert look.result["wide"] == 0
    assert look.result["axe"] == []


def test_a_pdf_is_printed_whole_and_the_same_every_time(everything: Report, tmp_path: Path) -> None:
    browser_or_skip()
    first = everything.save(tmp_path / "one.pdf").read_bytes()
    assert first.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", first)) > 5
    second = everything.save(tmp_path / "two.pdf").read_bytes()
    # What is drawn, with its fonts. The browser numbers the objects around it, and not always alike.
    streams = re.compile(rb"stream\r?\n(.*?)endstream", re.DOTALL)
    assert sorted(streams.findall(second)) == sorted(streams.findall(first))
    assert len(second) == len(first)
    for content in (first, second):
        assert set(re.findall(rb"/(?:CreationDate|ModDate) \(D:(\d{8})", content)) == {b"20000101"}


def test_what_a_browser_that_fails_said_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_BROWSER", "/bin/false")
    with pytest.raises(workbench.errors.ReportError, match=r"printed no PDF \(exit code 1\)"):
        Report("x").note("text").save(tmp_path / "x.pdf")
