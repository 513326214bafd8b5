"""Names, paths and files: a broken file is named with what is wrong, before anything heavy starts."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_fakes import FakeIndex, install, write_gguf, write_model_dir
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import ModelFileError, UnknownModelError, UnsupportedModelError
from workbench.models import checkpoints, entries
from workbench.models.gguf_header import read_header
from workbench.models.model_dir import check_model_dir


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


# --- names ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smollm2", r"unknown model 'smollm2'\. Did you mean 'smollm2-135m-instruct'\?"),
        ("Gemma-3-270M", r"Did you mean 'gemma-3-270m'\?"),
        ("zzz", r"unknown model 'zzz'\. Known models: smollm2-135m-instruct, gemma-3-270m"),
        ("", r"unknown model ''\. Known models"),
        ("./nowhere", r"no file or directory './nowhere'"),
        ("nowhere.gguf", r"no file or directory 'nowhere.gguf'"),
        ("a/b/c", r"no file or directory 'a/b/c'"),
        (Path("nowhere"), r"no file or directory 'nowhere'"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_does(name: str | Path, expected: str) -> None:
    with pytest.raises(UnknownModelError, match=expected):
        checkpoints.path(name)


def test_a_hub_name_offline_fails_at_once_and_says_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("touched the network"))
    start = time.monotonic()
    with pytest.raises(UnknownModelError, match=r"offline mode is on.*the path of a directory"):
        checkpoints.path("someone/some-model")
    assert time.monotonic() - start < 2
    with pytest.raises(UnknownModelError, match="The same model is known here as 'gemma-3-270m'"):
        checkpoints.path("google/gemma-3-270m")


# --- directories ---


def test_a_whole_directory_is_returned_as_it_is(tmp_path: Path) -> None:
    directory = write_model_dir(tmp_path / "model")
    assert checkpoints.path(directory) == directory
    assert checkpoints.path(str(directory)) == directory


def test_weights_in_parts_are_found_by_their_index(tmp_path: Path) -> None:
    directory = write_model_dir(tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "part-1.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "part-1.safetensors", "b": "part-1.safetensors"}}))
    assert check_model_dir(directory) == directory
    index.write_text(json.dumps({"weight_map": {"a": "part-2.safetensors"}}))
    with pytest.raises(ModelFileError, match=r"index\.json lists part-2\.safetensors, which is not in"):
        check_model_dir(directory)


def with_header(header: Any, data: int = 0) -> bytes:
    """A safetensors file of any header and ``data`` zero bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", None, r"has no config\.json.*it holds: model\.safetensors, tokenizer\.json"),
        ("config.json", b"{", r"config\.json is not valid JSON"),
        ("config.json", b"[]", r"holds a JSON list, expected an object"),
        ("config.json", b"{}", r"names no 'model_type'"),
        ("tokenizer.json", None, r"has no tokenizer \(one of tokenizer\.json"),
        ("model.safetensors", None, r"has no weights: neither"),
        ("model.safetensors", b"", r"truncated or no safetensors file \(0 bytes\)"),
        ("model.safetensors", b"version https://git-lfs", r"Git LFS pointer.*git lfs pull"),
        ("model.safetensors", struct.pack("<Q", 2**60), r"truncated or no safetensors file"),
        ("model.safetensors", with_header(b"{]"), r"unreadable safetensors header"),
        ("model.safetensors", with_header([1]), r"no JSON object"),
        ("model.safetensors", with_header({"a": 1}), r"entry for tensor 'a' is malformed"),
        (
            "model.safetensors",
            with_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, 4),
            r"tensor 'a' has offsets that don't fit",
        ),
        (
            "model.safetensors",
            with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 3),
            r"its header promises \d+ bytes, it has \d+.*Download it again",
        ),
    ],
)
def test_a_broken_directory_names_the_file(tmp_path: Path, name: str, content: bytes | None, expected: str) -> None:
    directory = write_model_dir(tmp_path / "model")
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=expected):
        checkpoints.path(directory)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    directory = write_model_dir(tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match=r"It has pytorch_model\.bin, but pickles can run code"):
        checkpoints.path(directory)
    with pytest.raises(ModelFileError, match=r"is a weight file; give the directory"):
        checkpoints.path(directory / "pytorch_model.bin")


def test_safetensors_cut_anywhere_are_refused(tmp_path: Path) -> None:
    directory = write_model_dir(tmp_path / "model")
    whole = (directory / "model.safetensors").read_bytes()
    for length in range(len(whole)):
        (directory / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"model\.safetensors"):
            check_model_dir(directory)


# --- GGUF files ---


def gguf_bytes(*, version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("content", "error", "expected"),
    [
        (b"", ModelFileError, r"has 0 bytes, too few"),
        (b"PK\3\4" + bytes(40), ModelFileError, r"not a GGUF file: it starts with b'PK"),
        (gguf_bytes(version=1), UnsupportedModelError, r"has GGUF version 1; .*versions \(2, 3\)"),
        (gguf_bytes(version=3 << 24), UnsupportedModelError, r"is big-endian"),
        (gguf_bytes(tensors=2**63), ModelFileError, r"claims \d+ tensors, which a file of 24 bytes"),
        (gguf_bytes(keys=2**63), ModelFileError, r"claims \d+ metadata keys"),
        (
            gguf_bytes(keys=1, rest=struct.pack("<Q", 2**62) + bytes(40)),
            ModelFileError,
            r"needs 4611686018427",
        ),
        (gguf_bytes(keys=1, rest=key(b"a", 99, bytes(8))), ModelFileError, r"'a' has type 99"),
        (gguf_bytes(keys=2, rest=2 * key(b"a", 4, bytes(4))), ModelFileError, r"'a' appears twice"),
        (
            gguf_bytes(keys=1, rest=key(b"a", 9, struct.pack("<IQ", 8, 2**61))),
            ModelFileError,
            r"the array 'a' .*needs 18446744073709551616 bytes",
        ),
        (
            gguf_bytes(keys=1, rest=key(b"a", 9, struct.pack("<IQ", 4, 2**61))),
            ModelFileError,
            r"the array 'a'.*the file ends at",
        ),
        (
            gguf_bytes(keys=1, rest=key(b"a", 9, struct.pack("<IQ", 9, 1))),
            ModelFileError,
            r"elements of type 9; numbers or strings",
        ),
        (gguf_bytes(keys=1, rest=key(b"a", 4, bytes(4))), ModelFileError, r"no general\.architecture"),
    ],
)
def test_an_absurd_gguf_header_is_refused(
    tmp_path: Path, content: bytes, error: type[Exception], expected: str
) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(error, match=expected):
        checkpoints.path(file)


@given(length=st.integers(0, 79_903))
def test_a_gguf_cut_anywhere_is_refused(gguf: Path, tmp_path_factory: Any, length: int) -> None:
    file = tmp_path_factory.mktemp("cut") / "cut.gguf"
    file.write_bytes(gguf.read_bytes()[:length])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        read_header(file)


@given(position=st.integers(0, 8_000), byte=st.integers(0, 255))
def test_a_changed_header_byte_is_read_or_refused(gguf: Path, tmp_path_factory: Any, position: int, byte: int) -> None:
    content = bytearray(gguf.read_bytes())
    content[position] = byte
    file = tmp_path_factory.mktemp("bent") / "bent.gguf"
    file.write_bytes(content)
    with contextlib.suppress(ModelFileError, UnsupportedModelError):
        read_header(file)


def test_sizes_that_no_tensor_backs_are_refused(gguf: Path, tmp_path: Path) -> None:
    content = gguf.read_bytes()
    place = content.index(b"llama.block_count") + len(b"llama.block_count") + 4
    file = tmp_path / "layers.gguf"
    file.write_bytes(content[:place] + struct.pack("<I", 2**31) + content[place + 4 :])
    with pytest.raises(ModelFileError, match=r"llama\.block_count is 2147483648, but its tensors allow at most 11"):
        checkpoints.path(file)


def test_a_size_that_is_not_stated_is_not_guessed(gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "sizeless.gguf"
    file.write_bytes(gguf.read_bytes().replace(b"llama.block_count", b"llama.block_cxunt"))
    with pytest.raises(ModelFileError, match=r"llama\.block_count is not in its metadata"):
        checkpoints.path(file)


def test_numbers_that_are_no_numbers_are_refused(gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "nan.gguf"
    file.write_bytes(gguf.read_bytes()[:-4] + struct.pack("<f", float("nan")))
    with pytest.raises(ModelFileError, match=r"nan\.gguf is corrupt: 1 weights hold NaN or infinity"):
        checkpoints.path(file)


def test_a_tokenizer_that_cannot_be_built_is_explained(gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "odd.gguf"
    file.write_bytes(gguf.read_bytes().replace(b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0gpt9"))
    with pytest.raises(UnsupportedModelError, match=r"odd\.gguf is a readable GGUF .* tokenizer 'gpt9'"):
        checkpoints.path(file)


def test_layers_that_the_model_does_not_take_are_mentioned(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "two.gguf", layers=2).read_bytes()
    place = content.index(b"llama.block_count") + len(b"llama.block_count") + 4
    (tmp_path / "two.gguf").write_bytes(content[:place] + struct.pack("<I", 1) + content[place + 4 :])
    with pytest.warns(UserWarning, match=r"two\.gguf: \d+ of the file's numbers have no place"):
        checkpoints.path(tmp_path / "two.gguf")


def test_transformers_gets_its_bars_and_notes_back(gguf: Path, tmp_path: Path) -> None:
    from transformers import modeling_gguf_pytorch_utils as loader
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled(), loader.tqdm)
    with pytest.raises(ModelFileError, match="lacks 1 weights"):
        checkpoints.path(write_gguf(tmp_path / "holes.gguf", leave_out="output_norm.weight"))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), loader.tqdm) == before


def test_a_gguf_file_becomes_a_directory_that_loads(gguf: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = checkpoints.path(gguf)
    assert check_model_dir(directory) == directory
    model: Any = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    assert model.config.num_hidden_layers == 1
    assert not hasattr(model.config, "quantization_config")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12")) == ["a", "ĠĠ", "1", "2"]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "é"}], tokenize=False)
    assert tokenizer.decode(tokenizer.encode(chat)) == chat == "<|im_start|>user\né<|im_end|>\n"


def test_a_gguf_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "holes.gguf", leave_out="blk.0.ffn_up.weight")
    with pytest.raises(ModelFileError, match=r"holes\.gguf lacks 1 weights .*mlp\.up_proj"):
        checkpoints.path(file)
    assert not any(status.name == str(file) for status in checkpoints.listing())


def test_a_gguf_file_is_converted_once_per_content(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index: FakeIndex = install(monkeypatch, opt_in=False)
    file = shutil.copy(gguf, tmp_path / "mine.gguf")
    first = checkpoints.path(file)
    with monkeypatch.context() as patched:
        patched.setattr(entries, "learn_sha256", lambda *_: pytest.fail("hashed again"))
        assert checkpoints.path(str(file)) == first
    assert index.conversions == 1
    assert checkpoints.cached(str(file))
    assert (first / "model.gguf").read_bytes() == file.read_bytes()
    write_gguf(file, layers=2)
    assert checkpoints.path(file) != first
    assert checkpoints.remove(str(file)) > 0
    assert file.is_file()
    assert not checkpoints.cached(str(file))
