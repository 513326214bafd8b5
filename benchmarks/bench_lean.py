"""The lean backend beside its peers and beside the memory's own limit, all in one process, in alternating rounds.

    python benchmarks/bench_lean.py [--model NAME] [--rounds 5] [--tokens 32] [--threads 1] [--cpu-time] [--peers]

A machine's speed changes from minute to minute, so only ratios within a round mean something: every variant runs once
a round, in an order that rotates, and each ratio is the median over rounds. The best decile stands beside it. On a
busy machine ``--cpu-time`` with one thread counts processor seconds instead of waiting for others.
``--peers`` adds TransformerBridge.generate and HookedTransformer.generate, which load slowly, and llama.cpp on the
same GGUF file, where ``xllamacpp`` is installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from bench_engine import bridge_generate, hooked_generate, listener
from llama_peer import llama_generate
from numba import njit

from workbench import SamplingParams, Session, load
from workbench.models import Tail, path

GREEDY = SamplingParams(temperature=0)
RESIDUALS = "blocks.*.hook_resid_post"
LONG_CONTEXTS = (2000, 8000)
TEXT = "Describe a lighthouse at night in a few sentences."
clock = time.perf_counter
Variant = Callable[[], float]
"""Runs once and gives what it is measured by: seconds a token, or seconds."""


def main() -> None:
    global clock
    options = read_options()
    clock = time.process_time if options.cpu_time else time.perf_counter
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    began = time.perf_counter()
    model = load(options.model, backend="lean", threads=options.threads, accept_terms=True)
    print(f"load in a fresh process: {time.perf_counter() - began:.2f} s, imports included")
    began = time.perf_counter()
    model = load(options.model, backend="lean", threads=options.threads, accept_terms=True)
    print(f"second load in it: {time.perf_counter() - began:.2f} s; first step after it: {first_step(model):.3f} s")
    variants = make_variants(model, options)
    if model.source.get("made_of") != "a local directory":
        packed = load(options.model, backend="lean", threads=options.threads, accept_terms=True, packed=True)
        print(f"weights: {model.weights.nbytes / 1e6:.0f} MB, packed {packed.weights.nbytes / 1e6:.0f} MB")
        variants |= packed_variants(packed, options)
    found = measure(variants, options.rounds)
    kind = "processor" if options.cpu_time else "wall"
    print(f"\n{options.model}, {options.rounds} rounds, threads {options.threads}, cores {os.cpu_count()}, "
          f"load {os.getloadavg()[0]:.1f}, {kind} time\n{'':44}{'median':>12}{'best decile':>13}")  # fmt: skip
    for name, values in found.items():
        print(f"{name:44}{1e3 * statistics.median(values):9.2f} ms{1e3 * best(values):10.2f} ms")
    show(found, model.weights.nbytes)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=60)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--peers", action="store_true")
    return parser.parse_args()


def best(values: list[float]) -> float:
    return float(np.quantile(values, 0.1))


def first_step(model: Any) -> float:
    began = time.perf_counter()
    model.forward([[1]], model.new_cache())
    return time.perf_counter() - began


def make_variants(model: Any, options: argparse.Namespace) -> dict[str, Variant]:
    tokenizer, count = model.tokenizer, options.tokens
    ids = tokenizer.chat([{"role": "user", "content": TEXT}]) if tokenizer.has_chat_template else tokenizer.prompt(TEXT)
    hf_model = plain(options.model)
    variants: dict[str, Variant] = {
        "transformers generate, a token": per_token(transformers_generate(hf_model, ids, count), count),
        "lean: engine, a token": engine(model, ids, count),
        "lean: engine, mod + capture, a token": engine(model, ids, count, mods=[listener], capture=RESIDUALS),
        "lean: one step": feeding(model, 1, 1, options.context),
        "lean: one step, all resid_post captured": feeding(model, 1, 1, options.context, capture=True),
        "lean: one step of 8 rows": feeding(model, 8, 1, options.context),
        "lean: 64 tokens forced into one row": feeding(model, 1, 64, options.context),
        "lean: prompt of 512 tokens": prompt(model, 512),
        "transformers: prompt of 512 tokens": transformers_prompt(hf_model, 512),
        "lean: backtrack of 40 tokens": backtrack(model, 40),
        **{f"lean: one step behind {n} tokens": behind(model, n) for n in LONG_CONTEXTS if n < model.n_ctx},
        "reading 512 MB, all threads": reading(options.threads),
    }
    if options.peers:
        if find_spec("xllamacpp"):
            variants["llama.cpp on the GGUF file, a token"] = llama_generate(
                options.model, TEXT, count, options.threads, seconds
            )
        bridge = load(options.model, threads=options.threads, accept_terms=True)
        hooked = load(options.model, backend="hooked", threads=options.threads, accept_terms=True)
        variants["TransformerBridge.generate, a token"] = per_token(bridge_generate(bridge, ids, count), count)
        variants["HookedTransformer.generate, a token"] = per_token(hooked_generate(hooked, ids, count), count)
    return variants


def packed_variants(model: Any, options: argparse.Namespace) -> dict[str, Variant]:
    tokenizer = model.tokenizer
    ids = tokenizer.chat([{"role": "user", "content": TEXT}]) if tokenizer.has_chat_template else tokenizer.prompt(TEXT)
    return {
        "packed: engine, mod + capture, a token": engine(
            model, ids, options.tokens, mods=[listener], capture=RESIDUALS
        ),
        "packed: one step": feeding(model, 1, 1, options.context),
        "packed: one step of 8 rows": feeding(model, 8, 1, options.context),
        "packed: prompt of 512 tokens": prompt(model, 512),
    }  # fmt: skip


def behind(model: Any, length: int) -> Variant:
    """Seconds of a step whose row holds ``length`` positions. Their keys and values are random: speed needs no more."""
    cache = model.new_cache()
    weights = model.weights
    shape = length, weights.n_kv_heads, weights.d_head
    keys, values = (tuple(torch.randn(shape) for _ in range(model.n_layers)) for _ in range(2))
    cache.put(0, Tail(n=length, keys=keys, values=values))

    def once() -> float:
        took = seconds(lambda: model.forward([[7]], cache))
        cache.rewind(0, 1)
        return took

    return lambda: min(once() for _ in range(4))


def seconds(run: Callable[[], Any]) -> float:
    began = clock()
    run()
    return clock() - began


def per_token(run: Callable[[], Any], count: int) -> Variant:
    return lambda: seconds(run) / count


def engine(model: Any, ids: list[int], count: int, **settings: Any) -> Variant:
    """Seconds a token, the prompt's pass shared out among them."""
    session = Session(model, **settings)

    def run() -> float:
        began = clock()
        made = session.generate(ids, max_new_tokens=count, sampling=GREEDY, seed=0).tokens
        return (clock() - began) / len(made)

    return run


def plain(name: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path(name, accept_terms=True), dtype=torch.float32).eval()


def transformers_generate(model: Any, ids: list[int], count: int) -> Callable[[], Any]:
    tokens = torch.tensor([ids])

    def run() -> None:
        with torch.inference_mode():
            model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, min_new_tokens=count,
                do_sample=False, use_cache=True,
            )  # fmt: skip

    return run


def transformers_prompt(model: Any, length: int) -> Variant:
    tokens = torch.arange(1000, 1000 + length)[None]

    def run() -> None:
        with torch.inference_mode():
            model(tokens, use_cache=True, logits_to_keep=1)

    return lambda: seconds(run)


def feeding(model: Any, rows: int, new: int, context: int, capture: bool = False) -> Variant:
    """Seconds to feed ``new`` tokens to each of ``rows`` rows of ``context`` tokens, the best of four."""
    cache = model.new_cache(rows)
    model.forward([list(range(1000, 1000 + context))] * rows, cache)
    hooks = [name for name in model.hook_names if name.endswith("hook_resid_post")] if capture else []

    def once() -> float:
        took = seconds(lambda: model.forward([[7] * new] * rows, cache, capture=hooks))
        for row in range(rows):
            cache.rewind(row, new)
        return took

    return lambda: min(once() for _ in range(4))


def prompt(model: Any, length: int) -> Variant:
    ids = list(range(1000, 1000 + length))
    return lambda: seconds(lambda: model.forward([ids], model.new_cache()))


def backtrack(model: Any, n: int) -> Variant:
    cache = model.new_cache()
    model.forward([list(range(1000, 1100))], cache)

    def once() -> float:
        tail = cache.take(0, n)
        cache.put(0, tail)
        took = seconds(lambda: cache.rewind(0, n))
        cache.put(0, tail)
        return took

    return once


def reading(threads: int) -> Variant:
    """Seconds to read half a gigabyte once, each thread a part: the limit that a decode step is held against."""
    import threading

    numbers = np.ones(1 << 27, dtype=np.float32)
    total = njit(nogil=True, fastmath=True)(_total)
    total(numbers[:8])
    parts = np.array_split(numbers, threads)

    def run() -> None:
        others = [threading.Thread(target=total, args=(part,)) for part in parts[1:]]
        for other in others:
            other.start()
        total(parts[0])
        for other in others:
            other.join()

    return lambda: min(seconds(run) for _ in range(3))


def _total(numbers: Any) -> Any:
    result = np.float32(0)
    for index in range(numbers.size):
        result += numbers[index]
    return result


def measure(variants: dict[str, Variant], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for number in range(rounds + 1):  # the first one warms up
        for name in names[number % len(names) :] + names[: number % len(names)]:
            value = variants[name]()
            if number:
                found[name].append(value)
        print(f"round {number} of {rounds}", end="\r", flush=True)
    return found


def show(found: dict[str, list[float]], size: int) -> None:
    def ratio(above: str, below: str, factor: float = 1.0) -> str:
        pairs = zip(found[above], found[below], strict=True)
        return f"{factor * statistics.median(a / b for a, b in pairs):8.2f}"

    both, step = "lean: engine, mod + capture, a token", "lean: one step"
    print("\nratios, medians of pairs from the same round")
    for peer in found:
        if peer.endswith("generate, a token"):
            print(f"{'engine, mod + capture, against ' + peer.split(',')[0]:56}{ratio(peer, both)} x")
    print(f"{'engine, mod + capture, time against one bare step':56}{ratio(both, step)} x")
    print(f"{'share of the reading limit, one row':56}{ratio('reading 512 MB, all threads', step, size / (1 << 29))}")
    print(f"{'8 rows against one, tokens a second':56}{ratio(step, 'lean: one step of 8 rows', 8.0)} x")
    if "packed: one step" in found:
        print(f"{'packed against plain, one step':56}{ratio(step, 'packed: one step')} x")
        if "llama.cpp on the GGUF file, a token" in found:
            print(f"{'packed step against a token of llama.cpp':56}"
                  f"{ratio('llama.cpp on the GGUF file, a token', 'packed: one step')} x")  # fmt: skip
    for name in found:
        if " behind " in name:
            print(f"{'time ' + name.removeprefix('lean: ') + ' against one behind few':56}{ratio(name, step)} x")
    print(f"{'64 forced tokens, time against one step':56}{ratio('lean: 64 tokens forced into one row', step)} x")
    print(f"{'512-token prompt, speed against transformers':56}"
          f"{ratio('transformers: prompt of 512 tokens', 'lean: prompt of 512 tokens')} x")  # fmt: skip


if __name__ == "__main__":
    main()
