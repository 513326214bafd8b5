"""One generation at a time in a worker thread: started, stopped, looked at while it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench import SamplingParams, Session
from workbench.engine import Mod, Result
from workbench.errors import WorkbenchError
from workbench.models import HookedModel
from workbench.trace import Record, Trace

from .hand import Hand

__all__ = ["PlayedRun", "Runner", "Settings"]

JOIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run is made with. ``prompt`` is text, chat messages or token ids."""

    prompt: Any
    max_new_tokens: int = 64
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    mods: tuple[Mod, ...] = ()
    capture: str | None = None
    stepping: bool = False
    prefix: tuple[int, ...] = ()
    told: str = ""
    """How the run is called in the list."""


@dataclass(slots=True, kw_only=True)
class PlayedRun:
    """One run: what it was made with, its trace (which grows while it goes), and its result at the end."""

    number: int
    settings: Settings
    trace: Trace
    result: Result | None = None
    error: str = ""
    began: float = 0.0
    seconds: float = 0.0
    """Time of the run without the time that it was held."""


class Runner:
    """The state machine idle → running → stopping → idle or failed, and the thread behind it.

    ``changed`` is called from the worker's thread after every record and at every change of state; it must be quick.
    """

    def __init__(self, model: HookedModel, changed: Callable[[], None], refused: Callable[[str], None]) -> None:
        self.model = model
        self.state = "idle"
        self.runs: list[PlayedRun] = []
        self.hand: Hand | None = None
        self._changed = changed
        self._refused = refused
        self._session: Session | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        return self.state in ("running", "stopping")

    def start(self, settings: Settings) -> bool:
        """Begin a run; does nothing and returns false while one is going.

        :raises PromptError: a prompt that can't be used; nothing was started then.
        """
        with self._lock:
            if self.busy:
                return False
            number = len(self.runs) + 1
            hand = Hand(self._changed, stepping=settings.stepping, prefix=settings.prefix, refused=self._refused)
            about = {"model": {"name": self.model.name}, "requests": {}}
            run = PlayedRun(number=number, settings=settings, trace=Trace(about))
            mods = [hand, *settings.mods]
            session = Session(
                self.model, mods, capture=settings.capture, sinks=[lambda record: self._heard(run, record)]
            )
            # Bad arguments raise here, in the caller's thread.
            records = session.stream(
                settings.prompt, max_new_tokens=settings.max_new_tokens, sampling=settings.sampling, seed=settings.seed
            )
            self.hand, self._session, self.state = hand, session, "running"
            self.runs.append(run)
            run.began = time.monotonic()
            name = f"workbench-live-run-{number}"
            self._thread = threading.Thread(target=self._work, args=(run, records, session), name=name, daemon=True)
            self._thread.start()
            return True

    def stop(self) -> None:
        """End the run within one token; it is kept as far as it came. Twice does no harm."""
        with self._lock:
            if self.state != "running" or self.hand is None or self._session is None:
                return
            self.state = "stopping"
            self._session.stop()
            self.hand.end()
        self._changed()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the run; false if it still goes after so many seconds."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)
            return not thread.is_alive()
        return True

    def close(self) -> None:
        """Stop, wait for the thread and let go of everything: a kernel may remember a thread for long."""
        self.stop()
        self.wait(JOIN_SECONDS)
        self.runs.clear()
        self._thread = None
        self._changed, self._refused = lambda: None, lambda message: None

    # In the worker's thread --------------------------------------------------------------------------------

    def _heard(self, run: PlayedRun, record: Record) -> None:
        run.trace(record)
        self._changed()

    def _work(self, run: PlayedRun, records: Any, session: Session) -> None:
        state = "idle"
        try:
            for _ in records:
                # A stop that came before the session knew of the run.
                if self.state == "stopping":
                    session.stop()
        except WorkbenchError as error:
            state, run.error = "failed", str(error)
        except Exception as error:  # why: it would end with the thread, unseen; the window shows it  # noqa: BLE001
            state, run.error = "failed", f"{type(error).__name__}: {error}"
        finally:
            run.seconds = time.monotonic() - run.began
            results: Sequence[Result] = session.last_results
            if results:
                run.result, run.trace = results[0], results[0].trace
                results[0].release()
            with self._lock:
                self.state, self._session, self.hand = state, None, None
            self._changed()
