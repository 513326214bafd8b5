"""Chat templates rendered in a process of their own, whose memory and time are bounded. Run as a file, not imported.

A template is a program that came with somebody's tokenizer. transformers' sandbox keeps it from Python's objects, but
not from loops within loops, powers of powers or texts of gigabytes, and a thread that works on one can't be ended.

Reads one request a line (JSON: ``template``, ``messages``, ``names``, ``reply``) and answers with one line: ``text`` or
``refused``. It imports nothing of the workbench.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ROOM = 512 << 20
"""Bytes that a template may use beyond what the process had at its start."""
SECONDS = 10
"""Of processor time for one template."""
MOST_CHARACTERS = 4_000_000
"""Of a rendered conversation: a million tokens."""


def bound_memory() -> None:
    """Let the process grow by ``ROOM`` at most, where the system can say how large it is."""
    try:
        import resource

        with open("/proc/self/status", encoding="ascii") as file:
            size = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmSize"))
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    except (ImportError, OSError, StopIteration, ValueError):
        return  # elsewhere the time limit alone holds


def bound_time() -> None:
    """Let the process work for ``SECONDS`` more, also when nobody is left to end it."""
    try:
        import resource
    except ImportError:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + SECONDS + 1, resource.RLIM_INFINITY))


def rendered(request: dict[str, Any]) -> dict[str, str]:
    """The answer to one request."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, _ = render_jinja_template(
            conversations=[request["messages"]],
            chat_template=request["template"],
            add_generation_prompt=request["reply"],
            **request["names"],
        )
        text = str(texts[0])
    except MemoryError:
        return {"refused": f"it takes more than {ROOM >> 20} MB"}
    except Exception as error:  # noqa: BLE001  # why: a template may raise anything; the process that asked is told
        return {"refused": f"{type(error).__name__}: {str(error)[:1000]}"}
    if len(text) > MOST_CHARACTERS:
        return {"refused": f"it wrote {len(text):,} characters; the limit is {MOST_CHARACTERS:,}"}
    return {"text": text}


def main() -> None:
    from transformers.utils import chat_template_utils  # noqa: F401  # what it takes is not the template's

    bound_memory()
    for line in sys.stdin:
        bound_time()
        sys.stdout.write(json.dumps(rendered(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
