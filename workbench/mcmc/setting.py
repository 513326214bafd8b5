"""What a run is asked to do, checked before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..engine import SamplingParams
from ..errors import ChainError
from ..models import HookedModel, Message
from .chain import MOST_TRIES
from .result import Settings

__all__ = ["Prompt", "checked", "require_neutral", "token_ids"]

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]


def token_ids(model: HookedModel, prompt: Prompt) -> list[int]:
    """The ids of a prompt given as text, as chat messages, or as ids.

    :raises PromptError: it is empty or can't be tokenised.
    """
    if isinstance(prompt, str):
        return model.tokenizer.prompt(prompt)
    if all(isinstance(part, int) for part in prompt):
        return [int(part) for part in prompt if isinstance(part, int)]
    return model.tokenizer.chat([part for part in prompt if not isinstance(part, int)])


def require_neutral(sampling: SamplingParams) -> None:
    """Refuse settings under which tokens would be drawn otherwise than they are scored.

    :raises ChainError: temperature, top_k, top_p or min_p is not neutral, or there are stop strings.
    """
    neutral = SamplingParams(seed=sampling.seed)
    wrong = [
        f"{name}={getattr(sampling, name)!r}"
        for name in ("temperature", "top_k", "top_p", "min_p", "stop")
        if getattr(sampling, name) != getattr(neutral, name)
    ]
    if wrong:
        raise ChainError(
            f"a chain needs neutral sampling, got {', '.join(wrong)}: it draws and scores by its own tau, and a filter "
            "that the ratio does not know makes it inexact. Use SamplingParams(), and alpha and tau of the chain."
        )


def checked(settings: Settings, model: HookedModel) -> Settings:
    """The same settings, if a chain can run with them on this model.

    :raises ChainError: a value outside its range, or prompt and ``max_tokens`` do not fit the context.
    """
    checks = {
        "seed": (settings.seed, 0 <= settings.seed < 1 << 64, "in [0, 2**64)"),
        "chains": (settings.chains, 1 <= settings.chains < 1 << 32, "1 or more"),
        "tries": (settings.tries, 1 <= settings.tries <= MOST_TRIES, f"1 to {MOST_TRIES}"),
        "swap_every": (
            settings.swap_every,
            1 <= settings.swap_every <= max(settings.target.n_mcmc, 1),
            f"1 to n_mcmc={settings.target.n_mcmc}",
        ),
        "prompt": (len(settings.prompt), bool(settings.prompt), "at least one token"),
    }
    for name, (value, good, wanted) in checks.items():
        if not good:
            raise ChainError(f"{name} must be {wanted}, got {value!r}")
    length = len(settings.prompt) + settings.target.max_tokens
    if length > model.n_ctx:
        raise ChainError(
            f"the prompt's {len(settings.prompt)} tokens and max_tokens={settings.target.max_tokens} make {length}; "
            f"{model.name} accepts n_ctx={model.n_ctx}. Lower max_tokens or shorten the prompt."
        )
    return settings
