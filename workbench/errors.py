"""Every error the workbench raises on purpose, as one tree.

::

    WorkbenchError
    ├── ModelError                  a model can't be found, fetched, read or run
    │   ├── UnknownModelError       the name is neither known, nor a path, nor reachable
    │   ├── ModelFileError          a file is truncated, corrupt or of another format
    │   ├── FetchError              a download failed or did not match its sha256
    │   ├── UnsupportedModelError   a real model, but not one this backend can run
    │   └── UnknownHookError        no hook of that name (also a KeyError)
    ├── PromptError                 a prompt is empty, too long or not tokenisable (also a ValueError)
    ├── InvalidActionError          a mod answered with something the event does not allow
    │                               (also a ValueError)
    ├── FlowError                   a flow, a question or an answer's strategy is wrong, or can't go on
    │                               (also a ValueError)
    ├── CarryError                  a carry can't be set up, run or trained as asked (also a ValueError)
    ├── ChainError                  a Markov chain can't be set up, go on, or be read (also a ValueError)
    ├── CompatError                 names or mods of the public SDK can't be provided or loaded as asked
    │                               (also a ValueError)
    ├── ModError                    a mod raised; carries mod, event, step and the trace so far
    ├── TraceError                  a trace can't be written, read or replayed
    ├── ReportError                 a report can't be made from what it was given
    ├── SweepError                  a sweep is wrong, or can't go on where it was to be written (also a ValueError)
    ├── BudgetError                 a stated limit (memory, work) would be exceeded
    ├── ArithmeticRefused           a text is no arithmetic (also a ValueError; lives in workbench.mods)
    └── ModSpecError                no ready mod of that name (also a ValueError; lives in workbench.mods)

A message says what was given, what is allowed and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

__all__ = [
    "BudgetError",
    "CarryError",
    "ChainError",
    "CompatError",
    "FetchError",
    "FlowError",
    "InvalidActionError",
    "ModError",
    "ModelError",
    "ModelFileError",
    "PromptError",
    "ReportError",
    "SweepError",
    "TraceError",
    "UnknownHookError",
    "UnknownModelError",
    "UnsupportedModelError",
    "WorkbenchError",
    "did_you_mean",
]


class WorkbenchError(Exception):
    """Root of the tree: catch this to catch everything the workbench raises on purpose.

    Where a run was going, ``trace`` holds its records so far.
    """

    trace: Any = None


class ModelError(WorkbenchError):
    """A model can't be found, fetched, read or run."""


class UnknownModelError(ModelError):
    """The name is neither a known model, nor a local path, nor a reachable hub name."""


class ModelFileError(ModelError):
    """A model file is truncated, corrupt or of another format than its name says."""


class FetchError(ModelError):
    """A download failed or its sha256 is not the pinned one."""


class UnsupportedModelError(ModelError):
    """The model is real, but the chosen backend can't run it."""


class UnknownHookError(ModelError, KeyError):
    """No hook of that name in this model."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class PromptError(WorkbenchError, ValueError):
    """A prompt is empty, longer than the model's context, or can't be tokenised."""


class InvalidActionError(WorkbenchError, ValueError):
    """A mod answered an event with something that event does not allow."""


class FlowError(WorkbenchError, ValueError):
    """A flow, a question or the strategy of an answer is wrong, or a flow can't go on."""


class CarryError(WorkbenchError, ValueError):
    """A carry can't be set up, run or trained as asked: band, adapter, pause token, spans or model."""


class ChainError(WorkbenchError, ValueError):
    """A Markov chain over texts can't be set up as asked, can't go on exactly, or can't be read from disk."""


class CompatError(WorkbenchError, ValueError):
    """Names of the public mod SDK can't be provided as asked, or a mod written for it can't be loaded or run."""


class ModError(WorkbenchError):
    """A mod raised. The original exception is ``__cause__``; ``trace`` holds the run so far."""


class TraceError(WorkbenchError):
    """A trace can't be written, read or replayed."""


class ReportError(WorkbenchError):
    """A report can't be made from what it was given."""


class SweepError(WorkbenchError, ValueError):
    """A sweep is wrong as written, or can't go on in the directory it was to be kept in."""


class BudgetError(WorkbenchError):
    """A stated limit (memory or work) would be exceeded."""


def did_you_mean(word: str, choices: Iterable[str], *, limit: int = 3) -> str:
    """Return ``" Did you mean 'x' or 'y'?"`` for near misses of ``word``, else an empty string."""
    near = get_close_matches(word, list(choices), n=limit, cutoff=0.6)
    if not near:
        return ""
    return " Did you mean " + " or ".join(repr(name) for name in near) + "?"
