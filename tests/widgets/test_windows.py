"""What all windows share: how they are shown, report errors, and go away without a trace."""

from __future__ import annotations

import ast
import gc
import json
import logging
import re
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import comm
import nbformat
import pytest
from comm.base_comm import BaseComm
from ipywidgets.widgets.widget import _instances, _remove_buffers
from window_kinds import HOSTILE, KINDS

import widgets
from widgets import Window
from widgets.base.assets import LARGEST_SCRIPT, lean
from widgets.base.window import LARGEST_MESSAGE, LONGEST_NOTICE, MOST_NOTICES, json_safe

ROOT = Path(__file__).resolve().parents[2]
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow's window keeps its flow in the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Callable[[], Window]:
    return partial(KINDS[request.param], "Say.")


class KernelComm(BaseComm):
    """A comm as in a kernel: keeps what was sent."""

    def publish_msg(self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **_: Any) -> None:
        sent.append((msg_type, data, buffers))


sent: list[tuple[str, Any, Any]] = []


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any, Any]]]:
    """As if inside a kernel: windows are live, their messages are kept."""
    monkeypatch.setattr(comm, "create_comm", KernelComm)
    sent.clear()
    yield sent
    widgets.display(static=None)


def test_outside_a_kernel_a_window_is_plain_html(make: Callable[[], Window]) -> None:
    window = make()
    data, _ = window._repr_mimebundle_()
    assert set(data) == {"text/html", "text/plain"}
    assert not re.search(r"<(script|img|iframe)|https?:", data["text/html"])
    assert data["text/plain"].startswith(f"<{type(window).__name__}")
    window.close()


def test_in_a_kernel_the_html_comes_with_the_view(make: Callable[[], Window], kernel: Any) -> None:
    window = make()
    data, _ = window._repr_mimebundle_()
    assert data[VIEW]["model_id"] == window.model_id
    html = data["text/html"]
    widgets.display(static=True)
    static, _ = window._repr_mimebundle_()
    assert static["text/html"] == html
    assert VIEW not in static
    widgets.display(static=False)
    assert VIEW in window._repr_mimebundle_()[0]
    window.close()


@pytest.mark.parametrize(("value", "static"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_the_environment_can_ask_for_static_windows(monkeypatch: pytest.MonkeyPatch, value: str, static: bool) -> None:
    monkeypatch.setenv("WORKBENCH_STATIC", value)
    assert widgets.base.is_static() is static


def test_a_cell_shows_the_html_and_the_view_as_outputs_of_their_own(
    make: Callable[[], Window], kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.publish_display_data", shown.append)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    window = make()
    window._ipython_display_()
    assert [set(each) for each in shown] == [{"text/html", "text/plain"}, {VIEW, "text/html"}]
    assert f'data-window="{window.window_id}"' in shown[0]["text/html"]
    window.close()
    window._ipython_display_()
    assert "was closed" in shown[2]["text/html"]


class Tags(HTMLParser):
    """Names of the tags of a page and of attributes that are scripts; and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.words: list[str] = []
        self.feed(text)

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found |= {tag, *(f"{tag} {name}" for name, _ in attrs if name.startswith("on"))}


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_text_is_text_in_every_form(kind: str, kernel: Any) -> None:
    window = KINDS[kind](HOSTILE)
    html = window._repr_mimebundle_()[0]["text/html"]
    assert not [tag for tag in Tags(html).found if tag in ("script", "img", "iframe", "object") or " on" in tag]
    assert "&lt;" in html
    window.close()


def test_an_exported_notebook_shows_every_form_and_complains_of_none(
    kernel: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What nbconvert makes of a cell that shows a window; it names outputs that it can't represent."""
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.publish_display_data", shown.append)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    windows = [make("Say.") for make in KINDS.values()]
    for window in windows:
        window._ipython_display_()
    cell = nbformat.v4.new_code_cell("…", outputs=[nbformat.v4.new_output("display_data", data) for data in shown])
    from nbconvert import HTMLExporter

    with caplog.at_level(logging.WARNING):
        page, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    told = " ".join(Tags(page).words)
    for window in windows:
        assert " ".join(Tags(window.static_html()).words) in told
        window.close()
    assert [record.message for record in caplog.records if "represent" in record.message] == []


def test_what_opens_a_window_is_one_message_of_bounded_size(make: Callable[[], Window], kernel: Any) -> None:
    window = make()
    state, _, buffers = _remove_buffers(window.get_state())
    assert len(json.dumps(state, allow_nan=False)) + sum(map(len, buffers)) < LARGEST_MESSAGE
    assert len(window._esm) < LARGEST_SCRIPT
    window.close()


def test_fifty_windows_leave_nothing_behind(make: Callable[[], Window], kernel: Any) -> None:
    make().close()
    gc.collect()
    before = len(_instances)
    alive = []
    for _ in range(50):
        window = make()
        alive.append(weakref.ref(window))
        window.close()
        window.close()  # twice does no harm
        del window
    gc.collect()
    assert [ref() for ref in alive if ref() is not None] == []
    assert len(_instances) == before


def test_an_error_in_an_answer_is_raised_under_pytest(make: Callable[[], Window], kernel: Any) -> None:
    window = make()
    window.answers["broken"] = lambda content: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        window._heard(window, {"type": "broken"}, [])
    window.close()


def test_elsewhere_it_is_shown_in_the_window_and_the_browser_is_told(
    make: Callable[[], Window], kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = make()
    window.answers["broken"] = lambda content: 1 / 0  # type: ignore[assignment, return-value]
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    window._heard(window, {"type": "broken"}, [])
    assert window.error == "ZeroDivisionError: division by zero"
    assert kernel[-1][1]["content"] == {"type": "failed", "of": "broken"}
    window._heard(window, {"type": "nonsense"}, [])
    assert "does not know" in window.error
    window.close()


def test_warnings_are_shown_once_each_and_bounded(make: Callable[[], Window], kernel: Any) -> None:
    window = make()
    before = list(window.notices)
    for text in ("one", "two\u202e", "one", "x" * 5000):
        window.notice(text)
    assert window.notices[len(before) :] == ["one", "two<U+202E>", "x" * LONGEST_NOTICE]
    for number in range(2 * MOST_NOTICES):
        window.notice(f"warning {number}")
    assert len(window.notices) == MOST_NOTICES
    assert window.notices[-1] == f"warning {2 * MOST_NOTICES - 1}"
    window.close()
    window.notice("too late")
    assert "too late" not in window.notices


def test_a_view_that_asks_whether_anybody_is_there_is_answered(make: Callable[[], Window], kernel: Any) -> None:
    window = make()
    window._heard(window, {"type": "ping"}, [])
    assert kernel[-1][1]["content"] == {"type": "pong"}
    window.close()


def test_a_message_that_is_too_large_is_refused(make: Callable[[], Window], kernel: Any) -> None:
    window = make()
    with pytest.raises(ValueError, match="send it in parts"):
        window.tell("x", {}, [bytes(LARGEST_MESSAGE + 1)])
    window.close()
    window.tell("x", {})  # after closing: nothing
    assert kernel[-1][1].get("content", {}).get("type") != "x"


def test_numbers_that_json_lacks_become_nothing() -> None:
    assert json_safe({"a": [float("nan"), 1.5, (float("inf"),)]}) == {"a": [None, 1.5, [None]]}


# The browser's half, as text ---------------------------------------------------------------------------------------

SCRIPTS = sorted((ROOT / "widgets").rglob("*.js"))


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in SCRIPTS])
def test_a_script_takes_no_text_for_code_and_asks_for_nothing(path: Path) -> None:
    text = path.read_text("utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "new Function", "document.write", "fetch(",
                 "XMLHttpRequest", "import(", "console."):  # fmt: skip
        assert word not in text, word
    assert not [url for url in re.findall(r"https?://[^\"'` ]+", text) if url != "http://www.w3.org/2000/svg"]
    assert len(text.splitlines()) <= 330
    # What shortens scripts takes lines one by one.
    assert [line for line in text.splitlines() if line.count("`") % 2] == []
    assert not re.search(r"/\*", text)


def test_a_shortened_script_has_the_same_code() -> None:
    text = """// A comment.
  const a = { // what it is
    b: "http://x", // stays, and the line end with it
    c: [
      1,
      2
    ],
  };

  call(
    a,
  )
  if (a) b();
"""
    assert lean(text) == 'const a = {b: "http://x",\nc: [1,2\n],};call(a,)\nif (a) b();'


def test_nothing_prints_or_uses_a_figure_widget_or_an_output_widget() -> None:
    for path in sorted((ROOT / "widgets").rglob("*.py")):
        names = {node.id for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Name)}
        assert not names & {"print", "FigureWidget", "Output"}, path
