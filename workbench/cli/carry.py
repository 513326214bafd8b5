"""``workbench carry``: run a model whose middle band carries its state; train and measure the toy that shows it."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ..errors import CarryError, did_you_mean
from .commands import Commands
from .loading import add_model_options, load_model
from .running import add_prompt_options, prompt_of, prompt_text, refuse_used

__all__ = ["add"]

RUN = (
    'workbench carry run --model gemma-3-270m --prompt "The capital of France is" --raw --pauses 8 --loops 2 '
    "--band 6:12 --out runs/z"
)
TRAIN = "workbench carry train --seed 0 --out runs/carry"
CONTROLS = "workbench carry controls --seed 0 --seed 1 --out runs/carry"


def add(commands: Commands) -> None:
    carry = commands.group("carry", "carry latent states through pause tokens", RUN, TRAIN, CONTROLS)
    _add_run(carry)
    train = carry.add("train", _train, "train the toy's base and its carry (some ten CPU minutes)", TRAIN)
    train.add_argument("--seed", type=int, default=0, help="default 0")
    controls = carry.add(
        "controls", _controls, "train and measure the toy and all its controls (under 30 CPU minutes a seed)", CONTROLS
    )
    controls.add_argument("--seed", type=int, action="append", help="may be repeated (default 0)")
    controls.add_argument("--system", action="append", metavar="NAME", help="only this one; may be repeated")
    for parser in (train, controls):
        parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="work done there is not done again")


def _add_run(carry: Commands) -> None:
    run = carry.add("run", _run, "run one prompt with pauses and read every state by the logit lens", RUN)
    add_prompt_options(run)
    run.add_argument("--pauses", type=int, default=8, metavar="P", help="pause tokens after the prompt (default 8)")
    run.add_argument("--loops", type=int, default=2, metavar="K", help="loops of the band over the prompt (default 2)")
    run.add_argument("--band", type=_band, required=True, metavar="L0:L1", help="the layers that carry: L0 to L1-1")
    run.add_argument(
        "--adapter", default="linear_add", metavar="FORM|FILE", help="a form, untrained, or a .safetensors file"
    )
    run.add_argument("--pause-token", default="<unused0>", metavar="TOKEN", help="default <unused0>; or a token id")
    run.add_argument("--max-new-tokens", type=int, default=8, metavar="N", help="longest answer (default 8)")
    run.add_argument("--top", type=int, default=3, metavar="N", help="tokens shown of each reading (default 3)")
    run.add_argument("--check", action="store_true", help="compare with the slow whole-sequence scan too")
    run.add_argument("--out", type=Path, metavar="DIR", help="where the trace goes")
    add_model_options(run, default="gemma-3-270m")


def _band(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a band is L0:L1, such as 6:12, got {text!r}")
    return int(match[1]), int(match[2])


def _run(options: argparse.Namespace) -> int:
    from ..carry import run_carry

    text = prompt_text(options)
    refuse_used(options.out, "choose another directory")
    model = load_model(options, options.model, options.backend or "bridge")
    token = options.pause_token
    done = run_carry(
        model, prompt_of(options, model, text), band=options.band, pauses=options.pauses, loops=options.loops,
        adapter=options.adapter, pause_token=int(token) if token.isdigit() else token,
        max_new_tokens=options.max_new_tokens, top=options.top, check=options.check, out=options.out,
    )  # fmt: skip
    print(done.text)
    if done.directory and not options.quiet:
        print(f"trace: {done.directory}", file=sys.stderr)
    return 0


def _train(options: argparse.Namespace) -> int:
    from ..carry import train_demo

    train_demo(options.seed, options.out, progress=not options.quiet)
    print(f"trained: {options.out / f'seed{options.seed}'}")
    return 0


def _controls(options: argparse.Namespace) -> int:
    from ..carry import CONTROLS, SYSTEMS, controls_table, run_controls

    systems = options.system or tuple(CONTROLS)
    for name in systems:
        if name not in SYSTEMS:
            raise CarryError(f"--system {name!r}: there are {', '.join(SYSTEMS)}.{did_you_mean(name, SYSTEMS)}")
    results = run_controls(options.seed or [0], options.out, systems=systems, progress=not options.quiet)
    print(controls_table(results))
    return 0
