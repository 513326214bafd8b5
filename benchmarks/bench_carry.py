"""The incremental carry beside the whole-sequence one: token-layers to the unit, CPU time, time per position.

    python benchmarks/bench_carry.py [--model smollm2-135m-instruct] [--band 10:20] [--loops 2] [--rounds 3]

Without ``--model`` a random 30-layer model of width 256 is made on the spot. Token-layers (blocks run, times tokens
run through them) are counted in the blocks themselves and must equal the closed formulas. CPU times are of this
process, medians over rounds; only the ratios mean something. Both ways must write the same tokens.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from workbench import load
from workbench.carry import CarryModel, make_adapter, pack, reference_generate, reference_logits, token_layers

PROMPTS, PAUSES, ANSWERS = (64, 256), (8, 32), (8, 32)
HEADING = f"{'n':>4}{'p':>4}{'m':>4}{'naive':>10}{'fast':>8}{'ratio':>7}{'naive s':>10}{'fast s':>8}{'ratio':>7}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", help="a model to load; a random one of 30 layers if left out")
    parser.add_argument("--band", default="10:20", help="first:last layer of the band, the last not included")
    parser.add_argument("--loops", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    first, last = map(int, options.band.split(":"))
    model = carry_model(options.model, (first, last), options.loops)
    print(f"{model!r}; torch threads {torch.get_num_threads()}, cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")
    generation(model, options.rounds)
    training(model, options.rounds)
    per_position(model, options.rounds)


def carry_model(name: str | None, band: tuple[int, int], loops: int) -> CarryModel:
    """The model with an adapter that does something, so that a wrong scan would write other tokens."""
    base = load(name, backend="bridge", threads=torch.get_num_threads(), progress=False) if name else thirty_layers()
    adapter = make_adapter("linear_add", base.d_model)
    stream = torch.Generator().manual_seed(0)
    for parameter in adapter.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=stream) * 0.3 / base.d_model**0.5)
    named = base.tokenizer.special_token("<unused0>")
    pause = "<unused0>" if named is not None else "<|endoftext|>"
    return CarryModel(base, band=band, adapter=adapter, pause_token=pause, loops=loops)


def thirty_layers() -> Any:
    """A random Llama of 30 layers, width 256, written to a folder and loaded like any other."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = load("tiny-llama", progress=False).tokenizer.hf
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=704, num_hidden_layers=30, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(Path(folder))
        tokenizer.save_pretrained(Path(folder))
        return load(folder, backend="bridge", threads=torch.get_num_threads(), progress=False)


@contextmanager
def counted(model: CarryModel) -> Iterator[list[int]]:
    """Counts token-layers in the blocks themselves, whoever runs them."""
    ran = [0]

    def count(_block: Any, _args: Any, output: Any) -> None:
        out = output[0] if isinstance(output, tuple) else output
        ran[0] += out.shape[0] * out.shape[1]

    handles = [block.register_forward_hook(count) for block in model.blocks.layers]
    try:
        yield ran
    finally:
        for handle in handles:
            handle.remove()


def timed(run: Callable[[], Any], rounds: int) -> tuple[Any, float]:
    """The result, and the median CPU seconds."""
    seconds, result = [], None
    for _ in range(rounds):
        started = time.process_time()
        result = run()
        seconds.append(time.process_time() - started)
    return result, statistics.median(seconds)


def random_prompt(model: CarryModel, length: int) -> list[int]:
    stream = torch.Generator().manual_seed(length)
    tokens = torch.randint(4, min(model.vocab_size, 20_000), (length,), generator=stream)
    return [int(token) for token in tokens]


def generation(model: CarryModel, rounds: int) -> None:
    band, loops = model.settings.band, model.settings.loops
    print(f"\ngeneration, k={loops}; m tokens after the first")
    print(f"{HEADING}  same tokens")
    for n, p, m in itertools.product(PROMPTS, PAUSES, ANSWERS):
        prompt = random_prompt(model, n)

        def slow(prompt: list[int] = prompt, p: int = p, m: int = m) -> list[int]:
            made = reference_generate(
                model.blocks, model.adapter, torch.tensor([prompt]), band=band, loops=loops, pause=model.pause.id,
                pauses=p, max_new_tokens=m + 1,
            )  # fmt: skip
            return [int(token) for token in made[0]]

        def fast(prompt: list[int] = prompt, p: int = p, m: int = m) -> list[int]:
            return list(model.generate([prompt], max_new_tokens=m + 1, pauses=p, stop=False)[0].tokens)

        cost = token_layers(model.n_layers, band, prompt=n, pauses=p, answer=m, loops=loops)
        with counted(model) as ran:
            made_slow, slow_seconds = timed(slow, 1)
        if ran[0] != cost.naive:
            raise SystemExit(f"the slow way ran {ran[0]} token-layers, the formula says {cost.naive}")
        with counted(model) as ran:
            fast()
        if ran[0] != cost.fast:
            raise SystemExit(f"the fast way ran {ran[0]} token-layers, the formula says {cost.fast}")
        made_fast, fast_seconds = timed(fast, rounds)
        print(
            f"{n:>4}{p:>4}{m:>4}{cost.naive:>10,}{cost.fast:>8,}{cost.ratio:>6.1f}x{slow_seconds:>10.2f}"
            f"{fast_seconds:>8.2f}{slow_seconds / fast_seconds:>6.1f}x  {made_slow == made_fast}"
        )


def training(model: CarryModel, rounds: int) -> None:
    band, loops = model.settings.band, model.settings.loops
    print("\nteacher-forced pass with gradients of the adapter, batch 1")
    print(f"{HEADING}  worst gradient")
    for n, p, m in ((64, 8, 8), (64, 32, 8)):
        prompt, answer = random_prompt(model, n), random_prompt(model, m)
        batch = pack([(prompt, p, answer)], model.pause.id)
        cost = token_layers(model.n_layers, band, prompt=n, pauses=p, answer=m, loops=loops, training=True)

        def step(slow: bool, batch: Any = batch) -> list[torch.Tensor]:
            model.adapter.zero_grad()
            args = (batch.ids, batch.mask, batch.prompt_lengths)
            logits = (
                reference_logits(model.blocks, model.adapter, *args, band=band, loops=loops)
                if slow
                else model.logits(*args)
            )
            torch.nn.functional.cross_entropy(logits[batch.reads()], batch.targets()).backward()
            return [p.grad.clone() for p in model.adapter.parameters() if p.grad is not None]

        slow_grads, slow_seconds = timed(lambda: step(True), 1)
        fast_grads, fast_seconds = timed(lambda: step(False), rounds)
        worst = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(slow_grads, fast_grads, strict=True))
        print(
            f"{n:>4}{p:>4}{m:>4}{cost.naive:>10,}{cost.fast:>8,}{cost.ratio:>6.1f}x{slow_seconds:>10.2f}"
            f"{fast_seconds:>8.2f}{slow_seconds / fast_seconds:>6.1f}x  {worst:.1e}"
        )


def per_position(model: CarryModel, rounds: int) -> None:
    """CPU time of one pause position: the slope between two numbers of pauses, for several prompts."""
    print("\ntime per pause position (band only at the pause, prefix and suffix in one pass over all)")
    print(f"{'n':>4}{'p from':>8}{'p to':>6}{'ms per pause':>14}")
    for n, few, many in itertools.product(PROMPTS, (8,), (32, 64)):
        prompt = random_prompt(model, n)
        ends = []
        for pauses in (few, many):
            run = partial(model.generate, [prompt], max_new_tokens=1, pauses=pauses, stop=False)
            ends.append(timed(run, 2 * rounds + 1)[1])
        print(f"{n:>4}{few:>8}{many:>6}{1000 * (ends[1] - ends[0]) / (many - few):>14.2f}")


if __name__ == "__main__":
    main()
