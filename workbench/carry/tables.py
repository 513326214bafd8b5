"""The demonstration's results as Markdown tables, and a page whose tables are kept equal to them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import CarryError
from .controls import wilson
from .measuring import ABLATIONS
from .systems import SYSTEMS

__all__ = ["TABLES", "fill_page", "interval"]

STUDENT_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""The 97.5 % point of Student's t for a mean of so many seeds."""
MARK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
Runs = list[dict[str, Any]]


def interval(correct: Sequence[int], problems: int) -> tuple[float, float, float]:
    """Mean share over seeds, and its 95 % interval: Student's t over the seeds' shares.

    Where seeds agree that would be a point, so it is widened to the Wilson interval of all problems together. One
    seed has the latter only.

    :raises CarryError: no seeds, or more than ten.
    """
    if not 1 <= len(correct) <= len(STUDENT_T) + 1:
        raise CarryError(f"an interval takes 1 to {len(STUDENT_T) + 1} seeds, got {len(correct)}")
    shares = [count / problems for count in correct]
    mean = sum(shares) / len(shares)
    low, high = wilson(sum(correct), problems * len(correct))
    if len(shares) > 1:
        spread = math.sqrt(sum((share - mean) ** 2 for share in shares) / (len(shares) - 1))
        half = STUDENT_T[len(shares)] * spread / math.sqrt(len(shares))
        low, high = min(low, mean - half), max(high, mean + half)
    # Rounding may put Wilson's upper end a hair below a share of one.
    return mean, max(min(low, mean), 0.0), min(max(high, mean), 1.0)


def controls_table(results: Mapping[str, Any]) -> str:
    """Every system by hops."""
    rows = [
        [told["title"], *_cells([run["correct"] for run in runs], _problems(results))]
        for name, told in results["systems"].items()
        if (runs := _runs(results, name))
    ]
    return _table(["system", *_heads(results)], rows)


def ablations_table(results: Mapping[str, Any]) -> str:
    """The carry's own weights, changed at test time."""
    runs = _runs(results, "carry")
    rows = [["unchanged", *_cells([run["correct"] for run in runs], _problems(results))]]
    for name, title in ABLATIONS.items():
        rows.append([title, *_cells([run["ablations"][name] for run in runs], _problems(results))])
    return _table(["the carry's weights with", *_heads(results)], rows)


def swaps_table(results: Mapping[str, Any]) -> str:
    """The weights of one system run in another's way."""
    rows = []
    for trained in results["systems"]:
        runs = [run for run in _runs(results, trained) if "run_as" in run]
        for run_as in runs[0]["run_as"] if runs else ():
            counts = [run["run_as"][run_as] for run in runs]
            rows.append([_title(trained), _title(run_as), *_cells(counts, _problems(results))])
    return _table(["trained as", "run as", *_heads(results)], rows)


def donor_table(results: Mapping[str, Any]) -> str:
    """Whose node the answers follow after s_1 was another problem's."""
    runs = _runs(results, "carry")
    titles = {"donor": "the donor's node, through the recipient's map", "own": "the recipient's own right answer"}
    rows = [
        [title, *_cells([run["donor"][whose] for run in runs], _problems(results))] for whose, title in titles.items()
    ]
    return _table(["answers that are", *_heads(results, first=3)], rows)


def diagonal_table(results: Mapping[str, Any]) -> str:
    """What the logit lens reads in each state; mean share over seeds."""
    runs = _runs(results, "carry")
    steps, problems = len(runs[0]["diagonal"]["matrix"]), _problems(results)
    rows = []
    for step in range(steps):
        shares = [
            sum(run["diagonal"]["matrix"][step][hop] for run in runs) / (problems * len(runs)) for hop in range(steps)
        ]
        norm = sum(run["diagonal"]["norms"][step] for run in runs) / len(runs)
        cosine = sum(run["diagonal"]["cosines"][step - 1] for run in runs) / len(runs) if step else None
        rows.append([f"s_{step}", *map(_number, shares), f"{norm:.1f}", "" if cosine is None else f"{cosine:.2f}"])
    nodes = [f"f^{hop + 1}(a)" for hop in range(steps)]
    return _table(["state", *nodes, "length", "cosine to the one before"], rows)


def exit_table(results: Mapping[str, Any]) -> str:
    """What the band's exit holds in the bases alone: the bound of a carry, and how far off pauses may lie."""
    rows, problems = [], _problems(results)
    for name, told in results["systems"].items():
        runs = [run for run in _runs(results, name) if "exit_readout" in run]
        if not runs:
            continue
        first = [run["exit_readout"][0] / problems for run in runs]
        powers = [_number(_mean([share**hops for share in first])) for hops in _numbers(results)]
        rows += [
            [told["title"], "answer after (hops - 1) pauses", *_cells([run["exit_readout"] for run in runs], problems)],
            [told["title"], "answer at the query, to the power of hops", str(len(runs)), *powers],
        ]
    return _table(["base", "read at the band's exit", *_heads(results)], rows)


def cost_table(results: Mapping[str, Any]) -> str:
    """Weights, steps and processor time of each system."""
    rows = []
    for name, told in results["systems"].items():
        runs = _runs(results, name)
        if told["plan"] is None:
            continue
        seconds = [run["cpu_seconds"] + run["measuring_cpu_seconds"] for run in runs]
        losses = [f"{run['last_loss']:.3f}" for run in runs]
        weights = f"{told['adapter_weights']:,}" + (" and the base" if told["train_base"] else "")
        rows.append([told["title"], weights, str(told["plan"]["steps"]), f"{_mean(seconds):.0f}", ", ".join(losses)])
    base = [told["cpu_seconds"] for told in results["bases"].values()]
    rows.insert(0, ["a base", "all", str(results["budget"]["base_steps"]), f"{_mean(base):.0f}", ""])
    return _table(["system", "weights trained", "steps", "CPU seconds", "loss at the end, by seed"], rows)


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "controls": controls_table,
    "ablations": ablations_table,
    "swaps": swaps_table,
    "donor": donor_table,
    "diagonal": diagonal_table,
    "exit": exit_table,
    "cost": cost_table,
}
"""Every table by the name that a page's marks give."""


def fill_page(page: str, results: Mapping[str, Any]) -> str:
    """``page`` with what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` made from ``results``.

    :raises CarryError: a mark names no table.
    """

    def filled(found: re.Match[str]) -> str:
        if found[2] not in TABLES:
            raise CarryError(f"the page asks for table {found[2]!r}; there are {', '.join(TABLES)}")
        return f"{found[1]}{TABLES[found[2]](results)}\n{found[3]}"

    return MARK.sub(filled, page)


def _title(name: str) -> str:
    return SYSTEMS[name].title


def _runs(results: Mapping[str, Any], name: str) -> Runs:
    return [run for run in results["runs"] if run["system"] == name]


def _problems(results: Mapping[str, Any]) -> int:
    return int(results["budget"]["problems"])


def _numbers(results: Mapping[str, Any]) -> range:
    return range(1, int(results["budget"]["hops"]) + 1)


def _heads(results: Mapping[str, Any], first: int = 1) -> list[str]:
    """Column heads of :func:`_cells`; a star marks hops that take more pauses than were trained on."""
    trained = SYSTEMS["carry"].max_pauses + 1
    return ["seeds", *(f"hop {hop}" + "*" * (hop > trained) for hop in _numbers(results) if hop >= first)]


def _cells(counts: Sequence[Sequence[int]], problems: int) -> list[str]:
    """How many seeds, then mean and interval of each column of ``counts[seed][hop]``."""
    found = (interval(column, problems) for column in zip(*counts, strict=True))
    return [str(len(counts)), *(f"{_number(mean)} ({_number(low)}–{_number(high)})" for mean, low, high in found)]


def _number(share: float) -> str:
    """Two decimals, three above 0.99; one is only said of all."""
    if share in (0.0, 1.0):
        return str(int(share))
    return f"{min(share, 0.999):.3f}" if share >= 0.99 else f"{share:.2f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
