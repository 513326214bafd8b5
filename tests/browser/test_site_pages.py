"""The documentation in a browser: pages ask no network, fit a phone, and pass axe-core in both colour schemes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from offline_pages import accessibility_faults
from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
DESK, PHONE = (1440, 1000), (390, 844)
PAGES = ("index", "tour", "mods", "chain_maths", "comparison", "glossary", "api/engine")


@pytest.fixture(scope="module")
def site() -> Path:
    built = subprocess.run(["make", "-s", "build/docs/built"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return ROOT / "build" / "docs"


@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", PHONE)])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_no_network_fits_its_window_and_can_be_read_by_all(
    site: Path, browser: Browser, name: str, scheme: str, size: tuple[int, int]
) -> None:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    asked: list[str] = []
    errors: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert accessibility_faults(page.locator("article[role=main]")) == []
    assert [address for address in asked if not address.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []
    context.close()


def test_the_search_works_without_a_server(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q=backtrack")
    page.locator("#search-results li a").first.wait_for()
    assert page.locator("#search-results li").count() > 3
    page.close()
