"""Names of hooks: which are offered, how a pattern selects them, where a hook's position axis is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ..errors import UnknownHookError, did_you_mean

__all__ = ["is_attention_map", "known_hooks", "match_hooks"]

# TransformerLens names whose meaning and axes are the same in HookedTransformer and TransformerBridge.
# Rotary q/k are left out: the two put the head axis in different places.
OFFERED = re.compile(
    r"hook_embed|hook_pos_embed"
    r"|blocks\.\d+\.hook_(resid_pre|resid_mid|resid_post|attn_out|mlp_out)"
    r"|blocks\.\d+\.attn\.hook_(q|k|v|z|attn_scores|pattern)"
    r"|blocks\.\d+\.mlp\.hook_(pre|pre_linear|post)"
    r"|blocks\.\d+\.ln[12]\.hook_(normalized|scale)"
    r"|ln_final\.hook_(normalized|scale)"
)


# The order of computation within a block, for listings and for stacking by layer.
WITHIN_BLOCK = (
    "hook_resid_pre", "ln1.hook_scale", "ln1.hook_normalized", "attn.hook_q", "attn.hook_k", "attn.hook_v",
    "attn.hook_attn_scores", "attn.hook_pattern", "attn.hook_z", "hook_attn_out", "hook_resid_mid",
    "ln2.hook_scale", "ln2.hook_normalized", "mlp.hook_pre", "mlp.hook_pre_linear", "mlp.hook_post",
    "hook_mlp_out", "hook_resid_post",
)  # fmt: skip


def known_hooks(names: Iterable[str]) -> tuple[str, ...]:
    """The offered ones among ``names``, in the order of computation: layer 2 before layer 10."""
    return tuple(sorted((name for name in names if OFFERED.fullmatch(name)), key=_place))


def _place(name: str) -> tuple[int, int, str]:
    if not name.startswith("blocks."):
        return (-1 if name.startswith("hook_") else 1 << 30, 0, name)
    _, layer, rest = name.split(".", 2)
    return int(layer), WITHIN_BLOCK.index(rest), name


def is_attention_map(name: str) -> bool:
    """True for ``[batch, head, query_pos, key_pos]`` hooks; all others have the position on axis 1."""
    return name.endswith(("attn.hook_pattern", "attn.hook_attn_scores"))


def match_hooks(patterns: str | Sequence[str] | None, names: Sequence[str]) -> tuple[str, ...]:
    """Hook names selected by shell-style patterns (``blocks.*.hook_resid_post``), in the model's order.

    :raises UnknownHookError: a pattern selects nothing.
    """
    if patterns is None:
        return ()
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UnknownHookError(
                f"no hook matches {pattern!r} in this model. Hooks look like {names[0]!r} or "
                f"{names[-1]!r}; model.hook_names lists all {len(names)}.{did_you_mean(pattern, names)}"
            )
    return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted))
