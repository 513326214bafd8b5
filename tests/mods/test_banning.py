"""Laws of ban_tokens: a banned word never stands in the text, however its letters are cut into tokens."""

from __future__ import annotations

from typing import Any

import pytest
from mod_scripts import run

from workbench.errors import ModError
from workbench.mods import ban_tokens


@pytest.mark.parametrize(
    ("words", "written", "text"),
    [
        (["cat"], "a cat sat", "a ca"),
        (["cat"], "a Cat sat", "a Ca"),
        (["cat"], "a CAT sat", "a CA"),
        (["Cat"], "a cat sat", "a cat sat"),
        (["cat"], "concat it", "concat it"),
        (["cat"], "cat", "ca"),
        (["cat"], "(cat)", "(ca"),
        ("New York", "in New Jersey and New York", "in New Jersey and New Yor"),
        (["dog", "ox"], "an ox", "an o"),
        (["!!"], "no!!", "no!"),
        (["naïve"], "so naïve", "so naïv"),
        (["é"], "café é", "café \ufffd"),
    ],
)
def test_the_token_that_completes_a_word_is_masked(model: Any, words: Any, written: str, text: str) -> None:
    assert run(model, [ban_tokens(words)], written).text == text


@pytest.mark.parametrize("pieces", [["Ġcat"], ["Ġ", "ca", "t"], ["Ġc", "at"], ["Ġ", "c", "a", "t"], ["ca", "t"]])
def test_a_word_is_banned_in_every_cut(merging_model: Any, pieces: list[str]) -> None:
    ids = merging_model.tokenizer.hf.convert_tokens_to_ids(pieces)
    result = run(merging_model, [ban_tokens(["cat"])], ids)
    assert result.tokens[:-1] == tuple(ids[:-1])
    assert run(merging_model, [ban_tokens(["dog"])], ids).tokens[:-1] == tuple(ids)


def test_token_ids_are_never_drawn(model: Any) -> None:
    ids = model.tokenizer.encode("xy")
    assert run(model, [ban_tokens(tokens=ids[1:])], "xxy").text == "xx"


def test_bans_of_two_mods_add_up(model: Any) -> None:
    assert run(model, [ban_tokens(["a"]), ban_tokens(["b"])], "x b").text == "x "


@pytest.mark.parametrize("given", [{}, {"words": [""]}, {"words": ["a", " "]}, {"words": [3]}, {"tokens": [-1]}])
def test_nothing_to_ban_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="at least one word that is not blank, or a token id of 0 or more"):
        ban_tokens(**given)


def test_a_ban_of_everything_is_refused(model: Any) -> None:
    with pytest.raises(ModError, match="leaves no token to draw: ban fewer words or tokens") as caught:
        run(model, [ban_tokens(tokens=range(len(model.tokenizer)))], "x")
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_id_outside_the_vocabulary_is_refused(model: Any) -> None:
    with pytest.raises(ModError, match=r"token id 9999 is outside the vocabulary 0\.\.259"):
        run(model, [ban_tokens(tokens=[9999])], "x")
