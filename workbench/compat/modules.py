"""Putting the SDK's names where ``import`` looks, and taking them away again."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..errors import CompatError, InvalidActionError
from . import (
    actions,
    adapter,
    constrained,
    conversation,
    decorator,
    events,
    flow,
    manager,
    self_prompt,
    serialization,
    strategy_base,
    strategy_constructor,
    strategy_list,
    strategy_primitives,
    tensor,
    tokenizer,
)

__all__ = ["TOP_NAMES", "install", "installed", "uninstall"]

TOP_NAMES = ("quote_mod_sdk", "sdk", "shared", "quote", "max")
"""The importable names that ``install`` takes."""
MARK = "_made_by_workbench_compat"

_replaced: dict[str, ModuleType] = {}
"""What stood under a name of ours before ``install(replace=True)``."""


def install(*, replace: bool = False) -> None:
    """Make ``import quote_mod_sdk`` (and ``sdk``, ``shared``, ``quote``, ``max``) give this package's names.

    Doing it again changes nothing. Real packages of these names are not hidden unless ``replace`` is True; they are
    back after ``uninstall``. A plain folder of such a name is no package: what is in it stays importable.

    :raises CompatError: a real package has one of the names.
    """
    if installed():
        return
    taken = {name: where for name in TOP_NAMES if (where := _real_package(name)) is not None}
    if taken and not replace:
        told = ", ".join(f"{name} ({where})" for name, where in taken.items())
        raise CompatError(
            f"there are real packages under names of the SDK: {told}. install(replace=True) hides them until "
            "uninstall(); or run in an environment without them"
        )
    made = {name: _module(name, names) for name, names in _contents().items()}
    for name, folders in _namespace_folders().items():
        made[name].__path__ = folders
    for name in list(sys.modules):
        if name in made or name.partition(".")[0] in taken:
            _replaced[name] = sys.modules.pop(name)
    for name, module in made.items():
        _attach(made, name, module)
    sys.modules.update(made)
    for name in [name for name in made if name.partition(".")[0] == "quote_mod_sdk"]:
        sys.modules[f"sdk.{name}"] = made[name]
    vars(made["sdk"])["quote_mod_sdk"] = made["quote_mod_sdk"]


def uninstall() -> None:
    """Take the names away, and bring back what ``install(replace=True)`` hid. What was imported stays usable."""
    if not installed():
        return
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and MARK in vars(module):
            del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced.clear()


def installed() -> bool:
    """Whether the SDK's names are this package's at present."""
    return MARK in vars(sys.modules.get("quote_mod_sdk", sys))


def _real_package(name: str) -> str | None:
    """Where a package that is not ours has the name, or None. A folder without ``__init__.py`` is none."""
    spec = _spec(name)
    if spec is None:
        return "made by a running program" if name in sys.modules else None
    return spec.origin


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # it stands in sys.modules and says nothing of where it came from
        return None


def _namespace_folders() -> dict[str, list[str]]:
    """Plain folders that stand under our names, so that what lies in them stays importable."""
    found = {}
    for name in TOP_NAMES:
        spec = _spec(name)
        if spec is not None and spec.origin is None and spec.submodule_search_locations is not None:
            found[name] = list(spec.submodule_search_locations)
    return found


def _module(name: str, names: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name, f"{name} of the public mod SDK, as workbench.compat gives it.")
    module.__path__ = []  # a package, and one in which nothing else is found
    vars(module).update(names)
    vars(module).update({MARK: True, "__all__": sorted(names)})
    return module


def _attach(made: Mapping[str, ModuleType], name: str, module: ModuleType) -> None:
    """Make a submodule an attribute of its package, unless the package has something else of that name."""
    package, _, last = name.rpartition(".")
    if package and last not in vars(made[package]):
        setattr(made[package], last, module)


def _names(*modules: ModuleType) -> dict[str, Any]:
    return {name: vars(module)[name] for module in modules for name in module.__all__}


def _contents() -> dict[str, dict[str, Any]]:
    """Every module and what is in it."""
    older = {f"{name}Event": vars(events)[name] for name in ("Prefilled", "ForwardPass", "Sampled", "Added")}
    types = {**_names(actions, events), **older}
    strategies = _names(strategy_base, strategy_constructor, strategy_list, strategy_primitives)
    shared_types = {name: value for name, value in types.items() if name not in {"for_event", "validate_action"}}
    whole = {
        **types,
        **_names(decorator, self_prompt, constrained, serialization, tokenizer),
        "InvalidActionError": InvalidActionError,
        **_names(conversation),
    }
    checking = {"InvalidActionError": InvalidActionError, "validate_action": actions.validate_action}
    return dict(_listed(whole, strategies, shared_types, checking))


def _listed(
    whole: dict[str, Any], strategies: dict[str, Any], types: dict[str, Any], checking: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "quote_mod_sdk", whole
    yield "quote_mod_sdk.mod", {**_names(decorator), "ModAction": actions.ModAction, "ModEvent": events.ModEvent}
    yield "quote_mod_sdk.actions", {**_names(actions), "InvalidActionError": InvalidActionError}
    yield "quote_mod_sdk.flow", _names(flow)
    yield "quote_mod_sdk.self_prompt", _names(self_prompt, constrained)
    yield "quote_mod_sdk.tokenizer", _names(tokenizer)
    yield "quote_mod_sdk.serialization", {**_names(serialization), "ModCallable": adapter.ModCallable}
    yield "quote_mod_sdk.conversation", _names(conversation)
    yield "quote_mod_sdk.strategies", strategies
    yield "quote_mod_sdk.strategies.base", _names(strategy_base)
    yield "quote_mod_sdk.strategies.primitives", _names(strategy_primitives)
    yield "quote_mod_sdk.strategies.list_strategy", _names(strategy_list)
    yield "quote_mod_sdk.strategies.strategy_constructor", _names(strategy_constructor)
    yield "sdk", {}
    yield "shared", {}
    yield "shared.types", {**types, "Tensor": tensor.Tensor}
    yield "shared.utils", {**types, **checking}
    yield "shared.conversation", _names(conversation)
    yield "quote", {}
    yield "quote.mods", {}
    yield "quote.mods.manager", _names(manager)
    yield "quote.mods.sdk_bridge", {"load_mod_from_payload": serialization.load_mod_from_payload}
    yield "max", {}
    yield "max.driver", {"Tensor": tensor.Tensor}
