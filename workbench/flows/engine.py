"""A flow as a mod: FlowEngine drives it, one state machine per request."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ..engine import ActionBuilder, Event, FunctionMod, mod
from ..errors import FlowError
from ..models import Tokenizer
from .question import FlowDefinition, FlowQuestion
from .runtime import Runtime
from .state import FlowState

__all__ = ["FlowEngine"]

KEPT_STATES = 256
"""Requests whose flow state is kept for looking at, the latest ones."""


class FlowEngine:
    """Runs a flow inside a generation. ``engine.as_mod()`` is the mod; or call ``handle_event`` from your own.

    The flow enters once per request, at the first pass or where its root's ``when`` says. ``states`` has what it
    knows, by request id, also after the run.

    :raises FlowError: two questions of one name, or no question to enter by.
    """

    def __init__(
        self, entry_question: FlowQuestion | FlowDefinition, *, name: str | None = None, max_visits: int = 64
    ) -> None:
        if isinstance(entry_question, FlowQuestion):
            entry_question = FlowDefinition(name or entry_question.name, entry_question)
        if not isinstance(entry_question, FlowDefinition):
            raise FlowError(f"entry_question must be a FlowQuestion or a FlowDefinition, got {entry_question!r}")
        if max_visits < 1:
            raise FlowError(f"max_visits must be 1 or more, got {max_visits}")
        entry_question.check_names()
        self.definition = entry_question
        self.max_visits = max_visits
        self.states: OrderedDict[str, FlowState] = OrderedDict()

    def handle_event(self, event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
        """Advance the flow by one event; gives what the mod should answer."""
        key = f"flow {self.definition.name} {id(self)}"
        runtime = event.state.get(key)
        if runtime is None:
            runtime = event.state[key] = self._start(event.request_id)
        return runtime.handle(event, actions, tokenizer)

    def as_mod(self) -> FunctionMod:
        """The flow as a mod of its own. A trace holds its document, if all its functions are registered."""

        @mod(name=f"flow:{self.definition.name}", params=self._params())
        def run_flow(event: Any, actions: ActionBuilder, tokenizer: Tokenizer) -> Any:
            return self.handle_event(event, actions, tokenizer)

        return run_flow

    def _params(self) -> dict[str, Any] | None:
        """What makes this flow again, or None where it has functions that no document can name."""
        try:
            return {"flow": self.definition.to_json(), "max_visits": self.max_visits}
        except FlowError:
            return None

    def _start(self, request_id: str) -> Runtime:
        state = FlowState(request_id=request_id)
        self.states[request_id] = state
        while len(self.states) > KEPT_STATES:
            self.states.popitem(last=False)
        return Runtime(definition=self.definition, state=state, max_visits=self.max_visits)
