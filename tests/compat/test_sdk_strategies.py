"""Each strategy allows what may come next, and nothing else, and knows where it is complete."""

from __future__ import annotations

import re
from typing import Any

import pytest
from compat_cases import LETTERS, Letters, may_follow, walk
from hypothesis import given
from hypothesis import strategies as st

from workbench import load
from workbench.compat.strategy_constructor import (
    CharsMode,
    CharsStrat,
    ChoicesStrat,
    ListStrat,
    UntilEndType,
    UntilStrat,
)
from workbench.compat.tokenizer import sdk_tokenizer
from workbench.errors import CompatError


def complete(constructor: Any, letters: str) -> bool:
    strategy, state = walk(constructor, letters)
    return bool(strategy.is_complete(state))


def test_choices_go_letter_by_letter_and_end_where_one_is_whole() -> None:
    pets = ChoicesStrat(["cat", "cats", "dog"])
    assert may_follow(pets, "") == "cd"
    assert may_follow(pets, "ca") == "t"
    assert not complete(pets, "ca")
    assert complete(pets, "cat")
    assert may_follow(pets, "cat") == "s"
    assert may_follow(pets, "dog") == ""


def test_text_up_to_a_tag_begins_with_its_start_and_ends_with_its_tag() -> None:
    tagged = UntilStrat("<q>", UntilEndType.TAG, "</q>")
    assert may_follow(tagged, "") == "<"
    assert may_follow(tagged, "<q") == ">"
    assert set(may_follow(tagged, "<q>")) == set(LETTERS)
    assert not complete(tagged, "<q>what</q")
    assert complete(tagged, "<q>what</q>")
    strategy, _ = walk(tagged, "")
    assert strategy.trim_answer("<q>what</q>. So") == "<q>what</q>"


@pytest.mark.parametrize(
    ("strat", "text"),
    [
        (UntilStrat("", UntilEndType.ANYCHAR, ".!"), "so it is!"),
        (UntilStrat("", UntilEndType.NEWLINE, "\n"), "one line\n"),
        (UntilStrat("", UntilEndType.NEWLINE), "one line\n"),
    ],
)
def test_text_up_to_a_character_ends_with_it(strat: UntilStrat, text: str) -> None:
    assert complete(strat, text)
    assert not complete(strat, text[:-1])


def test_characters_of_a_kind_stop_at_a_number_or_at_a_text() -> None:
    assert set(may_follow(CharsStrat(CharsMode.NUMERIC, stop=3), "")) == set("0123456789")
    assert complete(CharsStrat(CharsMode.NUMERIC, stop=3), "123")
    assert not complete(CharsStrat(CharsMode.NUMERIC, stop=3), "12")
    word = CharsStrat(CharsMode.ALPHA, stop=".", min=2)
    assert "." not in may_follow(word, "a")
    assert "." in may_follow(word, "ab")
    assert complete(word, "ab.")
    strategy, _ = walk(word, "")
    assert strategy.trim_answer("ab.") == "ab"
    assert set(may_follow(CharsStrat(CharsMode.ALPHANUMERIC, stop=9), "")) == {c for c in LETTERS if c.isalnum()}
    assert set(may_follow(CharsStrat(CharsMode.STRING, stop="\n"), "x")) == set(LETTERS)


def test_a_minimum_lets_a_number_of_characters_end_early() -> None:
    code = CharsStrat(CharsMode.NUMERIC, min=2, stop=4)
    for letters, may_end in (("1", False), ("12", True), ("123", True), ("1234", True)):
        strategy, state = walk(code, letters)
        assert strategy.may_end(state) is may_end
        assert strategy.is_complete(state) is (len(letters) == 4)


@given(st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: float(f"{x:.3g}")))
def test_every_json_number_can_be_written_and_ended(number: float) -> None:
    import json

    assert complete(CharsStrat(CharsMode.JS_FLOAT, stop="\n", min=1), json.dumps(number) + "\n")


@pytest.mark.parametrize(("letters", "follows"), [("-", "0123456789"), ("1.", "0123456789"), ("0", "\n.eE")])
def test_no_other_number_can(letters: str, follows: str) -> None:
    assert set(may_follow(CharsStrat(CharsMode.JS_FLOAT, stop="\n", min=1), letters)) == set(follows)


def test_a_list_has_its_marks_in_their_places() -> None:
    colours = ListStrat(
        ChoicesStrat(["red", "blue"]), open="[", close="]", wrap='"', sep=", ", end_with="\n", min=1, max=2
    )
    assert may_follow(colours, "") == "["
    assert may_follow(colours, "[") == '"'
    assert may_follow(colours, '["') == "br"
    assert may_follow(colours, '["red') == '"'
    assert may_follow(colours, '["red"') == ",]"
    assert may_follow(colours, '["red",') == " "
    assert may_follow(colours, '["red", "blue"') == "]"
    assert may_follow(colours, '["red"]') == "\n"
    assert complete(colours, '["red", "blue"]\n')
    assert not complete(colours, '["red", "blue"]')
    strategy, _ = walk(colours, "")
    assert strategy.trim_answer('["red"]\n') == '["red"]'


def test_a_list_of_strategies_has_exactly_these_elements() -> None:
    plate = ListStrat([CharsStrat(CharsMode.ALPHA, stop=2), CharsStrat(CharsMode.NUMERIC, stop=3)], sep="-")
    assert may_follow(plate, "ab") == "-"
    assert set(may_follow(plate, "ab-")) == set("0123456789")
    assert not complete(plate, "ab-12")
    assert complete(plate, "ab-123")
    assert may_follow(plate, "ab-123") == ""
    wide = ListStrat([ChoicesStrat(["x"]), ChoicesStrat(["y"])], open="<<", close=">>", wrap="''", sep=", ")
    assert complete(wide, "<<''x'', ''y''>>")


def test_a_list_without_marks_may_end_after_any_element_from_its_minimum_on() -> None:
    plain = ListStrat(ChoicesStrat(["a", "b"]), sep=",", min=2)
    for letters, may_end in (("a", False), ("a,b", True), ("a,", False), ("a,b,a", True)):
        strategy, state = walk(plain, letters)
        assert strategy.may_end(state) is may_end
    assert complete(ListStrat(ChoicesStrat(["a", "b"]), sep=",", min=2, max=2), "a,b")


def test_an_empty_list_is_one_where_none_is_required() -> None:
    none = ListStrat(ChoicesStrat(["a"]), open="[", close="]")
    assert may_follow(none, "[") == "]a"
    assert complete(none, "[]")


def test_an_element_that_ends_with_the_wrap_brings_it_along() -> None:
    quoted = ListStrat(CharsStrat(CharsMode.STRING, stop='"'), open="[", close="]", wrap='"', max=2)
    assert complete(quoted, '["a, b", "c"]')
    assert may_follow(quoted, '["a"') == ",]"


def test_an_element_that_may_end_or_go_on_lets_the_list_go_on_either_way() -> None:
    pets = ListStrat(ChoicesStrat(["cat", "cats"]), open="[", close="]")
    assert may_follow(pets, "[cat") == ",]s"
    assert complete(pets, "[cat, cats]")


def test_a_token_that_is_not_allowed_is_refused() -> None:
    for strat in (ChoicesStrat(["a"]), UntilStrat("<", UntilEndType.TAG, ">"), CharsStrat(CharsMode.NUMERIC, stop=1)):
        strategy, state = walk(strat, "")
        with pytest.raises(CompatError, match=re.escape(f"token {ord('z')} ('z') is not allowed here")):
            strategy.step(state, ord("z"), Letters())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ChoicesStrat([]), "a list of texts, none of them empty"),
        (lambda: ChoicesStrat("yes"), "a list of texts"),
        (lambda: UntilStrat("", UntilEndType.TAG, ""), "needs a text to end at"),
        (lambda: CharsStrat(CharsMode.ALPHA, stop=0), "give the most characters, or the text to stop at"),
        (lambda: CharsStrat(CharsMode.ALPHA, stop=2, min=3), "the minimum lies between 0 and stop"),
        (lambda: ListStrat(["a"]), r"elements are strategies such as ChoicesStrat"),
        (lambda: ListStrat(ChoicesStrat(["a"]), min=2, max=1), "the maximum is at least the minimum"),
    ],
)
def test_a_strategy_that_can_not_be_is_refused_where_it_is_written(make: Any, says: str) -> None:
    with pytest.raises(CompatError, match=says):
        make()


def test_merged_tokens_are_taken_where_they_hold_characters_and_the_stop(merging_model: Any) -> None:
    tokenizer = sdk_tokenizer(merging_model.tokenizer)
    (merged,) = tokenizer.encode("at")
    (single,) = tokenizer.encode("t")
    strategy = CharsStrat(CharsMode.ALPHA, stop="t", min=1).into_strategy(tokenizer)
    state = strategy.start(tokenizer)
    allowed = strategy.allowed_tokens(state, tokenizer)
    assert merged in allowed
    assert single not in allowed
    strategy.step(state, merged, tokenizer)
    assert strategy.is_complete(state)
    assert strategy.trim_answer("at") == "a"


def test_a_token_of_two_characters_needs_room_for_two(merging_model: Any) -> None:
    tokenizer = sdk_tokenizer(merging_model.tokenizer)
    (merged,) = tokenizer.encode("at")
    strategy = CharsStrat(CharsMode.ALPHA, stop=3).into_strategy(tokenizer)
    state = strategy.start(tokenizer)
    strategy.step(state, merged, tokenizer)
    assert merged not in strategy.allowed_tokens(state, tokenizer)
    strategy.step(state, tokenizer.encode("t")[0], tokenizer)
    assert strategy.is_complete(state)


@pytest.fixture(scope="module")
def merging_model() -> Any:
    """A tiny model whose tokenizer has ``at`` as one token."""
    import json

    from tokenizers import Tokenizer as RawTokenizer
    from transformers import PreTrainedTokenizerFast

    from workbench.models import Tokenizer

    found = load("tiny-llama", progress=False)
    raw = json.loads(found.tokenizer.hf.backend_tokenizer.to_str())
    vocab = raw["model"]["vocab"]
    vocab["at"] = vocab.pop("ý")
    raw["model"]["merges"] = [["a", "t"]]
    hf = PreTrainedTokenizerFast(tokenizer_object=RawTokenizer.from_str(json.dumps(raw)), eos_token="<eos>")
    found.tokenizer = Tokenizer(hf)
    return found
