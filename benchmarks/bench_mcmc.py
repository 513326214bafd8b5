"""What a chain costs: tokens forwarded, counted; and what running eight chains as one batch gains, timed.

    python benchmarks/bench_mcmc.py [--model NAME] [--prompts 2] [--threads 1] [--chains 8] [--rounds 2]

The first table compares a whole block with the scheme that scores the old suffix again under the model (NEW, REV) and
feeds an accepted suffix once more (re-inject). Both walk the same path, token by token: only what they feed differs.
Counts do not depend on the machine. Times do; the two ways of the second table take turns.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench import load
from workbench.mcmc import Chain, PowerSampler, Scorer, Target, philox

PROMPTS = (
    "The lighthouse keeper climbed the stairs and",
    "To make a cup of tea, first",
    "The sum of seventeen and twenty-five is",
    "My neighbour's dog is called",
)
TARGET = {"alpha": 4.0, "block_size": 32, "n_mcmc": 6, "max_tokens": 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompts", type=int, default=2, choices=range(1, len(PROMPTS) + 1))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    model = load(options.model, threads=options.threads)
    print(f"{options.model}, {TARGET}; torch threads {torch.get_num_threads()}, cores {os.cpu_count()}, "
          f"load {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    tokens_forwarded(model, PROMPTS[: options.prompts])
    moves_a_second(model, options.chains, options.rounds)


def tokens_forwarded(model: Any, prompts: tuple[str, ...]) -> None:
    print(f"{'prompt':42}{'accepted':>9}{'suffixes':>9}{'ours':>7}{'per suffix':>11}{'re-scoring':>11}{'ratio':>7}")
    ours_all = theirs_all = 0
    for prompt in prompts:
        result = PowerSampler(model, prompt, seed=1, **TARGET).run()
        suffixes = sum(len(d.new_tokens) for d in result.decisions)
        proposing = sum(d.forwarded for d in result.decisions)
        theirs = Rescoring(model, model.tokenizer.prompt(prompt)).run(seed=1)
        assert theirs.tokens == result.texts[0].tokens, "the two schemes must walk the same path"
        accepted = sum(d.accepted for d in result.decisions)
        print(f"{prompt[:40]:42}{accepted:>6}/{len(result.decisions)}{suffixes:>9}{result.forwarded:>7}"
              f"{proposing / suffixes:>11.2f}{theirs.fed:>11}{result.forwarded / theirs.fed:>7.2f}")  # fmt: skip
        ours_all, theirs_all = ours_all + result.forwarded, theirs_all + theirs.fed
    print(f"{'all':42}{'':18}{ours_all:>7}{'':11}{theirs_all:>11}{ours_all / theirs_all:>7.2f}\n")


@dataclass(frozen=True)
class Walked:
    tokens: tuple[int, ...]
    fed: int


class Rescoring:
    """A block by NEW, REV and re-injection, as plainly as it can be done: one row, a cache that only rewinds.

    NEW draws the new suffix. REV goes back to the pivot and feeds the old suffix again, to score it. On acceptance the
    new suffix is put back by feeding it once more; on rejection the old one stands already.
    """

    def __init__(self, model: Any, prompt: list[int]) -> None:
        self.model, self.prompt = model, prompt
        self.cache = model.new_cache()
        if len(prompt) > 1:
            model.forward([prompt[:-1]], self.cache)
        self.fed = 0

    def run(self, seed: int) -> Walked:
        chain = Chain(0, Target(**TARGET), seed=seed, ends=self.model.tokenizer.eos_token_ids)
        scorer = Scorer(chain.tau)
        while (proposal := chain.begin()) is not None:
            old = list(chain.tokens)
            self.back_to(proposal.pivot)
            before = [self.prompt[-1], *old[: proposal.pivot]]
            last, complete = before[-1], False
            while not complete:
                iteration, index = chain.draw_index()
                u = philox.uniform_one(
                    seed, chain=0, block=chain.block, iteration=iteration, purpose=philox.Purpose.TOKEN, index=index
                )
                (last,), scalars = scorer.draw(self.feed([last]), [u])
                complete = chain.add(last, scalars[0])
            if proposal.extends:
                chain.finish()
                continue
            self.back_to(proposal.pivot)
            logits = [self.feed([token]) for token in [before[-1], *old[proposal.pivot : -1]]]
            again = scorer.score(torch.cat(logits), old[proposal.pivot :])
            decision, _ = chain.finish()
            assert decision is not None
            assert np.abs(again - decision.old_scalars).max() < 1e-2, "what REV scores is what was kept"
            if decision.accepted:
                self.back_to(proposal.pivot)
                self.feed([before[-1], *decision.new_tokens[:-1]])
        return Walked(tuple(chain.tokens), self.fed)

    def feed(self, tokens: list[int]) -> torch.Tensor:
        self.fed += len(tokens)
        return self.model.forward([tokens], self.cache).logits[0]

    def back_to(self, pivot: int) -> None:
        """Leave the cache where the token before the pivot is to be fed."""
        held = self.cache.lengths[0] - (len(self.prompt) - 1 + pivot)
        self.cache.rewind(0, held)


def moves_a_second(model: Any, chains: int, rounds: int) -> None:
    settings = {"alpha": 4.0, "block_size": 16, "n_mcmc": 4, "max_tokens": 16}
    rates: dict[str, list[float]] = {"one at a time": [], "as one batch": []}
    fed: dict[str, list[float]] = {name: [] for name in rates}
    for number in range(rounds):
        for name, count in (("one at a time", 1), ("as one batch", chains)):
            moved = forwarded = 0
            started = time.perf_counter()
            for run in range(1 if count == chains else max(chains // 4, 1)):
                seed = 100 * number + run
                result = PowerSampler(model, PROMPTS[0], chains=count, seed=seed, **settings).run()
                moved += sum(decision.accepted for decision in result.decisions)
                forwarded += result.forwarded
            taken = time.perf_counter() - started
            rates[name].append(moved / taken)
            fed[name].append(forwarded / taken)
    print(f"{chains} chains, {settings}\n{'':20}{'accepted/s':>12}{'tokens/s':>10}")
    for name in rates:
        print(f"{name:20}{np.median(rates[name]):>12.2f}{np.median(fed[name]):>10.1f}")
    gain = np.median(rates["as one batch"]) / np.median(rates["one at a time"])
    print(f"\nas one batch: {gain:.1f} times the accepted proposals a second")


if __name__ == "__main__":
    main()
