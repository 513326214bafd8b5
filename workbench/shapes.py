"""Array types by axis name (jaxtyping), so that a signature says what a tensor holds.

Axis names are the glossary's: ``batch pos layer d_model head d_head vocab``. ``new`` is the number of
positions that one forward pass fed. They are for readers: nothing checks them at run time.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Activation", "Logits", "LogitsRow", "Mask", "Residual", "TokenIds"]

LogitsRow = Float[Tensor, "vocab"]
"""Unnormalised log-probabilities of the next token at one position, float32."""

Logits = Float[Tensor, "pos vocab"]
"""Unnormalised log-probabilities at several positions of one request, float32."""

Residual = Float[Tensor, "*rows d_model"]
"""Vectors of the residual stream."""

Activation = Float[Tensor, "new ..."]
"""One hook's value at the positions that a pass fed, position first."""

TokenIds = Int[Tensor, "batch pos"]
"""Token ids, int64."""

Mask = Bool[Tensor, "vocab"]
"""True where a token is allowed."""
