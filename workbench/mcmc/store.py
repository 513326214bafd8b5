"""A run of chains on disk: JSON, parquet parts of decisions, safetensors of state and activations. No pickle.

``chain.json`` names the parts and the state that belong together, and is replaced last and at once: a run that is
killed at any moment leaves the state of its last write, with exactly the decisions that led to it. The state
holds each chain's keys and values as they are, so that a resumed run goes on bit for bit: a cache that was computed
anew from the tokens would differ in the last bits, since a batch of another shape adds in another order.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import ChainError
from ..models import HookedModel
from .cache_move import CacheMove
from .chain import Decision
from .result import CACHE, TERMS, Chains, ChainText, Contrast, Settings, decision_table
from .target import Terms
from .tempering import Swap

if TYPE_CHECKING:
    from .sampler import PowerSampler

__all__ = ["ChainWriter", "load_chains", "read_run", "save_chains"]

FORMAT = 1
SECONDS_BETWEEN = 20.0
HEAD = "chain.json"


class ChainWriter:
    """Writes a running sampler to a directory, now and then and at the end."""

    def __init__(
        self, path: Path, about: Mapping[str, Any], *, written: int = 0, contrasts: int = 0, turn: int = 0
    ) -> None:
        self.path = path
        self.about = dict(about)
        self._written, self._contrasts, self._turn = written, contrasts, turn
        self._parts: list[str] = list(about.get("parts", []))
        self._activations: list[str] = list(about.get("activations", []))
        self._last = time.monotonic()

    @classmethod
    def create(cls, path: Path, model: HookedModel, settings: Settings, *, overwrite: bool) -> ChainWriter:
        """Begin a new run there.

        :raises ChainError: something is there already and ``overwrite`` is not set.
        """
        _clear(path, overwrite=overwrite)
        return cls(path, _about(settings, model=dict(model.source), tokenizer=model.tokenizer.fingerprint))

    def due(self, now: float) -> bool:
        return now - self._last >= SECONDS_BETWEEN

    def write(self, sampler: PowerSampler, *, finished: bool) -> None:
        """Everything new since the last time, then the state, then the head that makes it count."""
        result = sampler.result()
        self._turn += 1
        if new := result.decisions[self._written :]:
            self._parts.append(_write_decisions(self.path, new, self._turn))
        if fresh := result.contrasts[self._contrasts :]:
            self._activations.append(_write_contrasts(self.path, fresh, self._turn))
        tensors, facts = sampler.state()
        name = f"state-{self._turn:05d}.safetensors"
        save_file(tensors, self.path / name)
        self._written, self._contrasts = len(result.decisions), len(result.contrasts)
        before = self.about.get("state")
        self.about |= {
            **_facts(result), "parts": self._parts, "activations": self._activations, "state": name,
            "turn": self._turn, "finished": finished, "going_on": facts,
        }  # fmt: skip
        _write_json(self.path / HEAD, self.about)
        if before is not None:
            (self.path / before).unlink(missing_ok=True)
        self._last = time.monotonic()


def save_chains(chains: Chains, path: Path, *, overwrite: bool = False) -> Path:
    """Write a result as it is."""
    _clear(path, overwrite=overwrite)
    about = _about(chains.settings) | _facts(chains) | {"finished": chains.finished, "turn": 0, "state": None}
    about["parts"] = [_write_decisions(path, chains.decisions, 0)] if chains.decisions else []
    about["activations"] = [_write_contrasts(path, chains.contrasts, 0)] if chains.contrasts else []
    _write_json(path / HEAD, about)
    return path


def load_chains(path: str | Path, model: HookedModel | None = None) -> Chains:
    """Read what a sampler or :meth:`Chains.save` wrote; no model is needed.

    :raises ChainError: nothing readable is there, or it was made with another tokenizer than the ``model``'s.
    """
    about = read_head(Path(path))
    if model is not None and about["tokenizer"] not in (None, model.tokenizer.fingerprint):
        raise ChainError(f"{path} was made with {about['model']}; the tokenizer of {model.name} is another one")
    settings = Settings.from_json(about["settings"])
    return Chains(
        settings=settings,
        texts=tuple(
            ChainText(**{**text, "tokens": tuple(text["tokens"]), "scalars": np.array(text["scalars"]).reshape(-1, 3)})
            for text in about["texts"]
        ),
        decisions=tuple(d for part in about["parts"] for d in _read_decisions(Path(path) / part)),
        swaps=tuple(Swap(**swap) for swap in about["swaps"]),
        contrasts=tuple(c for part in about["activations"] for c in _read_contrasts(Path(path) / part)),
        prefilled=about["prefilled"], forwarded=about["forwarded"], finished=about["finished"],
    )  # fmt: skip


def read_run(path: Path, model: HookedModel) -> tuple[Chains, dict[str, Tensor], dict[str, Any], ChainWriter]:
    """What a saved run needs to go on: result so far, state, and a writer that continues it.

    :raises ChainError: it holds no state, or was made with another model.
    """
    about = read_head(path)
    if about["state"] is None:
        raise ChainError(f"{path} holds a result without its state: only a run with save= can be resumed")
    if about["tokenizer"] != model.tokenizer.fingerprint or about["model"] != json.loads(
        json.dumps(dict(model.source))
    ):
        raise ChainError(
            f"{path} was made with {about['model']}, this model is {dict(model.source)}: load the same one, "
            "with the same backend and dtype"
        )
    chains = load_chains(path)
    try:
        tensors = load_file(path / about["state"])
    except (OSError, SafetensorError) as error:
        raise ChainError(f"{path / about['state']} can't be read: {error}") from error
    writer = ChainWriter(
        path, about, written=len(chains.decisions), contrasts=len(chains.contrasts), turn=about["turn"]
    )
    return chains, tensors, about["going_on"], writer


def read_head(path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((path / HEAD).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ChainError(f"{path} holds no readable chain ({HEAD}): {error}") from error
    if about.get("format") != FORMAT:
        raise ChainError(f"{path / HEAD} has format {about.get('format')!r}; this version reads {FORMAT}")
    return about


# Parts -------------------------------------------------------------------------------------------------------


def _about(settings: Settings, **more: Any) -> dict[str, Any]:
    return {"format": FORMAT, "settings": settings.to_json(), "model": None, "tokenizer": None, **more}


def _facts(chains: Chains) -> dict[str, Any]:
    """What the head says of a result. JSON keeps every bit of a float64."""
    return {
        "texts": [{**asdict(text), "scalars": text.scalars.tolist()} for text in chains.texts],
        "swaps": [asdict(swap) for swap in chains.swaps],
        "prefilled": chains.prefilled,
        "forwarded": chains.forwarded,
    }


def _clear(path: Path, *, overwrite: bool) -> None:
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        if not overwrite or not (path / HEAD).is_file():
            raise ChainError(
                f"{path} is not empty: give another directory"
                + (", resume it, or pass overwrite=True" if (path / HEAD).is_file() else "")
            )
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(data, ensure_ascii=False), "utf-8")
    beside.replace(path)


def _write_decisions(path: Path, decisions: tuple[Decision, ...], turn: int) -> str:
    name = f"decisions-{turn:05d}.parquet"
    pq.write_table(decision_table(decisions), path / name)
    return name


def _read_decisions(path: Path) -> list[Decision]:
    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ChainError(f"{path} can't be read: {error}") from error
    plain = ("chain", "block", "iteration", "alpha", "tau", "pivot", "log_a", "u", "accepted", "tries", "forwarded",
             "length", "log_p")  # fmt: skip
    return [
        Decision(
            **{name: row[name] for name in plain},
            terms=Terms(**{name: row[f"term_{name}"] for name in TERMS}),
            old_tokens=tuple(row["old_tokens"]), new_tokens=tuple(row["new_tokens"]),
            old_scalars=np.array(row["old_scalars"]).reshape(-1, 3),
            new_scalars=np.array(row["new_scalars"]).reshape(-1, 3), cache=_read_move(row),
        )
        for row in rows
    ]  # fmt: skip


def _read_move(row: Mapping[str, Any]) -> CacheMove | None:
    """Runs that an older version kept have no such columns."""
    found = {name: row.get(f"cache_{name}") for name in CACHE}
    return None if found["kept"] is None else CacheMove(**{name: int(value or 0) for name, value in found.items()})


def _write_contrasts(path: Path, contrasts: tuple[Contrast, ...], turn: int) -> str:
    name = f"activations-{turn:05d}.safetensors"
    plain = ("chain", "block", "iteration", "position", "old_token", "new_token")
    about = [{field: getattr(contrast, field) for field in plain} for contrast in contrasts]
    tensors = {
        f"{index}/{side}/{hook}": value.contiguous()
        for index, contrast in enumerate(contrasts)
        for side, held in (("old", contrast.old), ("new", contrast.new))
        for hook, value in held.items()
    }
    save_file(tensors, path / name, metadata={"contrasts": json.dumps(about)})
    return name


def _read_contrasts(path: Path) -> list[Contrast]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["contrasts"])
            held: list[dict[str, dict[str, Tensor]]] = [{"old": {}, "new": {}} for _ in about]
            for key in file.keys():  # noqa: SIM118  # why: the file is no mapping
                index, side, hook = key.split("/", 2)
                held[int(index)][side][hook] = file.get_tensor(key)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ChainError(f"{path} can't be read: {error}") from error
    return [Contrast(**facts, old=sides["old"], new=sides["new"]) for facts, sides in zip(about, held, strict=True)]
