"""LiveRun: run a model under mods, watch it token by token, hold it, act in it, branch off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench import SamplingParams
from workbench.engine import Mod
from workbench.errors import ReportError
from workbench.models import HookedModel, match_hooks
from workbench.mods import parse

from ..base import json_safe, script, style, typed_number
from ..reading import checked_directions, detail, page
from ..trace_explorer import TraceExplorer, first_parting
from .acting import Acting
from .runner import Settings
from .telling import prompt_told

__all__ = ["LiveRun"]

HERE = Path(__file__).parent
CAPTURE = "blocks.*.hook_resid_post"


class LiveRun(Acting):
    """A window that generates.

    ``mods`` run in every generation, after the hand (a person's own actions, which win) and before those picked in
    the window. ``directions`` are named vectors, or ``workbench.mods.Direction``, to steer by. Everything that the
    buttons do is a method: :meth:`run`, :meth:`pause`, :meth:`resume`, :meth:`step`, :meth:`stop`, :meth:`force`,
    :meth:`backtrack`, :meth:`ban`, :meth:`steer`, :meth:`branch`. The model runs in a thread of its own, so the
    notebook stays usable. ``runs`` holds every run with its trace.

    :raises UnknownHookError: ``capture`` matches no hook.
    """

    _esm = script(HERE, "strip", "cards", "panels", "layers", "live")
    _css = style(HERE, "live", "parts")

    def __init__(
        self,
        model: HookedModel,
        prompt: str = "",
        *,
        mods: Sequence[Mod] = (),
        directions: Mapping[str, Any] | None = None,
        capture: str | None = CAPTURE,
    ) -> None:
        if capture is not None:
            match_hooks(capture, model.hook_names)
        checked = checked_directions(directions, model.d_model)
        super().__init__(model, prompt, mods=mods, directions=checked, capture=capture)
        self.answers.update(
            hello=self._answer_hello, run=self._answer_run, act=self._answer_act, page=self._answer_page,
            detail=self._answer_detail, show=self._answer_show, compare=self._answer_compare,
            branch=self._answer_branch, estimate=self._answer_estimate,
        )  # fmt: skip

    def run(
        self,
        prompt: str | Sequence[Any],
        *,
        max_new_tokens: int = 64,
        sampling: SamplingParams | None = None,
        seed: int = 0,
        mods: Sequence[Mod] = (),
        stepping: bool = False,
    ) -> bool:
        """Begin a run and return at once; false, and nothing happens, while one is going (see :meth:`wait`).

        :raises PromptError: an empty or too long prompt.
        """
        return self._start(
            Settings(
                prompt=prompt, max_new_tokens=max_new_tokens, sampling=sampling or SamplingParams(), seed=seed,
                mods=(*self.mods, *mods), capture=self.capture, stepping=stepping, told=prompt_told(prompt),
            )
        )  # fmt: skip

    def branch(
        self, uid: int, text: str | Sequence[int] = (), *, seed: int | None = None, stepping: bool = False
    ) -> bool:
        """Begin a run that has the shown run's tokens up to ``uid``, then ``text``, then goes on by itself.

        ``uid`` may be one that was taken back: its own predecessors are committed then. Steering of the shown run
        is not taken over. False while a run is going.

        :raises ReportError: no such token.
        """
        shown = self._run_shown()
        reading = self._reading(shown)
        life = reading.life(uid)
        kept = [each.token for each in [*reading.context(life), life] if each.uid >= 0]
        prefix = (*kept, *(self._tokens(text, "") if text else ()))
        old = shown.settings
        told = f"branch of run {shown.number} after token {uid}"
        return self._start(
            Settings(
                prompt=list(reading.history.prompt), max_new_tokens=old.max_new_tokens, sampling=old.sampling,
                seed=old.seed if seed is None else seed, mods=old.mods, capture=old.capture, stepping=stepping,
                prefix=prefix, told=told,
            )
        )  # fmt: skip

    def explore(self, number: int | None = None, other: int | None = None) -> TraceExplorer:
        """A TraceExplorer of a run (numbers count from 1; the shown one by default), beside another if named."""
        one = self._run_shown() if number is None else self._numbered(number)
        compare = None if other is None else self._numbered(other).trace
        return TraceExplorer(one.trace, self.model, compare=compare, directions=self.directions)

    def _start(self, settings: Settings) -> bool:
        if not self._runner.busy:
            self._begin_notices()
        started = self._runner.start(settings)
        if started:
            self._show(len(self._runner.runs) - 1)
        return started

    # Answers -------------------------------------------------------------------------------------------------

    def _answer_hello(self, content: Mapping[str, Any]) -> None:
        self._show(self._shown)

    def _answer_run(self, content: Mapping[str, Any]) -> None:
        """Run, with what the form says."""
        text = str(content["prompt"])
        prompt: Any = [{"role": "user", "content": text}] if content.get("chat") and text else text
        sampling = SamplingParams(
            temperature=typed_number(content, "temperature", float),
            top_k=typed_number(content, "top_k", int),
            top_p=typed_number(content, "top_p", float),
        )
        mods = [parse(str(spec)) for spec in content.get("mods", ())]
        self.error = ""
        self.run(
            prompt, max_new_tokens=typed_number(content, "max_new_tokens", int), sampling=sampling,
            seed=typed_number(content, "seed", int), mods=mods, stepping=bool(content.get("stepping")),
        )  # fmt: skip

    def _answer_act(self, content: Mapping[str, Any]) -> None:
        """One press of a button of the run's controls."""
        text = content.get("text", "")
        given: Any = [int(content["token"])] if "token" in content else str(text)
        acts: dict[str, Callable[[], None]] = {
            "pause": self.pause, "step": self.step, "resume": self.resume, "stop": self.stop, "unban": self.unban,
            "unsteer": self.unsteer, "force": lambda: self.force(given), "ban": lambda: self.ban(given),
            "backtrack": lambda: self.backtrack(typed_number(content, "n", int), given),
            "steer": lambda: self.steer(
                str(content["name"]), typed_number(content, "layer", int), typed_number(content, "scale", float)
            ),
        }  # fmt: skip
        acts[str(content["what"])]()

    def _answer_page(self, content: Mapping[str, Any]) -> None:
        found = page(self._reading(self._run_shown()), max(int(content["start"]), 0))
        numbers = found.pop("numbers")
        self.tell("page", {"side": 0, **found}, [numbers])

    def _answer_detail(self, content: Mapping[str, Any]) -> None:
        reading, item = self._reading(self._run_shown()), int(content["item"])
        if 0 <= item < len(reading.items):
            found = detail(reading, reading.items[item].life.uid, directions=self.directions, trace_name="live.trace")
            found["attention"].pop("weights", None)
            self.tell("detail", {"asked": content.get("asked"), **found})
        else:  # taken from a strip that has changed since
            self.tell("failed", {"of": "detail"})

    def _answer_show(self, content: Mapping[str, Any]) -> None:
        number = int(content["run"])
        self._numbered(number + 1)
        self._show(number)

    def _answer_compare(self, content: Mapping[str, Any]) -> None:
        """Another run's tokens, to stand below the shown one's."""
        shown, other = self._reading(self._run_shown()), self._reading(self._numbered(int(content["run"]) + 1))
        items, told = first_parting(shown, other)
        found = page(other, 0)
        numbers = found.pop("numbers")
        self.tell("other", {"run": int(content["run"]), "page": found, "parting": items, "told": told}, [numbers])

    def _answer_branch(self, content: Mapping[str, Any]) -> None:
        reading, item = self._reading(self._run_shown()), int(content["item"])
        if not 0 <= item < len(reading.items):
            raise ReportError("that token is not there any more: choose another one")
        self.branch(
            reading.items[item].life.uid, str(content.get("text", "")),
            seed=typed_number(content, "seed", int), stepping=bool(content.get("stepping")),
        )  # fmt: skip

    def _answer_estimate(self, content: Mapping[str, Any]) -> None:
        """What a run will cost, before it is begun."""
        text = str(content["prompt"])
        tokenizer = self.model.tokenizer
        tokens = 0
        if text:
            chat = content.get("chat") and tokenizer.has_chat_template
            tokens = len(tokenizer.chat([{"role": "user", "content": text}]) if chat else tokenizer.prompt(text))
        new = min(int(content["max_new_tokens"]), self.model.n_ctx - tokens)
        hooks = 0 if self.capture is None else len(match_hooks(self.capture, self.model.hook_names))
        megabytes = (tokens + new) * hooks * self.model.d_model * self.model.dtype.itemsize / 2**20
        self.tell("estimate", json_safe({"prompt": tokens, "new": new, "megabytes": megabytes}))
