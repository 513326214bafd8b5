"""A release hangs together: one version everywhere, dependencies bounded above, a tested set within the bounds."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
REQUIREMENTS = [
    *(("build-system", line) for line in PROJECT["build-system"]["requires"]),
    *(("dependencies", line) for line in PROJECT["project"]["dependencies"]),
    *((extra, line) for extra, lines in EXTRAS.items() for line in lines),
]
NOT_INSTALLED_FOR_TESTS = {"ray"}
"""Extras that `make` leaves out, so that the tested set need not hold them."""


def pins() -> dict[str, Version]:
    """The tested set: each release by its name."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def has_upper_bound(specifiers: SpecifierSet) -> bool:
    return any(each.operator in ("<", "<=", "==", "~=") for each in specifiers)


@pytest.mark.parametrize(("where", "line"), REQUIREMENTS, ids=lambda text: re.split(r"[<>=; ]", text)[0])
def test_every_requirement_has_a_lower_and_an_upper_bound(where: str, line: str) -> None:
    bounds = Requirement(line).specifier
    assert has_upper_bound(bounds), f"{where}: {line} allows any later release"
    assert any(each.operator in (">=", "==", "~=") for each in bounds), f"{where}: {line} allows any earlier release"


def test_the_requirements_are_all_there() -> None:
    assert len(REQUIREMENTS) > 20


def test_the_python_versions_are_bounded_too() -> None:
    assert has_upper_bound(SpecifierSet(PROJECT["project"]["requires-python"]))


@pytest.mark.parametrize(
    ("bounds", "bounded"), [(">=1", False), ("", False), ("!=2", False), (">=1,<2", True), ("~=1.4", True)]
)
def test_only_a_bound_from_above_counts(bounds: str, bounded: bool) -> None:
    assert has_upper_bound(SpecifierSet(bounds)) is bounded


@pytest.mark.parametrize(("where", "line"), REQUIREMENTS, ids=lambda text: re.split(r"[<>=; ]", text)[0])
def test_the_tested_set_holds_a_release_that_is_allowed(where: str, line: str) -> None:
    wanted = Requirement(line)
    tested = pins().get(canonicalize_name(wanted.name))
    if where in NOT_INSTALLED_FOR_TESTS:
        assert tested is None or tested in wanted.specifier
    else:
        assert tested is not None, f"constraints.txt has no {wanted.name}: run make constraints"
        assert tested in wanted.specifier, f"constraints.txt has {wanted.name} {tested}, {where} asks for {line}"


def test_one_requirement_has_one_range_wherever_it_stands() -> None:
    ranges: dict[str, set[str]] = {}
    for _, line in REQUIREMENTS:
        wanted = Requirement(line)
        ranges.setdefault(canonicalize_name(wanted.name), set()).add(str(wanted.specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}


def test_the_changelog_begins_with_what_is_unreleased_and_then_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    version, day = re.fullmatch(r"(\S+) \((\d{4}-\d\d-\d\d)\)", headings[1]).groups()  # type: ignore[union-attr]
    assert version == PROJECT["project"]["version"]
    date.fromisoformat(day)


class TestCitation:
    CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))

    def test_it_has_what_the_format_asks_for(self) -> None:
        assert self.CITATION["cff-version"] == "1.2.0"
        assert {"message", "title", "authors"} <= self.CITATION.keys()
        assert self.CITATION["type"] == "software"
        assert all(isinstance(author["name"], str) for author in self.CITATION["authors"])
        assert isinstance(self.CITATION["date-released"], date)

    def test_it_says_what_the_project_and_its_changelog_say(self) -> None:
        project = PROJECT["project"]
        assert self.CITATION["version"] == project["version"]
        assert self.CITATION["license"] == project["license"]
        assert self.CITATION["keywords"] == project["keywords"]
        assert self.CITATION["authors"] == project["authors"]
        assert f"\n## {project['version']} ({self.CITATION['date-released']})\n" in (ROOT / "CHANGELOG.md").read_text(
            "utf-8"
        )


def test_hooks_for_git_run_what_the_environment_has_and_fetch_nothing() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert [source["repo"] for source in config["repos"]] == ["local"]
    hooks = {hook["id"]: hook for source in config["repos"] for hook in source["hooks"]}
    assert {hook["language"] for hook in hooks.values()} == {"system"}
    assert {"strip-notebooks", "format", "lint", "types"} == hooks.keys()
    assert all(hook["entry"].startswith(".venv/bin/python -m ") for hook in hooks.values())
    for path in ("workbench/cli/demo.py", "widgets/base/window.py"):
        assert (ROOT / path).is_file()
        assert re.search(hooks["types"]["files"], path), f"a change of {path} is not type-checked"
