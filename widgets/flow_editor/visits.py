"""What a flow did in a run, with the text that stood at each question: read from the run's records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from workbench.errors import FlowError
from workbench.flows import Constraint, EraseMode, FlowDefinition, FlowQuestion, Visit
from workbench.models import HookedModel
from workbench.trace import Record

__all__ = ["Walked", "answered", "walked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """One visit and where it stood. Token ids throughout; generated ones only, the prompt comes before."""

    visit: Visit
    before: tuple[int, ...]
    """What was generated before the question."""
    asked: tuple[int, ...]
    """The question's own tokens; none where a function answered."""
    erase: EraseMode
    by_hand: bool = False
    """Whether a person gave the answer."""

    @property
    def kept(self) -> tuple[int, ...]:
        """What of question and answer stays in the output."""
        everything = (*self.asked, *self.visit.tokens)
        return {EraseMode.NONE: everything, EraseMode.PROMPT: self.visit.tokens, EraseMode.ALL: ()}[self.erase]

    @property
    def erased(self) -> tuple[int, ...]:
        """What of them was taken back."""
        everything = (*self.asked, *self.visit.tokens)
        return {EraseMode.NONE: (), EraseMode.PROMPT: self.asked, EraseMode.ALL: everything}[self.erase]


def walked(records: Iterable[Record], flow: FlowDefinition, base: Sequence[int] = ()) -> list[Walked]:
    """The visits of a flow in one request's records. ``base`` are generated tokens that stand in the run's prompt.

    A visit is noted while its question and answer still stand in the text; one that a function answered is noted with
    the one before it, whose text may still be there.
    """
    generated = list(base)
    found: list[Walked] = []
    for record in records:
        if record.kind == "added":
            generated.extend(record.tokens)
        elif record.kind == "removed":
            del generated[len(generated) - len(record.tokens) :]
        elif record.action == "note" and record.data.get("flow") == flow.name and "answer" in record.data:
            visit = Visit.from_data(record.data)
            begun = len(generated) - visit.spent
            before, asked = tuple(generated[:begun]), tuple(generated[begun : len(generated) - len(visit.tokens)])
            if not visit.spent and found:
                before, asked = (*found[-1].before, *found[-1].kept), ()
            question = flow.questions.get(visit.question)  # None of one that a function made up
            erase = question.erase_mode if question else EraseMode.ALL if visit.erased else EraseMode.NONE
            found.append(Walked(visit=visit, before=before, asked=asked, erase=erase))
    return found


def answered(step: Walked, question: FlowQuestion, answer: str, model: HookedModel) -> Walked:
    """The same visit with another answer, given by a person; spelt with a leading space if the old one was.

    :raises FlowError: the question can't be answered so.
    """
    finite = question.strategy.finite()
    if finite is not None:
        same = [choice for choice in finite if choice.strip().casefold() == answer.strip().casefold()]
        if not same:
            known = ", ".join(map(repr, finite))
            raise FlowError(f"question {question.name!r} can't be answered {answer!r}; its answers are {known}")
        answer = same[0]
    lead = " " if model.tokenizer.decode(step.visit.tokens).startswith(" ") else ""
    tokens = tuple(model.tokenizer.encode(lead + answer.removeprefix(lead)))
    matcher = Constraint(question.strategy, model.tokenizer, model.vocab_size, leading_space=True).start()
    matcher.advance_all(tokens)
    if not matcher.complete:
        raise FlowError(f"question {question.name!r}: {answer!r} is only the beginning of an answer; go on to its end")
    spelt = tokens if step.visit.tokens else ()
    said = answer if finite is not None else question.strategy.answer_of(answer)
    visit = replace(step.visit, answer=said, tokens=spelt, spent=len(step.asked) + len(spelt), auto=False, route="")
    return replace(step, visit=visit, by_hand=True)
