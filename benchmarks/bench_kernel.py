"""Row statistics for a chain's ratio: the Triton kernel, its twins, and what they are measured against.

    python benchmarks/bench_kernel.py [--rows 64] [--threads 1] [--check]

On a CUDA device: correctness first (the cases of the tests), then `triton.testing.do_bench` tables against eager
torch, torch.compile and the time that copying the same bytes takes. On a CPU: the everyday twin against eager
torch, in alternating rounds; only the ratios mean something on a machine that others use too. ``--check`` leaves out
the CPU table, which is what ``make gpu-check`` wants.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

from workbench.mcmc import Scorer

TAU = 0.25
VOCABULARIES = (50_257, 151_936)
ROUNDS = 100
CASES = Path(__file__).resolve().parents[1] / "tests" / "mcmc" / "kernel_cases.py"

Work = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="only what needs a CUDA device")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.check:
        on_the_cpu(options.rows)
    if not torch.cuda.is_available():
        print("gpu-check: there is no CUDA device here, so nothing was checked or measured on one.")
    elif find_spec("triton") is None:
        sys.exit("gpu-check: triton is not installed: pip install 'interp-workbench[gpu]'")
    else:
        correct_on_the_card()
        on_the_card()


def single(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """One of the two log-probabilities: the least that could be asked for."""
    return torch.log_softmax(logits, dim=-1).gather(1, tokens)


def both(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the twin and the kernel give, log p and log q, the eager way."""
    return single(logits, tokens), single(logits / TAU, tokens)


def on_the_cpu(rows: int) -> None:
    print(f"CPU, float32, {rows} rows, tau {TAU}, torch threads {torch.get_num_threads()}; least microseconds a row\n")
    print(
        f"{'vocabulary':>10}{'':3}{'eager log p':>13}{'eager both':>13}{'twin':>10}{'twin/log p':>13}{'twin/both':>12}"
    )
    for vocab in VOCABULARIES:
        logits, tokens = torch.randn(rows, vocab) * 4, torch.randint(0, vocab, (rows, 1))
        scorer, flat = Scorer(TAU), tokens[:, 0]
        times = alternate(
            {
                "single": lambda logits=logits, tokens=tokens: single(logits, tokens),
                "both": lambda logits=logits, tokens=tokens: both(logits, tokens),
                "twin": lambda logits=logits, flat=flat, scorer=scorer: scorer.score(logits, flat),
            }
        )
        one, two, twin = (times[name] * 1e6 / rows for name in ("single", "both", "twin"))
        print(f"{vocab:>10}{'':3}{one:>13.1f}{two:>13.1f}{twin:>10.1f}{one / twin:>12.2f}x{two / twin:>11.2f}x")
    print("\ntwin/x: how many times as fast as x; above 1 the twin is faster.\n")


def alternate(works: dict[str, Work]) -> dict[str, float]:
    """Least seconds of each, taken in turns: what others do on the machine only ever adds.

    The order changes from round to round, since each finds in the cache what the one before it left there.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    permutations = list(itertools.permutations(works))
    for number in range(ROUNDS + 1):
        for name in permutations[number % len(permutations)]:
            started = time.perf_counter()
            works[name]()
            if number:
                taken[name].append(time.perf_counter() - started)
    return {name: min(seconds) for name, seconds in taken.items()}


def correct_on_the_card() -> None:
    done = subprocess.run([sys.executable, str(CASES), "cuda"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"gpu-check: the cases failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    faults = [
        name
        for name, good in {
            "stats": found["rows"]["stats"] < 2e-6,
            "trace": found["rows"]["trace"] < 1e-5,
            "decisions": found["decisions"]["wrong"] == 0,
            "random numbers": found["decisions"]["random"] and found["decisions"]["uniforms"],
            "tokens": found["sampler"]["tokens"],
        }.items()
        if not good
    ]
    print(f"{torch.cuda.get_device_name()}: {json.dumps(found)}")
    if faults:
        sys.exit(f"gpu-check: wrong on this card: {', '.join(faults)}")
    print("gpu-check: correct; decisions equal those of float64 outside the flagged margin.\n")


def on_the_card() -> None:
    from triton.testing import do_bench

    from workbench.mcmc import kernel

    compiled = torch.compile(both)
    print(f"{'vocabulary':>10}{'rows':>6}{'dtype':>10}{'kernel ms':>11}{'GB/s':>8}{'of copy':>9}"
          f"{'eager log p':>12}{'eager both':>12}{'compiled':>12}")  # fmt: skip
    for dtype in (torch.float32, torch.bfloat16):
        for vocab in VOCABULARIES:
            for rows in (64, 512, 4096):
                logits = (torch.randn(rows, vocab, device="cuda") * 4).to(dtype)
                tokens = torch.randint(0, vocab, (rows, 1), device="cuda")
                flat, copy = tokens[:, 0].contiguous(), torch.empty_like(logits)
                ours = do_bench(lambda x=logits, t=flat: kernel.row_stats(x, t, TAU, check=False))
                others = [do_bench(lambda f=f, x=logits, t=tokens: f(x, t)) for f in (single, both, compiled)]
                copying = do_bench(lambda x=logits, y=copy: y.copy_(x))
                size = logits.numel() * logits.element_size()
                # A copy reads and writes; the kernel only reads.
                share = (size / ours) / (2 * size / copying)
                name = str(dtype).removeprefix("torch.")
                ratios = "".join(f"{each / ours:>11.1f}x" for each in others)
                print(f"{vocab:>10}{rows:>6}{name:>10}{ours:>11.3f}{size / ours / 1e6:>8.0f}{share:>9.0%}{ratios}")


if __name__ == "__main__":
    main()
