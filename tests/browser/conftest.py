"""One JupyterLab and one browser for all tests here. See ``lab_driver`` for how to test a window with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install -e '.[dev]' brings playwright")

from lab_driver import VIEWPORT, Lab, Notebook
from offline_pages import FLAGS, browser_or_skip
from playwright.sync_api import Browser, sync_playwright


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests: playwright does not run twice in a thread."""
    path = browser_or_skip()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    context = browser.new_context(viewport=VIEWPORT, reduced_motion="reduce")
    server = Lab(tmp_path_factory.mktemp("lab"), context)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def no_faults(notebook: Notebook) -> Iterator[None]:
    """After a test, no error in the console, no uncaught exception, no request to elsewhere."""
    yield
    assert notebook.faults() == []
