"""A kept run of chains read back. The files may be anybody's: nothing runs, and what they say is checked first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import ChainError
from ..models import HookedModel
from ..trace import Allowance, file_within, read_json, read_table
from .cache_move import CacheMove
from .chain import Decision
from .result import CACHE, SCHEMA, TERMS, Chains, ChainText, Contrast, Settings
from .target import Scalars, Terms
from .tempering import Swap

__all__ = ["FORMAT", "HEAD", "load_chains", "read_head", "readable"]

FORMAT = 1
HEAD = "chain.json"
HEAD_BYTES = 256 << 20
MOST_CHAINS = 1 << 16
MOST_NUMBER = 1 << 53
MOST_SEED = (1 << 64) - 1
WHOLE = ("chain", "block", "iteration", "pivot", "tries", "forwarded", "length")
NUMBERS = ("alpha", "tau", "log_a", "u", "log_p")


def load_chains(path: str | Path, model: HookedModel | None = None) -> Chains:
    """Read what a sampler or :meth:`Chains.save` wrote; no model is needed.

    :raises ChainError: nothing readable is there, or it was made with another tokenizer than the ``model``'s.
    """
    place, allowance = Path(path), Allowance()
    about = read_head(place)
    if model is not None and about.get("tokenizer") not in (None, model.tokenizer.fingerprint):
        raise ChainError(f"{path} was made with {about['model']}; the tokenizer of {model.name} is another one")
    with readable(place):
        settings = _settings(about["settings"])
        return Chains(
            settings=settings,
            texts=tuple(_text(told, settings) for told in about["texts"]),
            decisions=tuple(
                _decision(row, settings)
                for part in about["parts"]
                for row in read_table(file_within(place, part), SCHEMA, allowance).to_pylist()
            ),
            swaps=tuple(_swap(told, settings) for told in about["swaps"]),
            contrasts=tuple(each for part in about["activations"] for each in _contrasts(file_within(place, part))),
            prefilled=_whole(about["prefilled"]), forwarded=_whole(about["forwarded"]),
            finished=bool(about["finished"]),
        )  # fmt: skip


def read_head(path: Path) -> dict[str, Any]:
    """What ``chain.json`` says, which is an object of a format that is read here.

    :raises ChainError: it is not there, or is something else.
    """
    with readable(path, HEAD):
        about = read_json(file_within(path, HEAD), HEAD_BYTES)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        version = about.get("format") if isinstance(about, dict) else about
        raise ChainError(f"{path / HEAD} has format {repr(version)[:40]}; this version reads {FORMAT}")
    return about


@contextmanager
def readable(path: Path, name: str = "") -> Iterator[None]:
    """Say of whatever goes wrong with somebody's files which run it is about."""
    try:
        yield
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ChainError) and str(path) in str(error):
            raise
        what = f"holds no readable chain ({name})" if name else "can't be read"
        raise ChainError(f"{path} {what}: {error}") from error


# Parts -------------------------------------------------------------------------------------------------------


def _settings(told: Mapping[str, Any]) -> Settings:
    settings = Settings.from_json(told)
    _whole(settings.chains, MOST_CHAINS)
    _whole(settings.seed, MOST_SEED)
    for value in (settings.tries, settings.swap_every, *settings.prompt):
        _whole(value)
    if any(not isinstance(hook, str) for hook in settings.capture):
        raise ValueError("its settings name hooks that are no text")
    return settings


def _text(told: Mapping[str, Any], settings: Settings) -> ChainText:
    tokens = tuple(_whole(token) for token in told["tokens"])
    if not isinstance(told["text"], str):
        raise ValueError("a chain's text is none")
    return ChainText(
        chain=_of(settings.chains, told["chain"]), alpha=_number(told["alpha"]), tokens=tokens,
        scalars=_scalars(told["scalars"], len(tokens)), text=told["text"], log_p=_number(told["log_p"]),
    )  # fmt: skip


def _decision(row: Mapping[str, Any], settings: Settings) -> Decision:
    old, new = (tuple(_whole(token) for token in row[name]) for name in ("old_tokens", "new_tokens"))
    whole, numbers = {name: _whole(row[name]) for name in WHOLE}, {name: _number(row[name]) for name in NUMBERS}
    _of(settings.chains, whole["chain"])
    longest = settings.target.max_tokens
    if max(whole["pivot"] + max(len(old), len(new)), whole["length"]) > longest:
        raise ValueError(f"a decision is about more than {longest} tokens, the most of this run")
    return Decision(
        **whole, **numbers, accepted=bool(row["accepted"]),  # type: ignore[arg-type]
        terms=Terms(**{name: _number(row[f"term_{name}"]) for name in TERMS}),
        old_tokens=old, new_tokens=new, old_scalars=_scalars(row["old_scalars"], len(old)),
        new_scalars=_scalars(row["new_scalars"], len(new)), cache=_move(row),
    )  # fmt: skip


def _move(row: Mapping[str, Any]) -> CacheMove | None:
    """Runs that an older version kept have no such columns."""
    found = {name: row.get(f"cache_{name}") for name in CACHE}
    return None if found["kept"] is None else CacheMove(**{name: _whole(value or 0) for name, value in found.items()})


def _swap(told: Mapping[str, Any], settings: Settings) -> Swap:
    return Swap(
        first=_of(settings.chains, told["first"]), second=_of(settings.chains, told["second"]),
        block=_whole(told["block"]), iteration=_whole(told["iteration"]), log_a=_number(told["log_a"]),
        u=_number(told["u"]), accepted=bool(told["accepted"]),
    )  # fmt: skip


def _contrasts(path: Path) -> list[Contrast]:
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["contrasts"])
        held: list[dict[str, dict[str, Tensor]]] = [{"old": {}, "new": {}} for _ in about]
        for key in file.keys():  # noqa: SIM118  # why: the file is no mapping
            index, side, hook = key.split("/", 2)
            value = file.get_tensor(key)
            if not value.is_floating_point():
                raise ValueError(f"{key[:80]!r} holds no activations")
            held[int(index)][side][hook] = value
    return [
        Contrast(**{name: _whole(value) for name, value in facts.items()}, old=sides["old"], new=sides["new"])
        for facts, sides in zip(about, held, strict=True)
    ]


def _whole(value: Any, most: int = MOST_NUMBER) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is no whole number from 0 to {most}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return float(value)


def _of(chains: int, value: Any) -> int:
    if _whole(value) >= chains:
        raise ValueError(f"it tells of chain {value}; there are {chains}")
    return int(value)


def _scalars(values: Any, tokens: int) -> Scalars:
    found = np.array(values, np.float64).reshape(-1, 3)
    if len(found) != tokens:
        raise ValueError(f"{tokens} tokens have {len(found)} rows of scalars")
    return found
