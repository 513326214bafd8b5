"""Runs under random scripts of actions, and the check of the engine's first promise about them.

At every moment of a run the tokens that the mods were told of, the cache, the trace and the context of the next pass
agree: each pass's logits are those of a fresh prefill of the tokens at that moment, with the same edits at the same
positions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench import Added, Finished, ForwardPass, Prefilled, Removed, Result, SamplingParams, Session, load
from workbench.engine import Action, ActionBuilder, Event
from workbench.models import Edit, HookedModel, Tokenizer
from workbench.trace import Record

__all__ = ["MODELS", "MOST_NEW", "Account", "Move", "Script", "agrees", "tiny", "under_scripts"]

LOGITS = 1e-3
HOOKS = ("blocks.0.hook_resid_post", "blocks.2.hook_resid_pre")
MODELS = (
    *((family, backend) for family in ("llama", "gemma3") for backend in ("bridge", "hooked", "lean")),
    *((family, backend) for family in ("gpt2", "gpt_neox") for backend in ("bridge", "hooked")),
)
"""(family, backend) of the tiny models: the lean path runs two of the families."""
MOST_NEW = 16

Move = tuple[int, int, int]
"""(which action, its size, its content): what a script answers one event with."""


@cache
def tiny(family: str, backend: str) -> Any:
    return load(f"tiny-{family}", backend=backend)


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass as a mod saw it: per position the token and the labels of the edits there, and the logits."""

    context: tuple[tuple[int, tuple[str, ...]], ...]
    logits: Tensor


class Account:
    """A mod with an account of its own of a run: the tokens as the events tell of them, the edits at each position as
    the records of the trace do. ``moves`` say what a subclass answers.
    """

    name = "script"
    capture: tuple[str, ...] = ()

    def __init__(self, model: HookedModel, moves: Sequence[Move], request_id: str, *, steer: bool) -> None:
        self.model = model
        self.moves = iter(moves)
        self.steer = steer
        self.request_id = request_id
        self.heard: list[int] = []
        self.prompt: list[int] = []
        self.steers: list[tuple[str, Tensor]] = []
        self.edits_at: dict[int, tuple[str, ...]] = {}

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "params": None, "source": None}

    def listen(self, record: Record) -> None:
        """A sink: where which edit was active, as the trace says."""
        if record.request_id == self.request_id and record.kind == "forward_pass":
            start = record.data["fed_start"]
            for position in range(start, start + record.data["fed"]):
                self.edits_at.pop(position, None)
            for begin, end, labels in record.data.get("edits", ()):
                self.edits_at.update(dict.fromkeys(range(begin, end), tuple(labels)))

    def forget(self, event: Removed) -> None:
        """Tokens were taken back, and the edits where they stood."""
        del self.heard[-event.n :]
        for position in [p for p in self.edits_at if p >= event.position]:
            del self.edits_at[position]

    def steering(self, actions: ActionBuilder, hook: str, content: int) -> list[Action]:
        """A change of activations, or the end of all, on some moves of a script that steers."""
        if not self.steer or content % 3:
            return []
        if content % 2:
            return [actions.clear_edits()]
        vector = torch.linspace(-1, 1, self.model.d_model) * (1 + content)
        self.steers.append((hook, vector))
        return [actions.steer(hook, vector)]

    def edits(self, labels_at: Iterable[tuple[int, Sequence[str]]]) -> list[Edit]:
        """The edits of those labels at those positions, for a fresh pass."""
        return [
            Edit(hook=hook, row=0, start=position, stop=position + 1, fn=lambda x, v=vector: x + v)
            for position, labels in labels_at
            for hook, vector in (self.steers[int(label[1:])] for label in labels)
        ]


class Script(Account):
    """A mod that answers with what a list of moves says, and keeps account of everything it is told.

    Its account is made of the events it hears, so that a missing or doubled event shows. :meth:`verify` compares its
    passes with fresh prefills.
    """

    def __init__(self, model: HookedModel, moves: Sequence[Move], request_id: str, *, steer: bool) -> None:
        super().__init__(model, moves, request_id, steer=steer)
        self.passes: list[Pass] = []

    def handle(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        if isinstance(event, Prefilled):
            self.prompt = list(event.tokens)
        elif isinstance(event, ForwardPass):
            self.note(event)
        elif isinstance(event, Added):
            self.heard += event.tokens
            assert event.request.generated == tuple(self.heard)
        elif isinstance(event, Removed):
            assert tuple(self.heard[-event.n :]) == event.tokens
            self.forget(event)
        if isinstance(event, (Removed, Finished)):
            return None
        return self.answer(event, actions)

    def note(self, event: ForwardPass) -> None:
        tokens = [*self.prompt, *self.heard]
        assert list(event.request.tokens) == tokens
        assert event.position == len(tokens) - 1
        context = tuple((token, self.edits_at.get(position, ())) for position, token in enumerate(tokens))
        self.passes.append(Pass(context, event.raw_logits.clone()))

    def verify(self) -> None:
        """Every pass gave the logits of a fresh prefill; contexts that begin alike share one."""
        ordered = sorted(self.passes, key=lambda one: one.context)
        begun: list[Pass] = []
        for index, one in enumerate(ordered):
            begun.append(one)
            following = ordered[index + 1].context if index + 1 < len(ordered) else ()
            if following[: len(one.context)] != one.context:
                fresh = self.fresh(one.context)
                for part in begun:
                    assert (part.logits - fresh[len(part.context) - 1]).abs().max() < LOGITS
                begun = []

    def fresh(self, context: Sequence[tuple[int, tuple[str, ...]]]) -> Tensor:
        """Logits ``[pos, vocab]`` of a fresh prefill with the same edits at the same positions."""
        edits = self.edits((position, labels) for position, (_, labels) in enumerate(context))
        tokens = [token for token, _ in context]
        return self.model.forward([tokens], self.model.new_cache(), edits=edits, keep=[len(tokens)]).logits[0]

    def answer(self, event: Event, actions: ActionBuilder) -> Any:
        kind, size, content = next(self.moves, (0, 0, 0))
        tokens = [4 + (content * 37 + i) % 250 for i in range(size)]
        back = min(size, len(self.heard))
        other: Action | None = None
        match kind:
            case 1 if isinstance(event, Prefilled):
                other = actions.adjust_prefill([5, *tokens])
                self.prompt = [5, *tokens]
            case 1 if size and not isinstance(event, Prefilled):
                other = actions.force_tokens(tokens)
            case 2 if not isinstance(event, Prefilled):
                other = actions.backtrack(back, tokens[: content % 4])
            case 3 if not isinstance(event, Prefilled):
                other = actions.backtrack(back)
            case 4 if isinstance(event, ForwardPass):
                logits = event.logits.clone()
                logits[:: size + 2] = -torch.inf
                other = actions.adjust_logits(logits, token_temp=[None, 0, 0.5][content % 3])
            case _:
                pass
        return [*self.steering(actions, HOOKS[kind % 2], content), *([other] if other else [])]


def under_scripts(
    model: Any, scripts: Sequence[Sequence[Move]], prompts: list[list[int]], *, steer: bool
) -> tuple[list[Script], list[Result]]:
    """One batch, each row under its own script."""
    mods = [Script(model, own, f"r{i}", steer=steer) for i, own in enumerate(scripts)]
    session = Session(model, capture="blocks.*.hook_resid_post", sinks=[mod.listen for mod in mods])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*edits active at once")  # the script does not mind
        results = session.generate(
            prompts, max_new_tokens=MOST_NEW, seed=[7] * len(prompts), mods=[[mod] for mod in mods],
            sampling=SamplingParams(temperature=0.8), max_forward_tokens=300,
        )  # fmt: skip
    return mods, results


def agrees(script: Script, result: Result, *, steered: bool) -> None:
    """Everything that must hold once a run is over."""
    script.verify()
    history = result.trace.history(result.request_id)
    assert history.tokens == [*result.prompt_tokens, *result.tokens]
    broken = result.reason == "error"  # a mod that raises leaves a pass half told, to other mods and to other rows
    if not broken:
        assert history.tokens == [*script.prompt, *script.heard]
    assert history.reason == result.reason
    assert result.lane is not None
    assert result.lane.cache is not None
    writer = result.lane.writer
    held = min(result.lane.cache.lengths[writer.row], writer.valid)  # what else is in the cache is forgotten when fed
    assert held <= len(history.tokens)
    assert [life.uid for life in history.every] == list(range(len(history.every)))
    context = [(token, script.edits_at.get(position, ())) for position, token in enumerate(history.tokens)]
    logprobs = torch.log_softmax(script.fresh(context), dim=-1)
    for life in history.live:
        if life.raw_logprob is None:  # put there at the very end: nothing was fed after it
            assert life.position >= held or broken
        else:
            expected = float(logprobs[life.position - 1, life.token])
            assert life.raw_logprob == pytest.approx(expected, abs=2e-3)
        if life.origin == "sampled":
            assert life.raw_logprob is not None
        if life.position < held:
            assert tuple(life.edits) == script.edits_at.get(life.position, ())
    if not steered:
        _residuals_agree(script, result)


def _residuals_agree(script: Script, result: Result) -> None:
    """The residual kept for a visible token is that of a fresh pass at the position it was chosen from."""
    history = result.trace.history(result.request_id)
    hook = "blocks.1.hook_resid_post"
    fresh = script.model.forward([history.tokens], script.model.new_cache(), capture=[hook]).activations[hook][0]
    for life in history.live:
        if life.source_row is not None:
            kept = result.trace.activation(hook, life)
            assert (kept - fresh[life.position - 1]).norm() < 1e-4 * fresh[life.position - 1].norm()
