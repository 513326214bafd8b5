"""A trace as long as asked for, made without a model: many tokens, many layers, some taken back."""

from __future__ import annotations

import torch

from workbench.trace import Record, Trace

WORDS = (" the", " residual", "stream", " of", "a", " model", ",", " <b>", "\n", "<0xF0>", " émigré", ".")


def long_trace(tokens: int = 4096, layers: int = 32, width: int = 8) -> Trace:
    """``tokens`` committed one a step, every 500th step takes three back; each pass with ``layers`` residuals."""
    hooks = [f"blocks.{layer}.hook_resid_post" for layer in range(layers)]
    about = {"capture": hooks, "seed": 0, "index": 0, "mods": []}
    run = {
        "run_id": "long", "model": {"name": "made-up", "n_layers": layers, "d_model": width},
        "requests": {"r0": about},
    }  # fmt: skip
    trace = Trace(run)
    numbers = torch.Generator().manual_seed(0)
    values = torch.randn(tokens, layers, width, generator=numbers).abs() + torch.arange(layers)[None, :, None]

    def emit(kind: str, step: int, position: int, **fields: object) -> None:
        known = {"run_id": "long", "request_id": "r0", "seq": len(trace.records)}
        trace(Record(step=step, position=position, kind=kind, **known, **fields))  # type: ignore[arg-type]

    emit("prefilled", 0, 0, tokens=(1, 2, 3), text="abc", data={"max_new_tokens": tokens})
    position = 3
    for step in range(1, tokens + 1):
        held = {hook: values[step - 1, layer][None] for layer, hook in enumerate(hooks)}
        data = {"fed_start": position - 1, "fed": 1, "row": step - 1}
        chance = -0.01 - (step % 97) / 20
        word = WORDS[step % len(WORDS)]
        emit("forward_pass", step, position - 1, entropy=step % 7, top=((7, -0.5),), data=data, activations=held)
        emit("sampled", step, position, tokens=(step % 50,), logprob=chance, raw_logprob=chance, top=((7, -0.5),))
        emit(
            "added", step, position, tokens=(step % 50,), text=word, origin="sampled", raw_logprob=chance,
            data={"texts": [word]},
        )  # fmt: skip
        position += 1
        if step % 500 == 0:
            position -= 3
            emit("action", step, position + 3, mod="editor", action="backtrack", status="applied", data={"n": 3})
            emit("removed", step, position, tokens=(0, 0, 0), mod="editor")
    emit("finished", tokens, position, data={"reason": "max_tokens"})
    return trace
