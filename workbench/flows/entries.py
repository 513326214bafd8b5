"""Where in a generation a flow enters: conditions that are plain data, so that a flow file can hold them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import regex
import torch

from ..engine import ForwardPass
from ..errors import FlowError

__all__ = ["CONDITIONS", "AfterText", "WhenUnsure", "after_text", "when_unsure"]

SEARCH_SECONDS = 0.1
"""Longest search for a pattern in one pass: a pattern of a flow file may be made to take for ever."""


LONGEST_PATTERN = 300
MOST_REPEATS = 2000
"""A compiled pattern may hold a part as often as its counted repeats, multiplied, say."""
_COUNTED = regex.compile(r"\{(\d*)(?:,(\d*))?[^}]*\}")


def _size(pattern: str) -> int:
    """How often the counted repeats of a pattern may repeat a part, if all stand inside one another."""
    product = 1
    for low, high in _COUNTED.findall(pattern):
        largest = max(int(low[:9] or 0), int(high[:9] or 0))
        product = min(product * max(largest, 1), 10**12)
    return product


@dataclass(frozen=True, slots=True)
class AfterText:
    """The generated text contains a match of a regular expression.

    :raises FlowError: the pattern is no regular expression; at run time, if one search takes over a tenth of a second.
    """

    pattern: str
    _compiled: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise FlowError(f"after_text needs a regular expression, got {self.pattern!r}")
        if len(self.pattern) > LONGEST_PATTERN or _size(self.pattern) > MOST_REPEATS:
            raise FlowError(
                f"after_text: {self.pattern[:60]!r}… is too large: at most {LONGEST_PATTERN} characters, and counted "
                f"repeats that make at most {MOST_REPEATS} together"
            )
        try:
            compiled = regex.compile(self.pattern)
        except (regex.error, RecursionError, OverflowError) as error:
            raise FlowError(f"after_text: {self.pattern[:200]!r} is no regular expression: {error}") from None
        object.__setattr__(self, "_compiled", compiled)

    def __call__(self, event: ForwardPass) -> bool:
        try:
            return self._compiled.search(event.request.text, timeout=SEARCH_SECONDS) is not None
        except TimeoutError:
            raise FlowError(
                f"after_text: searching for {self.pattern[:200]!r} took longer than {SEARCH_SECONDS} s on a text of "
                f"{len(event.request.text)} characters; use a pattern that backtracks less"
            ) from None


@dataclass(frozen=True, slots=True)
class WhenUnsure:
    """The entropy of the next token's distribution, in nats, is above a threshold.

    :raises FlowError: the threshold is no finite number of at least 0.
    """

    entropy: float

    def __post_init__(self) -> None:
        value = self.entropy
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise FlowError(f"when_unsure needs an entropy in nats, 0 or more, got {value!r}")

    def __call__(self, event: ForwardPass) -> bool:
        logprobs = torch.log_softmax(event.raw_logits, dim=-1)
        return float(torch.special.entr(logprobs.exp()).sum()) > self.entropy


CONDITIONS: dict[str, type[AfterText] | type[WhenUnsure]] = {"after_text": AfterText, "when_unsure": WhenUnsure}
"""Conditions by the key that a flow file has them under."""


def after_text(pattern: str) -> AfterText:
    """For ``when``: the generated text contains a match of a regular expression."""
    return AfterText(pattern)


def when_unsure(entropy: float) -> WhenUnsure:
    """For ``when``: the entropy of the next token's distribution, in nats, passes a threshold."""
    return WhenUnsure(entropy)
