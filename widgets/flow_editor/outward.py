"""What a flow's window tells the browser: the draft as it changes, and the run that is going."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from workbench.flows import Problem
from workbench.models import HookedModel
from workbench.reports import legible

from ..base import Outbox, Window
from .attempts import Attempt, Attempts
from .draft import Draft
from .preview import FRESH
from .telling import document_told, in_parts, run_told
from .view import drawn

__all__ = ["Outward"]

LARGEST_FIRST = 100_000
"""Characters of a document that travel in the message that opens the window, beside its script."""


class Outward(Window):
    """A window on a draft, and on the tries of it if there is a model."""

    def __init__(self, draft: Draft, model: HookedModel | None, prompt: str, told: str) -> None:
        self.model = model
        self._draft = draft
        self._told = told
        self._outbox = Outbox(self._send_progress)
        self._attempts = None if model is None else Attempts(model, self._outbox.touch, self.notice)
        self._shown = 0
        self._sent: dict[str, dict[str, Any]] = {}
        """The boxes that the browser has."""
        self._lock = threading.RLock()
        """Messages of the browser may come in a thread of their own, beside what runs in a cell."""
        super().__init__(self._state(prompt))

    def check(self) -> list[Problem]:
        """What looks wrong, as the window shows it at each question; with the model's tokenizer if there is a model."""
        return self._draft.problems(None if self.model is None else self.model.tokenizer)

    @property
    def runs(self) -> tuple[Attempt, ...]:
        """Every try so far: ``trace``, ``result`` (at its end), ``walk()``, ``fed``, ``reused``, ``error`` of each."""
        return () if self._attempts is None else tuple(self._attempts.all)

    @property
    def status(self) -> str:
        """``idle``, ``running``, ``stopping`` or ``failed``; ``no model`` where there is none."""
        return "no model" if self._attempts is None else self._attempts.state

    def _boxes(self) -> dict[str, dict[str, Any]]:
        return drawn(self._draft, self.check())

    def _state(self, prompt: str) -> dict[str, Any]:
        """With the whole document for the first picture, unless that is too large for one message."""
        model = self.model
        first = document_told(self._draft, self._boxes(), {}, saved=self._told)
        return {
            "model": None if model is None else legible(model.name),
            "chat": model is not None and model.tokenizer.has_chat_template,
            "prompt": prompt,
            "strategies": FRESH,
            "first": first if len(json.dumps(first)) <= LARGEST_FIRST else None,
        }

    def _send_document(self, look_at: str | None, say: str = "", edit: Any = None) -> None:
        boxes = self._boxes()
        about = {"look_at": look_at, "say": say, "saved": self._told, "edit": edit}
        content = document_told(self._draft, boxes, self._sent, **about)
        self._sent = boxes
        self._tell_parts("document", content)

    def _tell_parts(self, kind: str, content: Mapping[str, Any]) -> None:
        for about, part in in_parts(kind, content):
            self.tell("part", about, [part])

    def _send_progress(self) -> None:
        runs = self.runs
        told = [[str(index), f"{index + 1}: {each.told}"] for index, each in enumerate(runs)]
        about: dict[str, Any] = {"state": self.status, "runs": told, "shown": self._shown}
        if self.model is not None and runs:
            shown = runs[self._shown]
            about["run"] = {**run_told(shown, self.model), "same": shown.text == self._draft.text}
        self._tell_parts("progress", about)

    def close(self) -> None:
        """Stop what is running and free everything."""
        if not self._open:
            return
        if self._attempts is not None:
            self._attempts.close()
        self._outbox.close()
        super().close()
        self._attempts, self._sent = None, {}
