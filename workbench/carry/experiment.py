"""The demonstration from start to end: bases, merges and their controls by seed, measured, saved and put in a table.

Whatever is done for a (seed, system) lies in a folder of its own, so that a run that was broken off goes on.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..errors import CarryError
from ..models import load
from .adapters import Adapter, load_adapter, save_adapter
from .measuring import ABLATIONS, Bench, ablate, correct_by_hops, diagonal, donor_patch, exit_readout
from .model import CarryModel
from .optimise import STATE_FILE
from .systems import FURTHER, SYSTEMS, System, make_merge, shortened, system_named
from .task import PAUSE, stream
from .toy import BASE_PLAN, EIGHT_NODES, RECORD, REPEATS, TOY_SHAPE, train_base
from .training import fit

__all__ = ["BAND", "CONTROLS", "Budget", "demo_model", "export_demo", "run_controls", "train_demo"]

BAND = (1, 3)
"""The toy's band: blocks 1 and 2 of its four, ending where the auxiliary exit reads."""
ADAPTER, RESULT = "adapter.safetensors", "result.json"
CONTROLS = tuple(name for name in SYSTEMS if name not in FURTHER)
"""Systems that every seed of the demonstration trains, by name."""
SWAPS = {
    "carry": ("depth", "depth_tail", "no_pauses", "query_loop"),
    "depth": ("carry", "depth_tail", "no_pauses", "query_loop"),
    "no_pauses": ("carry", "query_loop"),
    "query_loop": ("carry", "no_pauses"),
}
"""Systems whose weights are also run in other systems' ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much is trained and measured. ``steps`` of None is every system's own number."""

    base_steps: int = BASE_PLAN.steps
    steps: int | None = None
    problems: int = 512
    hops: int = 9


FULL = Budget()


def run_controls(
    seeds: Sequence[int],
    out: str | Path,
    *,
    systems: Collection[str] = CONTROLS,
    budget: Budget = FULL,
    progress: bool = True,
) -> dict[str, Any]:
    """Train and measure ``systems`` for every seed, and write ``out/results.json``, which is also what goes out.

    Each seed has a base and problems of its own. Work that ``out`` already holds is not done again.

    :raises CarryError: a system that does not exist, or a folder that holds a run by another budget.
    """
    chosen = {name: system_named(name) for name in systems}
    folder = Path(out)
    _claim(folder, budget)
    for name, system in chosen.items():
        for seed in seeds:
            _one(folder, seed, name, _within(system, budget), budget, progress)
            write_results(folder, budget)
    return write_results(folder, budget)


def train_demo(seed: int, out: str | Path, *, budget: Budget = FULL, progress: bool = True) -> CarryModel:
    """Train the base and the carry of one seed into ``out``; the model that carries goes out."""
    folder = Path(out)
    _claim(folder, budget)
    _one(folder, seed, "carry", _within(SYSTEMS["carry"], budget), budget, progress)
    return demo_model(folder / f"seed{seed}")


def demo_model(directory: str | Path) -> CarryModel:
    """The toy with its carry from a folder that holds ``base`` and ``adapter.safetensors``, such as ``data/carry``."""
    folder = Path(directory)
    return _carrier(folder / "base", load_adapter(folder / ADAPTER))


def export_demo(out: str | Path, seed: int, target: str | Path) -> Path:
    """Copy the base, the adapter and the results of a run's seed to ``target``, without its working files.

    :raises CarryError: the seed was not trained there.
    """
    source, place = Path(out) / f"seed{seed}", Path(target)
    if not (source / ADAPTER).is_file():
        raise CarryError(f"{out} holds no trained carry of seed {seed}: run train_demo({seed}, {str(out)!r}) first")
    (place / "base").mkdir(parents=True, exist_ok=True)
    for path in (source / "base").iterdir():
        if path.name not in {STATE_FILE, RESULT}:
            shutil.copyfile(path, place / "base" / path.name)
    shutil.copyfile(source / ADAPTER, place / ADAPTER)
    shutil.copyfile(Path(out) / "results.json", place / "results.json")
    return place


def _claim(folder: Path, budget: Budget) -> None:
    """Note the budget in the folder, or refuse one that holds another's runs: their rows could not be compared."""
    note, wanted = folder / "budget.json", json.dumps(asdict(budget), sort_keys=True)
    if note.is_file() and note.read_text("utf-8") != wanted:
        raise CarryError(f"{folder} holds a run by {note.read_text('utf-8')}, not by {wanted}: use another folder")
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(wanted, encoding="utf-8")


def _within(system: System, budget: Budget) -> System:
    return system if budget.steps is None else shortened(system, budget.steps)


def _carrier(base: Path, adapter: Adapter) -> CarryModel:
    model = load(base, device="cpu", threads=torch.get_num_threads(), progress=False)
    return CarryModel(model, band=BAND, adapter=adapter, pause_token=PAUSE, pauses=4, loops=0)


def _one(folder: Path, seed: int, name: str, system: System, budget: Budget, progress: bool) -> None:
    """Train and measure one system of one seed, unless its result is there.

    :raises CarryError: there is a result, but by other settings of that system.
    """
    own = folder / f"seed{seed}" / name
    result: dict[str, Any] = {"seed": seed, "system": name, "settings": _settings(system)}
    if (own / RESULT).is_file():
        if json.loads((own / RESULT).read_text("utf-8"))["settings"] != result["settings"]:
            raise CarryError(
                f"{own} holds a result by other settings of {name!r} than this version's: use another folder"
            )
        return
    plan = replace(BASE_PLAN, seed=seed, steps=budget.base_steps)
    base = train_base(own.parent / base_name(system), plan=plan, repeats=system.base_repeats, progress=progress)
    model = _carrier(base, make_merge(system, TOY_SHAPE.d_model))
    if system.plan is not None:
        label = f"{name}, seed {seed}"
        training = fit(model, EIGHT_NODES, system=system, seed=seed, folder=own, label=label, progress=progress)
        result |= {"last_loss": round(training.last_loss(), 5), "cpu_seconds": round(training.seconds, 1)}
    if name == "carry":
        save_adapter(model.adapter, own.parent / ADAPTER)
    own.mkdir(parents=True, exist_ok=True)
    _write_json(own / RESULT, result | _measured(model, name, system, budget, seed))


def _measured(model: CarryModel, name: str, system: System, budget: Budget, seed: int) -> dict[str, Any]:
    """Right answers by hops, and what is measured of some systems only."""
    started = time.process_time()
    problems = EIGHT_NODES.sample(budget.problems, stream("evaluation", seed))
    bench = Bench(model=model, task=EIGHT_NODES, problems=problems)
    found: dict[str, Any] = {"problems": len(problems), "correct": correct_by_hops(bench, system, budget.hops)}
    if system.mode == "plain":
        found["exit_readout"] = exit_readout(bench, budget.hops - 1)
    if name == "carry":
        found["ablations"] = {what: ablate(bench, what, budget.hops, seed) for what in ABLATIONS}
        found["donor"] = donor_patch(bench, budget.hops)
        found["diagonal"] = diagonal(bench, budget.hops)
    if name in SWAPS:
        found["run_as"] = {other: correct_by_hops(bench, SYSTEMS[other], budget.hops) for other in SWAPS[name]}
    return found | {"measuring_cpu_seconds": round(time.process_time() - started, 1)}


def base_name(system: System) -> str:
    """The folder of the base that a system stands on."""
    return "base" if system.base_repeats == REPEATS else f"base_{system.base_repeats}"


def write_results(folder: Path, budget: Budget) -> dict[str, Any]:
    """Gather what lies under ``folder`` into ``results.json``."""
    runs = [json.loads(path.read_text("utf-8")) for path in folder.glob(f"seed*/*/{RESULT}")]
    order = list(SYSTEMS)
    runs.sort(key=lambda run: (order.index(run["system"]), run["seed"]))
    systems = {run["system"]: _told(run["system"], run.pop("settings")) for run in runs}
    bases = {path.parent: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob(f"seed*/*/{RECORD}"))}
    told = ("repeats", "last_loss", "cpu_seconds")
    results = {
        "command": "workbench carry controls --seed SEED --out FOLDER, once for each seed",
        "task": asdict(EIGHT_NODES),
        "shape": asdict(TOY_SHAPE),
        "band": list(BAND),
        "budget": asdict(budget),
        "systems": systems,
        "bases": {str(path.relative_to(folder)): {key: base[key] for key in told} for path, base in bases.items()},
        "runs": runs,
        "versions": {name: version(name) for name in ("torch", "transformers", "transformer-lens")}
        | {"python": platform.python_version()},
    }
    _write_json(folder / "results.json", results)
    return results


def _settings(system: System) -> dict[str, Any]:
    """What decides a system's result, as JSON: all but its title."""
    return {name: value for name, value in asdict(system).items() if name != "title"}


def _told(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A system for the results: its title, how it was run, and how many weights its adapter has."""
    weights = sum(weight.numel() for weight in make_merge(SYSTEMS[name], TOY_SHAPE.d_model).parameters())
    return {"title": SYSTEMS[name].title, **settings, "adapter_weights": weights}


def _write_json(path: Path, value: Any) -> None:
    """Write a file that is whole or not there."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    new.replace(path)
