"""install() and uninstall(): the SDK's names come and go, and hide nobody else's by accident."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

from workbench import compat
from workbench.errors import CompatError

MODULES = [
    *(f"{base}{inner}" for base in ("quote_mod_sdk", "sdk.quote_mod_sdk") for inner in (
        "", ".mod", ".actions", ".flow", ".self_prompt", ".strategies.strategy_constructor", ".strategies.primitives",
        ".strategies.base", ".tokenizer", ".serialization", ".conversation",
    )),
    "shared.types", "shared.utils", "shared.conversation", "quote.mods.manager", "max.driver",
]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_every_module_of_the_sdk_is_there_and_says_what_it_offers(name: str) -> None:
    module = importlib.import_module(name)
    assert all(vars(module).get(offered) is not None for offered in module.__all__)


def test_the_same_objects_stand_under_every_name() -> None:
    import quote_mod_sdk
    from quote.mods.manager import ModManager
    from quote_mod_sdk import Added, mod
    from quote_mod_sdk.flow import FlowEngine
    from quote_mod_sdk.mod import mod as same_mod
    from sdk.quote_mod_sdk.flow import FlowEngine as SameEngine
    from shared.types import Added as SameAdded

    assert (mod, Added, FlowEngine) == (same_mod, SameAdded, SameEngine)
    assert importlib.import_module("sdk").quote_mod_sdk is quote_mod_sdk
    assert ModManager is compat.ModManager


def test_installing_twice_is_installing_once() -> None:
    before = importlib.import_module("quote_mod_sdk")
    compat.install()
    assert importlib.import_module("quote_mod_sdk") is before
    compat.uninstall()
    assert not compat.installed()
    compat.uninstall()
    assert not set(MODULES) & set(sys.modules)
    with pytest.raises(ModuleNotFoundError, match="quote_mod_sdk"):
        importlib.import_module("quote_mod_sdk")


def test_importing_the_package_installs_nothing() -> None:
    program = (
        "import sys, workbench, workbench.compat; print(sorted({'quote_mod_sdk', 'shared', 'max'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_real_package_is_not_hidden_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compat.uninstall()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("mine = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("shared")
    with pytest.raises(CompatError, match=r"real packages under names of the SDK: shared \(.*__init__.py\)"):
        compat.install()
    assert not compat.installed()
    compat.install(replace=True)
    assert importlib.import_module("shared.types").Noop is not None
    compat.uninstall()
    assert importlib.import_module("shared") is own
    del sys.modules["shared"]


def test_a_module_that_a_program_made_is_not_hidden_either(monkeypatch: pytest.MonkeyPatch) -> None:
    compat.uninstall()
    monkeypatch.setitem(sys.modules, "max", types.ModuleType("max"))
    with pytest.raises(CompatError, match=r"max \(made by a running program\)"):
        compat.install()


def test_a_plain_folder_is_no_package_and_stays_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compat.uninstall()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "own_things.py").write_text("mine = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    compat.install()
    assert importlib.import_module("shared.own_things").mine == 2
    assert importlib.import_module("shared.types").Noop is not None
    del sys.modules["shared.own_things"]


SCRIPT = """
import sys
from dataclasses import dataclass
from quote_mod_sdk import mod, Added
from max.driver import Tensor

@mod
def watch(event, actions, tokenizer):
    return actions.noop()

print(__name__, sys.argv[1:], watch.__wrapped__.__name__)
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "workbench.compat", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_script_runs_with_the_names_in_place(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run(tmp_path / "script.py", "--fast", "x")
    assert (done.returncode, done.stdout) == (0, "__main__ ['--fast', 'x'] watch\n"), done.stderr


def test_a_script_that_is_not_there_or_has_a_package_beside_it_is_explained(tmp_path: Path) -> None:
    done = run(tmp_path / "nothing.py")
    assert done.returncode == 2
    assert "there is no script" in done.stderr
    assert run().stderr.endswith("the following arguments are required: script\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk" / "__init__.py").write_text("")
    assert "real packages under names of the SDK: sdk" in run(tmp_path / "script.py").stderr
    assert run("--replace", tmp_path / "script.py").returncode == 0


def test_a_scripts_own_failure_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit(7)\n")
    assert run(tmp_path / "script.py").returncode == 7
