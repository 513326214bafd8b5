"""A document to PDF by way of a browser that is there already: without the network, in a profile of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import ReportError

__all__ = ["BROWSER_VARIABLE", "find_browser", "pdf_of"]

BROWSER_VARIABLE = "WORKBENCH_BROWSER"
"""Environment variable: the browser to print with, if it is not on the path."""
BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
)  # fmt: skip
SECONDS = 180
FLAGS = (
    "--headless", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-extensions",
    "--disable-sync", "--disable-background-networking", "--disable-component-update", "--disable-breakpad",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--no-pdf-header-footer", "--virtual-time-budget=20000",
)  # fmt: skip
DATES = re.compile(rb"(/(?:CreationDate|ModDate) \(D:)\d{14}[^)]*\)")


def find_browser() -> Path | None:
    """The browser that PDFs are printed with, or None."""
    named = os.environ.get(BROWSER_VARIABLE)
    if named:
        found = shutil.which(named)
        return None if found is None else Path(found)
    return next((Path(found) for name in BROWSERS if (found := shutil.which(name))), None)


def pdf_of(html: str) -> bytes:
    """The document as PDF: the same pages for the same document and browser, and no date in it.

    :raises ReportError: there is no browser here, or it failed.
    """
    browser = find_browser()
    if browser is None:
        raise ReportError(
            "a PDF is printed by a browser, and none was found here: install Chromium, Chrome or Edge, name one in "
            f"{BROWSER_VARIABLE}, or save as .html and print that to PDF from any browser"
        )
    with TemporaryDirectory(prefix="workbench-pdf-") as folder:
        page, target = Path(folder) / "report.html", Path(folder) / "report.pdf"
        page.write_bytes(html.encode())
        _print(browser, page, target, Path(folder) / "profile")
        return _undated(target.read_bytes())


def _print(browser: Path, page: Path, target: Path, profile: Path) -> None:
    # As root there is no sandbox to be had, which is what containers run as; the page is ours and loads nothing.
    root = ["--no-sandbox"] if sys.platform != "win32" and os.geteuid() == 0 else []
    command = [str(browser), *FLAGS, *root, f"--user-data-dir={profile}", f"--print-to-pdf={target}", page.as_uri()]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReportError(f"{browser} could not print the report: {error}. Save as .html instead") from error
    if done.returncode or not target.is_file():
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["nothing"]
        raise ReportError(f"{browser} printed no PDF (exit code {done.returncode}); it said: {said[0][:300]}")


def _undated(content: bytes) -> bytes:
    """Without the time of printing; each date is replaced by one as long, so that no offset changes."""
    return DATES.sub(
        lambda found: found[1] + b"20000101000000".ljust(len(found[0]) - len(found[1]) - 1) + b")", content
    )
