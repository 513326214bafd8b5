"""Laws of finding tokens by text."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.mods.texts import TokenMasks, covering, tail_text

texts = st.text(alphabet="ab= 4cté🙂", max_size=12)


@settings(max_examples=60)
@given(text=texts, data=st.data())
def test_a_character_lies_in_the_token_that_covers_it(merging_model: Any, text: str, data: Any) -> None:
    tokenizer = merging_model.tokenizer
    tokens = tokenizer.encode(text)
    character = data.draw(st.integers(0, len(text)))
    index, before = covering(tokens, tokenizer, character)
    assert tokenizer.decode(tokens[:index]) + before == text[:character]
    if character < len(text):
        assert len(tokenizer.decode(tokens[: index + 1])) > character


@settings(max_examples=60)
@given(text=texts, characters=st.integers(0, 12))
def test_a_tail_is_long_enough(model: Any, text: str, characters: int) -> None:
    tail = tail_text(model.tokenizer.encode(text), model.tokenizer, characters)
    assert tail.endswith(text[max(len(text) - characters, 0) :])


def test_a_mask_is_made_once_per_tokenizer_and_size(model: Any) -> None:
    asked: list[str] = []

    def allows(text: str) -> bool:
        asked.append(text)
        return text != "a"

    masks = TokenMasks(allows)
    size = len(model.tokenizer)
    assert int((~masks.of(model.tokenizer, size)).sum()) == 1
    assert masks.of(model.tokenizer, size) is masks.of(model.tokenizer, size)
    assert len(asked) == size
    padded = masks.apply(torch.zeros(size + 5), model.tokenizer)
    assert bool((padded[size:] == 0).all())
