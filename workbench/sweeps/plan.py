"""What a sweep runs, as plain data: it may be written to a file, sent to another process, and hashed."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from ..engine import SamplingParams
from ..errors import SweepError, did_you_mean
from ..models import BACKENDS
from ..mods import ModSpecError, build, parse

__all__ = ["Cell", "ModSpec", "Sweep"]

ModSpec: TypeAlias = Mapping[str, Any]
"""``{"name": …, "params": {…}}``: a ready mod, as :func:`workbench.mods.build` takes it."""
MOST_CELLS = 1_000_000
FORMAT = 1
"""Raised when a cell of the same data would give another row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a sweep: all that decides it."""

    model: str
    backend: str
    files: str | None
    """What the model's files were (names, sizes, times of change), for one that lies in a directory or a file."""
    prompt: str
    """The prompt's name."""
    given: Any = field(repr=False)
    """The prompt itself: text, or chat messages."""
    mods: str
    """The name of the set of mods."""
    specs: tuple[ModSpec, ...] = field(repr=False)
    seed: int
    max_new_tokens: int
    max_forward_tokens: int | None
    sampling: Mapping[str, Any] = field(repr=False)
    keep_trace: bool = False
    capture: tuple[str, ...] = ()
    """Hooks to keep in the trace."""

    @property
    def digest(self) -> str:
        """Of everything above: a cell whose digest has a result needs no run. 32 hexadecimal digits."""
        told = json.dumps([FORMAT, asdict(self)], sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Cell:
        data = json.loads(text)
        return cls(**{**data, "specs": tuple(data["specs"]), "capture": tuple(data["capture"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Every prompt under every set of mods, with every seed, on every model.

    ``prompts`` and ``mods`` are by name; a list of prompts is named by number. A set of mods is a list of names
    (``"calculator"``), of ``NAME:{JSON}`` as the command line takes it, or of ``{"name": …, "params": …}``. Mods made
    of code are not for sweeps: their parameters could not be hashed, nor sent to another machine.

    :raises SweepError: nothing to run, an unknown mod or backend, or a value of another kind.
    """

    models: Sequence[str]
    prompts: Mapping[str, Any] | Sequence[Any]
    mods: Mapping[str, Sequence[str | ModSpec]] = field(default_factory=lambda: {"none": ()})
    seeds: Sequence[int] = (0,)
    backend: str = "bridge"
    max_new_tokens: int = 64
    max_forward_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    keep_traces: bool = False
    capture: Sequence[str] = ()

    def __post_init__(self) -> None:
        prompts = self.prompts
        if isinstance(prompts, str) or not isinstance(prompts, (Mapping, Sequence)):
            raise SweepError(f"prompts is a list, or a table of name and prompt; got {prompts!r}")
        named = dict(prompts) if isinstance(prompts, Mapping) else {str(i): each for i, each in enumerate(prompts)}
        put = {
            "models": _texts("models", self.models),
            "prompts": {_name("prompts", name): _prompt(name, each) for name, each in named.items()},
            "mods": {_name("mods", name): _specs(name, each) for name, each in _table("mods", self.mods).items()},
            "seeds": _whole_numbers("seeds", self.seeds),
            "capture": _texts("capture", self.capture, empty=True),
        }
        for name, value in put.items():
            object.__setattr__(self, name, value)
        for name in ("models", "prompts", "mods", "seeds"):
            if not put[name]:
                raise SweepError(f"{name} is empty, so there is nothing to run")
        if self.backend not in BACKENDS:
            raise SweepError(f"backend must be {', '.join(BACKENDS)}; got {self.backend!r}")
        for name, least in (("max_new_tokens", 1), ("max_forward_tokens", 1)):
            value = getattr(self, name)
            if not (value is None and name == "max_forward_tokens") and not _is_whole(value, least):
                raise SweepError(f"{name} must be a whole number of at least {least}; got {value!r}")
        if self.capture and not self.keep_traces:
            raise SweepError("capture asks for activations, which are kept in traces: set keep_traces too")
        if len(self) > MOST_CELLS:
            raise SweepError(f"the sweep would have {len(self):,} runs; the limit is {MOST_CELLS:,}")

    def __len__(self) -> int:
        return len(self.models) * len(self.prompts) * len(self.mods) * len(self.seeds)

    def cells(self) -> Iterator[Cell]:
        """All runs, those of one model together."""
        assert isinstance(self.prompts, Mapping)
        sampling = {**asdict(self.sampling), "stop": list(self.sampling.stop)}
        for model in self.models:
            files = _files_of(model)
            for (prompt, given), (mods, specs), seed in itertools.product(
                self.prompts.items(), self.mods.items(), self.seeds
            ):
                yield Cell(
                    model=model, backend=self.backend, files=files, prompt=prompt, given=given, mods=mods,
                    specs=tuple(specs), seed=seed, max_new_tokens=self.max_new_tokens,  # type: ignore[arg-type]
                    max_forward_tokens=self.max_forward_tokens, sampling=sampling,
                    keep_trace=self.keep_traces, capture=tuple(self.capture),
                )  # fmt: skip

    def to_json(self) -> str:
        """The sweep as a document that :meth:`from_json` and ``workbench sweep`` read."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Sweep:
        """The sweep that a document describes. Nothing in it is run.

        :raises SweepError: it is no JSON object, or has a name or value that a sweep does not take.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SweepError(f"the sweep's file is no JSON: {error}") from None
        if not isinstance(data, dict):
            raise SweepError("the sweep's file must hold one JSON object with models, prompts, mods and seeds")
        known = [each.name for each in fields(cls)]
        for name in data:
            if name not in known:
                raise SweepError(f"a sweep has no {name!r}; it has {', '.join(known)}.{did_you_mean(name, known)}")
        for name in ("models", "prompts"):
            if name not in data:
                raise SweepError(f"the sweep's file lacks {name!r}")
        return cls(**{**data, "sampling": _sampling(data.get("sampling", {}))})


def _files_of(model: str) -> str | None:
    """A digest of what a local model's files are, cheap enough to ask for at every sweep; None for one with a name."""
    path = Path(model)
    if not path.exists():
        return None
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    facts = [(str(file.relative_to(path.parent)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _sampling(given: Any) -> SamplingParams:
    if not isinstance(given, Mapping):
        raise SweepError(f"sampling is a table such as {{'temperature': 0.7}}; got {given!r}")
    known = [each.name for each in fields(SamplingParams) if each.name != "seed"]
    for name in given:
        if name not in known and not (name == "seed" and given[name] is None):
            raise SweepError(f"sampling has no {name!r}; it has {', '.join(known)}.{did_you_mean(name, known)}")
    try:
        return SamplingParams(**{**given, "stop": tuple(given.get("stop", ()))})
    except (TypeError, ValueError) as error:
        raise SweepError(f"sampling: {error}") from None


def _table(what: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise SweepError(f"{what} is a table of name and list, such as {{'none': []}}; got {given!r}")
    return given


def _name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise SweepError(f"a name in {what} must be a text that is not empty; got {name!r}")
    return name


def _texts(what: str, given: Any, *, empty: bool = False) -> tuple[str, ...]:
    given = (given,) if isinstance(given, str) and what == "models" else given
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(x, str) and x for x in given):
        raise SweepError(f"{what} is a list of texts; got {given!r}")
    return _once(what, given)


def _whole_numbers(what: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(_is_whole(each, 0) for each in given):
        raise SweepError(f"{what} is a list of whole numbers from 0 on; got {given!r}")
    return _once(what, given)


def _once(what: str, given: Sequence[Any]) -> tuple[Any, ...]:
    twice = [each for each, group in itertools.groupby(sorted(given)) if len(list(group)) > 1]
    if twice:
        raise SweepError(f"{what} names {twice[0]!r} twice")
    return tuple(given)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _prompt(name: Any, given: Any) -> Any:
    """Text, or chat messages as plain data."""
    if isinstance(given, str) and given:
        return given
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        if all(_is_whole(each, 0) for each in given):
            return list(given)
        if all(isinstance(each, Mapping) and {*each} == {"role", "content"} for each in given):
            return [dict(each) for each in given]
    raise SweepError(f"prompt {name!r} must be text, token ids, or chat messages with role and content; got {given!r}")


def _specs(name: str, given: Any) -> tuple[ModSpec, ...]:
    """A set of mods, each made once to see that it can be."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise SweepError(f"mods {name!r} must be a list of mods, such as ['calculator']; got {given!r}")
    specs = []
    for each in given:
        try:
            if isinstance(each, str):
                made = parse(each)
            elif isinstance(each, Mapping) and {"name"} <= {*each} <= {"name", "params"}:
                made = build(each["name"], **each.get("params", {}))
            else:
                raise SweepError(f"mods {name!r}: a mod is a name or {{'name': …, 'params': …}}; got {each!r}")
            spec = {"name": each.partition(":")[0].strip() if isinstance(each, str) else each["name"]}
            told = made.describe()["params"]
            if told is None:
                raise SweepError(f"mods {name!r}: {spec['name']} was given a function, which a sweep can't write down")
            specs.append({**spec, "params": json.loads(json.dumps(told))})
        except ModSpecError as error:
            raise SweepError(f"mods {name!r}: {error}") from None
    return tuple(specs)
