"""Pointer chasing: a random cycle is written out as pairs, and the answer lies a number of steps from the query.

A prompt of the default size is eight shuffled triples ``a f(a) ,`` and ``? a``, 26 tokens; after ``p`` pauses the
wanted token is ``f^(p+1)(a)``: one hop with no pause, one more for each. The comma tells a triple's first place from
its second. Since f is one cycle over all nodes, guessing is right once in ``n_nodes`` times.
"""

from __future__ import annotations

import hashlib
import json
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CarryError
from .spans import Batch

__all__ = ["PAUSE", "PointerChase", "Problems", "stream"]

PAUSE = "<unused0>"
"""The toy vocabulary's spare token, under the name that Gemma's tokenizer has for its first one."""
SPECIAL = ("<pad>", "<eos>", "<unk>", PAUSE)
SEPARATOR, QUERY = ",", "?"


def stream(*parts: object) -> torch.Generator:
    """A random stream of its own for whatever ``parts`` name: equal parts, equal numbers, on every machine."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """A batch of prompts with their answers.

    ``prompts`` int64 ``[batch, 3 n + 2]`` token ids; ``successors`` int64 ``[batch, n]``, the node (0 to n - 1) that
    f leads to from each node; ``starts`` int64 ``[batch]``, the node asked about; ``first_node`` the id of node 0.
    """

    prompts: Tensor
    successors: Tensor
    starts: Tensor
    first_node: int

    def __len__(self) -> int:
        return len(self.prompts)

    def answers(self, hops: int) -> Tensor:
        """Token ids ``[batch]`` of ``f^hops(start)``; 0 hops give the start itself.

        :raises CarryError: ``hops`` is negative.
        """
        return self.follow(self.starts, hops) + self.first_node

    def follow(self, nodes: Tensor, hops: int) -> Tensor:
        """Nodes ``[batch]`` after ``hops`` steps from ``nodes [batch]``, each through its own row's map."""
        if hops < 0:
            raise CarryError(f"hops must be 0 or more, got {hops}")
        for _ in range(hops):
            nodes = self.successors.gather(1, nodes[:, None])[:, 0]
        return nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerChase:
    """The task over ``n_nodes`` nodes named a, b, c, …: 2 to 26.

    :raises CarryError: ``n_nodes`` is out of range.
    """

    n_nodes: int = 8

    def __post_init__(self) -> None:
        if not 2 <= self.n_nodes <= len(string.ascii_lowercase):
            raise CarryError(
                f"n_nodes must be 2 to {len(string.ascii_lowercase)} (letters name them), got {self.n_nodes}"
            )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every token by its id."""
        return (*SPECIAL, SEPARATOR, QUERY, *string.ascii_lowercase[: self.n_nodes])

    @property
    def prompt_length(self) -> int:
        return 3 * self.n_nodes + 2

    @property
    def pause_id(self) -> int:
        return SPECIAL.index(PAUSE)

    @property
    def first_node(self) -> int:
        """Id of the node a; the others follow."""
        return len(SPECIAL) + 2

    @property
    def chance(self) -> float:
        """The share that guessing a node gets right."""
        return 1 / self.n_nodes

    def sample(self, batch: int, generator: torch.Generator) -> Problems:
        """``batch`` problems: the cycle, the order of its triples and the query are uniform and independent.

        :raises CarryError: ``batch`` is less than 1.
        """
        if batch < 1:
            raise CarryError(f"a batch needs 1 problem or more, got {batch}")
        cycle = _permutations(batch, self.n_nodes, generator)
        successors = torch.empty_like(cycle).scatter_(1, cycle, cycle.roll(-1, dims=1))
        order = _permutations(batch, self.n_nodes, generator)
        starts = torch.randint(self.n_nodes, (batch,), generator=generator)
        return self.problems(successors, order, starts)

    def problems(self, successors: Tensor, order: Tensor, starts: Tensor) -> Problems:
        """The prompts for given maps and orders ``[batch, n]`` of triples, and queries ``[batch]``, all as nodes."""
        separators = torch.full_like(order, len(SPECIAL))
        triples = torch.stack([order, successors.gather(1, order)], dim=-1) + self.first_node
        body = torch.cat([triples, separators[..., None]], dim=-1).flatten(1)
        query = torch.stack([torch.full_like(starts, len(SPECIAL) + 1), starts + self.first_node], dim=-1)
        return Problems(
            prompts=torch.cat([body, query], dim=1), successors=successors, starts=starts, first_node=self.first_node
        )

    def with_pauses(self, problems: Problems, pauses: int) -> Tensor:
        """Token ids ``[batch, prompt_length + pauses]``.

        :raises CarryError: ``pauses`` is negative.
        """
        if pauses < 0:
            raise CarryError(f"pauses must be 0 or more, got {pauses}")
        return torch.nn.functional.pad(problems.prompts, (0, pauses), value=self.pause_id)

    def draw(self, size: int, pauses: int, generator: torch.Generator, *, shown: int | None = None) -> Batch:
        """``size`` fresh problems as a batch; see :meth:`batch`."""
        return self.batch(self.sample(size, generator), pauses, shown=shown)

    def batch(self, problems: Problems, pauses: int, *, shown: int | None = None) -> Batch:
        """Prompt, ``pauses`` pauses and the answer, one token, of each problem: ``pauses + 1`` hops.

        ``shown`` pauses stand in the rows, if other than ``pauses``.
        """
        ids = self.with_pauses(problems, pauses if shown is None else shown)
        ids = torch.cat([ids, problems.answers(pauses + 1)[:, None]], dim=1)
        same = torch.ones(len(ids), dtype=torch.long)
        return Batch(
            ids=ids,
            mask=torch.ones_like(ids, dtype=torch.bool),
            prompt_lengths=same * self.prompt_length,
            pauses=same * (pauses if shown is None else shown),
        )

    def text(self, problems: Problems, row: int, *, pauses: int = 0) -> str:
        """One prompt as text, tokens parted by spaces, as the toy's tokenizer reads it."""
        return " ".join(self.vocabulary[token] for token in self.with_pauses(problems, pauses)[row].tolist())

    def write_tokenizer(self, directory: Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``: one token a word, words parted by spaces."""
        special = [
            {"id": index, "content": text, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for index, text in enumerate(SPECIAL)
        ]
        vocabulary = {text: index for index, text in enumerate(self.vocabulary)}
        tokenizer: dict[str, Any] = {
            "version": "1.0",
            **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
            "added_tokens": special,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        }
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": "<pad>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "additional_special_tokens": [PAUSE],
            "clean_up_tokenization_spaces": False,
        }
        for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
            (directory / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _permutations(batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Uniform permutations ``[batch, length]``; float64 keys, since ties would favour some orders."""
    return torch.rand(batch, length, generator=generator, dtype=torch.float64).argsort(dim=1)
