"""Laws of replace_phrase: the text comes out as str.replace would have it, and the tokens agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mod_scripts import actions_of, run, takes_back_once

from workbench import ForwardPass, mod
from workbench.mods import replace_phrase


@pytest.mark.parametrize(
    ("old", "new", "written", "text"),
    [
        ("cat", "dog", "a cat sat", "a dog sat"),
        ("cat", "black cat", "a cat, a cat", "a black cat, a black cat"),
        ("a", "aa", "banana", "baanaanaa"),
        ("ab", "bbaa", "aab!", "abbaa!"),
        ("é", "e", "café é", "cafe e"),
        ("cat", "dog", "a dog", "a dog"),
    ],
)
def test_every_phrase_is_replaced_once(model: Any, old: str, new: str, written: str, text: str) -> None:
    result = run(model, [replace_phrase(old, new)], written)
    assert result.text == text
    assert result.reason == "eos"


@settings(max_examples=20)
@given(
    written=st.text(alphabet="ab ", max_size=20),
    old=st.text(alphabet="ab", min_size=1, max_size=3),
    new=st.text(alphabet="abé", min_size=1, max_size=4),
)
def test_it_is_what_replacing_in_the_whole_text_gives(model: Any, written: str, old: str, new: str) -> None:
    assert run(model, [replace_phrase(old, new)], written).text == written.replace(old, new)


def test_text_beside_the_phrase_in_its_tokens_is_kept(merging_model: Any) -> None:
    tokenizer = merging_model.tokenizer
    ids = tokenizer.hf.convert_tokens_to_ids(["x", "Ġcat", "s"])
    assert run(merging_model, [replace_phrase("at", "ow")], ids).text == "x cows"
    assert run(merging_model, [replace_phrase("a", "u")], ids).text == "x cuts"


def test_several_phrases_in_one_batch_of_tokens_are_all_replaced(model: Any) -> None:
    @mod(name="forcer")
    def forcer(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass) and event.step == 1:
            return actions.force_tokens(tokenizer.encode("cat, cat; cat."))
        return None

    assert run(model, [forcer, replace_phrase("cat", "cats")], "").text == "cats, cats; cats."


def test_the_phrase_is_replaced_again_after_it_was_taken_back(model: Any) -> None:
    eraser = takes_back_once(3, "dog")
    assert run(model, [eraser, replace_phrase("cat", "dog")], "a catcat.").text == "a dog."


def test_where_the_new_text_is_cut_the_run_ends(model: Any) -> None:
    result = run(model, [replace_phrase("a", "aa")], "xa", max_new_tokens=2)
    assert (result.text, result.reason) == ("xa", "max_tokens")
    assert actions_of(result, "replace_phrase") == [("backtrack", "applied")]


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("x", "")])
def test_empty_texts_are_refused(old: str, new: str) -> None:
    with pytest.raises(ValueError, match=r"two texts that are not empty.*ban_tokens"):
        replace_phrase(old, new)
