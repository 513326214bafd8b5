"""Driving a real JupyterLab in a real browser: a server, a page, a notebook, and what to expect of any window.

For the tests of every window. A module writes its cells, opens them once and acts as a person would::

    @pytest.fixture(scope="module")
    def notebook(lab: Lab) -> Iterator[Notebook]:
        with lab.notebook("explorer", ["from widgets import TraceExplorer", "TraceExplorer(trace)"]) as notebook:
            notebook.run_all()
            yield notebook

    def test_the_arrow_moves_the_cursor(notebook: Notebook) -> None:
        notebook.window("explorer").locator(".wb-strip").press("ArrowRight")

- ``notebook.window(kind, nth)`` finds the ``nth`` shown window whose root has the class ``wb-KIND``;
- ``notebook.ask(code)`` runs code in the kernel, beside the cells, and returns what it printed;
- ``notebook.theme("dark")`` switches JupyterLab's theme; ``notebook.screenshot(name)`` keeps a picture under
  ``tests/artefacts/browser`` (ignored by git);
- ``notebook.faults()`` lists console errors, uncaught exceptions and requests that left this machine: the fixture
  ``no_faults`` checks it after every test;
- ``offline_pages.accessibility_faults(window)`` gives the critical and serious findings of axe-core inside one window,
  contrast among them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import nbformat
from jupyter_client import BlockingKernelClient
from offline_pages import ARTEFACTS
from playwright.sync_api import BrowserContext, Locator, Page, Request, ViewportSize

from workbench.reports import number

SECONDS = 120
"""How long a step may take on a busy machine before it counts as failed."""
TROUBLE = ("application/vnd.jupyter.error", "application/vnd.jupyter.stderr")
"""Kinds of output that a good cell does not have."""
STOPWATCH = frozenset({"[anywidget] Failed to initialize model."})
"""What anywidget says when a view takes more than two seconds to come, as on a busy machine. It comes all the same; a
test that needs it waits for it."""
WARM = "import torch, workbench, widgets; workbench.load('tiny-llama', progress=False)"
"""What takes a kernel longest at its first cell: the imports, and those of the first load."""
VIEWPORT: ViewportSize = {"width": 1360, "height": 1000}
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}


class Lab:
    """A JupyterLab server on the loopback with settings of its own, and a browser context to look at it."""

    def __init__(self, folder: Path, context: BrowserContext) -> None:
        self.folder = folder
        self.context = context
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        settings = folder / "config/lab/user-settings/@jupyterlab/apputils-extension"
        settings.mkdir(parents=True)
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(NO_NEWS))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (folder / "server.log").open("w")
        # Its folder is where a kernel that no notebook asked for yet begins.
        self._server = subprocess.Popen(
            self._command(), env=self._environment(), stdout=self._log, stderr=self._log, cwd=self.notebooks
        )
        self._warm: str | None = None
        self._asked: BlockingKernelClient | None = None
        self._wait()
        self.warm_kernel()

    def _command(self) -> list[str]:
        return [
            sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
            f"--port={self.port}", "--port-retries=0", f"--ServerApp.root_dir={self.notebooks}",
            "--IdentityProvider.token=", "--ServerApp.password=", "--ServerApp.disable_check_xsrf=True",
            "--LabApp.expose_app_in_browser=True",
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        # A kernel that inherits pytest's mark would raise where a person's window shows the red row.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        own = {
            "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
            "IPYTHONDIR": "ipython", "JUPYTERLAB_SETTINGS_DIR": "config/lab/user-settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        }  # fmt: skip
        return {**kept, **{name: str(self.folder / path) for name, path in own.items()}, "OMP_NUM_THREADS": "1"}

    def _wait(self) -> None:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and self._server.poll() is None:
            try:
                self.api("status")
            except (URLError, OSError):
                time.sleep(0.3)
            else:
                return
        self.close()
        raise RuntimeError(f"JupyterLab did not start:\n{(self.folder / 'server.log').read_text()[-3000:]}")

    def api(self, path: str, method: str = "GET", content: Mapping[str, Any] | None = None) -> Any:
        """Ask the server."""
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method, data=body)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def warm_kernel(self) -> None:
        """Start the next notebook's kernel and have it import what every notebook does, while others are at work."""
        if self._warm is not None:
            return
        self._warm = self.api("kernels", "POST", {"name": "python3"})["id"]
        client = BlockingKernelClient(connection_file=str(self.folder / f"runtime/kernel-{self._warm}.json"))
        client.load_connection_file()
        client.start_channels(shell=True, iopub=False, stdin=False, hb=False, control=False)
        client.execute(WARM, silent=True, store_history=False)  # nobody waits for its answer
        self._asked = client

    def _cool(self) -> None:
        """The warm kernel has found its notebook, or is not needed any more."""
        if self._asked is not None:
            self._asked.stop_channels()
        self._warm = self._asked = None

    def stop_kernels(self) -> None:
        """Stop those of notebooks."""
        for kernel in self.api("kernels"):
            if kernel["id"] != self._warm:
                self.api(f"kernels/{kernel['id']}", "DELETE")

    def close(self) -> None:
        self._cool()
        self._server.terminate()
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._log.close()

    @contextmanager
    def notebook(self, name: str, cells: Sequence[str]) -> Iterator[Notebook]:
        """A notebook of these code cells, opened in a page of its own; its kernel ends with it."""
        path = self.notebooks / f"{name}.ipynb"
        document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
        document.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(document, path)
        with self.opened(path) as opened:
            yield opened

    @contextmanager
    def opened(self, path: Path) -> Iterator[Notebook]:
        """A notebook file in the server's folder, opened in a page of its own; its kernel ends with it."""
        if self._warm is not None:
            about = {"path": path.name, "name": path.name, "type": "notebook", "kernel": {"id": self._warm}}
            self.api("sessions", "POST", about)
            self._cool()
        opened = Notebook(self, path, self.context.new_page())
        try:
            opened.open()
            yield opened
        finally:
            opened.page.close()
            self.stop_kernels()


class Notebook:
    """A notebook in JupyterLab."""

    def __init__(self, lab: Lab, path: Path, page: Page) -> None:
        self.lab = lab
        self.path = path
        self.page = page
        self._faults: list[str] = []
        page.set_default_timeout(30_000)
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self._thrown(str(error)))
        page.on("request", self._asked)

    def _heard(self, kind: str, text: str) -> None:
        if kind == "error":
            self._faults.append(f"console: {text}")

    def _thrown(self, text: str) -> None:
        if text not in STOPWATCH:
            self._faults.append(f"uncaught: {text}")

    def _asked(self, request: Request) -> None:
        if not re.match(rf"(https?|ws)://127\.0\.0\.1:{self.lab.port}/|blob:|data:", request.url):
            self._faults.append(f"left this machine: {request.url}")

    def faults(self) -> list[str]:
        """What went wrong in the page since the last call."""
        found, self._faults = self._faults, []
        return found

    # The notebook ------------------------------------------------------------------------------------------

    def open(self, *, kernel: bool = True) -> None:
        """Load the page and wait for the cells, and for the kernel unless told otherwise."""
        self.page.goto(f"{self.lab.url}/lab/tree/{self.path.name}?reset")
        self.page.wait_for_selector(
            ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell", timeout=SECONDS * 1000
        )
        if kernel:
            self._until("jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'")
        self.command("application:toggle-left-area") if self.page.locator("#jp-left-stack").is_visible() else None

    def command(self, name: str, **arguments: Any) -> None:
        """Run a command of JupyterLab. Its promise is not waited for: on a busy kernel it may never settle."""
        self.page.evaluate("([name, args]) => { jupyterapp.commands.execute(name, args); }", [name, arguments])

    def _until(self, condition: str, seconds: float = SECONDS) -> None:
        self.page.wait_for_function(f"() => {{ return {condition}; }}", timeout=seconds * 1000)

    def run_all(self, *, seconds: float = SECONDS) -> None:
        """Run every cell and wait for the end of the last one.

        :raises AssertionError: a cell raised.
        """
        self.command("notebook:run-all-cells")
        done = "c.type !== 'code' || (c.executionCount !== null && c.executionState !== 'running')"
        cells = "[...jupyterapp.shell.currentWidget.content.model.cells]"
        kinds = "Array.from({ length: c.outputs.length }, (_, n) => c.outputs.get(n).type)"
        failed = f"c.outputs && {kinds}.includes('error')"
        self._until(f"{cells}.every(c => {done}) || {cells}.some(c => {failed})", seconds)
        self.lab.warm_kernel()
        errors = self.page.locator(", ".join(f".jp-OutputArea-output[data-mime-type='{kind}']" for kind in TROUBLE))
        assert errors.count() == 0, errors.all_inner_texts()

    def run_cell(self, source: str) -> None:
        """Run code in a new last cell, so that what it shows is shown; a later call uses the same cell."""
        self.page.evaluate(_LAST_CELL, source)
        self._until("jupyterapp.shell.currentWidget.content.activeCell.model.executionState !== 'running'")
        self.ask("None")  # the kernel has done the cell when it answers this

    def listeners(self) -> int:
        """How many event listeners the page has after a garbage collection: more and more are a leak."""
        tools = self.page.context.new_cdp_session(self.page)
        tools.send("HeapProfiler.enable")
        for _ in range(3):
            tools.send("HeapProfiler.collectGarbage")
        counts = tools.send("Memory.getDOMCounters")
        tools.detach()
        return int(counts["jsEventListeners"])

    def save(self) -> dict[str, Any]:
        """Save the notebook and return what is in the file."""
        self.command("docmanager:save")
        self._until("!jupyterapp.shell.currentWidget.context.model.dirty")
        return dict(json.loads(self.path.read_text()))

    def ask(self, code: str, seconds: float = SECONDS) -> str:
        """Run code in the kernel, beside the cells, and return what it printed.

        :raises AssertionError: the code raised.
        """
        answer = self.page.evaluate(_ASK, [code, seconds * 1000])
        assert answer["error"] is None, answer["error"]
        return str(answer["text"]).strip()

    def value(self, expression: str) -> Any:
        """A JSON-able value of the kernel's."""
        return json.loads(self.ask(f"import json; print(json.dumps({expression}))"))

    def window(self, kind: str, nth: int = 0) -> Locator:
        """The ``nth`` window of a kind that is shown, once it is there."""
        found = self.page.locator(f".jp-NotebookPanel .wb.wb-{kind}").nth(nth)
        found.wait_for()
        return found

    def theme(self, name: str) -> None:
        """``light`` or ``dark``, and wait until the page has it."""
        self.command("apputils:change-theme", theme={"light": "JupyterLab Light", "dark": "JupyterLab Dark"}[name])
        self._until(f"document.body.dataset.jpThemeLight === '{str(name == 'light').lower()}'")
        self.page.wait_for_timeout(300)  # the style sheet itself comes a moment later

    def screenshot(self, name: str, target: Locator | None = None) -> Path:
        """Keep a picture of the page, or of one element as a whole (the page grows for it as long as that takes)."""
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        path = ARTEFACTS / f"{name}.png"
        if target is None:
            self.page.screenshot(path=path)
            return path
        box = target.bounding_box()
        assert box is not None, f"nothing to see of {target}"
        before = self.page.viewport_size
        self.page.set_viewport_size({"width": VIEWPORT["width"], "height": int(box["height"]) + 260})
        target.scroll_into_view_if_needed()
        self.page.wait_for_timeout(200)
        target.screenshot(path=path)
        self.page.set_viewport_size(before or VIEWPORT)
        return path


_LAST_CELL = """async (source) => {
  const panel = jupyterapp.shell.currentWidget.content;
  panel.activeCellIndex = panel.widgets.length - 1;
  if (!panel.activeCell.node.dataset.scratch) {
    await jupyterapp.commands.execute('notebook:insert-cell-below');
    panel.activeCell.node.dataset.scratch = "yes";
  }
  panel.activeCell.model.sharedModel.setSource(source);
  jupyterapp.commands.execute('notebook:run-cell');
}"""
_ASK = """async ([code, limit]) => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const answer = { text: "", error: null };
  const future = kernel.requestExecute({ code, silent: false, store_history: false, stop_on_error: false });
  future.onIOPub = ({ header, content }) => {
    if (header.msg_type === "stream" && content.name === "stdout") answer.text += content.text;
    if (header.msg_type === "error") answer.error = content.traceback.join("\\n");
  };
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error(`no answer to: ${code}`)), limit));
  await Promise.race([future.done, late]);
  return answer;
}"""


def shown(values: Sequence[float | None]) -> list[str]:
    """Numbers as every window writes them."""
    return ["–" if value is None else number(value) for value in values]
