"""One generation at a time in a worker thread: started, stopped, looked at while it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench import SamplingParams, Session
from workbench.engine import Mod, Result
from workbench.models import HookedModel
from workbench.trace import WARNING, Record, Trace

from ..base import Background, Task
from .hand import Hand

__all__ = ["PlayedRun", "Runner", "Settings"]


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
    seconds: float = 0.0
    """From beginning to end, with the time that it was held."""


class Runner(Background):
    """Runs of one model. ``changed`` is also called after every record, from the worker's thread.

    ``warned`` gets what the engine and mods warn of, ``refused`` what a person asked for and can't have.
    """

    def __init__(
        self,
        model: HookedModel,
        changed: Callable[[], None],
        *,
        refused: Callable[[str], None],
        warned: Callable[[str], None],
    ) -> None:
        super().__init__(changed, warned)
        self.model = model
        self.runs: list[PlayedRun] = []
        self.hand: Hand | None = None
        self._refused = refused

    def start(self, settings: Settings) -> bool:
        """Begin a run; does nothing and returns false while one is going.

        :raises PromptError: a prompt that can't be used; nothing was started then.
        """
        return self.begin(lambda: self._prepare(settings))

    def close(self) -> None:
        super().close()
        self.runs.clear()
        self._refused = lambda message: None

    def _prepare(self, settings: Settings) -> Task:
        number = len(self.runs) + 1
        hand = Hand(self._changed, stepping=settings.stepping, prefix=settings.prefix, refused=self._refused)
        about = {"model": {"name": self.model.name}, "requests": {}}
        run = PlayedRun(number=number, settings=settings, trace=Trace(about))
        session = Session(
            self.model,
            [hand, *settings.mods],
            capture=settings.capture,
            sinks=[lambda record: self._heard(run, record)],
        )
        # Bad arguments raise here, in the caller's thread.
        records = session.stream(
            settings.prompt, max_new_tokens=settings.max_new_tokens, sampling=settings.sampling, seed=settings.seed
        )
        self.hand = hand
        self.runs.append(run)
        began = time.monotonic()

        def work() -> None:
            for _ in records:
                if self.stopping:  # a stop that came before the session knew of the run
                    session.stop()

        def stop() -> None:
            session.stop()
            hand.end()

        def ended(error: str) -> None:
            run.error, run.seconds, self.hand = error, time.monotonic() - began, None
            results: Sequence[Result] = session.last_results
            if results:
                run.result, run.trace = results[0], results[0].trace
                results[0].release()

        return Task(name=f"workbench-live-run-{number}", work=work, stop=stop, ended=ended)

    def _heard(self, run: PlayedRun, record: Record) -> None:
        run.trace(record)
        if record.kind == WARNING:  # Python shows the same warning once and no more; a run has its own each time
            self._warned(str(record.data["message"]))
        self._changed()
