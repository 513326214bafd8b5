"""A report is one file that needs nothing else, says what the records say, and is the same every time."""

from __future__ import annotations

import io
import json
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from report_traces import Page, real_trace, written_trace

import workbench
from workbench.errors import ReportError, TraceError
from workbench.reports import Report, logit_lens, report_of, residual_norms
from workbench.reports.embed import csp_hash
from workbench.reports.layers import chosen_tokens
from workbench.trace import Trace


@pytest.fixture(scope="module")
def model() -> Any:
    return workbench.load("tiny-llama")


@pytest.fixture(scope="module")
def trace(model: Any) -> Trace:
    return real_trace(model)


@pytest.fixture(scope="module")
def page(model: Any, trace: Trace) -> Page:
    return Page(report_of(trace, model).html())


def table(page: Page, start: str) -> list[list[str]]:
    """Rows under the header of the one table whose caption starts so."""
    (found,) = [rows for caption, rows in page.tables.items() if caption.startswith(start)]
    return found


def attachment(page: Page, name: str) -> str:
    (link,) = [a for _, a in page.having("download") if a["download"] == name]
    return unquote(str(link["href"]).split(",", 1)[1])


# The same every time -----------------------------------------------------------------------------------------


def test_same_inputs_give_the_same_bytes(model: Any, trace: Trace, tmp_path: Path) -> None:
    again = real_trace(model)
    assert [r.duration_ns for r in again.records] != [r.duration_ns for r in trace.records]
    first = report_of(trace, model).html()
    assert report_of(again, model).html() == first
    loaded = Trace.load(trace.save(tmp_path / "run"))
    loaded.run = trace.run
    assert report_of(loaded, model).html() == first


# One file, good form -----------------------------------------------------------------------------------------


def test_it_asks_for_nothing_and_runs_nothing(page: Page) -> None:
    assert not page.having("src")
    assert not [a for _, a in page.having("href") if "http" in str(a["href"])[:12]]
    assert not [tag for tag, _ in page.elements if tag in ("script", "link", "iframe", "img", "object")]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    (policy,) = [str(a["content"]) for _, a in page.having("http-equiv")]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script-src" not in policy
    assert "unsafe" not in policy


def test_its_style_is_the_one_that_the_policy_allows(model: Any, trace: Trace) -> None:
    html = report_of(trace, model).html()
    style = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert len(style) == 1
    assert csp_hash(style[0]) in html.replace("&#39;", "'")
    assert "url(" not in style[0]
    assert "@import" not in style[0]


def test_headings_go_down_one_step_at_a_time_and_links_lead_somewhere(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [a["id"] for _, a in page.having("id")]
    assert len(ids) == len(set(ids))
    assert {str(a["href"])[1:] for _, a in page.having("href") if str(a["href"]).startswith("#")} <= set(ids)
    assert page.elements[0] == ("html", {"lang": "en"})


def test_every_drawing_has_words_and_a_table_beside_it(page: Page) -> None:
    drawings = [a for _, a in page.elements if a.get("role") == "img"]
    assert len(drawings) == 3
    assert all(a["aria-label"] for a in drawings)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("figure") == tags.count("figcaption") == 4
    assert sum(a.get("class") == "twin" for tag, a in page.elements if tag == "details") == 4
    assert all(a["tabindex"] == "0" and a["aria-label"] for _, a in page.elements if a.get("role") == "region")


# What it says ------------------------------------------------------------------------------------------------


def test_it_says_what_was_asked_what_came_and_why_it_ended(page: Page, trace: Trace, model: Any) -> None:
    assert "Say something." in page.text
    assert "max_tokens" in page.text
    history = trace.history()
    assert f"{len(history.live)}" in page.text
    struck = "".join(label for label in re.findall(r"taken back by (\w+) at step", page.text))
    assert struck == "second_thoughts"
    for value in (model.tokenizer.fingerprint, "float32", "bridge", trace.run["run_id"], "4, stream 0"):
        assert value in page.text
    assert trace.run["versions"]["torch"] in page.text
    assert "actions.backtrack(3, tokenizer.encode" in page.text


def test_it_counts_what_each_mod_did_and_names_the_one_that_did_nothing(page: Page) -> None:
    rows = table(page, "What each mod did")
    assert rows[0] == ["mod", "action", "applied", "shadowed", "refused", "first step", "last step"]
    assert [row[:5] for row in rows[1:]] == [
        ["second_thoughts", "backtrack", "1", "0", "0"],
        ["second_thoughts", "force_tokens", "1", "0", "0"],
    ]
    assert "The mod 'bystander' never acted" in page.text
    assert [row[0] for row in table(page, "Where the tokens came from")[1:]] == ["sampled", "reinjected", "forced"]


def test_warnings_and_mods_that_raised_are_said() -> None:
    text = Page(report_of(written_trace("Broken!")).html()).text
    assert "Note well. Broken!" in text
    assert "mod 'Broken!' raised on an event: Broken!" in text


def test_lens_tables_are_the_data_frames(page: Page, model: Any, trace: Trace) -> None:
    chosen = chosen_tokens(trace, "r0")
    assert len(chosen) == 4
    tables = [rows for caption, rows in page.tables.items() if caption.startswith("Layer by layer")]
    assert len(tables) == len(chosen)
    for life, rows in zip(chosen, tables, strict=True):
        frame = logit_lens(model, trace, life)
        for name in ("layer", "norm", "rank", "probability", "p_1", "p_5"):
            column = rows[0].index(name.replace("_", " "))
            assert [float(row[column]) for row in rows[1:]] == pytest.approx(frame[name].tolist(), rel=1e-3)


def test_norms_are_the_data_frame(page: Page, trace: Trace) -> None:
    frame = residual_norms(trace)
    shown = table(page, "Residual norm by token and layer")
    told = {(int(row[0]), layer): float(row[4 + layer]) for row in shown[1:] for layer in range(3)}
    expected = {
        (uid, layer): norm for uid, layer, norm in zip(frame["uid"], frame["layer"], frame["norm"], strict=True)
    }
    assert told == {key: pytest.approx(value, rel=1e-3) for key, value in expected.items()}
    full = pd.read_csv(io.StringIO(attachment(page, "r0-norms.csv")))
    wide = frame.pivot(index="uid", columns="layer", values="norm")
    np.testing.assert_array_equal(full[[f"layer {i}" for i in range(3)]].to_numpy("float32"), wide.to_numpy("float32"))


def test_by_default_it_looks_at_the_first_forced_and_the_three_least_sure(trace: Trace) -> None:
    chosen = chosen_tokens(trace, "r0")
    entropies = {(r.step, r.position + 1): r.entropy for r in trace.records if r.kind == "forward_pass"}
    every = [life for life in trace.history().every if life.source_row is not None]
    forced = [life for life in every if life.origin == "forced"]
    free = [life for life in every if life.origin == "sampled" and life.visible]
    free.sort(key=lambda life: -(entropies[life.added_step, life.position] or 0))
    assert chosen == sorted([forced[0], *free[:3]], key=lambda life: life.uid)


def test_tokens_can_be_chosen(model: Any, trace: Trace) -> None:
    life = trace.history().every[1]
    page = Page(Report("x").trace(trace, model, tokens=[0, life]).html())
    captions = [caption for caption in page.tables if caption.startswith("Layer by layer")]
    assert [re.search(r"#(\d+)", caption)[1] for caption in captions] == ["0", "1"]  # type: ignore[index]
    with pytest.raises(ReportError, match="no token number 500"):
        Report("x").trace(trace, model, tokens=[500])


def test_all_records_are_in_the_file_however_many_are_drawn(model: Any) -> None:
    trace = workbench.Session(model).generate("long", max_new_tokens=150, seed=0, sampling=None).trace
    page = Page(report_of(trace).html())
    lines = [json.loads(line) for line in attachment(page, "r0-records.jsonl").splitlines()]
    assert len(lines) == len(trace)
    assert [line["kind"] for line in lines] == [record.kind for record in trace.records]
    assert [tuple(line.get("tokens", ())) for line in lines] == [record.tokens for record in trace.records]
    assert f"The first 300 of {len(trace)} rows" in page.text
    assert len(table(page, "Events and actions")) == 301
    tokens = pd.read_csv(io.StringIO(attachment(page, "r0-tokens.csv")))
    assert tokens["token"].tolist() == trace.tokens()["token"].tolist()
    assert "No residual stream was captured" in page.text
    assert "No mods" in page.text


def test_several_requests_each_have_their_part(model: Any) -> None:
    trace = real_trace(model, ["one", "two"])
    titles = re.findall(r"request r\d", Page(report_of(trace, model).html()).text)
    assert {"request r0", "request r1"} <= set(titles)
    only = Page(Report("x").trace(trace, request_id="r1").html()).text
    assert "request r0" not in only
    with pytest.raises(ReportError, match="pass request_id="):
        Report("x").trace(trace, model, tokens=[0])
    with pytest.raises(TraceError, match="no request 'r7'"):
        Report("x").trace(trace, request_id="r7")


def test_a_trace_without_records_is_said_to_be_one() -> None:
    assert "This trace holds no records" in Page(report_of(Trace({})).html()).text


def test_other_weights_of_the_same_shape_are_noticed(model: Any, trace: Trace) -> None:
    class Other:
        """The same model but for its unembedding."""

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def unembed(self, residual: Any) -> Any:
            return -model.unembed(residual)

    assert "is not quite the model that made the trace" in Page(report_of(trace, Other()).html()).text  # type: ignore[arg-type]
    assert "is not quite the model" not in Page(report_of(trace, model).html()).text


def test_two_thousand_tokens_make_less_than_ten_megabytes_in_less_than_ten_seconds() -> None:
    trace = written_trace(" word", tokens=2000, layers=30)
    before = time.process_time()  # the clock of this process: a shared machine is no stopwatch
    html = report_of(trace).html()
    assert time.process_time() - before < 10
    assert len(html.encode()) < 10e6
    assert "Each column is the mean of 9 tokens" in html


# Notes, tables, figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("one\ntwo\n\nthree", "<p>one two</p><p>three</p>"),
        ("a **b** `c` *d*", "<p>a <strong>b</strong> <code>c</code> *d*</p>"),
        ("- a\n- `b`\n\n1. x\n2. y", "<ul><li>a</li><li><code>b</code></li></ul><ol><li>x</li><li>y</li></ol>"),
        ("```\n# <b>\n```", "<pre><code># &lt;b&gt;</code></pre>"),
        ("[x](http://y) <b>", "<p>[x](http://y) &lt;b&gt;</p>"),
        ("`**a**` **", "<p><code>**a**</code> **</p>"),
        ("```\nnever closed", "<pre><code>never closed</code></pre>"),
    ],
)
def test_notes_are_a_small_safe_markdown(text: str, html: str) -> None:
    assert f'<div class="note">{html}</div>' in Report("x").note(text).html()


def test_headings_of_notes_are_in_the_contents() -> None:
    html = Report("x").note("# One\ntext\n## Two **b**\n### Three").html()
    assert '<h2 id="s1">One</h2>' in html
    assert '<h3 id="s2">Two b</h3>' in html
    assert '<a href="#s3">Three</a>' in html


def test_tables_show_their_numbers_and_hold_all_of_them() -> None:
    frame = pd.DataFrame({"a": range(1000), "b": np.linspace(0, 1, 1000), "c": [None, "x"] * 500})
    page = Page(Report("x").table(frame, "Many").html())
    assert page.tables["Many"][:3] == [["a", "b", "c"], ["0", "0", "–"], ["1", "0.001001", "x"]]
    assert "The first 300 of 1,000 rows" in page.text
    full = pd.read_csv(io.StringIO(attachment(page, "table-1.csv")))
    np.testing.assert_allclose(full["b"], frame["b"], rtol=1e-8)
    named = Page(Report("x").table(frame.head(2).set_index("c"), "Named").html())
    assert named.tables["Named"][0] == ["c", "a", "b"]
    with pytest.raises(ReportError, match="takes a pandas DataFrame, got list"):
        Report("x").table([1], "no")  # type: ignore[arg-type]


def test_figures_bring_the_library_once_and_nothing_that_may_run_besides() -> None:
    figure = go.Figure(go.Scatter(x=np.arange(3), y=[1.5, 2.5, 3.5], name="</script><script>alert(1)</script>"))
    html = Report("x").figure(figure, "First").figure(figure, "Second").html()
    page = Page(html)
    scripts = [a for tag, a in page.elements if tag == "script"]
    assert [a.get("type") for a in scripts] == ["application/json", "application/json", None, None]
    assert page.tables["Numbers of: First"][1:] == [
        ["</script><script>alert(1)</script>", str(i), f"{i + 1.5:g}"] for i in range(3)
    ]
    bodies = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (policy,) = [str(a["content"]) for _, a in page.having("http-equiv")]
    assert re.findall(r"script-src (.*?);", policy) == [" ".join(map(csp_hash, bodies))]
    assert "unsafe-eval" not in policy
    spec = json.loads(re.findall(r'<script type="application/json" id="plot1-data">(.*?)</script>', html)[0])
    assert spec["layout"]["paper_bgcolor"] == spec["layout"]["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert html.count("plotly.js v") == 1


def test_figures_tell_grids_and_draw_without_webgl() -> None:
    report = Report("x").figure(go.Figure(go.Heatmap(z=[[1, 2], [3, 4]], x=["a", "b"], y=[0, 1])), "Grid")
    assert Page(report.html()).tables["Numbers of: Grid"][1:] == [
        ["0", "a", "0", "1"], ["0", "b", "0", "2"], ["0", "a", "1", "3"], ["0", "b", "1", "4"],
    ]  # fmt: skip
    assert '"type":"scatter"' in Report("x").figure(go.Figure(go.Scattergl(x=[1], y=[2])), "Flat").html()


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        ("no figure", "takes a plotly figure, got str"),
        (go.Figure(), "has no traces"),
        (go.Figure(go.Scatter3d(x=[1], y=[1], z=[1])), "'scatter3d' trace can't be in a report that opens offline"),
        (go.Figure(go.Sankey()), "pass table=DataFrame"),
    ],
)
def test_figures_that_can_not_be_shown_are_refused(figure: Any, says: str) -> None:
    with pytest.raises(ReportError, match=says):
        Report("x").figure(figure, "caption")


# Writing -----------------------------------------------------------------------------------------------------


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    report = Report("x").note("text")
    path = report.save(tmp_path / "new" / "report.html")
    assert path.read_text("utf-8") == report.html()
    with pytest.raises(ReportError, match=r"can't write the report to .* Choose another path"):
        report.save(tmp_path / "new")
    with pytest.raises(ReportError, match="can't write the report"):
        report.save(path / "below.html")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["report.html"]
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("title", ["", "  ", None])
def test_a_report_needs_a_title(title: Any) -> None:
    with pytest.raises(ReportError, match="needs a title"):
        Report(title)


def test_a_notebook_shows_a_summary_and_a_sandboxed_frame(model: Any, trace: Trace) -> None:
    shown = Page(report_of(trace, model)._repr_html_())
    ((_, frame),) = shown.having("srcdoc")
    assert frame["sandbox"] == "allow-downloads"
    assert frame["srcdoc"] == report_of(trace, model).html()
    assert not [tag for tag, _ in shown.elements if tag in ("script", "style")]
    assert "request r0" in shown.text
    assert "<Report" in repr(Report("x"))
