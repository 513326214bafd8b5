"""A mod as a payload of source text: nothing runs unless the user says so, and every fault is named."""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from workbench import Session, compat
from workbench.errors import CompatError

SOURCE = """
from dataclasses import dataclass

from quote_mod_sdk import Prefilled, mod


@dataclass
class Settings:
    text: str = "from a payload"


@mod
def speaks(event, actions, tokenizer):
    if isinstance(event, Prefilled):
        return actions.force_output(tokenizer.encode(Settings().text))
    return actions.noop()


@mod
def fails(event, actions, tokenizer):
    raise KeyError("of the payload")
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of a user's, with two mods."""
    (tmp_path / "users_mods.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("users_mods")
    del sys.modules["users_mods"]


def payload(**changes: Any) -> dict[str, Any]:
    made = {"language": "python", "module": "m", "entrypoint": "speaks", "source": SOURCE}
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


def test_a_mod_goes_out_and_comes_back(written: Any, model: Any) -> None:
    from quote_mod_sdk import serialize_mod
    from quote_mod_sdk.serialization import load_mod_from_payload

    sent = serialize_mod(written.speaks, name="speaker", description="says a thing")
    assert sent == {
        "language": "python", "module": "users_mods", "entrypoint": "speaks", "source": SOURCE,
        "sha256": hashlib.sha256(SOURCE.encode()).hexdigest(), "name": "speaker", "description": "says a thing",
    }  # fmt: skip
    back = load_mod_from_payload(sent, allow_code=True)
    assert Session(model, mods=[back]).generate("hi", max_new_tokens=2, seed=1).text == "from a payload"
    assert back is not written.speaks


@pytest.mark.parametrize("allowed", [{}, {"allow_code": False}, {"allow_code": "yes"}])
def test_nothing_runs_unless_it_is_allowed(tmp_path: Path, allowed: dict[str, Any]) -> None:
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').close()\n{SOURCE}"
    with pytest.raises(
        CompatError, match=r"this payload holds 22 lines of Python, and loading it runs them.*allow_code=True"
    ):
        compat.load_mod_from_payload(payload(source=source), **allowed)
    assert not mark.exists()
    compat.load_mod_from_payload(payload(source=source), allow_code=True)
    assert mark.exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"language": "lua"}, "a payload in 'lua' can't be loaded"),
        ({"source": None}, "a payload needs a 'source' text and an 'entrypoint'"),
        ({"source": {"a.py": "x"}}, "a payload needs a 'source' text"),
        ({"entrypoint": "os.system"}, "that is a Python name"),
        ({"entrypoint": "silent"}, "defines no 'silent'"),
        ({"entrypoint": "SOURCE"}, "defines no 'SOURCE'"),
        ({"sha256": "0" * 64}, "not the one that its sha256 was made of"),
        ({"source": "1 / 0"}, "the payload's source raised ZeroDivisionError: division by zero"),
        ({"source": "def ("}, "the payload's source raised SyntaxError"),
        (
            {"source": "import no_such_thing"},
            r"No module named 'no_such_thing'; call workbench.compat.install\(\) first",
        ),
    ],
)
def test_a_payload_that_can_not_be_loaded_says_why(changes: dict[str, Any], says: str) -> None:
    before = set(sys.modules)
    with pytest.raises(CompatError, match=says):
        compat.load_mod_from_payload(payload(**changes), allow_code=True)
    assert not {name for name in set(sys.modules) - before if "payload" in name and "defines" not in says}


def test_what_is_no_payload_is_refused() -> None:
    with pytest.raises(CompatError, match=r"a payload is what serialize_mod\(\) gives, got list"):
        compat.load_mod_from_payload([SOURCE], allow_code=True)  # type: ignore[arg-type]


def test_a_traceback_shows_the_payloads_own_lines() -> None:
    from quote_mod_sdk import Added

    fails = compat.load_mod_from_payload(payload(entrypoint="fails"), allow_code=True)
    with pytest.raises(KeyError, match="of the payload") as raised:
        fails(Added("r", 0, [1], False), None)
    assert 'raise KeyError("of the payload")' in "".join(traceback.format_exception(raised.value))
    assert "def fails" in str(fails.describe()["source"])  # type: ignore[attr-defined]


def test_a_mod_that_has_no_place_in_a_file_can_not_be_sent() -> None:
    from quote_mod_sdk import mod

    @mod
    def inside(event: Any, actions: Any, tokenizer: Any) -> Any:
        return None

    with pytest.raises(CompatError, match="has no 'inside' at its top"):
        compat.serialize_mod(inside)
    typed: dict[str, Any] = {"__name__": "typed_at_a_prompt"}
    exec("def typed(event, actions, tokenizer): return None", typed)
    with pytest.raises(CompatError, match=r"the source of .typed. can.t be found: write the mod to a \.py file"):
        compat.serialize_mod(mod(typed["typed"]))
