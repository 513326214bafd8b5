"""What is handed out holds what it needs and nothing else, and works without the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
STEM = f"interp_workbench-{PROJECT['version']}"
SOURCES = {"workbench": "workbench", "widgets": "widgets", "data": "workbench/data"}
"""Folders of the tree, and where the wheel has them."""
LEFT_OUT = {"__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}

PROGRAM = """
import importlib, json, pkgutil, sys
import widgets, workbench
for package in (workbench, widgets):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
sys.path.append(sys.argv[1])
from window_kinds import KINDS
made = [type(make("hi")).__name__ for make in KINDS.values()]
homes = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] in ("widgets", "workbench")]
print(json.dumps({"homes": homes, "made": made, "offered": widgets.__all__}))
"""


def tree_files() -> dict[str, Path]:
    """Every file of the packages and the data, by its name in the wheel."""
    found = {}
    for folder, place in SOURCES.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and LEFT_OUT.isdisjoint(path.parts):
                found[f"{place}/{path.relative_to(ROOT / folder).as_posix()}"] = path
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive, built here without a network."""
    place = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(place)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built / f"{STEM}-py3-none-any.whl")


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return HeaderParser().parsestr(wheel.read(f"{STEM}.dist-info/METADATA").decode())


@pytest.fixture(scope="module")
def unpacked(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("unpacked")
    wheel.extractall(place)
    return place


def run_from(unpacked: Path, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder ``place`` with the unpacked wheel before whatever else is installed."""
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, encoding="utf-8", cwd=place,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
    )  # fmt: skip


def test_the_wheel_holds_every_file_of_the_packages_unchanged_and_no_other(wheel: zipfile.ZipFile) -> None:
    wanted = tree_files()
    held = {name for name in wheel.namelist() if not name.startswith(f"{STEM}.dist-info/")}
    assert held == wanted.keys()
    assert [name for name, path in wanted.items() if wheel.read(name) != path.read_bytes()] == []


def test_types_windows_templates_and_data_are_among_them(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    assert {"workbench/py.typed", "widgets/py.typed", "workbench/reports/template.html"} <= held
    assert {"workbench/data/flows/runtime_tools.json", "workbench/data/collection/passages.json"} <= held
    for folder in {PurePosixPath(name).parent for name in held if name.endswith("/widget.py")}:
        assert {f"{folder}/index.js", f"{folder}/style.css"} <= held
    assert f"{STEM}.dist-info/licenses/LICENSE" in held


def test_both_are_small(built: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in built.iterdir()}
    assert len(sizes) == 2
    assert max(sizes.values()) < 8_000_000, sizes


def test_the_source_archive_holds_what_a_clone_needs_and_nothing_made_by_runs(built: Path) -> None:
    with tarfile.open(built / f"{STEM}.tar.gz") as archive:
        names = {member.name.removeprefix(f"{STEM}/") for member in archive.getmembers() if member.isfile()}
        notebooks = [name for name in names if name.endswith(".ipynb")]
        outputs = {
            name: [cell for cell in json.load(archive.extractfile(f"{STEM}/{name}"))["cells"] if cell.get("outputs")]  # type: ignore[arg-type]
            for name in notebooks
        }
    assert notebooks
    assert not any(outputs.values()), f"committed with outputs: {[name for name, cells in outputs.items() if cells]}"
    for needed in (
        "Makefile", "scripts/setup.sh", "constraints.txt", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
        "CITATION.cff", "LICENSE", "environment.yml", "tests/conftest.py", "docs/index.md", "data/README.md",
    ):  # fmt: skip
        assert needed in names
    tops = {"build", "dist", "runs", "reports", ".venv", ".git"}
    wrong = [name for name in names if not LEFT_OUT.isdisjoint(parts := name.split("/")) or parts[0] in tops]
    assert wrong == []
    assert not any(name.startswith("tests/artefacts/") for name in names)


def test_its_metadata_is_the_projects(metadata: Message) -> None:
    assert metadata["Name"] == "interp-workbench"
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["License-Expression"] == PROJECT["license"]
    low, high = PROJECT["requires-python"].split(",")
    assert set(metadata["Requires-Python"].split(",")) == {low, high}
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])  # type: ignore[arg-type]
    assert metadata.get_payload().startswith("# Interp Workbench")


def test_every_requirement_that_is_handed_out_is_bounded_above(metadata: Message) -> None:
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist") or ()]
    listed = [
        *PROJECT["dependencies"],
        *(line for lines in PROJECT["optional-dependencies"].values() for line in lines),
    ]
    assert len(requirements) == len(listed)
    assert [str(each) for each in requirements if not any(bound.operator == "<" for bound in each.specifier)] == []


def test_the_command_is_an_entry_point(wheel: zipfile.ZipFile) -> None:
    assert "workbench = workbench.cli:main" in wheel.read(f"{STEM}.dist-info/entry_points.txt").decode()


@pytest.mark.slow
def test_every_module_and_window_of_the_unpacked_wheel_works_elsewhere(unpacked: Path, tmp_path: Path) -> None:
    done = run_from(unpacked, tmp_path, "-c", PROGRAM, str(ROOT / "tests" / "widgets"))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [home for home in told["homes"] if not home.startswith(str(unpacked))] == []
    assert {*told["made"], "Window", "display"} == set(told["offered"])


@pytest.mark.slow
def test_the_unpacked_wheel_gives_the_demonstration(unpacked: Path, tmp_path: Path) -> None:
    done = run_from(unpacked, tmp_path, "-m", "workbench", "demo", "--model", "tiny-llama")
    assert done.returncode == 0, done.stderr
    assert str(unpacked / "workbench" / "data") in done.stdout, "the flow came from somewhere else"
    assert (tmp_path / "workbench-demo" / "report.html").stat().st_size > 100_000


@pytest.mark.slow
def test_the_unpacked_wheel_runs_a_script_of_the_public_sdk(unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\nfrom quote_mod_sdk import mod\nprint(mod.__module__, *sys.argv[1:])\n"
    )
    done = run_from(unpacked, tmp_path, "-m", "workbench.compat", "script.py", "hello")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "workbench.compat.decorator hello\n"
