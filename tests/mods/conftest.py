"""Two tiny models: one token a byte, and one whose tokenizer merges a sum's end with its answer's beginning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench import load
from workbench.models import Tokenizer

MERGES = [("=", "Ġ"), ("=Ġ", "4"), ("=", "-"), ("=", "="), ("c", "a"), ("a", "t"), ("Ġc", "at"), ("Ġ", "c")]


@pytest.fixture(scope="session")
def model() -> Any:
    return load("tiny-llama")


@pytest.fixture(scope="session")
def merging_model() -> Any:
    """``"= "``, ``"= 4"``, ``"=-"``, ``"=="``, ``"ca"``, ``"at"`` and ``" cat"`` are single tokens."""
    from tokenizers import Tokenizer as RawTokenizer
    from transformers import PreTrainedTokenizerFast

    found = load("tiny-llama")
    raw = json.loads(found.tokenizer.hf.backend_tokenizer.to_str())
    vocab = raw["model"]["vocab"]
    spare = [text for text in vocab if ord(text[0]) > 0x180 or (len(text) == 1 and "\u00c0" <= text <= "\u00ff")]
    for left, right in MERGES:
        vocab[left + right] = vocab.pop(spare.pop())
    raw["model"]["merges"] = [list(pair) for pair in MERGES]
    hf = PreTrainedTokenizerFast(
        tokenizer_object=RawTokenizer.from_str(json.dumps(raw)), bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    found.tokenizer = Tokenizer(hf)
    return found
