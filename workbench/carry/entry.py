"""One call from a prompt to a trace on disk and a table to read: what a command line needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..models import HookedModel
from .adapters import Adapter, load_adapter
from .model import CarryModel
from .panel import check_trace, cost_panel
from .readouts import table_text
from .trace import CarryTrace
from .tracing import Prompt

__all__ = ["CarryRun", "run_carry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryRun:
    """A run, told."""

    trace: CarryTrace
    text: str
    """What was run, the table of readings and what it cost, ready to print."""
    directory: Path | None


def run_carry(
    model: HookedModel,
    prompt: Prompt,
    *,
    band: tuple[int, int],
    pauses: int = 8,
    loops: int = 2,
    adapter: Adapter | str | Path = "linear_add",
    pause_token: str | int = "<unused0>",
    max_new_tokens: int = 8,
    top: int = 3,
    check: bool = False,
    out: str | Path | None = None,
) -> CarryRun:
    """Run one prompt, read every state by the logit lens and, with ``out``, keep the trace there.

    ``adapter`` is one, the name of a form with fresh weights, or a ``.safetensors`` file that holds one. ``check``
    also runs the slow scan and reports the largest difference.

    :raises CarryError: band, adapter or pause token do not fit the model.
    :raises TraceError: the trace can't be written.
    """
    carry = CarryModel(model, band=band, adapter=_made(adapter), pause_token=pause_token, pauses=pauses, loops=loops)
    trace = carry.run(prompt, max_new_tokens=max_new_tokens)
    return CarryRun(
        trace=trace,
        text="\n".join([*_heading(carry, trace), "", table_text(carry, trace, k=top), "", *_cost(carry, trace, check)]),
        directory=None if out is None else trace.save(out),
    )


def _made(adapter: Adapter | str | Path) -> Adapter | str:
    if isinstance(adapter, Adapter):
        return adapter
    return load_adapter(adapter) if str(adapter).endswith(".safetensors") else str(adapter)


def _heading(carry: CarryModel, trace: CarryTrace) -> list[str]:
    first, last = trace.band
    pause = carry.pause
    answer = carry.tokenizer.decode(trace.ids[trace.prompt_length + trace.pauses :])
    lines = [
        f"{carry.base.name}: band {first}:{last} of {carry.n_layers} layers, {trace.pauses} pauses, "
        f"{len(trace.loop_s) - 1} prompt loops, adapter {carry.adapter.kind} {carry.adapter.fingerprint()}",
        f"pauses are {pause.text!r} (id {pause.id}, embedding norm {pause.norm:.3g}, median {pause.median_norm:.3g})",
        f"output: {answer!r}",
    ]
    if not trace.injection.any():
        lines.append("The adapter adds nothing (as before training): these are the base model's states after pauses.")
    return lines


def _cost(carry: CarryModel, trace: CarryTrace, check: bool) -> list[str]:
    panel = cost_panel(carry, trace)
    lines = [
        f"token-layers {panel.generating.fast} (whole-sequence scan {panel.generating.naive}, "
        f"{panel.generating.ratio:.1f}x), cache {panel.cache_bytes / 2**20:.1f} MiB"
    ]
    if check:
        found = check_trace(carry, trace)
        lines.append(
            f"against the whole-sequence scan: largest difference of a logit {found.logits:.2g} (of "
            f"{found.largest_logit:.3g}), of a state {found.states:.2g}"
        )
    return lines
