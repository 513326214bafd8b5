"""Measured controls of the carry, as ``workbench carry controls`` leaves them, to the tables of a report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..carry import fill_page
from ..errors import CarryError, ReportError
from .blocks import Block, Facts, Grid, Heading, Note

__all__ = ["results_blocks"]

TABLES: Mapping[str, tuple[str, str | None]] = {
    "controls": ("Every system by hops", None),
    "ablations": ("The carry's own weights, changed at test time", "ablations"),
    "swaps": ("Weights of one system run in another's way", "run_as"),
    "donor": ("Whose node the answers follow after a state was another problem's", "donor"),
    "diagonal": ("What the logit lens reads in each state", "diagonal"),
    "exit": ("What the band's exit holds in the bases alone", "exit_readout"),
    "cost": ("Weights, steps and processor time", None),
}
"""Titles, and what some run must hold for the table to be filled."""


def results_blocks(results: Mapping[str, Any]) -> Iterator[Block]:
    """The tables that the results can fill.

    :raises ReportError: they are no results of the carry's controls, or damaged.
    """
    try:
        runs, problems = list(results["runs"]), results["budget"]["problems"]
        seeds = sorted({run["seed"] for run in runs})
        filled = {
            name: fill_page(f"<!-- begin {name} -->\n<!-- end {name} -->", results)
            for name, (_, needed) in TABLES.items()
            if needed is None or any(needed in run for run in runs)
        }
        command, versions = str(results["command"]), dict(results["versions"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, CarryError) as error:
        raise ReportError(f"these are no results of `workbench carry controls`, or damaged: {error!r}") from None
    yield Heading(text="The carry and its controls")
    told = {"Seeds": ", ".join(map(str, seeds)), "Problems each": str(problems), "Made by": command}
    yield Facts(pairs=tuple(told.items()))
    yield Note(
        text="Shares of problems answered right. In brackets are 95 % intervals: Student's t over seeds, widened to "
        "the Wilson interval over all problems where seeds agree. A star marks hops that take more pauses than trained."
    )
    for name, text in filled.items():
        yield _grid(TABLES[name][0], text)
    yield Heading(text="Provenance of the measurements")
    yield Facts(pairs=tuple((f"Version of {name}", str(value)) for name, value in versions.items()))


def _grid(caption: str, text: str) -> Grid:
    """A Markdown table, as the carry writes it, as a table of a report."""
    lines = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line.startswith("|")
    ]
    head, rows = lines[0], [line for line in lines[2:] if line]
    padded = [(*row, *[""] * (len(head) - len(row))) for row in rows]
    numeric = tuple(all(re.fullmatch(r"[\d.,–() ]*", row[i]) for row in padded) for i in range(len(head)))
    return Grid(caption=caption, columns=tuple(head), rows=tuple(padded), numeric=numeric, total=len(padded))
