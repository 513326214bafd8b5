"""Trying a flow on a model: one run at a time in a worker thread, and going in again at any visit of an earlier one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench import SamplingParams, Session
from workbench.engine import Result
from workbench.errors import FlowError
from workbench.flows import FlowDefinition, FlowEngine, FlowQuestion, FlowState
from workbench.models import HookedModel
from workbench.trace import WARNING, Record, Trace

from ..base import Background, Task
from .visits import Walked, answered, walked

__all__ = ["Attempt", "Attempts"]

LEAST_WORK = 20_000
"""Forward tokens that a try may spend at least: questions are long, and outputs short."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One try of a flow: what it was made with, what is known so far, its result at the end."""

    number: int
    told: str
    text: str
    """The flow's document as it was run."""
    prompt: Any
    max_new_tokens: int
    sampling: SamplingParams
    seed: int
    trace: Trace
    base: tuple[int, ...] = ()
    """Generated tokens that a re-entered run began with."""
    inherited: tuple[Walked, ...] = ()
    """Visits that came before it, the last one answered by hand."""
    prompt_tokens: tuple[int, ...] = ()
    result: Result | None = None
    error: str = ""
    seconds: float = 0.0
    _flow: FlowDefinition | None = field(default=None, repr=False)

    @property
    def flow(self) -> FlowDefinition:
        """The flow that was run, read anew from its document."""
        if self._flow is None:
            self._flow = FlowDefinition.from_json(self.text)
        return self._flow

    def walk(self) -> list[Walked]:
        """Every visit so far, also those before a re-entry."""
        own = walked(list(self.trace.records), self.flow, self.base)
        given = list(self.inherited)
        if given and len(own) >= len(given):  # where the answer by hand led is known by now
            route = own[len(given) - 1].visit.route
            given[-1] = replace(given[-1], visit=replace(given[-1].visit, route=route))
        return [*given, *own[len(given) :]]

    @property
    def fed(self) -> int:
        """Tokens that its passes fed through the model, the prompt's included; scoring of answers comes on top."""
        return sum(record.data["fed"] for record in self._passes())

    @property
    def reused(self) -> int:
        """Positions that its first pass found in the KV cache."""
        return next((int(record.data["fed_start"]) for record in self._passes()), 0)

    def _passes(self) -> Iterator[Record]:
        return (record for record in list(self.trace.records) if record.kind == "forward_pass")


class Attempts(Background):
    """Tries of flows on one model. ``changed`` is also called at every record, from the worker's thread.

    The newest fresh run and all that went in again from it share one KV cache; a new fresh run gives that of the old
    ones back.
    """

    def __init__(self, model: HookedModel, changed: Callable[[], None], warned: Callable[[str], None]) -> None:
        super().__init__(changed, warned)
        self.model = model
        self.all: list[Attempt] = []

    def start(
        self, text: str, prompt: Any, *, max_new_tokens: int, sampling: SamplingParams, seed: int, told: str
    ) -> bool:
        """Run the flow of a document on a prompt; false, and nothing happens, while a run is going.

        :raises PromptError: a prompt that can't be used; nothing was started then.
        """

        def prepare() -> Task:
            attempt = Attempt(
                number=len(self.all) + 1, told=told, text=text, prompt=prompt, max_new_tokens=max_new_tokens,
                sampling=sampling, seed=seed, trace=Trace({"model": {"name": self.model.name}, "requests": {}}),
            )  # fmt: skip
            session = self._session_for(attempt, FlowDefinition.from_json(text))
            records = session.stream(
                prompt, max_new_tokens=max_new_tokens, sampling=sampling, seed=seed,
                max_forward_tokens=max(64 * max_new_tokens, LEAST_WORK),
            )  # fmt: skip
            for earlier in self.all:
                if earlier.result is not None:
                    earlier.result.release()

            def work() -> None:
                for _ in records:
                    pass

            return self._task_of(attempt, session, work)

        return self.begin(prepare)

    def reenter(self, number: int, visit: int, answer: str) -> bool:
        """Go on from a visit of an earlier run as if it had been answered so; its questions before are not asked again.

        The KV cache of the earlier run is used as far as its text is the same. The flow's functions are called again
        for the earlier answers, so that the state is what it was.

        :raises FlowError: no such run or visit, an answer that does not fit, or a cache that was given back.
        """
        return self.begin(lambda: self._reentry(number, visit, answer))

    def _reentry(self, number: int, visit: int, answer: str) -> Task:
        old = self.numbered(number)
        steps = old.walk()
        chosen = self._answered(old, steps, visit, answer)
        result = old.result
        if result is None or result.lane is None or result.lane.cache is None:
            raise FlowError(f"the KV cache of run {number} was given back when a newer run began: run it again")
        attempt = Attempt(
            number=len(self.all) + 1, told=f"run {number}, {chosen.visit.question} answered {chosen.visit.answer}",
            text=old.text, prompt=old.prompt, max_new_tokens=old.max_new_tokens, sampling=old.sampling, seed=old.seed,
            trace=Trace(dict(old.trace.run)), base=(*chosen.before, *chosen.kept),
            inherited=(*steps[:visit], chosen), prompt_tokens=old.prompt_tokens,
        )  # fmt: skip
        session = self._session_for(attempt, _scripted(FlowDefinition.from_json(old.text), attempt.inherited))
        begin = replace(result, prompt_tokens=old.prompt_tokens, tokens=attempt.base)
        most = max(old.max_new_tokens - len(attempt.base), 1)

        def work() -> None:
            session.resume(
                begin, max_new_tokens=most, seed=old.seed, sampling=old.sampling,
                max_forward_tokens=max(64 * most, LEAST_WORK),
            )  # fmt: skip

        return self._task_of(attempt, session, work)

    def _answered(self, old: Attempt, steps: Sequence[Walked], visit: int, answer: str) -> Walked:
        """A visit of an earlier run, answered by hand."""
        if not 0 <= visit < len(steps):
            raise FlowError(f"run {old.number} made {len(steps)} visits; there is no visit {visit + 1}")
        made_up = [step.visit.question for step in steps if step.visit.question not in old.flow.questions]
        if made_up:
            raise FlowError(f"the question {made_up[0]!r} is not in the flow's document: a function made it")
        return answered(steps[visit], old.flow.questions[steps[visit].visit.question], answer, self.model)

    def numbered(self, number: int) -> Attempt:
        if not 1 <= number <= len(self.all):
            raise FlowError(f"there is no run {number}; there are {len(self.all)}")
        return self.all[number - 1]

    def close(self) -> None:
        """Stop, wait for the thread, give the caches back."""
        super().close()
        for attempt in self.all:
            if attempt.result is not None:
                attempt.result.release()

    def _session_for(self, attempt: Attempt, flow: FlowDefinition) -> Session:
        def heard(record: Record) -> None:
            attempt.trace(record)
            if record.kind == WARNING:  # Python shows the same warning once and no more; a run has its own each time
                self._warned(str(record.data["message"]))
            if self.stopping:  # asked for before the run could hear it
                session.stop()
            self._changed()

        session = Session(self.model, [FlowEngine(flow).as_mod()], sinks=[heard])
        return session

    def _task_of(self, attempt: Attempt, session: Session, work: Callable[[], None]) -> Task:
        self.all.append(attempt)
        began = time.monotonic()

        def ended(error: str) -> None:
            attempt.error, attempt.seconds = error, time.monotonic() - began
            attempt.result = session.last_results[0] if session.last_results else None
            if attempt.result is not None:
                attempt.trace.run = attempt.result.trace.run
                attempt.prompt_tokens = attempt.prompt_tokens or attempt.result.prompt_tokens

        return Task(name=f"workbench-flow-try-{attempt.number}", work=work, stop=session.stop, ended=ended)


def _scripted(flow: FlowDefinition, steps: Sequence[Walked]) -> FlowDefinition:
    """The same flow with its first answers given: it enters at once and asks the model only after them."""
    flow.root.entry = None
    for question in flow.questions.values():
        question.auto_answer = _script(question, steps)
    return flow


def _script(question: FlowQuestion, steps: Sequence[Walked]) -> Callable[[FlowState], str | None]:
    own = question.auto_answer

    def answer(state: FlowState) -> str | None:
        place = len(state.history)
        if place >= len(steps):
            return None if own is None else own(state)
        visit = steps[place].visit
        if visit.question != question.name:
            raise FlowError(
                f"the flow's functions led to {question.name!r} this time and to {visit.question!r} before: it can be "
                "entered again only where they do the same for the same answers"
            )
        return visit.answer

    return answer
