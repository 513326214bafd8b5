"""A human in the loop: where the model is unsure how to go on, somebody is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from ..engine import ActionBuilder, Answer, Event, ForwardPass, FunctionMod, mod
from ..errors import WorkbenchError
from ..models import Tokenizer
from .texts import tail_text

__all__ = ["MEASURES", "Ask", "ask_at_terminal", "ask_when_unsure"]

Ask: TypeAlias = Callable[[str, list[str]], str]
"""A question and the likeliest continuations go in; one of those, other text, or nothing comes back."""

MEASURES = ("entropy", "top_probability")
SHOWN = 60
"""Characters of the text so far that a question quotes."""


def ask_when_unsure(
    threshold: float = 2.0,
    *,
    measure: str = "entropy",
    choices: int = 5,
    max_questions: int = 3,
    ask: Ask | None = None,
) -> FunctionMod:
    """A mod that asks a human how to go on where the next token is uncertain, and forces the answer.

    ``measure="entropy"`` asks where the entropy of the next token is above ``threshold`` nats;
    ``"top_probability"`` where the likeliest token's probability is below it. Both are at temperature 1.
    ``ask`` gets a question and the texts of the likeliest tokens; what it returns is written next, one of
    those or any other text, and an empty answer lets the model go on. At most ``max_questions`` per request.
    Without ``ask`` the question is put by ``input()``. With it the mod can't be rebuilt from a trace.

    :raises ValueError: an unknown measure, or a number out of range.
    :raises WorkbenchError: while running, without ``ask`` where nobody can be asked.
    """
    if measure not in MEASURES:
        raise ValueError(f"measure={measure!r}: choose from {', '.join(MEASURES)}")
    if not threshold >= 0 or choices < 1 or max_questions < 0:
        raise ValueError(
            f"threshold={threshold!r}, choices={choices!r}, max_questions={max_questions!r}: the threshold and "
            "the questions are 0 or more, the choices 1 or more"
        )
    params = {"threshold": threshold, "measure": measure, "choices": choices, "max_questions": max_questions}

    @mod(name="ask_when_unsure", params=params if ask is None else None)
    def consult(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        if not isinstance(event, ForwardPass) or event.state.get("asked", 0) >= max_questions:
            return None
        value = _value(event, measure)
        if (value <= threshold) if measure == "entropy" else (value >= threshold):
            return None
        event.state["asked"] = event.state.get("asked", 0) + 1
        told = f"entropy {value:.2f} nats" if measure == "entropy" else f"top probability {value:.2f}"
        tokens = _asked(event, tokenizer, told, choices, ask or ask_at_terminal)
        return actions.force_tokens(tokens) if tokens else None

    return consult


def _value(event: ForwardPass, measure: str) -> float:
    probabilities = torch.softmax(event.logits, dim=-1)
    if measure == "entropy":
        return float(torch.special.entr(probabilities).sum())
    return float(probabilities.max())


def _asked(event: ForwardPass, tokenizer: Tokenizer, told: str, choices: int, ask: Ask) -> list[int]:
    """The tokens of the answer; none for an empty one."""
    likeliest = [token for token, logprob in event.top_k_logprob(choices) if logprob > -torch.inf]
    texts = [tokenizer.token_text(token) for token in likeliest]
    text = tail_text(event.request.tokens, tokenizer, SHOWN)[-SHOWN:]
    answer = ask(f"The model is unsure how to go on ({told}): …{text}", texts)
    if not isinstance(answer, str):
        raise WorkbenchError(f"ask must return text, one of {texts} or other, got {answer!r}")
    if answer in texts:
        return [likeliest[texts.index(answer)]]
    spaced = answer[:1].isalnum() and text[-1:].isalnum()
    return tokenizer.encode((" " if spaced else "") + answer)


def ask_at_terminal(question: str, choices: Sequence[str]) -> str:
    """Ask by ``input()``, at a terminal or in a notebook: a number picks a choice, other text stands for itself.

    :raises WorkbenchError: nobody can be asked here.
    """
    listed = "  ".join(f"[{number}] {choice!r}" for number, choice in enumerate(choices, 1))
    try:
        answer = input(f"{question}\n{listed}\nA number, your own text, or Enter to let the model choose: ")
    except (EOFError, OSError, RuntimeError) as error:  # no stdin; a notebook run without a front end
        raise WorkbenchError(
            "ask_when_unsure() can't ask anybody: there is no terminal or notebook to answer in. Give it "
            "ask=, a function of (question, choices) that returns text."
        ) from error
    picked = answer.strip()
    if picked.isdecimal() and 1 <= int(picked) <= len(choices):
        return choices[int(picked) - 1]
    return answer
