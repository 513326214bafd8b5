"""What knowing the probability of every answer costs: one pass over the answers, not one over the prompt for each.

    python benchmarks/bench_answers.py [--model smollm2-135m-instruct] [--rounds 3] [--threads 1]

A question with k choices is asked after prompts of some length. ``flow`` is what a finite question does: all choices
in one pass over rows that share the prompt's cache. ``re-runs`` feeds the prompt with each choice anew, the plain way.
Tokens and calls are counted; times are medians of alternating rounds in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from workbench import SamplingParams, Session, load
from workbench.flows import FlowEngine, FlowQuestion

WORDS = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple", "brown", "pink", "grey", "violet"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load(options.model)
    torch.set_num_threads(options.threads)
    print(f"{model.name}, {options.threads} thread(s), medians of {options.rounds} alternating rounds")
    print("k | prompt | flow: passes | tokens | re-runs: passes | tokens | tokens ratio | time ratio | max |dp|")
    for k in (2, 4, 8):
        for length in (32, 256):
            print(" | ".join(_row(model, WORDS[:k], length, options.rounds)))


def _row(model: Any, choices: list[str], length: int, rounds: int) -> list[str]:
    counted = _Counted(model)
    prompt = model.tokenizer.encode("The sky over the sea was " + "very " * length)[:length]
    flow_times, plain_times = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        probs = _by_flow(counted, prompt, choices)
        flow_times.append(time.perf_counter() - begun)
        flow_cost = counted.taken()
        begun = time.perf_counter()
        by_hand = _by_reruns(counted, prompt, choices)
        plain_times.append(time.perf_counter() - begun)
        plain_cost = counted.taken()
    worst = max(abs(probs[choice] - by_hand[choice]) for choice in choices)
    speed = statistics.median(plain_times) / statistics.median(flow_times)
    return [
        str(len(choices)), str(length), str(flow_cost[0]), str(flow_cost[1]), str(plain_cost[0]), str(plain_cost[1]),
        f"{plain_cost[1] / flow_cost[1]:.1f}x", f"{speed:.1f}x", f"{worst:.1e}",
    ]  # fmt: skip


QUESTION = " Its colour:"


def _by_flow(model: Any, prompt: list[int], choices: list[str]) -> dict[str, float]:
    engine = FlowEngine(FlowQuestion(name="colour", prompt=QUESTION, responses=choices, erase_mode="all"))
    Session(model, [engine.as_mod()]).generate(
        prompt, max_new_tokens=1, sampling=SamplingParams(temperature=0.0), max_forward_tokens=100_000
    )
    return next(iter(engine.states.values())).answer_probs["colour"]


def _by_reruns(model: Any, prompt: list[int], choices: list[str]) -> dict[str, float]:
    """Every choice behind the whole prompt, with and without its space, as the flow weighs them."""
    begun = [*prompt, *model.tokenizer.encode(QUESTION)]
    forms = []
    for lead in ("", " "):
        scores = []
        for choice in choices:
            tail = model.tokenizer.encode(lead + choice)
            logits = model.forward([[*begun, *tail]], model.new_cache(), keep=[len(tail) + 1]).logits[0]
            logprobs = torch.log_softmax(logits[:-1].double(), -1)
            scores.append(float(logprobs[range(len(tail)), tail].sum()))
        forms.append(torch.tensor(scores, dtype=torch.float64))
    best = max(forms, key=lambda scores: float(scores.logsumexp(0)))
    return dict(zip(choices, best.softmax(0).tolist(), strict=True))


class _Counted:
    """A model whose passes and fed tokens are counted."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._passes = self._tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, tokens: Any, cache: Any, **more: Any) -> Any:
        self._passes += 1
        self._tokens += sum(map(len, tokens))
        return self._model.forward(tokens, cache, **more)

    def taken(self) -> tuple[int, int]:
        counts = self._passes, self._tokens
        self._passes = self._tokens = 0
        return counts


if __name__ == "__main__":
    main()
