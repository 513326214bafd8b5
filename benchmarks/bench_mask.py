"""What a constrained token costs beside the model's own decode step; the goal is below 5 %.

    python benchmarks/bench_mask.py [--model smollm2-135m-instruct] [--walks 20] [--tokens 40] [--threads 1]

A step under a constraint is one mask, one ``masked_fill`` of the logits and one ``advance``. Walks draw
uniformly from the allowed tokens, so that they go where a model seldom does. Steps and decode steps alternate
in one process; medians are compared, since a machine's speed changes from minute to minute.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
import warnings
from typing import Any

import torch

from workbench import load
from workbench.flows import (
    CharsMode,
    CharsStrat,
    ChoicesStrat,
    Constraint,
    GrammarStrat,
    JsonStrat,
    ListStrat,
    RegexStrat,
    UntilEndType,
    UntilStrat,
)

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
STRATEGIES: dict[str, Any] = {
    "yes or no": ChoicesStrat(["yes", "no"]),
    "1,000 choices": ChoicesStrat([f"choice number {7919 * i}" for i in range(1000)]),
    "until </x>": UntilStrat("<x>", UntilEndType.TAG, "</x>"),
    "until . ! ?": UntilStrat("", UntilEndType.ANYCHAR, ".!?"),
    "200 letters": CharsStrat(CharsMode.ALPHA, stop=200),
    "2,000 characters": CharsStrat(CharsMode.STRING, stop=2000),
    "list of colours": ListStrat(["red", "green", "blue"], open="[", close="]", wrap='"'),
    "date": RegexStrat(r"\d{4}-\d{2}-\d{2}"),
    "JSON person": JsonStrat(PERSON),
    "sums": GrammarStrat('start: term ("+" term)*\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,3}/'),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    model = load(options.model, threads=options.threads)
    begun = time.perf_counter()
    Constraint(STRATEGIES["yes or no"], model.tokenizer, model.vocab_size)
    read = time.perf_counter() - begun
    step = decode_step(model)
    print(f"{options.model}, {model.vocab_size:,} tokens in the vocabulary, read by llguidance in {read:.1f} s; "
          f"decode step {step * 1e3:.1f} ms; torch threads {options.threads}, cores {os.cpu_count()}, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(f"\n{'':18}{'compile ms':>11}{'first us':>10}{'median us':>11}{'p99 us':>9}{'of a decode step':>18}")
    for name, strategy in STRATEGIES.items():
        compiled, costs = measure(strategy, model, options.walks, options.tokens)
        middle = statistics.median(costs)
        print(f"{name:18}{compiled * 1e3:11.1f}{costs[0] * 1e6:10.0f}{middle * 1e6:11.0f}"
              f"{sorted(costs)[int(0.99 * len(costs))] * 1e6:9.0f}{middle / decode_step(model):18.2%}")  # fmt: skip


def decode_step(model: Any, steps: int = 12) -> float:
    """Median seconds of one cached forward pass of one token."""
    cache = model.new_cache(1)
    model.forward(torch.tensor([model.tokenizer.prompt("The lighthouse stood on a rock and")]), cache)
    costs = []
    for _ in range(steps):
        begun = time.perf_counter()
        model.forward(torch.tensor([[100]]), cache)
        costs.append(time.perf_counter() - begun)
    return statistics.median(costs)


def measure(strategy: Any, model: Any, walks: int, tokens: int) -> tuple[float, list[float]]:
    """Seconds to compile, and seconds of each step, the first (with nothing learnt yet) first."""
    rng = random.Random(0)
    logits = torch.randn(model.vocab_size)
    begun = time.perf_counter()
    constraint = Constraint(strategy, model.tokenizer, model.vocab_size, leading_space=True)
    compiled = time.perf_counter() - begun
    costs: list[float] = []
    for _ in range(walks):
        matcher = constraint.start()
        for _ in range(tokens):
            begun = time.perf_counter()
            mask = matcher.mask()
            logits.masked_fill(~mask, -torch.inf)
            asked = time.perf_counter() - begun
            if not mask.any():
                break
            token = rng.choice(mask.nonzero().flatten().tolist())
            begun = time.perf_counter()
            matcher.advance(token)
            costs.append(asked + time.perf_counter() - begun)
    return compiled, costs


if __name__ == "__main__":
    main()
