"""What is measured of a trained merge: accuracy by hops, and what becomes of it when its states are tampered with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .interventions import frozen, noise, only_at, patched, shuffled, step_mean, zero
from .model import CarryModel
from .scan import Do
from .systems import SYSTEMS, System, read_logits
from .task import PointerChase, Problems, stream

__all__ = ["ABLATIONS", "Bench", "ablate", "correct_by_hops", "diagonal", "donor_patch", "exit_readout"]

ABLATIONS: Mapping[str, str] = {
    "zero": "every state replaced by zeros",
    "mean": "every state replaced by its mean over the problems at that step",
    "frozen": "every state replaced by the one at the prompt's last token",
    "noise": "every state replaced by noise of its length",
    "shuffle_1": "pause 1 merges another problem's state",
    "shuffle_2": "pause 2 merges another problem's state",
    "shuffle_3": "pause 3 merges another problem's state",
    "feedforward": "the same weights run feed-forward",
}
"""Changes made to one set of trained weights at test time, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A model with its merge, and the problems that it is measured on."""

    model: CarryModel
    task: PointerChase
    problems: Problems

    def answers(self, pauses: int, system: System = SYSTEMS["carry"], do: Do | None = None) -> tuple[Tensor, Tensor]:
        """Likeliest tokens ``[batch]`` where the answer is read, and the states ``[batch, pos, d_model]``."""
        batch = system.arrange(self.task.batch(self.problems, pauses, shown=system.shown_at(pauses)))
        with torch.no_grad():
            logits, found = read_logits(self.model, batch, mode=system.mode, loops=system.loops_at(pauses), do=do)
        return logits.argmax(-1), found.s

    def states(self, pauses: int) -> Tensor:
        """The carried states, ``[pauses + 1, batch, d_model]``: step 0 is the prompt's last token."""
        return self.answers(pauses)[1][:, self.task.prompt_length - 1 :].transpose(0, 1)

    def lens(self, states: Tensor) -> Tensor:
        """The likeliest token by the logit lens of states ``[..., d_model]``."""
        blocks = self.model.blocks
        with torch.no_grad():
            return blocks.unembed(blocks.norm(states)).argmax(-1)


def _count(found: Tensor, wanted: Tensor) -> int:
    return int((found == wanted).sum())


def correct_by_hops(bench: Bench, system: System, hops: int) -> list[int]:
    """How many problems are answered rightly at 1, 2, … ``hops`` hops."""
    counts = []
    for pauses in range(hops):
        answers, _ = bench.answers(pauses, system)
        counts.append(_count(answers, bench.problems.answers(pauses + 1)))
    return counts


def ablate(bench: Bench, name: str, hops: int, seed: int) -> list[int]:
    """Right answers at 1 to ``hops`` hops with the weights used as :data:`ABLATIONS` says."""
    if name == "feedforward":
        return correct_by_hops(bench, SYSTEMS[name], hops)
    means = bench.states(hops - 1).mean(1)
    counts = []
    for pauses in range(hops):
        answers, _ = bench.answers(pauses, do=_change(name, means, stream("ablation", seed, pauses)))
        counts.append(_count(answers, bench.problems.answers(pauses + 1)))
    return counts


def _change(name: str, means: Tensor, rng: torch.Generator) -> Do:
    """The intervention of a name. A state is handed on from step t to pause t + 1."""
    if name.startswith("shuffle_"):
        return only_at(shuffled(rng), [int(name.removeprefix("shuffle_")) - 1])
    changes: dict[str, Callable[[], Do]] = {
        "zero": zero,
        "mean": lambda: step_mean(means),
        "frozen": frozen,
        "noise": lambda: noise(rng),
    }
    return changes[name]()


def donor_patch(bench: Bench, hops: int) -> dict[str, list[int]]:
    """The state s_1 replaced by another problem's: whose node is followed, and through whose map?

    At 3 to ``hops`` hops: how many answers are the donor's node after two hops, led on through the recipient's map
    (``donor``), and how many the recipient's own right answer (``own``).
    """
    problems = bench.problems
    node = problems.follow(problems.starts, 2).roll(1)
    change = only_at(patched(bench.states(1).roll(1, dims=1)), [1])
    counts: dict[str, list[int]] = {"donor": [], "own": []}
    for pauses in range(2, hops):
        answers, _ = bench.answers(pauses, do=change)
        counts["donor"].append(_count(answers, problems.follow(node, pauses - 1) + problems.first_node))
        counts["own"].append(_count(answers, problems.answers(pauses + 1)))
    return counts


def diagonal(bench: Bench, steps: int) -> dict[str, Any]:
    """What the states say as they pass: the logit lens of s_t against f^j(a), lengths, and consecutive cosines.

    ``matrix[t][j - 1]`` counts problems whose state s_t reads as ``f^j(a)``, t from 0, j from 1 to ``steps``.
    """
    states = bench.states(steps - 1)
    read = bench.lens(states)
    wanted = [bench.problems.answers(hops) for hops in range(1, steps + 1)]
    following = functional.cosine_similarity(states[1:], states[:-1], dim=-1)
    return {
        "matrix": [[_count(read[step], node) for node in wanted] for step in range(steps)],
        "norms": _rounded(states.norm(dim=-1).mean(1)),
        "cosines": _rounded(following.mean(1)),
    }


def exit_readout(bench: Bench, pauses: int) -> list[int]:
    """How often the plain base's one-hop answer reads off the band's exit after 0, 1, … ``pauses`` pauses."""
    wanted = bench.problems.answers(1)
    exits = (bench.answers(shown, SYSTEMS["base"])[1][:, -1] for shown in range(pauses + 1))
    return [_count(bench.lens(state), wanted) for state in exits]


def _rounded(values: Tensor) -> list[float]:
    return [round(float(value), 4) for value in values]
