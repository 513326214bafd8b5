"""Everything that one carried prompt's states can tell, in memory and on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from ..errors import CarryError, TraceError
from ..trace import file_within, read_json

__all__ = ["CarryTrace"]

FORMAT = 1
MOST_BYTES = 64 << 20
"""Of ``carry.json``."""
TENSORS = ("e", "x", "s", "carried", "injection", "residuals", "loop_x", "loop_s", "loop_residuals")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CarryTrace:
    """One row: its prompt in loops, then its pauses, then its answer.

    Positions count from 0, pauses included. Steps count from the prompt's last token: step 0 is there, 1 at the
    first pause, ``pauses`` at the last one, where the first answer token is read. Tensors are float32 on the CPU.
    """

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    """The text of each token."""
    prompt_length: int
    pauses: int
    config: Mapping[str, Any]
    """Model, settings, adapter (form and fingerprint) and what was done to the states; JSON-able."""
    e: Tensor
    """Residual entering the band, ``[pos, d_model]``."""
    x: Tensor
    """What the band was given (the prompt: in its last loop), ``[pos, d_model]``."""
    s: Tensor
    """Residual leaving the band, ``[pos, d_model]``."""
    carried: Tensor
    """What each step merged, after any intervention, ``[steps - 1, d_model]``: row t was handed to step t + 1."""
    injection: Tensor
    """The part of x that the carried state brought, ``merge(e, s) - merge(e, 0)``, ``[steps - 1, d_model]``."""
    residuals: Tensor
    """Residual leaving each block, ``[layer, pos, d_model]``; band layers of the prompt in the last loop."""
    loop_x: Tensor
    """The prompt's band inputs in each loop, ``[loop, prompt, d_model]``; loop 0 is the plain model's."""
    loop_s: Tensor
    loop_residuals: Tensor
    """Residual leaving each band layer in each loop, ``[loop, band_layer, prompt, d_model]``."""
    attention: Tensor | None = field(default=None)
    """Attention from each step, ``[step, layer, head, pos]``, layers from the band's first to the model's last."""

    @property
    def band(self) -> tuple[int, int]:
        first, last = self.config["band"]
        return int(first), int(last)

    @property
    def steps(self) -> int:
        """How many steps there are, step 0 included."""
        return len(self.ids) - self.prompt_length + 1

    @property
    def states(self) -> Tensor:
        """s_0, s_1, …: the states at the prompt's last token, the pauses and the answer, ``[step, d_model]``."""
        return self.s[self.prompt_length - 1 :]

    @property
    def final(self) -> Tensor:
        """The residual leaving the last block at each step: what the model would answer there, ``[step, d_model]``."""
        return self.residuals[-1, self.prompt_length - 1 :]

    def phase(self, step: int) -> str:
        """``prompt``, ``pause`` or ``answer``."""
        if not 0 <= step < self.steps:
            raise CarryError(f"step must be 0..{self.steps - 1}, got {step}")
        return "prompt" if step == 0 else "pause" if step <= self.pauses else "answer"

    def at(self, *, layer: int, step: int | None = None, loop: int | None = None, position: int = -1) -> Tensor:
        """The residual leaving ``layer`` at a step, or in a loop of the prompt at ``position``, ``[d_model]``.

        :raises CarryError: both or neither of step and loop, or one that is not there.
        """
        if (step is None) == (loop is None):
            raise CarryError("give either step= (after the prompt) or loop= (within it)")
        if step is not None:
            self.phase(step)
            return self.residuals[layer, self.prompt_length - 1 + step]
        first, last = self.band
        if loop is None or not first <= layer < last or not 0 <= loop < len(self.loop_s):
            raise CarryError(f"loops are 0..{len(self.loop_s) - 1} and their layers {first}..{last - 1}")
        return self.loop_residuals[loop, layer - first, position]

    def rows(self) -> list[dict[str, Any]]:
        """One dict per state: the last prompt token in each loop, then each step; norms, shares and cosines.

        ``norm_s`` is ||s||, ``x_over_e`` ||x|| / ||e||, ``share`` ||merge(e, s) - merge(e, 0)|| / ||e||.
        """
        last = self.prompt_length - 1
        found = [
            self._row("prompt", loop, 0, last, self.loop_x[loop, last], self.loop_s[loop, last], None)
            for loop in range(len(self.loop_s))
        ]
        for step in range(1, self.steps):
            position = last + step
            share = self.injection[step - 1]
            found.append(self._row(self.phase(step), 0, step, position, self.x[position], self.s[position], share))
        for before, row in zip([None, *found[:-1]], found, strict=True):
            row["cosine_previous"] = None if before is None else _cosine(before["_s"], row["_s"])
        return [{name: value for name, value in row.items() if name != "_s"} for row in found]

    def _row(
        self, phase: str, loop: int, step: int, position: int, x: Tensor, s: Tensor, injection: Tensor | None
    ) -> dict[str, Any]:
        e = self.e[position]
        return {
            "phase": phase,
            "loop": loop,
            "step": step,
            "position": position,
            "token": self.texts[position],
            "norm_e": float(e.norm()),
            "norm_x": float(x.norm()),
            "norm_s": float(s.norm()),
            "x_over_e": float(x.norm() / e.norm().clamp(min=1e-9)),
            "share": None if injection is None else float(injection.norm() / e.norm().clamp(min=1e-9)),
            "cosine_first": _cosine(s, self.states[0]),
            "cosine_e": _cosine(s, e),
            "_s": s,
        }

    def save(self, directory: str | Path) -> Path:
        """Write ``carry.json`` and ``carry.safetensors`` into a directory, made if need be.

        :raises TraceError: it can't be written.
        """
        target = Path(directory)
        told = {
            "format": FORMAT,
            "ids": list(self.ids),
            "texts": list(self.texts),
            "prompt_length": self.prompt_length,
            "pauses": self.pauses,
            "config": dict(self.config),
        }
        tensors = {name: getattr(self, name).contiguous().clone() for name in TENSORS}
        if self.attention is not None:
            tensors["attention"] = self.attention.contiguous().clone()
        try:
            target.mkdir(parents=True, exist_ok=True)
            save_file(tensors, target / "carry.safetensors")
            (target / "carry.json").write_text(json.dumps(told, indent=1, sort_keys=True), "utf-8")
        except OSError as error:
            raise TraceError(f"the carry trace can't be written to {target}: {error}") from error
        return target

    @classmethod
    def load(cls, directory: str | Path) -> CarryTrace:
        """Read what :meth:`save` wrote.

        :raises TraceError: files are missing or damaged, or of another format.
        """
        source = Path(directory)
        try:
            told = read_json(file_within(source, "carry.json"), MOST_BYTES)
            tensors = load_file(file_within(source, "carry.safetensors"))
        except (OSError, ValueError, SafetensorError) as error:
            raise TraceError(f"{source} can't be read as a carry trace: {error}") from error
        if not isinstance(told, dict) or told.get("format") != FORMAT or not set(TENSORS) <= set(tensors):
            raise TraceError(f"{source} is no carry trace of format {FORMAT}")
        known = {one.name for one in fields(cls)}
        try:
            made = cls(
                ids=tuple(told["ids"]),
                texts=tuple(told["texts"]),
                prompt_length=told["prompt_length"],
                pauses=told["pauses"],
                config=told["config"],
                **{name: value for name, value in tensors.items() if name in known},
            )
            _check(made)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise TraceError(f"{source} is damaged: {error}") from error
        return made

    def __repr__(self) -> str:
        answer = len(self.ids) - self.prompt_length - self.pauses
        return (
            f"<CarryTrace prompt={self.prompt_length} pauses={self.pauses} answer={answer} "
            f"loops={len(self.loop_s) - 1} band={self.band[0]}:{self.band[1]} mode={self.config['mode']}>"
        )

    def _repr_html_(self) -> str:
        columns = ("phase", "loop", "step", "token", "norm_s", "x_over_e", "share", "cosine_previous")
        head = "".join(f"<th>{name}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_shown(row[name]))}</td>" for name in columns) + "</tr>"
            for row in self.rows()
        )
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>"


def _check(trace: CarryTrace) -> None:
    """:raises ValueError: what was read from a file does not fit together."""
    length, prompt, pauses, config = len(trace.ids), trace.prompt_length, trace.pauses, trace.config
    whole = all(type(value) is int and 0 <= value < 2**31 for value in (prompt, pauses, *trace.ids, *config["band"]))
    if not whole or not 1 <= prompt <= prompt + pauses <= length:
        raise ValueError("its spans do not fit its tokens")
    if len(trace.texts) != length or not all(isinstance(text, str) for text in trace.texts):
        raise ValueError("it has not one text for each token")
    if not isinstance(config["mode"], str) or not isinstance(config["adapter"], dict):
        raise ValueError("its config is of another form")
    (layers, _, width), (first, last), loops = trace.residuals.shape, trace.band, len(trace.loop_s)
    if not 0 <= first < last <= layers or not loops:
        raise ValueError(f"its band {first}:{last} is none of {layers} layers")
    at, handed, in_loops = (length, width), (length - prompt, width), (loops, prompt, width)
    shapes = {
        "e": at, "x": at, "s": at, "carried": handed, "injection": handed, "residuals": (layers, *at),
        "loop_x": in_loops, "loop_s": in_loops, "loop_residuals": (loops, last - first, prompt, width),
    }  # fmt: skip
    if trace.attention is not None:
        heads = trace.attention.shape[2]
        shapes["attention"] = (trace.steps, layers - first, heads, length)
    for name, shape in shapes.items():
        value = getattr(trace, name)
        if tuple(value.shape) != shape or not value.is_floating_point():
            raise ValueError(f"{name} has shape {tuple(value.shape)} of {value.dtype}; floats of {shape} are expected")


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(functional.cosine_similarity(a.float(), b.float(), dim=-1))


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
