"""``workbench mcmc``: sample texts from a power of the model's distribution, kept so that it can go on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from ..errors import ChainError
from .commands import Commands
from .loading import DEFAULT_MODEL, add_model_options, agreed, load_model
from .running import add_prompt_options, prompt_of, prompt_text, refuse_used

if TYPE_CHECKING:
    from ..mcmc import Chains, Decision, PowerSampler

__all__ = ["add"]

RUN = (
    'workbench mcmc --prompt "What is 17 + 25?" --alpha 4 --block-size 32 --n-mcmc 6 --max-tokens 64 --chains 4 '
    "--seed 0 --out runs/y"
)
RESUME = "workbench mcmc --resume runs/y"
SETTINGS = ("alpha", "tau", "block_size", "n_mcmc", "max_tokens", "chains", "tries", "seed")


def add(commands: Commands) -> None:
    mcmc = commands.add("mcmc", _mcmc, "sample from the model's distribution raised to a power", RUN, RESUME)
    add_prompt_options(mcmc, required=False)
    number = mcmc.add_argument
    number("--alpha", type=float, default=4.0, metavar="A", help="the power (default 4)")
    number("--tau", type=float, metavar="T", help="temperature of proposals (default 1/A)")
    number("--block-size", type=int, default=32, metavar="B", help="tokens by which a text grows (default 32)")
    number("--n-mcmc", type=int, default=6, metavar="N", help="proposals after each block (default 6)")
    number("--max-tokens", type=int, default=128, metavar="N", help="longest text (default 128)")
    number("--chains", type=int, default=1, metavar="C", help="chains side by side (default 1)")
    number("--tries", type=int, default=1, metavar="N", help="suffixes tried at each proposal (default 1)")
    number("--seed", type=int, default=0, help="same seed, same chains (default 0)")
    where = mcmc.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, metavar="DIR", help="where the chains are kept while they run")
    where.add_argument("--resume", type=Path, metavar="DIR", help="go on with what --out DIR kept")
    number("--overwrite", action="store_true", help="replace what is there already")
    add_model_options(mcmc, default=DEFAULT_MODEL)


def _mcmc(options: argparse.Namespace) -> int:
    from ..mcmc import resume_chains, run_chains

    place: Path = options.resume or options.out
    with _Bar(quiet=options.quiet) as bar:
        try:
            if options.resume:
                chains = resume_chains(place, accept_terms=agreed(options.model), on_decision=bar)
            else:
                if options.prompt is None:
                    raise ChainError("--prompt is needed for a new run; --resume DIR goes on with an old one")
                text = prompt_text(options)
                refuse_used(None if options.overwrite else place)
                model = load_model(options, options.model, options.backend or "bridge")
                settings = {name: getattr(options, name) for name in SETTINGS}
                chains = run_chains(
                    model,
                    prompt_of(options, model, text),
                    out=place,
                    overwrite=options.overwrite,
                    on_decision=bar,
                    **settings,
                )
        except KeyboardInterrupt:
            print(f"kept: {place}   go on: workbench mcmc --resume {place}", file=sys.stderr)
            raise
    _tell(chains, place, quiet=options.quiet)
    return 0


def _tell(chains: Chains, place: Path, *, quiet: bool) -> None:
    from ..mcmc import tokens_per_move

    for text in chains:
        print(f"chain {text.chain}: {len(text.tokens)} tokens, log p {text.log_p:.2f}\n{text.text}\n")
    if not quiet:
        cost = tokens_per_move(chains.decisions)
        print(
            f"{len(chains.decisions)} decisions, {chains.acceptance:.0%} accepted, {chains.forwarded} tokens forwarded "
            f"({cost:.1f} for each accepted move)\nkept: {place}",
            file=sys.stderr,
        )


class _Bar:
    """Progress by decisions, with the share accepted so far."""

    def __init__(self, *, quiet: bool) -> None:
        self._bar: Any = None
        self._quiet = quiet
        self._accepted = self._count = 0

    def __enter__(self) -> _Bar:
        return self

    def __call__(self, decision: Decision, sampler: PowerSampler) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=sampler.total, initial=len(sampler.decisions) - 1, unit="decision", leave=False, mininterval=0.2,
                disable=True if self._quiet else None,
            )  # fmt: skip
        self._count += 1
        self._accepted += decision.accepted
        self._bar.set_postfix_str(f"accepted {self._accepted / self._count:.0%}", refresh=False)
        self._bar.update()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
