"""A matcher allows exactly the texts that a plain Python checker of the same strategy accepts.

Longer than 300 lines because one table of cases serves every law.
"""

from __future__ import annotations

import json
import random
import re
import threading
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench
from workbench.errors import FlowError
from workbench.flows.constraint import Constraint, Matcher
from workbench.flows.strategies import (
    CharsMode,
    CharsStrat,
    ChoicesStrat,
    GrammarStrat,
    JsonStrat,
    ListStrat,
    RegexStrat,
    UntilEndType,
    UntilStrat,
)
from workbench.models import Tokenizer

Check = Callable[[str], bool]
TINY: Tokenizer = workbench.load("tiny-llama").tokenizer
"""256 byte tokens and four marks: what it decodes and encodes again unchanged is valid UTF-8."""
SIZE = len(TINY)


def compile_for(strategy: Any, **options: Any) -> Constraint:
    return Constraint(strategy, TINY, SIZE, **options)


def accepts(constraint: Constraint, text: str) -> bool:
    """The text can be walked token by token, and may end where it ends."""
    matcher = constraint.start()
    for token in constraint.tokenizer.encode(text):
        if not matcher.mask()[token]:
            return False
        matcher.advance(token)
    return matcher.complete


# --- plain checkers, one for each strategy ---


def until(start: str, end: str) -> Check:
    return lambda s: s.startswith(start) and s.find(end, len(start)) == len(s) - len(end) >= len(start)


def pattern(source: str) -> Check:
    return lambda s: re.fullmatch(source, s, re.DOTALL | re.ASCII) is not None


def letters(s: str) -> bool:
    """Letters of this Python's Unicode, or characters that are younger than it."""
    return 1 <= len(s) <= 5 and all(c.isalpha() or unicodedata.category(c) == "Cn" for c in s)


def alphanumeric(s: str) -> bool:
    return all(c.isalnum() or unicodedata.category(c) == "Cn" for c in s)


def person(s: str) -> bool:
    try:
        pairs = json.loads(s, object_pairs_hook=list)
        names, values = [name for name, _ in pairs], [value for _, value in pairs]
    except (TypeError, ValueError):
        return False
    name, age, tags = [*values, []][:3] if names in (["name", "age"], ["name", "age", "tags"]) else (None, None, None)
    return (
        isinstance(name, str)
        and type(age) is int
        and 0 <= age <= 150
        and isinstance(tags, list)
        and len(tags) <= 2
        and all(tag in ("a", "b") for tag in tags)
        and not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', '""', s))
    )


def nested(s: str) -> bool:
    half = len(s) // 2
    return half > 0 and s == "a" * half + "b" * half


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
HOSTILE = ('say "hi"', "back\\slash", "two\nlines", ".*", "[a-z]+|x", "a/b", "{}", "#{x}", "%json", "<x>", "\x00\t\x7f")
FLOAT = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"

# Each: a strategy, its checker, what brings a long answer to its end, texts that are and that are not answers.
CASES: dict[str, tuple[Any, Check, list[str], list[str], list[str]]] = {
    "choices": (
        ChoicesStrat(["hello", "hello world", "東京", "é", "🙂"]),
        lambda s: s in ("hello", "hello world", "東京", "é", "🙂"),
        [], ["hello", "hello world", "東京", "é", "🙂"], ["", "hell", "hello ", "東", "e", "Hello"],
    ),
    "hostile": (ChoicesStrat(HOSTILE), lambda s: s in HOSTILE, [], list(HOSTILE), ["say hi", "aa", "a", "two\\nlines"]),
    "tag": (
        UntilStrat("<x>", UntilEndType.TAG, "</x>"), until("<x>", "</x>"),
        ["</x>"], ["<x></x>", "<x>a < b</</x>", "<x>\n🙂</x>", "<x><x></x>"],
        ["</x>", "<x>", "<x></x></x>", "<x></x>a"],
    ),
    "self-overlapping tag": (
        UntilStrat("", UntilEndType.TAG, "abab"), until("", "abab"),
        ["abab", "bab", "ab"], ["abab", "aabab", "abaabab"], ["ababab", "aba", ""],
    ),
    "any of some characters": (
        UntilStrat("-", UntilEndType.ANYCHAR, ".]^\\é"), pattern(r"-[^.\]^\\é]*[.\]^\\é]"),
        ["."], ["-.", "-[]", "-a\nb^", "-\\", "-🙂é"], ["-", ".", "-a..", "-a"],
    ),
    "digits": (CharsStrat(CharsMode.NUMERIC, stop=4), pattern("[0-9]{1,4}"), [], ["0", "2024"], ["", "12345", "٣"]),
    "letters": (CharsStrat(CharsMode.ALPHA, stop=5), letters, [], ["a", "naïve", "東京"], ["", "abcdef", "a1", "a b"]),
    "letters and digits until": (
        CharsStrat(CharsMode.ALPHANUMERIC, min=2, stop="end"),
        lambda s: until("", "end")(s) and len(s) >= 5 and alphanumeric(s),
        ["end", "aaend", "aend"], ["a1end", "eneend"], ["end", "aend", "a-end", "aendend"],
    ),
    "anything until": (
        CharsStrat(CharsMode.STRING, min=0, stop="\n"), pattern(r"[^\n]*\n"),
        ["\n"], ["\n", "a b\n", "🙂\n"], ["", "a", "\n\n"],
    ),
    "a number": (
        CharsStrat(CharsMode.JS_FLOAT, min=2, stop=6), lambda s: 2 <= len(s) <= 6 and pattern(FLOAT)(s),
        [], ["10", "-1.5e3", "1E-9", "0.5"], ["1", "01", ".5", "1.", "-1.55e3", "--1"],
    ),
    "list": (
        ListStrat(["a", "b"], open="[", close="]"), pattern(r"\[[ab](, [ab])*\]"),
        ["]"], ["[a]", "[b, a, b]"], ["[]", "[a,b]", "[a, ]", "a"],
    ),
    "bounded bare list": (
        ListStrat(["a", "b"], sep="", min=2, max=3), pattern("[ab]{2,3}"), [], ["ab", "bbb"], ["a", "abab", "a, b"],
    ),
    "possibly empty wrapped list": (
        ListStrat(RegexStrat("[0-9]{1,2}"), open="(", close=")", wrap='"', sep=" | ", min=0, end_with="\n"),
        pattern(r'\(("[0-9]{1,2}"( \| "[0-9]{1,2}")*)?\)\n'),
        ["\n", ")\n", '")\n'], ["()\n", '("1" | "22")\n'], ["()", '("1"|"2")\n', "(1)\n"],
    ),
    "list of one": (ListStrat(["a", "b"], max=1), pattern("[ab]"), [], ["a"], ["a, b"]),
    "list of lists": (
        ListStrat(ListStrat(["x"], open="(", close=")", sep=""), sep=" "), pattern(r"\(x+\)( \(x+\))*"),
        [")"], ["(x)", "(xx) (x)"], ["()", "(x)(x)"],
    ),
    "separator like an element": (ListStrat(RegexStrat("[0-9]+"), sep="1", min=2, max=2), pattern("[0-9]+1[0-9]+"),
        [], ["213", "111"], ["11", "23"]),
    "regex": (RegexStrat(r"^(\d{2}/)?x$"), pattern(r"(\d{2}/)?x"), [], ["x", "12/x"], ["12x", "^x", "٣٣/x"]),
    "regex with bare ends": (RegexStrat(r"^a|b\$"), pattern(r"a|b\$"), [], ["a", "b$"], ["b", "ab$"]),
    "json": (
        JsonStrat(PERSON), person, ['"', "]", "}"],
        ['{"name":"Zoë","age":150}', '{"name":"","age":0,"tags":["a","b"]}', '{"name":"\\"","age":7,"tags":[]}'],
        ['{"name":"Z","age":151}', '{"name": "Z","age":1}', '{"age":1}', "{}", '{"name":"Z","age":1,"tags":["c"]}'],
    ),
    "grammar": (
        GrammarStrat('start: "ab" | "a" start "b"'), nested,
        ["b", "ab"], ["ab", "aabb", "aaabbb"], ["", "aab", "abb", "ba"],
    ),
}  # fmt: skip
NAMES = list(CASES)


def random_walk(matcher: Matcher, rng: random.Random, closers: list[str], steps: int = 40) -> str:
    """Random allowed tokens; a walk that has gone on for long takes what closes the answer where it can."""
    for step in range(2000):
        mask = matcher.mask()
        assert not mask[[*TINY.eos_token_ids, 0, 1, 2, 3]].any()
        if matcher.complete and (matcher.finished or step > steps or rng.random() < 0.3):
            return TINY.decode(matcher.tokens)
        if step > steps and any(try_all(matcher, TINY.encode(closer)) for closer in closers):
            continue
        matcher.advance(rng.choice(mask.nonzero().flatten().tolist()))
    raise AssertionError(f"no end in sight: {TINY.decode(matcher.tokens)[-200:]!r}")


def try_all(matcher: Matcher, tokens: list[int]) -> bool:
    try:
        matcher.advance_all(tokens)
    except FlowError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_a_random_walk_under_the_mask_ends_in_a_text_that_the_plain_checker_accepts(name: str, seed: int) -> None:
    strategy, check, closers, _, _ = CASES[name]
    matcher = compile_for(strategy).start()
    text = random_walk(matcher, random.Random(seed), closers)
    assert TINY.encode(text) == list(matcher.tokens)
    assert check(text), text
    assert accepts(compile_for(strategy), text)


@pytest.mark.parametrize("name", NAMES)
def test_answers_can_be_walked_and_other_texts_can_not(name: str) -> None:
    strategy, check, _, good, bad = CASES[name]
    assert [text for text in good if not check(text)] == [text for text in bad if check(text)] == []
    constraint = compile_for(strategy)
    assert [text for text in good if not accepts(constraint, text)] == []
    assert [text for text in bad if accepts(constraint, text)] == []


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(data=st.data())
def test_mutants_of_answers_are_accepted_where_the_plain_checker_accepts_them(name: str, data: st.DataObject) -> None:
    strategy, check, _, good, bad = CASES[name]
    texts = st.sampled_from([*good, *bad])
    start, end = data.draw(texts), data.draw(texts)
    cut, resume = data.draw(st.integers(0, len(start))), data.draw(st.integers(0, len(end)))
    text = start[:cut] + end[resume:]
    assert accepts(compile_for(strategy), text) == check(text), text


@pytest.mark.parametrize("name", NAMES)
def test_one_leading_space_is_allowed_where_wished_and_never_two(name: str) -> None:
    strategy, _, _, good, _ = CASES[name]
    with_space, without = compile_for(strategy, leading_space=True), compile_for(strategy)
    starts_with_anything = name in ("anything until", "self-overlapping tag")
    for text in good:
        assert accepts(with_space, text)
        assert accepts(with_space, " " + text)
        assert accepts(without, " " + text) == starts_with_anything
        assert accepts(with_space, "  " + text) == starts_with_anything
        assert strategy.answer_of(" " + text) == strategy.answer_of(text)


@settings(max_examples=50)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
            lambda text: text.strip() and "<" not in text  # which may begin a mark of the format
        ),
        min_size=1, max_size=5, unique_by=lambda s: s.strip().casefold(),
    ),
    st.booleans(),
)  # fmt: skip
def test_any_strings_are_choices_byte_for_byte(choices: list[str], leading_space: bool) -> None:
    constraint = compile_for(ChoicesStrat(choices), leading_space=leading_space)
    for choice in choices:
        assert accepts(constraint, choice)
        assert accepts(constraint, " " + choice) == (leading_space or " " + choice in choices)
        assert accepts(constraint, choice + "x") == (choice + "x" in choices or leading_space and choice[0] == " " and choice[1:] + "x" in choices)  # noqa: E501, RUF021  # fmt: skip
    assert random_walk(constraint.start(), random.Random(0), []).removeprefix(" ") in [
        *choices, *(choice.removeprefix(" ") for choice in choices)
    ]  # fmt: skip


# --- ends ---


def test_a_choice_that_begins_another_is_complete_and_not_finished() -> None:
    matcher = compile_for(ChoicesStrat(["hello", "hello world"])).start()
    assert (matcher.complete, matcher.finished, matcher.can_continue) == (False, False, True)
    matcher.advance_all(TINY.encode("hello"))
    assert (matcher.complete, matcher.finished, matcher.can_continue) == (True, False, True)
    assert matcher.allowed_count() == 1
    matcher.advance_all(TINY.encode(" world"))
    assert (matcher.complete, matcher.finished, matcher.can_continue) == (True, True, False)
    assert not matcher.mask().any()
    assert matcher.forced() == []


def test_what_must_come_is_forced_up_to_where_it_may_end() -> None:
    matcher = compile_for(RegexStrat("(hello( world)?)")).start()
    assert TINY.decode(matcher.forced()) == "hello"
    matcher.advance_all(matcher.forced())
    assert matcher.forced() == []


# --- moving about ---


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_taking_back_is_like_never_having_gone(name: str, seed: int, data: st.DataObject) -> None:
    strategy, _, closers, _, _ = CASES[name]
    constraint = compile_for(strategy)
    matcher = constraint.start()
    random_walk(matcher, random.Random(seed), closers)
    kept = data.draw(st.integers(0, len(matcher.tokens)))
    fresh = constraint.start()
    fresh.advance_all(matcher.tokens[:kept])
    matcher.rollback(len(matcher.tokens) - kept)
    assert matcher.tokens == fresh.tokens
    assert torch.equal(matcher.mask(), fresh.mask())
    assert (matcher.complete, matcher.finished) == (fresh.complete, fresh.finished)


def test_taking_back_works_where_llguidance_itself_refuses_it() -> None:
    matcher = compile_for(GrammarStrat('start: word "b"\nword[max_tokens=3]: /a+/')).start()
    matcher.advance_all(TINY.encode("aa"))
    matcher.rollback(1)
    assert TINY.decode(matcher.tokens) == "a"
    matcher.advance_all(TINY.encode("ab"))
    assert matcher.finished


def test_copies_go_their_own_ways() -> None:
    first = compile_for(ChoicesStrat(["hello", "help me"])).start()
    first.advance_all(TINY.encode("hel"))
    second = first.copy()
    first.advance_all(TINY.encode("lo"))
    second.advance_all(TINY.encode("p me"))
    assert (TINY.decode(first.tokens), TINY.decode(second.tokens)) == ("hello", "help me")
    assert first.finished
    assert second.finished
    second.rollback(4)
    assert second.allowed_count() == 2
    assert first.finished


def test_a_mask_is_the_callers_to_change() -> None:
    matcher = compile_for(ChoicesStrat(["a", "b"])).start()
    matcher.mask().fill_(True)
    assert matcher.allowed_count() == int(matcher.mask().sum()) == 2


def test_several_tokens_are_taken_all_or_none() -> None:
    matcher = compile_for(ChoicesStrat(["abc"])).start()
    with pytest.raises(FlowError, match=r"token \d+ \('x'\) can't follow 'ab': the answer is open to 1 other tokens"):
        matcher.advance_all(TINY.encode("abx"))
    assert matcher.tokens == ()
    matcher.advance_all(TINY.encode("abc"))
    with pytest.raises(FlowError, match=r"can't follow 'abc': the answer is complete and can't go on"):
        matcher.advance_all(TINY.encode("c"))
    assert matcher.finished


@pytest.mark.parametrize("token", [*range(4), -1, SIZE, SIZE + 5])
def test_marks_and_ids_without_text_are_never_allowed(token: int) -> None:
    matcher = Constraint(CASES["anything until"][0], TINY, SIZE + 6).start()
    assert matcher.mask().shape == (SIZE + 6,)
    assert not matcher.mask()[[*range(4), *range(SIZE, SIZE + 6)]].any()
    with pytest.raises(FlowError, match=rf"token {token} \(.*\) can't follow ''"):
        matcher.advance(token)


def test_a_model_with_fewer_ids_than_the_tokenizer_gets_a_shorter_mask() -> None:
    assert Constraint(RegexStrat("[a-z]+"), TINY, 200).start().mask().shape == (200,)


@pytest.mark.parametrize("n", [-1, 3])
def test_no_more_is_taken_back_than_was_taken(n: int) -> None:
    matcher = compile_for(ChoicesStrat(["abc"])).start()
    matcher.advance_all(TINY.encode("ab"))
    with pytest.raises(FlowError, match=rf"can't take back {n} tokens of an answer: it has 2"):
        matcher.rollback(n)
    matcher.rollback(0)
    assert TINY.decode(matcher.tokens) == "ab"


# --- what can't be ---


@pytest.mark.parametrize("strategy", [RegexStrat("a{0}"), GrammarStrat("start: <[3]>")])
def test_an_answer_that_nothing_can_begin_is_refused(strategy: Any) -> None:
    with pytest.raises(FlowError, match="no token can begin an answer to"):
        compile_for(strategy)


def test_a_dead_end_is_an_error_and_not_an_empty_mask() -> None:
    matcher = compile_for(GrammarStrat('start: "x" <[3]>')).start()
    matcher.advance_all(TINY.encode("x"))
    assert not matcher.finished
    with pytest.raises(FlowError, match=r"no token can follow 'x' in an answer to GrammarStrat.*not complete there"):
        matcher.mask()


def test_a_text_beyond_the_limits_is_an_error_and_the_next_answer_starts_afresh(
    capfd: pytest.CaptureFixture[str],
) -> None:
    word = CharsStrat(CharsMode.ALPHA, stop=4000)
    constraint = compile_for(ListStrat(ListStrat(word, sep="", max=4000), sep="", max=4000))
    matcher = constraint.start()
    for _ in range(2):
        with pytest.raises(FlowError, match=r"ListStrat.* went beyond llguidance's limits after 'abc.*too many"):
            matcher.advance_all(TINY.encode("abc" * 50))
        assert matcher.tokens == ()
        matcher.advance_all(TINY.encode("a"))
        matcher.rollback(1)
        assert accepts(constraint, "ab")
    assert capfd.readouterr() == ("", "")


def test_a_choice_that_reads_as_a_mark_is_refused() -> None:
    with pytest.raises(FlowError, match=r"does not read the choice 'a<eos>' as text: it finds '<eos>' in it"):
        compile_for(ChoicesStrat(["yes", "a<eos>"]))


def test_a_grammar_that_only_fails_with_a_tokenizer_is_refused_when_compiled() -> None:
    with pytest.raises(FlowError, match=r"llguidance can't compile this answer's grammar: .*<nosuch>"):
        compile_for(GrammarStrat('start: "a" <nosuch>'))


def test_many_threads_get_the_same_masks() -> None:
    expected = compile_for(JsonStrat(PERSON)).start().mask()
    masks: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: masks.append(compile_for(JsonStrat(PERSON)).start().mask())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(masks) == 8
    assert all(torch.equal(mask, expected) for mask in masks)


# --- real tokenizers ---


@pytest.fixture(scope="module", params=["smollm2-135m-instruct", "gemma-3-270m"])
def real(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = workbench.load(request.param).tokenizer
    return tokenizer


def first_texts(constraint: Constraint) -> set[str]:
    return {constraint.tokenizer.decode(int(token)) for token in constraint.start().mask().nonzero()}


@pytest.mark.real
def test_the_first_tokens_of_yes_and_no_are_their_beginnings(real: Tokenizer) -> None:
    strategy = ChoicesStrat(["yes", "no"])
    bare = {"n", "y", "no", "ye", "yes"}
    assert first_texts(Constraint(strategy, real, len(real))) == bare
    spaced = Constraint(strategy, real, len(real), leading_space=True)
    assert first_texts(spaced) == bare | {" "} | {" " + text for text in bare}


@pytest.mark.real
@pytest.mark.parametrize("name", [name for name in NAMES if name != "hostile"])
def test_answers_are_walked_in_the_tokens_of_a_real_tokenizer(real: Tokenizer, name: str) -> None:
    strategy, _, _, good, bad = CASES[name]
    for lead in ("", " "):
        constraint = Constraint(strategy, real, len(real), leading_space=bool(lead))
        assert [text for text in good if not accepts(constraint, lead + text)] == []
        assert [text for text in bad if accepts(constraint, text)] == []


@pytest.mark.real
def test_a_tag_ends_an_answer_however_its_characters_are_split(real: Tokenizer) -> None:
    constraint = Constraint(UntilStrat("<table>", UntilEndType.TAG, "</x>"), real, len(real))
    pieces = (
        ["<table>", "é", "</x>"],
        ["<", "table", ">", "a", "</", "x", ">"],
        ["<table>a</", "x>"],
        ["<table>a</x>"],
    )
    for split in pieces:
        matcher = constraint.start()
        matcher.advance_all([token for piece in split for token in real.encode(piece)])
        assert matcher.finished


@pytest.mark.real
def test_a_choice_that_the_tokenizer_has_no_bytes_for_is_refused() -> None:
    tokenizer = workbench.load("smollm2-135m-instruct").tokenizer
    with pytest.raises(FlowError, match=r"this tokenizer can't spell the choice 'a\\x04'"):
        Constraint(ChoicesStrat(["a\x04", "b"]), tokenizer, len(tokenizer))
