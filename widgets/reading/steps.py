"""What happened around one token: its events and actions, and the distributions before and after the mods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from workbench.reports import label, legible, number
from workbench.trace import ACTION, WARNING, Record, TokenLife, Trace

from ..base import marked
from .reading import Reading, probability

__all__ = ["StepView"]

SHOWN_TOKENS = 16
LONGEST_NOTE = 400


@dataclass(frozen=True, slots=True)
class StepView:
    """The records of one token of a reading."""

    reading: Reading
    life: TokenLife

    def events(self) -> pd.DataFrame:
        """The records of the step that brought the token, and of its removal: rows of ``trace.frame()``."""
        return Trace(self.reading.trace.run, self.reading.records_of(self.life)).frame()

    def lines(self) -> list[dict[str, Any]]:
        """The same for display: actions stand below the event that they answer."""
        return [self._line(record) for record in self.reading.records_of(self.life)]

    def _line(self, record: Record) -> dict[str, Any]:
        what = record.action if record.kind == ACTION else record.kind
        return {
            "seq": record.seq,
            "step": record.step,
            "kind": record.kind,
            "what": legible(str(what)).replace("_", " "),
            "mod": None if record.mod is None else legible(record.mod),
            "status": record.status,
            "origin": record.origin,
            "tokens": [] if record.kind == "prefilled" else self._tokens(record),
            "more": 0 if record.kind == "prefilled" else max(len(record.tokens) - SHOWN_TOKENS, 0),
            "note": legible(_note(record))[:LONGEST_NOTE],
        }

    def _tokens(self, record: Record) -> list[str]:
        return [marked(self.reading.words.of(token)) for token in record.tokens[:SHOWN_TOKENS]]

    # Distributions -------------------------------------------------------------------------------------------

    @property
    def decision(self) -> Record | None:
        """The pass whose last logits this token was chosen from; None where it came along with others."""
        life = self.life
        if life.uid < 0 or life.entropy is None:  # which is set for the first token after a pass, and only then
            return None
        passes = [r for r in self.reading.by_step[life.added_step] if r.kind == "forward_pass"]
        return passes[-1] if passes and passes[-1].position == life.position - 1 else None

    @property
    def drawn(self) -> Record | None:
        """The drawing at that pass, also if a mod put another token in the place of the drawn one."""
        if self.decision is None:
            return None
        drawn = [r for r in self.reading.by_step[self.life.added_step] if r.kind == "sampled"]
        return drawn[-1] if drawn and drawn[-1].position == self.life.position else None

    @property
    def removed_mass(self) -> float | None:
        """Probability under the model's own distribution that masks took away here; None if no logits were edited."""
        value = None if self.drawn is None else self.drawn.data.get("removed_mass")
        return None if value is None else float(value)

    def candidates(self) -> pd.DataFrame:
        """The likeliest tokens before and after the mods: ``token, text, model_probability, probability``.

        ``model_probability`` is the model's own (temperature 1, before any mod), ``probability`` that of the
        distribution the token was drawn from (after mods, temperature and filters). NaN: not among the recorded
        five, and no residuals to read it from. The token itself is always a row. Sorted by ``model_probability``.
        """
        own = dict(self.decision.top) if self.decision is not None else {}
        final = dict(self.drawn.top) if self.drawn is not None else {}
        if self.life.raw_logprob is not None:
            own.setdefault(self.life.token, self.life.raw_logprob)
        if self.life.logprob is not None:
            final.setdefault(self.life.token, self.life.logprob)
        if self.drawn is not None and self.drawn.raw_logprob is not None and self.drawn.logprob is not None:
            own.setdefault(self.drawn.tokens[0], self.drawn.raw_logprob)
            final.setdefault(self.drawn.tokens[0], self.drawn.logprob)
        tokens = list(dict.fromkeys([*own, *final, self.life.token]))
        own = self._completed(own, tokens)
        tokens.extend(token for token in own if token not in tokens)
        frame = pd.DataFrame(
            {
                "token": tokens,
                "text": pd.Series([self.reading.words.of(token) for token in tokens], dtype=object),
                "model_probability": [probability(own.get(token)) for token in tokens],
                "probability": [probability(final.get(token)) for token in tokens],
            }
        )
        return frame.sort_values(["model_probability", "probability"], ascending=False, ignore_index=True)

    def _completed(self, own: Mapping[int, float], tokens: list[int]) -> dict[int, float]:
        """The model's own log-probabilities, read from the last layer's residual where the records lack them."""
        reading, found = self.reading, dict(own)
        last = None if reading.model is None else f"blocks.{reading.model.n_layers - 1}.hook_resid_post"
        complete = self.decision is not None and all(token in found for token in tokens)
        if complete or last is None or last not in reading.trace.hooks or self.life.source_row is None:
            return found
        assert reading.model is not None
        residual = reading.trace.activation(last, self.life)
        logprobs = torch.log_softmax(reading.model.unembed(residual[None]).float()[0], dim=-1)
        for token in tokens:
            found.setdefault(token, float(logprobs[token]))
        if self.decision is None:
            best = logprobs.topk(min(5, len(logprobs)))
            for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                found.setdefault(token, value)
        return found


def _note(record: Record) -> str:
    """What a record says beside its tokens, short."""
    told = dict(record.data)
    for skipped in ("texts", "row", "event"):
        told.pop(skipped, None)
    match record.kind:
        case "prefilled":
            return f"{len(record.tokens)} prompt tokens, at most {told.get('max_new_tokens', '?')} new ones"
        case "forward_pass":
            start, fed = told.pop("fed_start", 0), told.pop("fed", 0)
            scored = len(told.pop("scored", ()))
            edits = sorted({name for *_, names in told.pop("edits", ()) for name in names})
            parts = [f"fed {fed} from position {start}", f"entropy {number(record.entropy)} nats"]
            parts += [f"scored {scored} forced"] if scored else []
            return "; ".join(parts + ([f"edits {', '.join(edits)}"] if edits else []))
        case "sampled":
            parts = [f"p {number(probability(record.logprob))}, model p {number(probability(record.raw_logprob))}"]
            parts += [f"a mask removed {number(told['removed_mass'])}"] if "removed_mass" in told else []
            return "; ".join(parts)
        case "added":
            return "" if record.origin is None else str(record.origin)
        case _ if record.kind == WARNING:
            return str(told.get("message", ""))
    return "; ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in told.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return number(value) if math.isfinite(value) else str(value)
    return label(str(value), 120) if not isinstance(value, str) else value
