"""The Python call that makes a run again, written out of what the run says of itself: for people to read and use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .kept import BUNDLED

__all__ = ["carry_call", "chain_call", "trace_call"]


def trace_call(run: Mapping[str, Any]) -> str:
    """The call of a trace's run. Ready mods are made by name; others are left as names, to be filled in."""
    requests = list(run.get("requests", {}).values())
    if not requests:
        return "# The manifest names no request."
    first = requests[0]
    sampling = {name: value for name, value in first.get("sampling", {}).items() if name != "seed"}
    lines = [
        "import torch",
        "from workbench import SamplingParams, Session, load",
        "from workbench.mods import build",
        "",
        *_loaded(run.get("model", {}).get("source") or run.get("model", {})),
        f"session = Session(model, capture={_written(first.get('capture') or None)}, "
        f"on_mod_error={_written(run.get('on_mod_error', 'raise'))})",
        "results = session.generate(",
        f"    {_written([one.get('conversation') or one.get('prompt_tokens') for one in requests])},",
        f"    mods=[{', '.join(_mods(one.get('mods', ())) for one in requests)}],",
        f"    max_new_tokens={max(int(one.get('max_new_tokens') or 1) for one in requests)},",
        f"    max_forward_tokens={_written(first.get('max_forward_tokens'))},",
        f"    sampling=SamplingParams({_keywords(sampling)}),",
        f"    seed={_written([(one.get('seed'), one.get('index')) for one in requests])},",
        ")",
    ]
    return "\n".join(lines)


def _mods(mods: Sequence[Mapping[str, Any]]) -> str:
    from ..mods import MODS  # a room that takes a second or two to enter

    made = []
    for told in mods:
        name, params = str(told.get("name")), told.get("params")
        if name in MODS and isinstance(params, Mapping):
            made.append(f"build({_written(name)}{', ' if params else ''}{_keywords(params)})")
        else:
            made.append("".join(char if char.isalnum() else "_" for char in name))
    return f"[{', '.join(made)}]"


def chain_call(settings: Mapping[str, Any], source: Mapping[str, Any] | None) -> str:
    """The call of a run of chains."""
    target = settings["target"]
    names = ("seed", "chains", "tries", "ladder", "swap_every", "capture")
    return "\n".join(
        [
            "import torch",
            "from workbench import load",
            "from workbench.mcmc import PowerSampler",
            "",
            *_loaded(source),
            "chains = PowerSampler(",
            f"    model, {_written(list(settings['prompt']))},",
            f"    {_keywords(target)},",
            f"    {_keywords({name: settings[name] for name in names})},",
            ").run()",
        ]
    )


def carry_call(part: Mapping[str, Any]) -> str:
    """The call of a carried prompt; an adapter that is not fresh has to be loaded from its file."""
    config, ids = part["config"], part["ids"]
    length, pauses = part["prompt_length"], part["pauses"]
    adapter = dict(config.get("adapter", {}))
    # Whether the weights are fresh can't be seen from the form, so the fingerprint is there to be compared.
    made = f"make_adapter({_keywords(adapter)})  # or load_adapter(FILE); {config.get('adapter_fingerprint')}"
    answer = ids[length + pauses :]
    told = f"max_new_tokens={len(answer)}" if part.get("own_answer") or not answer else f"answer={_written(answer)}"
    pause = ids[length] if pauses else config.get("pause_token")
    settings = {
        "band": tuple(config["band"]),
        "pause_token": pause,
        "pauses": pauses,
        "loops": config.get("loops"),
        "mode": config.get("mode"),
    }
    return "\n".join(
        [
            "import torch",
            "from workbench import load",
            "from workbench.carry import CarryModel, load_adapter, make_adapter",
            "",
            *_loaded(config.get("model")),
            f"adapter = {made}",
            f"carry = CarryModel(model, adapter=adapter, {_keywords(settings)})",
            f"trace = carry.run({_written(ids[:length])}, {told})",
        ]
    )


def _loaded(source: Mapping[str, Any] | None) -> list[str]:
    if source is None:
        return ["# The report was not told which model this is.", "model = …"]
    name, kind = str(source.get("name")), str(source.get("dtype", "float32"))
    shown = f"bundled({_written(name.removeprefix(BUNDLED))})" if name.startswith(BUNDLED) else _written(name)
    needs = ["from workbench.bundled import bundled", ""] if name.startswith(BUNDLED) else []
    kind = kind if kind.isidentifier() else "float32"
    return [*needs, f"model = load({shown}, backend={_written(source.get('backend'))}, dtype=torch.{kind})"]


def _keywords(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_written(value)}" for name, value in values.items())


def _written(value: Any) -> str:
    """A value as Python writes it; text as ASCII, so that nothing in it can pretend to be something else."""
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_written, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_written(str(key))}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)
