"""FlowEditor: author a flow of questions by mouse or keyboard, check it, try it on a model, go in again anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import SamplingParams
from workbench.errors import FlowError
from workbench.flows import FlowDefinition, FlowQuestion
from workbench.models import HookedModel

from ..base import script, style, typed_number
from .attempts import Attempts
from .autosave import opened
from .changes import read_value
from .draft import Draft, text_of
from .offered import offered_functions
from .outward import Outward
from .preview import allowed_next, strategy_of
from .static import COLUMNS, flow_html, flow_rows
from .telling import prompt_told, visits_frame

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FlowEditor"]

HERE = Path(__file__).parent
PARTS = ("forms", "strategy", "target", "inspector", "canvas", "trying")
"""Scripts of this folder beside its ``index.js``."""


class FlowEditor(Outward):
    """A window that authors flows.

    Python owns the document: each edit in the browser is one small change that the engine's own reader must accept, so
    what is drawn is what runs, and a change that can't be read is refused while what was typed stays in its field.
    ``flow`` is a flow, or one as JSON text; with neither it nor an existing ``path`` the canvas is empty. ``model`` is
    what "try it" runs on, and whose tokenizer previews and checks use.

    Every change is written to ``path`` (by default ``data/flows/NAME.json``, a new name beside it where that exists).
    A file at ``path`` is opened. ``FlowEditor()`` alone opens ``data/flows/untitled.json`` again.

    :raises FlowError: ``flow`` or the file can't be read, or both are given and differ.
    """

    _esm = script(HERE, own=PARTS)
    _css = style(HERE, "flow", "parts")

    def __init__(
        self,
        flow: FlowDefinition | FlowQuestion | str | None = None,
        model: HookedModel | None = None,
        *,
        path: str | Path | None = None,
        prompt: str = "",
    ) -> None:
        given = "" if flow is None else text_of(flow)
        self._save, told = opened(path, given)
        super().__init__(Draft(given or self._save.known or ""), model, prompt, told)
        self.answers.update(
            hello=self._answer_hello, functions=self._answer_functions, edit=self._answer_edit, undo=self._answer_step,
            redo=self._answer_step, load=self._answer_load, export=self._answer_export,
            preview=self._answer_preview, run=self._answer_run, stop=lambda content: self.stop(),
            show=self._answer_show, reenter=self._answer_reenter,
        )  # fmt: skip

    # The flow ------------------------------------------------------------------------------------------------

    @property
    def flow(self) -> FlowDefinition:
        """The flow as it is drawn, read anew from its document.

        :raises FlowError: there is no question yet.
        """
        return FlowDefinition.from_json(self.to_json())

    def to_json(self) -> str:
        """The document: what the engine reads, and byte for byte what it writes of it.

        :raises FlowError: there is no question yet.
        """
        if not self._draft.text:
            raise FlowError("the canvas is empty: add a question first")
        return self._draft.text

    def to_python(self) -> str:
        """Python source that builds the same flow."""
        return self.flow.to_python()

    def frame(self) -> pd.DataFrame:
        """Every question with its answers and where they lead, as the window draws them: one row per answer."""
        import pandas as pd

        return pd.DataFrame(flow_rows(self._boxes()), columns=list(COLUMNS))

    @property
    def path(self) -> Path:
        """The file that every change is written to."""
        return self._save.path

    def edit(self, do: str, **fields: Any) -> str | None:
        """One change, as the window sends them: ``add``, ``delete``, ``rename``, ``set``, ``unset``, ``route``,
        ``root``, ``flow``, ``move`` or ``tidy``; gives the question to look at next, if it says so.

        :raises FlowError: no such change, or the engine would not read the result; nothing was changed then.
        """
        group = fields.pop("group", None)
        return self._edited({"do": do, **fields}, group)

    def undo(self) -> bool:
        """Take the last change back; false if there is none."""
        with self._lock:
            return self._stepped(self._draft.undo(), "Undone")

    def redo(self) -> bool:
        """Do again what was undone last; false if there is nothing."""
        with self._lock:
            return self._stepped(self._draft.redo(), "Done again")

    def load(self, flow: FlowDefinition | FlowQuestion | str) -> None:
        """Put another flow in the place of this one; undo brings this one back.

        :raises FlowError: it can't be read.
        """
        with self._lock:
            self._draft.replace(text_of(flow), "import")
            self._changed(self._draft.document["root"] or None)

    def _edited(self, change: Mapping[str, Any], group: str | None, edit: Any = None) -> str | None:
        with self._lock:
            look_at = self._draft.apply(change, group)
            self._changed(look_at, edit=edit)
            return look_at

    def _stepped(self, step: Any, said: str) -> bool:
        if step is None:
            self._changed(None, say=f"Nothing to {'undo' if said == 'Undone' else 'do again'}.")
            return False
        self._changed(step.look_at, say=f"{said}: {step.told}.")
        return True

    def _changed(self, look_at: str | None, say: str = "", edit: Any = None) -> None:
        """Write the file and tell the browser; a file that can't be written is an error row, and nothing is lost."""
        try:
            if self._draft.text and self._draft.text != self._save.known:
                self._told = self._save.write(self._draft.text) or f"Saved to {self._save.path}."
        except FlowError as error:
            self.report(str(error))
        self._send_document(look_at, say, edit)

    # Trying it -----------------------------------------------------------------------------------------------

    def run(
        self,
        prompt: str | Sequence[Any],
        *,
        max_new_tokens: int = 24,
        sampling: SamplingParams | None = None,
        seed: int = 0,
    ) -> bool:
        """Run the flow as drawn and return at once; false, and nothing happens, while a run is going.

        :raises FlowError: no model, or no question yet.
        :raises PromptError: an empty or too long prompt.
        """
        started = self._trying_anew().start(
            self.to_json(), prompt, max_new_tokens=max_new_tokens, sampling=sampling or SamplingParams(), seed=seed,
            told=prompt_told(prompt),
        )  # fmt: skip
        return self._began(started)

    def reenter(self, run: int, visit: int, answer: str) -> bool:
        """Go on from visit ``visit`` (from 0) of run ``run`` (from 1) as if it had been answered so, from the same KV.

        :raises FlowError: no such run or visit, the answer does not fit, or the run's cache was given back.
        """
        return self._began(self._trying_anew().reenter(run, visit, answer))

    def stop(self) -> None:
        """End the run that is going, within one token; what there is stays."""
        if self._attempts is not None:
            self._attempts.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the run's end; false if it still goes."""
        return self._attempts is None or self._attempts.wait(seconds)

    def visits(self, run: int | None = None) -> pd.DataFrame:
        """The visits of a run (the shown one by default) as the window shows them: answers, probabilities, texts.

        :raises FlowError: no such run.
        """
        attempts = self._trying()
        return visits_frame(attempts.numbered(self._shown + 1 if run is None else run), attempts.model)

    def _trying(self) -> Attempts:
        if self._attempts is None:
            raise FlowError("there is no model to try the flow on: FlowEditor(flow, model)")
        return self._attempts

    def _trying_anew(self) -> Attempts:
        """For a new run: what was warned of in the last one is over."""
        attempts = self._trying()
        if not attempts.busy:
            self.notices = []
        return attempts

    def _began(self, started: bool) -> bool:
        if started:
            self._shown = len(self.runs) - 1
            self._outbox.touch()
        return started

    # Answers -------------------------------------------------------------------------------------------------

    def _answer_hello(self, content: Mapping[str, Any]) -> None:
        """A view that begins, or that missed something."""
        with self._lock:
            if content.get("version") == self._draft.version:
                self._sent = self._boxes()
            else:
                self._sent = {}
                self._send_document(None)
        self._send_progress()

    def _answer_functions(self, content: Mapping[str, Any]) -> None:
        self._tell_parts("functions", {"functions": offered_functions()})

    def _answer_edit(self, content: Mapping[str, Any]) -> None:
        """One change. What the engine would not read is told at its field; what is no change at all is an error row."""
        change, group = content.get("change"), content.get("group")
        if not isinstance(change, Mapping) or not isinstance(group, str | None):
            raise FlowError(f"the browser sent an edit that is none ({change!r}): nothing was changed")
        try:
            self._edited(change, group, content.get("id"))
        except FlowError as error:
            self.tell("refused", {"id": content.get("id"), "message": str(error)})
            if not isinstance(content.get("id"), int):
                raise

    def _answer_step(self, content: Mapping[str, Any]) -> None:
        (self.undo if content["type"] == "undo" else self.redo)()

    def _answer_load(self, content: Mapping[str, Any]) -> None:
        text = content.get("text")
        if not isinstance(text, str) or not text.strip():
            raise FlowError("there is nothing to import: paste a flow's JSON, or choose its file")
        self.error = ""
        self.load(text)

    def _answer_export(self, content: Mapping[str, Any]) -> None:
        made = {"json": self.to_json, "python": self.to_python}.get(str(content.get("what")))
        if made is None:
            raise FlowError(f"the browser asked for {content.get('what')!r}; json and python can be exported")
        self._tell_parts("export", {"what": content["what"], "text": made(), "file": self._save.path.name})

    def _answer_preview(self, content: Mapping[str, Any]) -> None:
        asked = content.get("asked")
        try:
            strategy = strategy_of(read_value(json.loads(str(content["strategy"]))))
            found = allowed_next(strategy, self.model, str(content.get("so_far", "")))
        except (FlowError, ValueError, TypeError, KeyError) as error:
            found = {"error": str(error)}
        self._tell_parts("preview", {"asked": asked, **found})

    def _answer_run(self, content: Mapping[str, Any]) -> None:
        text = str(content["prompt"])
        prompt: Any = [{"role": "user", "content": text}] if content.get("chat") and text else text
        sampling = SamplingParams(temperature=typed_number(content, "temperature", float))
        most, seed = typed_number(content, "max_new_tokens", int), typed_number(content, "seed", int)
        self.error = ""
        self.run(prompt, max_new_tokens=most, sampling=sampling, seed=seed)

    def _answer_show(self, content: Mapping[str, Any]) -> None:
        self._trying().numbered(int(content["run"]) + 1)
        self._shown = int(content["run"])
        self._outbox.touch()

    def _answer_reenter(self, content: Mapping[str, Any]) -> None:
        self.error = ""
        self.reenter(int(content["run"]) + 1, int(content["visit"]), str(content["answer"]))

    # Without a browser ---------------------------------------------------------------------------------------

    def static_html(self) -> str:
        return flow_html(self._draft.document["name"], self._boxes())

    def __repr__(self) -> str:
        name, count = self._draft.document["name"], len(self._draft.document["questions"])
        return f"<FlowEditor: flow {name!r}, {count} question{'' if count == 1 else 's'}, {self.status}>"
