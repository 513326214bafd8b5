"""A run of chains on disk: JSON, parquet parts of decisions, safetensors of state and activations. No pickle.

``chain.json`` names the parts and the state that belong together, and is replaced last and at once: a run that is
killed at any moment leaves the state of its last write, with exactly the decisions that led to it. The state
holds each chain's keys and values as they are, so that a resumed run goes on bit for bit: a cache that was computed
anew from the tokens would differ in the last bits, since a batch of another shape adds in another order.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save
from torch import Tensor

from ..errors import ChainError
from ..models import HookedModel
from ..trace import LOCK, file_within, hold, replace_file, replace_table
from .chain import Decision
from .result import Chains, Contrast, Settings, decision_table
from .store_reading import FORMAT, HEAD, load_chains, read_head, readable

if TYPE_CHECKING:
    from .sampler import PowerSampler

__all__ = ["ChainWriter", "read_run", "save_chains"]

SECONDS_BETWEEN = 20.0


class ChainWriter:
    """Writes a running sampler to a directory, now and then and at the end."""

    def __init__(
        self, path: Path, about: Mapping[str, Any], *, written: int = 0, contrasts: int = 0, turn: int = 0
    ) -> None:
        self.path = path
        self.about = dict(about)
        self._written, self._contrasts, self._turn = written, contrasts, turn
        self._last = time.monotonic()

    @classmethod
    def create(cls, path: Path, model: HookedModel, settings: Settings, *, overwrite: bool) -> ChainWriter:
        """Begin a new run there.

        :raises ChainError: something is there already and ``overwrite`` is not set, or it can't be written.
        """
        with _explained(path):
            _clear(path, overwrite=overwrite)
        return cls(path, _about(settings, model=dict(model.source), tokenizer=model.tokenizer.fingerprint))

    def begin(self, sampler: PowerSampler) -> None:
        """Write the state before the first pass, so that there is something to resume from the first moment on.

        :raises ChainError: it can't be written.
        """
        with _explained(self.path):
            self.write(sampler, finished=False)

    def keep_up(self, sampler: PowerSampler, *, finished: bool, now: bool) -> None:
        """Write if it is time to. A disk that is full does not end a run: it is said, and tried again next time.

        :raises ChainError: another run writes there.
        """
        if not now and time.monotonic() - self._last < SECONDS_BETWEEN:
            return
        try:
            self.write(sampler, finished=finished)
        except OSError as error:
            self._last = time.monotonic()
            warnings.warn(_unwritten(self.path, error), stacklevel=2)

    def write(self, sampler: PowerSampler, *, finished: bool) -> None:
        """Everything new since the last time, then the state, then the head that makes it count.

        :raises ChainError: another process went on with this run meanwhile; nothing of what it wrote is touched.
        :raises OSError: it can't be written (disk full, read-only); the next write has it all.
        """
        with hold(self.path, ChainError, "run"):
            if _stamp_of(self.path) != self.about.get("stamp"):
                raise ChainError(
                    f"{self.path} was written by another run meanwhile: this one has stopped, and what it has done "
                    "since its last write is in memory only. Save its result to another directory."
                )
            self._write(sampler, finished)
        self._last = time.monotonic()

    def _write(self, sampler: PowerSampler, finished: bool) -> None:
        result, turn = sampler.result(), self._turn + 1
        parts, activations = list(self.about.get("parts", ())), list(self.about.get("activations", ()))
        if new := result.decisions[self._written :]:
            parts.append(_write_decisions(self.path, new, turn))
        if fresh := result.contrasts[self._contrasts :]:
            activations.append(_write_contrasts(self.path, fresh, turn))
        tensors, facts = sampler.state()
        name = f"state-{turn:05d}.safetensors"
        replace_file(self.path / name, save(tensors))
        about = self.about | {
            **_facts(result), "parts": parts, "activations": activations, "state": name,
            "turn": turn, "finished": finished, "going_on": facts, "stamp": secrets.token_hex(8),
        }  # fmt: skip
        _write_json(self.path / HEAD, about)
        before = self.about.get("state")
        self.about, self._turn = about, turn
        self._written, self._contrasts = len(result.decisions), len(result.contrasts)
        if before is not None:
            (self.path / before).unlink(missing_ok=True)


def save_chains(chains: Chains, path: Path, *, overwrite: bool = False) -> Path:
    """Write a result as it is.

    :raises ChainError: something is there already and ``overwrite`` is not set, or it can't be written.
    """
    with _explained(path):
        _clear(path, overwrite=overwrite)
        _save_whole(chains, path)
    return path


def _save_whole(chains: Chains, path: Path) -> None:
    about = _about(chains.settings) | _facts(chains) | {"finished": chains.finished, "turn": 0, "state": None}
    about["parts"] = [_write_decisions(path, chains.decisions, 0)] if chains.decisions else []
    about["activations"] = [_write_contrasts(path, chains.contrasts, 0)] if chains.contrasts else []
    _write_json(path / HEAD, about)


def read_run(path: Path, model: HookedModel) -> tuple[Chains, dict[str, Tensor], dict[str, Any], ChainWriter]:
    """What a saved run needs to go on: result so far, state, and a writer that continues it.

    :raises ChainError: it holds no state, or was made with another model.
    """
    about = read_head(path)
    if about.get("state") is None:
        raise ChainError(f"{path} holds a result without its state: only a run with save= can be resumed")
    if about.get("tokenizer") != model.tokenizer.fingerprint or about.get("model") != json.loads(
        json.dumps(dict(model.source))
    ):
        raise ChainError(
            f"{path} was made with {about.get('model')}, this model is {dict(model.source)}: load the same one, "
            "with the same backend and dtype"
        )
    chains = load_chains(path)
    with readable(path):
        tensors = load_file(file_within(path, about["state"]))
        writer = ChainWriter(
            path, about, written=len(chains.decisions), contrasts=len(chains.contrasts), turn=int(about["turn"])
        )
        return chains, tensors, dict(about["going_on"]), writer


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
    if path.exists() and any(there.name != LOCK for there in (path.iterdir() if path.is_dir() else [path])):
        if not overwrite or not (path / HEAD).is_file():
            raise ChainError(
                f"{path} is not empty: give another directory"
                + (", resume it, or pass overwrite=True" if (path / HEAD).is_file() else "")
            )
        with hold(path, ChainError, "run"):
            for there in path.iterdir():
                if there.is_dir():
                    shutil.rmtree(there)
                elif there.name != LOCK:
                    there.unlink()
    path.mkdir(parents=True, exist_ok=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ChainError(_unwritten(path, error)) from error


def _unwritten(path: Path, error: OSError) -> str:
    return (
        f"can't write the chains to {path}: {error.strerror or error}. What they did since the last write is in "
        "memory only: free some space, or save the result somewhere else."
    )


def _stamp_of(path: Path) -> str | None:
    """What the last write to a run is known by; None where none was."""
    stamp: str | None = read_head(path).get("stamp") if (path / HEAD).exists() else None
    return stamp


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    replace_file(path, json.dumps(data, ensure_ascii=False).encode())


def _write_decisions(path: Path, decisions: tuple[Decision, ...], turn: int) -> str:
    name = f"decisions-{turn:05d}.parquet"
    replace_table(path / name, decision_table(decisions))
    return name


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
    replace_file(path / name, save(tensors, metadata={"contrasts": json.dumps(about)}))
    return name
