"""A document opened as a file in a real browser with the network cut: what it asked for, what it complained of.

A browser of its own in a thread of its own, so that it does not meet the one that other browser tests keep open.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pytest

ARTEFACTS = Path(__file__).resolve().parent / "artefacts" / "browser"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--force-color-profile=srgb")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
Act = Callable[[Any], Any]


@dataclass(slots=True)
class Look:
    """What came of opening a document. ``faults``: console errors, exceptions, requests that left the file, dialogs."""

    result: Any = None
    faults: list[str] = field(default_factory=list)


def browser_or_skip() -> str:
    """The system's chromium; without one the test is skipped, in continuous integration it fails."""
    pytest.importorskip("playwright.sync_api", reason="pip install -e '.[dev]' brings playwright")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        message = "no chromium here: sh scripts/setup.sh browser"
        pytest.fail(message) if "CI" in os.environ else pytest.skip(message)
    return str(path)


def look_at(path: Path, act: Act, *, scheme: Literal["light", "dark"] = "light") -> Look:
    """Open ``path`` offline, give the page to ``act``, and tell what it returned and what went wrong."""
    browser = browser_or_skip()
    with ThreadPoolExecutor(1) as other:
        return other.submit(_look, browser, path, act, scheme).result()


def _look(browser_path: str, path: Path, act: Act, scheme: Literal["light", "dark"]) -> Look:
    from playwright.sync_api import sync_playwright

    found = Look()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(FLAGS))
        context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": 1280, "height": 1000}, reduced_motion="reduce"
        )
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda one: found.faults.append(f"console: {one.text}") if one.type == "error" else None)
        page.on("pageerror", lambda error: found.faults.append(f"uncaught: {error}"))
        page.on("dialog", lambda dialog: (found.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda one: _asked(found, one.url, path))
        page.goto(path.resolve().as_uri())
        found.result = act(page)
        browser.close()
    return found


def _asked(found: Look, url: str, path: Path) -> None:
    if url != path.resolve().as_uri() and not url.startswith(("data:", "blob:", "about:")):
        found.faults.append(f"request: {url}")


def open_all(page: Any) -> None:
    """Open everything that is folded."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def picture(page: Any, name: str) -> None:
    """Keep a picture of the page's beginning under ``tests/artefacts/browser``."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"{name}.png")


def accessibility_faults(part: Any) -> list[str]:
    """The critical and serious findings of axe-core inside an element (a locator), one line each; none is good."""
    page = part.page
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text("utf-8"))
    found = part.evaluate("element => axe.run(element, { resultTypes: ['violations'] })")
    return [
        f"{violation['id']} ({violation['impact']}): {node['html'][:200]} {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in ("critical", "serious")
        for node in violation["nodes"]
    ]


def accessibility(page: Any) -> list[str]:
    """The same for a whole page."""
    return accessibility_faults(page.locator("html"))


def wider_than_the_page(page: Any) -> int:
    """By how many pixels the page can be scrolled sideways."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
