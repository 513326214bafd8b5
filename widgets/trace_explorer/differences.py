"""Two readings of the same prompt beside each other: where their outputs part."""

from __future__ import annotations

from itertools import zip_longest

import pandas as pd

from workbench.reports import label
from workbench.trace import TokenLife

from ..reading import Reading

__all__ = ["difference_frame", "first_parting"]


def _visible(reading: Reading) -> list[TokenLife]:
    return [*reading.prompt, *reading.history.live]


def difference_frame(first: Reading, second: Reading) -> pd.DataFrame:
    """By position, the visible tokens of both: ``position, text, other_text, same, probability, other_probability``.

    Probabilities are the model's own. Where one output is shorter its columns hold nothing.
    """
    pairs = list(zip_longest(_visible(first), _visible(second)))
    frame = first.frame().set_index("uid")["model_probability"]
    other = second.frame().set_index("uid")["model_probability"]
    return pd.DataFrame(
        {
            "position": list(range(len(pairs))),
            "text": pd.Series([a.text if a else None for a, _ in pairs], dtype=object),
            "other_text": pd.Series([b.text if b else None for _, b in pairs], dtype=object),
            "same": [a is not None and b is not None and a.token == b.token for a, b in pairs],
            "probability": [frame[a.uid] if a else float("nan") for a, _ in pairs],
            "other_probability": [other[b.uid] if b else float("nan") for _, b in pairs],
        }
    )


def first_parting(first: Reading, second: Reading) -> tuple[list[int | None] | None, str]:
    """Items of the first visible tokens that differ (None for an output that ended), and a sentence."""
    for position, (a, b) in enumerate(zip_longest(_visible(first), _visible(second))):
        if a is None or b is None or a.token != b.token:
            items = [first.index[a.uid] if a else None, second.index[b.uid] if b else None]
            texts = [label(life.text) if life else "(the end)" for life in (a, b)]
            return items, f"The outputs part at position {position}: {texts[0]} against {texts[1]}."
    return None, "The outputs are equal."
