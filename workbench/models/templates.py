"""A stranger's chat template, rendered in another process within bounds of memory and time."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import PromptError

__all__ = ["render_within_bounds"]

SECONDS = 12.0
"""How long an answer is waited for; the process itself gives up after 10 seconds of work."""
START_SECONDS = 60.0
"""How long the first answer is waited for, which takes an import of transformers: a second or two."""
MOST_BYTES = 32 << 20
"""Longest answer, in bytes of escaped JSON."""


class _Worker:
    """The process, begun when it is first needed and again after it had to be ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer, or None if it did not come in time and the process was ended."""
        with self._lock:
            begun = self._begin()
            process = self._process
            assert process is not None
            assert process.stdin is not None
            assert process.stdout is not None
            timer = threading.Timer(START_SECONDS if begun else SECONDS, process.kill)
            timer.daemon = True
            timer.start()
            try:
                process.stdin.write(json.dumps(request, default=_inert).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline(MOST_BYTES)
            except BrokenPipeError:
                line = b""
            finally:
                timer.cancel()
            if line.endswith(b"\n"):
                return dict(json.loads(line))
            self._end()
            return None

    def close(self) -> None:
        with self._lock:
            self._end()

    def _begin(self) -> bool:
        """Have a process that lives and is this one's own; whether it is new."""
        if self._process is not None and self._owner != os.getpid():  # a fork has its parent's, which it must not use
            self._process = None
        if self._process is not None and self._process.poll() is None:
            return False
        self._end()
        self._process = subprocess.Popen(
            # -P: the folder of the file is no place to import from. A session of its own: Ctrl-C is not for it.
            [sys.executable, "-P", str(Path(__file__).with_name("template_worker.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._owner = os.getpid()
        return True

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


_worker = _Worker()
atexit.register(_worker.close)


def render_within_bounds(
    template: str, messages: Sequence[Mapping[str, Any]], *, names: Mapping[str, Any], reply: bool
) -> str:
    """What a chat template makes of messages; ``names`` are the special tokens by name.

    :raises PromptError: the template refuses them, takes too long, or asks for too much memory.
    """
    told = [{key: value for key, value in message.items() if value is not None} for message in messages]
    answer = _worker.ask({"template": template, "messages": told, "names": dict(names), "reply": reply})
    if answer is None:
        raise PromptError(
            "the model's chat template was cut off: it did not end within 10 seconds or went beyond its memory. "
            "Give the prompt as text instead."
        )
    if "text" not in answer:
        raise PromptError(f"the model's chat template refuses these messages: {answer.get('refused')}")
    return str(answer["text"])


def _inert(value: Any) -> str:
    """What is no JSON data becomes its type's name, as transformers has it."""
    return f"<{type(value).__name__}>"
