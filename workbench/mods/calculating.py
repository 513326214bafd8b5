"""A calculator in the stream: where the model has written a sum and an equals sign, the answer comes next."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..engine import ActionBuilder, Added, Answer, Event, ForwardPass, FunctionMod, Prefilled, Sampled, mod
from ..models import Tokenizer
from .equations import find_equation
from .expressions import MAX_CHARACTERS, SPACES
from .texts import TokenMasks, tail_text

__all__ = ["calculator"]

# What may follow "=" in a token that already begins to answer, such as "= 4" or "=-"; not "=>" or "='".
_BEGUN = re.compile(r"[ \t\u00a0]*[-+−.0-9?_$*\\\n]")
_MORE_DIGITS = re.compile(r"[.,]?[0-9]")


def calculator() -> FunctionMod:
    """A mod that answers the sums the model writes, exactly: ``17 * 23 =`` is followed by ``391``.

    The answer is forced as soon as the text ends in a sum and ``=`` (see :func:`find_equation`); a drawn token
    that already begins to answer (``= 4``) is replaced. Right after the answer no token may add a digit to it.
    An answer of which only a beginning stands (other mods take tokens back) is completed. The sum may have
    begun in the last line of a raw prompt. All follows from the text as it stands, so there is no bookkeeping.
    """
    no_digit = TokenMasks(lambda text: not _MORE_DIGITS.match(text))

    @mod(name="calculator", params={})
    def answer_sums(event: Event, actions: ActionBuilder, tokenizer: Tokenizer) -> Answer:
        if isinstance(event, Prefilled):
            event.state["raw"] = not event.conversation
        if not isinstance(event, (ForwardPass, Sampled, Added)):
            return None
        tokens = event.request.tokens if event.state.get("raw") else event.request.generated
        if tokens and tokens[-1] in tokenizer.eos_token_ids:
            return None
        text = tail_text(tokens, tokenizer, MAX_CHARACTERS)
        drawn = event.token if isinstance(event, Sampled) else None
        forced = _answer_due(text) if drawn is None else _instead_of(drawn, tokens, text, tokenizer)
        if forced:
            return actions.force_tokens(tokenizer.encode(forced))
        if isinstance(event, ForwardPass) and _just_answered(text):
            return actions.adjust_logits(no_digit.apply(event.logits, tokenizer))
        return None

    return answer_sums


def _answer_due(text: str) -> str | None:
    """What is missing of the answer to the sum that ``text`` ends in, spaced as the sum is: ``3+4=7``."""
    left, sign, right = text.rpartition("=")
    found = find_equation(left + sign) if sign else None
    begun = right.lstrip(SPACES)
    if found is None or begun == found.result_text or not found.result_text.startswith(begun):
        return None
    spaced = not right and left[-1] in SPACES
    return (" " if spaced else "") + found.result_text[len(begun) :]


def _instead_of(token: int, tokens: Sequence[int], text: str, tokenizer: Tokenizer) -> str | None:
    """What to write instead of a drawn token that ends a sum with ``=`` and begins an answer of its own."""
    longer = tail_text([*tokens, token], tokenizer, MAX_CHARACTERS)
    if not longer.startswith(text):  # the token completes a character, or the tail has moved on
        longer = text + tokenizer.token_text(token)
    sign = longer.rfind("=", len(text))
    begun = longer[sign + 1 :]
    answer = _answer_due(longer[: sign + 1]) if sign >= 0 and _BEGUN.match(begun) else None
    if answer is None:
        return None
    space = " " if begun[0] in SPACES and answer[0] != " " else ""
    return longer[len(text) : sign + 1] + space + answer


def _just_answered(text: str) -> bool:
    """Does the text end in a sum with its exact answer, to which another digit would be added?"""
    left, sign, right = text.rpartition("=")
    found = find_equation(left + sign) if sign else None
    return found is not None and right.lstrip(SPACES).rstrip(".,") == found.result_text
