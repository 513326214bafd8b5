"""What a live run tells: its state for the browser, the list of runs, and the form that stays without a kernel."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torch import Tensor

from workbench.engine import Mod
from workbench.errors import ReportError
from workbench.models import HookedModel
from workbench.mods import MODS
from workbench.reports import legible
from workbench.trace import Trace

from ..base import Outbox, Window, marked
from ..reading import COLUMNS, ORIGINS, Reading, page
from ..trace_explorer import explorer_html
from .hand import Held
from .runner import PlayedRun, Runner

__all__ = ["Telling", "prompt_told"]

UNPICKABLE = frozenset({"ask_when_unsure", "watch", "steer"})
"""Ready mods that need more than plain parameters, or a terminal; steering has its own control."""
NO_CACHE = "The KV cache of this model is switched off: it failed its check at load. Results are exact, and slow."


class Telling(Window):
    """A window on the runs of one model, one of which is shown."""

    def __init__(
        self,
        model: HookedModel,
        prompt: str,
        *,
        mods: Sequence[Mod],
        directions: Mapping[str, Tensor],
        capture: str | None,
    ) -> None:
        self.model = model
        self.mods = tuple(mods)
        self.directions = dict(directions)
        self.capture = capture
        self._outbox = Outbox(lambda: self.guarded(self._send_progress, kind="progress"))
        self._runner = Runner(model, self._outbox.touch, refused=self.report, warned=self.notice)
        self._shown = 0
        self._sent: list[Any] = []
        self._anew = threading.Event()
        super().__init__(self._state(prompt))
        self._begin_notices()

    @property
    def status(self) -> str:
        """``idle``, ``running``, ``stopping`` or ``failed``."""
        return self._runner.state

    @property
    def runs(self) -> tuple[PlayedRun, ...]:
        """Every run so far, each with ``trace``, ``result`` (at its end), ``settings`` and ``error``."""
        return tuple(self._runner.runs)

    @property
    def trace(self) -> Trace:
        """The trace of the run that is shown; it grows while the run goes.

        :raises ReportError: nothing was run yet.
        """
        return self._run_shown().trace

    def _numbered(self, number: int) -> PlayedRun:
        if not 1 <= number <= len(self._runner.runs):
            raise ReportError(f"no run {number}; there are {len(self._runner.runs)}")
        return self._runner.runs[number - 1]

    def _run_shown(self) -> PlayedRun:
        return self._numbered(self._shown + 1)

    def _show(self, index: int) -> None:
        """Show another run, from its first token on."""
        self._shown = index
        self._anew.set()  # heeded by the thread that sends: a message half made must not pass for the first
        self._outbox.touch()

    def _begin_notices(self) -> None:
        """What was warned of in the last run is over; what holds for every run stays."""
        self.notices = [] if self.model.cache_works else [NO_CACHE]

    def _reading(self, run: PlayedRun) -> Reading:
        # A copy of the list: the worker appends to it meanwhile.
        return Reading(Trace(run.trace.run, list(run.trace.records)), "r0", self.model)

    # What the browser is told --------------------------------------------------------------------------------

    def _state(self, prompt: str) -> dict[str, Any]:
        return {
            "columns": list(COLUMNS),
            "origins": list(ORIGINS),
            "model": legible(self.model.name),
            "chat": self.model.tokenizer.has_chat_template,
            "prompt": prompt,
            "layers": self.model.n_layers,
            "directions": list(self.directions),
            "mods": [_offered(name) for name in sorted(MODS) if name not in UNPICKABLE],
            "own": [legible(mod.name) for mod in self.mods],
        }

    def progress(self) -> dict[str, Any]:
        """What the window says of the run that is going: state, held event, error, list of runs."""
        runner = self._runner
        run = self._runner.runs[self._shown] if self._runner.runs else None
        hand = runner.hand
        return {
            "state": runner.state,
            "stepping": hand is not None and hand.stepping,
            "held": None if hand is None or hand.held is None else self._held(hand.held),
            "shown": self._shown,
            "runs": [[str(i), f"{i + 1}: {each.settings.told}"] for i, each in enumerate(runner.runs)],
            "error": "" if run is None else run.error,
        }

    def _held(self, held: Held) -> dict[str, Any]:
        text = self.model.tokenizer.token_text
        return {
            "number": held.number, "event": held.event, "step": held.step, "position": held.position, "acts": held.acts,
            "p": None if held.logprob is None else math.exp(held.logprob),
            "tokens": [marked(text(token)) for token in held.tokens],
            "candidates": [[token, marked(text(token)), math.exp(value)] for token, value in held.candidates],
        }  # fmt: skip

    def _send_progress(self) -> None:
        """What is new since the last message: items from the first that changed on."""
        if self._anew.is_set():
            self._anew.clear()
            self._sent = []
        told = self.progress()
        if not self._runner.runs or not self._run_shown().trace.records:
            self.tell("progress", told)
            return
        reading = self._reading(self._run_shown())
        now = [(i.life.uid, i.branch, i.life.removed_step, i.life.raw_logprob) for i in reading.items]
        same = next(
            (n for n, (a, b) in enumerate(zip(self._sent, now, strict=False)) if a != b), min(len(self._sent), len(now))
        )
        found = page(reading, same)
        self._sent = now[: same + found["count"]]
        history = reading.history
        told["told"] = f"{len(history.live)} tokens, {len(history.every) - len(history.live)} taken back"
        told["reason"] = history.reason or ""
        told["idle"] = [] if self._runner.busy else idle_mods(self._run_shown())
        numbers = found.pop("numbers")
        self.tell("progress", {**told, "page": found}, [numbers])

    # Without a browser ---------------------------------------------------------------------------------------

    def static_html(self) -> str:
        if not self._runner.runs:
            name = escape(legible(self.model.name))
            return f"<p><b>Live run of {name}</b>: nothing was run. With a live kernel, press Run in the window.</p>"
        run = self._run_shown()
        if not run.trace.records:
            return f"<p><b>Live run</b>: {escape(legible(run.error or 'begun'))}</p>"
        return explorer_html([self._reading(run)])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.status}, {len(self.runs)} runs>"

    def close(self) -> None:
        """Stop what is running and free everything; the traces of ``runs`` go with it."""
        if not self._open:
            return
        self._runner.close()
        self._outbox.close()
        super().close()
        self._sent = []


def idle_mods(run: PlayedRun) -> list[str]:
    """The mods of a run that did nothing in it: a name that was misspelt in a parameter looks just so."""
    acted = {record.mod for record in run.trace.records}
    return [legible(mod.name) for mod in run.settings.mods if mod.name not in acted]


def prompt_told(prompt: Any) -> str:
    """A prompt in a few words, for the list of runs."""
    text = prompt if isinstance(prompt, str) else "token ids"
    if not isinstance(prompt, str) and prompt and isinstance(prompt[-1], Mapping):
        text = str(prompt[-1].get("content", ""))
    text = " ".join(legible(text).split())
    return text if len(text) <= 40 else f"{text[:39]}…"


def _offered(name: str) -> dict[str, str]:
    """A ready mod as the picker shows it: its name, its parameters, its first sentence."""
    factory = MODS[name]
    said = (inspect.getdoc(factory) or "").split("\n\n")[0].replace("\n", " ")
    return {"name": name, "takes": ", ".join(inspect.signature(factory).parameters), "said": said}
