"""Tokens per second of the engine beside what it rides on, all in one process, in alternating rounds.

    python benchmarks/bench_engine.py [--rounds 5] [--tokens 32] [--threads 1]

A machine's speed changes from minute to minute, so only the ratios mean something: each variant runs once
per round, in an order that rotates, and the medians over rounds are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from workbench import SamplingParams, Session, load, mod
from workbench.models import path

MODEL = "smollm2-135m-instruct"
PROMPT = [{"role": "user", "content": "Describe a lighthouse at night in a few sentences."}]
GREEDY = SamplingParams(temperature=0)
RESIDUALS = "blocks.*.hook_resid_post"

Variant = Callable[[], int]
"""Generates once and returns how many tokens it made."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    variants = make_variants(options.tokens)
    print(f"{MODEL}, {options.tokens} new tokens, {options.rounds} rounds; torch threads {torch.get_num_threads()}, "
          f"cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    rates = measure(variants, options.rounds)
    show(rates)


def make_variants(count: int) -> dict[str, Variant]:
    bridge, hooked = (load(MODEL, backend=backend, threads=torch.get_num_threads()) for backend in ("bridge", "hooked"))
    ids = bridge.tokenizer.chat(PROMPT)
    variants: dict[str, Variant] = {
        "transformers generate": plain_transformers(ids, count),
        "TransformerBridge.generate": bridge_generate(bridge, ids, count),
        "HookedTransformer.generate": hooked_generate(hooked, ids, count),
    }
    for model in (bridge, hooked):
        variants[f"{model.backend}: bare loop"] = bare_loop(model, ids, count)
        variants[f"{model.backend}: engine, no mods"] = engine(model, ids, count)
        variants[f"{model.backend}: engine, one mod"] = engine(model, ids, count, mods=[listener])
        variants[f"{model.backend}: engine, capture"] = engine(model, ids, count, capture=RESIDUALS)
        variants[f"{model.backend}: engine, both"] = engine(model, ids, count, mods=[listener], capture=RESIDUALS)
    return variants


@mod
def listener(event: Any, actions: Any, tokenizer: Any) -> Any:
    """Hears every event and answers each."""
    event.state["events"] = event.state.get("events", 0) + 1
    return actions.noop()


def engine(model: Any, ids: list[int], count: int, **settings: Any) -> Variant:
    session = Session(model, **settings)
    return lambda: len(session.generate(ids, max_new_tokens=count, sampling=GREEDY, seed=0).tokens)


def bare_loop(model: Any, ids: list[int], count: int) -> Variant:
    """The same backend's cached forward and argmax, with nothing around it: what the engine's cost is against."""

    def run() -> int:
        cache = model.new_cache()
        token = int(model.forward([ids], cache).logits[0][-1].argmax())
        for _ in range(count - 1):
            token = int(model.forward([[token]], cache).logits[0][-1].argmax())
        return count

    return run


def plain_transformers(ids: list[int], count: int) -> Variant:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path(MODEL), dtype=torch.float32).eval()
    prompt = torch.tensor([ids])

    def run() -> int:
        with torch.inference_mode():
            out = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count,
                do_sample=False, use_cache=True,
            )  # fmt: skip
        return int(out.shape[1] - prompt.shape[1])

    return run


def bridge_generate(model: Any, ids: list[int], count: int) -> Variant:
    from transformers import AutoTokenizer

    model.bridge.tokenizer = AutoTokenizer.from_pretrained(path(MODEL))
    return tl_generate(model.bridge, ids, count)


def hooked_generate(model: Any, ids: list[int], count: int) -> Variant:
    from transformers import AutoTokenizer

    model.model.set_tokenizer(AutoTokenizer.from_pretrained(path(MODEL)))
    return tl_generate(model.model, ids, count)


def tl_generate(model: Any, ids: list[int], count: int) -> Variant:
    prompt = torch.tensor([ids])

    def run() -> int:
        with torch.inference_mode():
            out = model.generate(
                prompt, max_new_tokens=count, stop_at_eos=False, do_sample=False, use_past_kv_cache=True,
                verbose=False, return_type="tokens",
            )  # fmt: skip
        return int(out.shape[1] - prompt.shape[1])

    return run


def measure(variants: dict[str, Variant], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of every variant in every round, after one round to warm up."""
    rates: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            started = time.perf_counter()
            made = variants[name]()
            if number:
                rates[name].append(made / (time.perf_counter() - started))
    return rates


def show(rates: dict[str, list[float]]) -> None:
    reference = statistics.median(rates["transformers generate"])
    print(f"\n{'':32}{'tok/s median':>13}{'best':>8}{'vs transformers':>17}{'vs own bare loop':>18}")
    for name, found in rates.items():
        median = statistics.median(found)
        backend = name.split(":")[0]
        bare = rates.get(f"{backend}: bare loop")
        # Paired by round: a slow minute slows both.
        overhead = (
            "" if bare is None else f"{statistics.median(b / r - 1 for b, r in zip(bare, found, strict=True)):+.1%}"
        )
        print(f"{name:32}{median:13.2f}{max(found):8.2f}{median / reference:16.2f}x{overhead:>18}")
    print("\n'vs own bare loop' is extra time per token; goals: one mod <= +5%, capture <= +10%.")


if __name__ == "__main__":
    main()
