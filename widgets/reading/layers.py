"""The residual stream at the position that a token was chosen from, layer by layer, and what attention looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from workbench.errors import ReportError, TraceError, UnknownHookError, did_you_mean
from workbench.mods import Direction
from workbench.reports import logit_lens
from workbench.trace import TokenLife

from .reading import Reading

__all__ = ["LayerView", "attention_hooks", "checked_directions", "norm_matrix", "residual_hooks"]

RESIDUAL = re.compile(r"blocks\.(\d+)\.hook_resid_post")
PATTERN = re.compile(r"blocks\.(\d+)\.attn\.hook_pattern")


def _by_layer(names: Sequence[str], pattern: re.Pattern[str]) -> dict[int, str]:
    found = ((pattern.fullmatch(name), name) for name in names)
    return dict(sorted((int(match[1]), name) for match, name in found if match))


def _captured(reading: Reading) -> Sequence[str]:
    """Hooks captured for this request: another of the same run may have had more."""
    told = reading.trace.run.get("requests", {}).get(reading.request_id, {}).get("capture")
    kept = set(reading.trace.hooks)
    return [name for name in (kept if told is None else told) if name in kept]


def residual_hooks(reading: Reading) -> dict[int, str]:
    """Captured ``blocks.N.hook_resid_post`` by layer, first layer first."""
    return _by_layer(_captured(reading), RESIDUAL)


def attention_hooks(reading: Reading) -> dict[int, str]:
    """Captured ``blocks.N.attn.hook_pattern`` by layer."""
    return _by_layer(_captured(reading), PATTERN)


def checked_directions(directions: Mapping[str, Any] | None, width: int | None) -> dict[str, Tensor]:
    """Named vectors ``[d_model]`` float32; a ``workbench.mods.Direction`` gives its vector.

    :raises ValueError: another shape, or no finite direction.
    """
    found: dict[str, Tensor] = {}
    for name, given in (directions or {}).items():
        vector = (
            torch.as_tensor(given.vector if isinstance(given, Direction) else given, dtype=torch.float32).detach().cpu()
        )
        if vector.ndim != 1 or (width is not None and len(vector) != width) or not bool(torch.isfinite(vector).all()):
            raise ValueError(
                f"direction {name!r} must be one finite vector of {width or 'd_model'} numbers, got shape "
                f"{tuple(vector.shape)}"
            )
        if not float(vector.norm()) > 0:
            raise ValueError(f"direction {name!r} has length 0: it points nowhere")
        found[str(name)] = vector
    return found


def norm_matrix(reading: Reading) -> tuple[list[int], np.ndarray]:
    """L2 norm of the residual stream where each item was chosen, ``[item, layer]`` float32; NaN: not captured."""
    hooks = residual_hooks(reading)
    captured = [record for record in reading.records if record.activations]
    spans = [range(start := int(record.data["row"]), start + int(record.data["fed"])) for record in captured]
    by_row = np.full((1 + max((span.stop for span in spans), default=0), len(hooks)), np.nan, dtype=np.float32)
    everywhere = np.fromiter(chain.from_iterable(spans), dtype=np.int64)
    for column, name in enumerate(hooks.values()):
        held = [record.activations.get(name) for record in captured if record.activations]
        values = [value for value in held if value is not None]
        if len(values) == len(captured):
            places = everywhere
        else:
            kept = [span for span, value in zip(spans, held, strict=True) if value is not None]
            places = np.fromiter(chain.from_iterable(kept), dtype=np.int64)
        if values:
            by_row[places, column] = torch.cat(values).float().norm(dim=-1).numpy()
    sources = [-1 if item.life.source_row is None else item.life.source_row for item in reading.items]
    return list(hooks), by_row[np.asarray(sources, dtype=np.int64)]  # the last row holds NaN for those without one


@dataclass(frozen=True, slots=True)
class LayerView:
    """What the layers say of one token. ``directions`` are named vectors ``[d_model]``."""

    reading: Reading
    life: TokenLife
    directions: Mapping[str, Tensor] = field(default_factory=dict)

    def why_not(self) -> str | None:
        """What is missing for a residual view here, and what to do about it; None if nothing is."""
        if not residual_hooks(self.reading):
            return "No residual stream was captured. Run with capture='blocks.*.hook_resid_post'."
        if self.life.position == 0:
            return "The first token stands at no other's end: nothing was computed before it."
        if self.life.source_row is None:
            return "The pass that this token was chosen from was not captured, or never happened."
        return None

    def frame(self, k: int = 5) -> pd.DataFrame:
        """One row per captured layer: ``layer, norm``; with a model ``rank, probability`` of the token and the
        ``k`` likeliest (``top_1, p_1`` …); ``cosine NAME`` per direction.

        :raises TraceError: no residual stream was captured where the token was chosen.
        """
        missing = self.why_not()
        if missing is not None:
            raise TraceError(missing)
        trace, model = self.reading.trace, self.reading.model
        hooks = residual_hooks(self.reading)
        residuals = torch.stack([trace.activation(name, self.life).float() for name in hooks.values()])
        if model is not None:
            frame = logit_lens(model, trace, self.life, k=k)
        else:
            frame = pd.DataFrame({"layer": list(hooks), "norm": residuals.norm(dim=-1).tolist()})
        for name, vector in self.directions.items():
            cosines = torch.nn.functional.cosine_similarity(residuals, vector[None], dim=-1)
            frame[f"cosine {name}"] = cosines.tolist()
        return frame

    def attention(self, layer: int | None = None, head: int = 0) -> pd.DataFrame:
        """How much one head at the position before the token took from each earlier one.

        ``uid, position, token, text, weight``, in order of position. ``layer`` may be left out where only one
        layer's pattern was captured.

        :raises UnknownHookError: that layer's ``attn.hook_pattern`` was not captured.
        :raises ReportError: no such head.
        """
        hooks = attention_hooks(self.reading)
        layer = next(iter(hooks), None) if layer is None and len(hooks) == 1 else layer
        if layer not in hooks:
            raise UnknownHookError(
                f"no attention pattern of layer {layer} in this trace; captured layers: "
                f"{', '.join(map(str, hooks)) or 'none'}. Run with capture='blocks.{layer or 0}.attn.hook_pattern'."
                f"{did_you_mean(str(layer), map(str, hooks))}"
            )
        weights = self.reading.trace.activation(hooks[layer], self.life)
        if not 0 <= head < len(weights):
            raise ReportError(f"no head {head} in layer {layer}; heads go from 0 to {len(weights) - 1}")
        keys = self.reading.context(self.life)
        return pd.DataFrame(
            {
                "uid": [key.uid for key in keys],
                "position": [key.position for key in keys],
                "token": [key.token for key in keys],
                "text": pd.Series([key.text for key in keys], dtype=object),
                "weight": weights[head, : len(keys)].float().tolist(),
            }
        )
