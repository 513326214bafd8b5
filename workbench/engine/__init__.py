"""Logits come in, events go out to mods, and what the mods answer is carried out exactly."""

from .actions import Action, ActionBuilder, ForceTokens
from .events import (
    Added,
    Event,
    Finished,
    ForwardPass,
    Prefilled,
    Removed,
    RequestView,
    Sampled,
    Scored,
    tool_call_pairs,
)
from .manifest import versions
from .mod import Answer, FunctionMod, Handler, Mod, mod
from .replay import Replay, replay
from .result import Result
from .sampling import SamplingParams
from .session import Session

__all__ = [
    "Action",
    "ActionBuilder",
    "Added",
    "Answer",
    "Event",
    "Finished",
    "ForceTokens",
    "ForwardPass",
    "FunctionMod",
    "Handler",
    "Mod",
    "Prefilled",
    "Removed",
    "Replay",
    "RequestView",
    "Result",
    "Sampled",
    "SamplingParams",
    "Scored",
    "Session",
    "mod",
    "replay",
    "tool_call_pairs",
    "versions",
]
