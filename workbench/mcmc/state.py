"""A sampler in the middle of its work, as tensors and plain data, and back: nothing of it is computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models import Tail
from .chain import Chain, Proposal, Suffix
from .rows import ChainRows
from .target import Scalars

__all__ = ["chain_state", "restore_chain", "restore_rows", "rows_state"]


def chain_state(chain: Chain) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Scalars as tensors, the rest as JSON-able data."""
    proposal = chain.proposal
    scalars = {f"chain.{chain.number}.text": chain.scalars}
    facts: dict[str, Any] = {
        "tokens": list(chain.tokens), "block": chain.block, "iteration": chain.iteration, "spent": chain.spent,
        "proposal": None,
    }  # fmt: skip
    if proposal is not None:
        facts["proposal"] = {
            "pivot": proposal.pivot, "extends": proposal.extends, "tokens": proposal.tokens,
            "tries": [suffix.tokens for suffix in proposal.tries],
        }  # fmt: skip
        scalars[f"chain.{chain.number}.proposal"] = np.array(proposal.scalars).reshape(-1, 3)
        for index, suffix in enumerate(proposal.tries):
            scalars[f"chain.{chain.number}.try.{index}"] = suffix.scalars
    return {name: torch.from_numpy(value.copy()) for name, value in scalars.items()}, facts


def restore_chain(chain: Chain, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Put a fresh chain where a saved one stood."""

    def scalars(name: str) -> Scalars:
        found: Scalars = tensors[f"chain.{chain.number}.{name}"].numpy()
        return found

    open_proposal = facts["proposal"]
    proposal = None
    if open_proposal is not None:
        proposal = Proposal(
            pivot=open_proposal["pivot"], extends=open_proposal["extends"], tokens=list(open_proposal["tokens"]),
            scalars=list(scalars("proposal")),
            tries=[
                Suffix(list(tokens), scalars(f"try.{index}")) for index, tokens in enumerate(open_proposal["tries"])
            ],
        )  # fmt: skip
    chain.restore(
        tokens=facts["tokens"], scalars=scalars("text"), block=facts["block"], iteration=facts["iteration"],
        proposal=proposal, spent=facts["spent"],
    )  # fmt: skip


def rows_state(rows: ChainRows) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Keys and values of every row behind the shared prompt, and those that open proposals took out."""
    tensors: dict[str, Tensor] = {}
    lengths: dict[str, int] = {}

    def keep(name: str, tail: Tail) -> None:
        lengths[name] = tail.n
        for kind, layers in (("keys", tail.keys), ("values", tail.values)):
            # A backend may hold them with other rows or positions between, which no file does.
            held = {f"{name}.{kind}.{i}": part for i, part in enumerate(layers) if part is not None and tail.n}
            tensors.update({label: part.contiguous() for label, part in held.items()})

    for row, length in enumerate(rows.cache.lengths):
        held = rows.cache.take(row, length - rows.prefilled)
        rows.cache.put(row, held)
        keep(f"row.{row}", held)
    for number, tail in rows.old.items():
        keep(f"old.{number}", tail)
    for number, tails in rows.tries.items():
        for index, tail in enumerate(tails):
            keep(f"tries.{number}.{index}", tail)
    return tensors, {"row_of": rows.row_of, "lengths": lengths}


def restore_rows(rows: ChainRows, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Fill fresh rows with what was kept."""
    device, layers = rows.model.device, rows.model.n_layers

    def part(name: str) -> Tensor | None:
        found = tensors.get(name)
        return None if found is None else found.to(device)

    for name, length in facts["lengths"].items():
        tail = Tail(
            n=length,
            keys=tuple(part(f"{name}.keys.{layer}") for layer in range(layers)),
            values=tuple(part(f"{name}.values.{layer}") for layer in range(layers)),
        )
        kind, number, *_ = name.split(".")
        if kind == "row":
            rows.cache.put(int(number), tail)
        elif kind == "old":
            rows.old[int(number)] = tail
        else:
            rows.tries.setdefault(int(number), []).append(tail)
    rows.row_of = list(facts["row_of"])
