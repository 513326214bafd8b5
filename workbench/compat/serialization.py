"""A mod as a payload of source text, and back.

A payload holds code. ``load_mod_from_payload`` is one of the two places in the workbench where code that came
from outside runs (the other is ``python -m workbench.compat script.py``), and both only do what the user asked for in
so many words: ``allow_code=True`` here, a script's name there. Nothing else in this package, and no reader of a
trace, a flow or a log, ever calls it. A sandbox is not offered, because Python has none: whoever passes
``allow_code=True`` trusts the payload as they would trust the script it was made of. The digest tells whether the
text is what its maker sent, not whether it is harmless.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Mapping
from importlib.abc import ExecutionLoader
from typing import Any

from ..errors import CompatError
from .adapter import ModCallable

__all__ = ["load_mod_from_payload", "serialize_mod"]


def serialize_mod(mod_fn: ModCallable, *, name: str | None = None, description: str | None = None) -> dict[str, Any]:
    """The source of the module in which a mod was written, the name to find it by, and a sha256 of the source.

    :raises CompatError: there is no source (typed at a prompt or in a notebook), or the module does not have the mod
        under its own name.
    """
    handler = inspect.unwrap(mod_fn)
    entry = str(getattr(mod_fn, "__name__", ""))
    module = inspect.getmodule(handler)
    try:
        source = textwrap.dedent(inspect.getsource(module if module is not None else handler))
    except (OSError, TypeError):
        raise CompatError(
            f"the source of {entry or mod_fn!r} can't be found: write the mod to a .py file and import it from there"
        ) from None
    if module is None or not callable(vars(module).get(entry)):
        raise CompatError(
            f"a mod is sent by its module's source, and the module of {mod_fn!r} has no {entry!r} at its top"
        )
    payload = {
        "language": "python",
        "module": module.__name__,
        "entrypoint": entry,
        "source": source,
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
    }
    return payload | {key: value for key, value in (("name", name), ("description", description)) if value is not None}


def load_mod_from_payload(payload: Mapping[str, Any], *, allow_code: bool = False) -> ModCallable:
    """Run a payload's source and give the mod that it defines. The source is code and can do whatever you can.

    The SDK's names must be there for it to import: call ``workbench.compat.install`` first.

    :raises CompatError: ``allow_code`` is not True, the payload is damaged or in another language, its source raises,
        or it defines no such mod.
    """
    source, entry = _checked(payload)
    if allow_code is not True:
        raise CompatError(
            f"this payload holds {len(source.splitlines())} lines of Python, and loading it runs them: read "
            "payload['source'], and if you trust it pass allow_code=True"
        )
    name = f"workbench_payload_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    loader = _TextLoader(name, source)
    spec = importlib.util.spec_from_loader(name, loader)
    if spec is None:
        raise AssertionError("a loader without a spec")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and others look up their own module
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        hint = "; call workbench.compat.install() first" if isinstance(error, ModuleNotFoundError) else ""
        raise CompatError(f"the payload's source raised {type(error).__name__}: {error}{hint}") from error
    found = vars(module).get(entry)
    if not callable(found):
        raise CompatError(f"the payload's source defines no {entry!r}")
    mod: ModCallable = found
    return mod


class _TextLoader(ExecutionLoader):
    """Makes a module of a text; tracebacks and ``inspect`` find the text through it."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source

    def get_filename(self, fullname: str) -> str:
        return f"{self.name}.py"  # no such file: a name in angle brackets would hide the source from tracebacks


def _checked(payload: Mapping[str, Any]) -> tuple[str, str]:
    """Source and entrypoint of a payload whose parts are what they should be."""
    if not isinstance(payload, Mapping):
        raise CompatError(f"a payload is what serialize_mod() gives, got {type(payload).__name__}")
    language = payload.get("language", "python")
    if language != "python":
        raise CompatError(f"a payload in {language!r} can't be loaded: only python")
    source, entry = payload.get("source"), payload.get("entrypoint")
    if not isinstance(source, str) or not isinstance(entry, str) or not entry.isidentifier():
        raise CompatError("a payload needs a 'source' text and an 'entrypoint' that is a Python name")
    told = payload.get("sha256")
    if told is not None and told != hashlib.sha256(source.encode()).hexdigest():
        raise CompatError("the payload's source is not the one that its sha256 was made of: it was changed on the way")
    return source, entry
