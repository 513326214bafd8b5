"""A mod of the public SDK as a mod of this engine: events are translated on the way in, actions on the way out."""

from __future__ import annotations

import inspect
import textwrap
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .. import engine
from ..engine import Action, Answer, Event
from ..errors import CompatError, InvalidActionError
from ..models import Tokenizer
from .actions import (
    AdjustedLogits,
    AdjustedPrefill,
    Backtrack,
    EmitError,
    ForceOutput,
    ForceTokens,
    ModAction,
    Noop,
    ToolCalls,
    validate_action,
)
from .conversation import clear_conversation, request_context, set_conversation
from .events import Added, ContextInfo, ForwardPass, ModEvent, Prefilled, Sampled
from .tensor import Tensor, vocabulary_row
from .tokenizer import sdk_tokenizer

__all__ = ["ModCallable", "SdkMod", "adapt", "sdk_action", "sdk_event"]

ModCallable: TypeAlias = Callable[[ModEvent, Any], Any]
"""A mod in the SDK's form: a function of (event, tokenizer) that gives an action or None."""


class SdkMod:
    """One SDK mod inside this engine. ``call(event, tokenizer)`` is the mod."""

    capture: tuple[str, ...] = ()

    def __init__(self, call: ModCallable, *, name: str) -> None:
        if not callable(call):
            raise TypeError(f"an SDK mod is a function of (event, tokenizer), got {call!r}")
        self.call = call
        self.name = name

    def handle(self, event: Event, actions: engine.ActionBuilder, tokenizer: Tokenizer) -> Answer:
        """Translate, call, translate back. ``Removed`` and ``Finished`` have no counterpart and are not told.

        :raises InvalidActionError: an answer that the event does not allow.
        """
        if isinstance(event, engine.Prefilled):
            set_conversation(event.request_id, event.conversation)
        if isinstance(event, engine.Finished):
            clear_conversation(event.request_id)
        told = sdk_event(event)
        if told is None:
            return None
        try:
            with request_context(event.request_id):
                answer = validate_action(told, self.call(told, sdk_tokenizer(tokenizer)))
        except InvalidActionError as error:
            raise InvalidActionError(f"mod {self.name!r}: {error}") from error
        if isinstance(told, ForwardPass) and not isinstance(answer, AdjustedLogits):
            self._warn_of_lost_change(event, told)
        return sdk_action(answer, actions)

    def describe(self) -> Mapping[str, Any]:
        """Name and source text, for a trace to keep."""
        try:
            source: str | None = textwrap.dedent(inspect.getsource(inspect.unwrap(self.call)))
        except (OSError, TypeError):  # typed at a prompt, or an object
            source = None
        return {"name": self.name, "params": None, "source": source}

    def _warn_of_lost_change(self, event: Event, told: ForwardPass) -> None:
        if told.logits.written_into() and not event.state.get("warned of lost logits"):
            event.state["warned of lost logits"] = True
            warnings.warn(
                f"mod {self.name!r} wrote into event.logits.to_numpy() without returning adjust_logits(): ignored",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"<SdkMod {self.name}>"


def adapt(call: ModCallable, *, name: str | None = None) -> SdkMod:
    """Make a mod of this engine from any SDK mod: a function of (event, tokenizer) that gives an action or None.

    What this package's ``mod()`` and ``self_prompt_mod()`` return needs no adapting: a Session takes it as it is.
    ``name`` is what traces call it (default: the function's own).

    :raises CompatError: it is a mod of this engine already.
    """
    if isinstance(call, engine.FunctionMod):
        raise CompatError(f"{call!r} is a mod of this engine already: give it to the Session as it is")
    return SdkMod(call, name=name or str(getattr(call, "__name__", type(call).__name__)))


def sdk_event(event: Event) -> ModEvent | None:
    """An event in the SDK's terms; None for those it does not know.

    Steps are counted from 0: our step n, which counts passes, is the SDK's step n - 1.
    """
    step, so_far = max(event.step - 1, 0), len(event.request.generated)
    match event:
        case engine.Prefilled():
            info = ContextInfo(event.tokens, len(event.tokens))
            return Prefilled(event.request_id, step, so_far, event.max_new_tokens, info, input_ids=event.tokens)
        case engine.ForwardPass():
            logits, context = Tensor.of_logits(event.logits), event.request.tokens
            return ForwardPass(event.request_id, step, logits, tokens_so_far_len=so_far, input_ids=context)
        case engine.Sampled():
            return Sampled(event.request_id, step, event.token, so_far)
        case engine.Added():
            return Added(event.request_id, step, event.tokens, so_far, event.forced)
        case _:
            return None


def sdk_action(answer: ModAction, actions: engine.ActionBuilder) -> Action:
    """An SDK action in this engine's terms.

    :raises CompatError: an action of a class of the user's own.
    """
    match answer:
        case Noop():
            return actions.noop()
        case AdjustedPrefill(tokens=tokens, max_steps=most):
            return actions.adjust_prefill(tokens, most if most is not None and most > 0 else None)
        case AdjustedLogits(logits=logits, token_temp=temperature):
            return actions.adjust_logits(vocabulary_row(logits), temperature)
        case ForceTokens(tokens=tokens, scratch=scratch):
            return actions.force_tokens(tokens, scratch=scratch)
        case Backtrack(n=n, tokens=again):
            return actions.backtrack(n, again)
        case ForceOutput(tokens=tokens):
            return actions.force_output(tokens)
        case ToolCalls(tool_calls=payload):
            return actions.tool_calls(payload)
        case EmitError(err_str=message):
            return actions.emit_error(message)
        case _:
            raise CompatError(f"{type(answer).__name__} is no action of the SDK: return what `actions` makes")
