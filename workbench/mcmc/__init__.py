"""A model, a prompt and a power come in; chains whose texts follow ``p(text)**power`` go out, with every decision.

``reference`` is the kernel's arithmetic step by step, ``philox`` the random numbers; ``kernel`` needs triton, which is
optional and only imported where that name is used.
"""

from typing import TYPE_CHECKING, Any

from . import philox, reference
from .branching import WhatIf, branch, what_if
from .cache_move import CacheMove
from .chain import Chain, Decision
from .diagnostics import (
    Histogram,
    PivotAcceptance,
    acceptance_by_pivot,
    autocorrelation,
    effective_sample_size,
    log_a_histogram,
    running_mean,
    split_r_hat,
    tokens_per_move,
)
from .history import TextState, state_after, state_before, walk_back
from .reasoning import Phase, reasoning_with_sampling
from .records import RowRecord, contrast_of, decided_again, trace_row
from .result import Chains, ChainText, Contrast, Settings
from .running import resume, resume_chains, run_chains
from .sampler import PowerSampler
from .scoring import Scorer
from .store_reading import load_chains
from .target import Scalars, Target, Terms, acceptance, renyi_terms, token_terms
from .tempering import Swap

if TYPE_CHECKING:
    from . import kernel

__all__ = [
    "CacheMove",
    "Chain",
    "ChainText",
    "Chains",
    "Contrast",
    "Decision",
    "Histogram",
    "Phase",
    "PivotAcceptance",
    "PowerSampler",
    "RowRecord",
    "Scalars",
    "Scorer",
    "Settings",
    "Swap",
    "Target",
    "Terms",
    "TextState",
    "WhatIf",
    "acceptance",
    "acceptance_by_pivot",
    "autocorrelation",
    "branch",
    "contrast_of",
    "decided_again",
    "effective_sample_size",
    "kernel",
    "load_chains",
    "log_a_histogram",
    "philox",
    "reasoning_with_sampling",
    "reference",
    "renyi_terms",
    "resume",
    "resume_chains",
    "run_chains",
    "running_mean",
    "split_r_hat",
    "state_after",
    "state_before",
    "token_terms",
    "tokens_per_move",
    "trace_row",
    "walk_back",
    "what_if",
]


def __getattr__(name: str) -> Any:
    if name == "kernel":
        from importlib import import_module

        return import_module(f"{__name__}.kernel")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
