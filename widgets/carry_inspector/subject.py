"""What is inspected: a model that carries, one trace of it, and the rows that heavier readings are made on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from workbench.carry import (
    CarryModel,
    CarrySettings,
    CarryTrace,
    Exit,
    JacobianLens,
    Lens,
    LogitLens,
    Reading,
    Trajectory,
    prompt_ids,
    readings,
    step_concepts,
    trajectories,
)
from workbench.errors import CarryError
from workbench.models import HookedModel

__all__ = ["JACOBIAN", "LOGIT", "SHUFFLED", "KeptLens", "Row", "Subject", "read_rows", "read_token"]

LOGIT, JACOBIAN, SHUFFLED = "logit lens", "Jacobian lens", "shuffled Jacobian lens"
MOST_GUESSES = 10
Row = tuple[tuple[int, ...], tuple[int, ...]]


class KeptLens:
    """A lens on one trace that keeps its logits: asked again, for other tokens, it needs neither model nor lock."""

    def __init__(self, lens: Lens) -> None:
        self.lens = lens
        self._kept: dict[Exit, Tensor] = {}

    @property
    def name(self) -> str:
        return self.lens.name

    def logits(self, model: HookedModel, states: Tensor, exit: Exit) -> Tensor:
        if exit not in self._kept:
            self._kept[exit] = self.lens.logits(model, states, exit)
        return self._kept[exit]


def read_token(model: CarryModel, wanted: str | int) -> int:
    """A token by id, by its text, or by the name of a special one.

    :raises CarryError: the text is several tokens, or the id is outside the vocabulary.
    """
    if isinstance(wanted, str):
        special = model.tokenizer.special_token(wanted)
        ids = [special] if special is not None else list(model.tokenizer.encode(wanted))
        if len(ids) != 1:
            parts = " ".join(repr(model.tokenizer.token_text(token)) for token in ids[:6]) or "nothing"
            raise CarryError(
                f"{wanted!r} is {len(ids)} tokens of this model ({parts}): name one token, spaces included"
            )
        return int(ids[0])
    if not 0 <= int(wanted) < model.vocab_size:
        raise CarryError(f"token {wanted} is outside the vocabulary 0..{model.vocab_size - 1}")
    return int(wanted)


def read_rows(model: CarryModel, rows: Sequence[tuple[Any, Any]]) -> tuple[Row, ...]:
    """``(prompt, answer)`` rows as token ids; prompts are text, chats or ids, answers text or ids.

    :raises CarryError: an answer without a token.
    """
    found = []
    for prompt, answer in rows:
        ids = model.tokenizer.encode(answer) if isinstance(answer, str) else [int(token) for token in answer]
        if not ids:
            raise CarryError("every row needs an answer of at least one token: (prompt, answer)")
        found.append((tuple(prompt_ids(model, prompt)), tuple(ids)))
    return tuple(found)


@dataclass(slots=True, kw_only=True)
class Subject:
    """See the module. Lenses beside the logit lens come when they are fitted.

    :raises CarryError: a trace of another band or adapter than the model's.
    """

    model: CarryModel
    trace: CarryTrace
    rows: tuple[Row, ...] = ()
    known: tuple[Row, ...] = ()
    """What the plain model should be able to answer."""
    target: int = -1
    watched: tuple[int, ...] = ()
    concepts: tuple[int, ...] = ()
    concepts_given: bool = False
    """False: they were taken from the readings, so a diagonal is no finding."""
    others: Mapping[str, CarryTrace] = field(default_factory=dict)
    """Further runs, such as a donor's or an ablated one, by name."""
    jacobian: JacobianLens | None = None
    _lenses: dict[str, KeptLens] = field(default_factory=dict)
    _readings: dict[tuple[str, bool], list[Reading]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, trace in {"the trace": self.trace, **self.others}.items():
            self._check(name, trace)
        self._lenses[LOGIT] = KeptLens(LogitLens())
        self.use(self.jacobian)
        if self.target < 0:
            self.target = self._usual_target()
        if not self.concepts_given:
            best = [reading.lens[0].token for reading in self.readings(LOGIT)[len(self.trace.loop_s) - 1 :]]
            self.concepts = tuple(dict.fromkeys(best))
        self.watched = self.watched or tuple(dict.fromkeys((self.target, *self.concepts)))[:8]

    def _check(self, name: str, trace: CarryTrace) -> None:
        model, config = self.model, trace.config
        if trace.band != model.settings.band or trace.s.shape[-1] != model.d_model:
            raise CarryError(
                f"{name} was made with band {trace.band[0]}:{trace.band[1]} at width {trace.s.shape[-1]}, the model "
                f"has {model.settings.band[0]}:{model.settings.band[1]} at {model.d_model}: give the model that made it"
            )
        if config.get("adapter_fingerprint") != model.adapter.fingerprint():
            raise CarryError(
                f"{name} was made with adapter {config.get('adapter_fingerprint')}, the model's is "
                f"{model.adapter.fingerprint()}: give the model that made it, or run it again"
            )

    def _usual_target(self) -> int:
        """The first answer token; without an answer the likeliest one where it would be read."""
        answer = self.trace.ids[self.trace.prompt_length + self.trace.pauses :]
        return answer[0] if answer else self.readings(LOGIT)[-1].now[0].token

    def use(self, lens: JacobianLens | None) -> None:
        """Read by a Jacobian lens too, and by its shuffled baseline."""
        self.jacobian = lens
        if lens is not None:
            self._lenses |= {JACOBIAN: KeptLens(lens), SHUFFLED: KeptLens(lens.shuffled())}
            self._readings = {key: found for key, found in self._readings.items() if key[0] == LOGIT}

    @property
    def lenses(self) -> tuple[str, ...]:
        return tuple(self._lenses)

    def lens(self, name: str) -> KeptLens:
        """:raises CarryError: no such lens, or not fitted yet."""
        if name not in self._lenses:
            raise CarryError(
                f"no {name!r} here: there is {', '.join(self._lenses)}. fit_lens() makes the Jacobian lens"
            )
        return self._lenses[name]

    def readings(self, lens: str, *, exclude_mouth: bool = False) -> list[Reading]:
        """The ten likeliest tokens of every column: loops at the prompt's last token, then steps from 1."""
        key = (lens, exclude_mouth)
        if key not in self._readings:
            k = min(MOST_GUESSES, self.model.vocab_size - exclude_mouth)
            self._readings[key] = readings(
                self.model, self.trace, k=k, lens=self.lens(lens), exclude_mouth=exclude_mouth
            )
        return self._readings[key]

    def trajectories(self, tokens: Sequence[int], lens: str) -> list[Trajectory]:
        return trajectories(self.model, self.trace, tokens, lens=self.lens(lens))

    def step_concepts(self, lens: str) -> Tensor:
        """``[step, concept]``."""
        return step_concepts(self.model, self.trace, self.concepts, lens=self.lens(lens))

    @property
    def settings(self) -> CarrySettings:
        """As the trace was run."""
        config = self.trace.config
        return self.model.with_(pauses=self.trace.pauses, loops=int(config["loops"]), mode=str(config["mode"]))

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """Of the rows, or the trace's own where there are none."""
        return [prompt for prompt, _ in self.rows] or [tuple(self.trace.ids[: self.trace.prompt_length])]

    @property
    def answered(self) -> list[Row]:
        """The rows, or the trace's own prompt with the target as its answer."""
        return list(self.rows) or [(tuple(self.trace.ids[: self.trace.prompt_length]), (self.target,))]

    @property
    def windows(self) -> list[int | None]:
        """Sliding windows of all layers; None where all positions are seen."""
        return [self.model.blocks.window(kind) for kind in self.model.blocks.kinds]

    def text(self, token: int) -> str:
        return self.model.tokenizer.token_text(token)

    def run(self, **changes: Any) -> CarryTrace:
        """The same prompt and answer again, with other settings or an intervention."""
        trace, config = self.trace, self.trace.config
        answer = list(trace.ids[trace.prompt_length + trace.pauses :])
        given: dict[str, Any] = {
            "pauses": trace.pauses, "loops": int(config["loops"]), "mode": str(config["mode"]), "attention": True,
        }  # fmt: skip
        given |= {"answer": answer} if answer else {"max_new_tokens": 0}
        with torch.no_grad():
            return self.model.run(list(trace.ids[: trace.prompt_length]), **{**given, **changes})
