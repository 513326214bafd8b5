"""LiveRun: run a model under mods, watch it token by token, hold it, act in it, branch off."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from workbench import SamplingParams
from workbench.engine import Mod
from workbench.errors import ReportError
from workbench.models import HookedModel, match_hooks
from workbench.mods import MODS, ban_tokens, parse
from workbench.reports import legible
from workbench.trace import Trace

from ..base import Window, json_safe, marked, script, style
from ..reading import COLUMNS, ORIGINS, Reading, checked_directions, detail, page
from ..trace_explorer import TraceExplorer, explorer_html, first_parting
from .hand import Held, Wish
from .outbox import Outbox
from .runner import PlayedRun, Runner, Settings

__all__ = ["LiveRun"]

HERE = Path(__file__).parent
CAPTURE = "blocks.*.hook_resid_post"
UNPICKABLE = frozenset({"ask_when_unsure", "watch", "steer"})
"""Ready mods that need more than plain parameters, or a terminal; steering has its own control."""


class LiveRun(Window):
    """A window that generates.

    ``mods`` run in every generation, after the hand (a person's own actions, which win) and before those picked in
    the window. ``directions`` are named vectors, or ``workbench.mods.Direction``, to steer by. Everything that the
    buttons do is a method: :meth:`run`, :meth:`pause`, :meth:`resume`, :meth:`step`, :meth:`stop`, :meth:`force`,
    :meth:`backtrack`, :meth:`ban`, :meth:`steer`, :meth:`branch`. The model runs in a thread of its own, so the
    notebook stays usable. ``runs`` holds every run with its trace.

    :raises UnknownHookError: ``capture`` matches no hook.
    """

    _esm = script(HERE, "strip", "panels", "layers", "live")
    _css = style(HERE, "parts")

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
        self.model = model
        self.mods = tuple(mods)
        self.capture = capture
        self.directions = checked_directions(directions, model.d_model)
        self._outbox = Outbox(lambda: self.guarded(self._send_progress, kind="progress"))
        self._runner = Runner(model, self._outbox.touch, self.report)
        self._shown = 0
        self._sent: list[Any] = []
        super().__init__(self._state(prompt))
        self.answers.update(
            hello=self._answer_hello, run=self._answer_run, act=self._answer_act, page=self._answer_page,
            detail=self._answer_detail, show=self._answer_show, compare=self._answer_compare,
            branch=self._answer_branch, estimate=self._answer_estimate,
        )  # fmt: skip

    # What the buttons do -------------------------------------------------------------------------------------

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
                mods=(*self.mods, *mods), capture=self.capture, stepping=stepping, told=_told(prompt),
            )
        )  # fmt: skip

    def _start(self, settings: Settings) -> bool:
        started = self._runner.start(settings)
        if started:
            self._shown = len(self._runner.runs) - 1
            self._sent = []
            self._outbox.touch()
        return started

    def pause(self) -> None:
        """Hold the run after its next event, and after every one that follows."""
        self._hand("hold")

    def step(self) -> None:
        """Let a held run go on to its next event."""
        self._hand("step")

    def resume(self) -> None:
        """Let a held run go on."""
        self._hand("resume")

    def stop(self) -> None:
        """End the run within one token; what there is stays."""
        self._runner.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the run's end; false if it still goes. A held run never ends by itself."""
        return self._runner.wait(seconds)

    def force(self, text: str | Sequence[int]) -> None:
        """Commit tokens at the event that the run is held at, else at the next that allows it.

        :raises ReportError: no run is going, or nothing to commit.
        """
        self._wish(Wish(kind="force", tokens=self._tokens(text, "force")))

    def backtrack(self, n: int, text: str | Sequence[int] = ()) -> None:
        """Take the last ``n`` tokens back, then commit ``text``. At ``Sampled`` the drawn token is dropped first.

        :raises ReportError: no run is going, or ``n`` is negative.
        """
        if n < 0:
            raise ReportError(f"backtrack takes back 0 or more tokens, got {n}")
        self._wish(Wish(kind="backtrack", n=n, tokens=self._tokens(text, "") if text else ()))

    def ban(self, text: str | Sequence[int]) -> None:
        """Never draw a word (or these ids) from the next pass of this run on; see ``workbench.mods.ban_tokens``."""
        self._wish(Wish(kind="ban", ban=ban_tokens(text) if isinstance(text, str) else ban_tokens(tokens=list(text))))

    def unban(self) -> None:
        """Lift all bans."""
        self._wish(Wish(kind="unban"))

    def steer(self, name: str, layer: int, scale: float = 1.0) -> None:
        """Add ``scale`` times a direction to the residual stream after ``layer`` on the passes that follow.

        :raises ReportError: no run is going, no direction of that name, no such layer, or a scale that is not finite.
        """
        if name not in self.directions:
            known = ", ".join(self.directions) or "none: LiveRun(model, directions={'name': vector})"
            raise ReportError(f"no direction {name!r}; there are {known}")
        if not 0 <= layer < self.model.n_layers or not math.isfinite(scale):
            raise ReportError(f"steer needs a layer from 0 to {self.model.n_layers - 1} and a finite scale")
        hook = f"blocks.{layer}.hook_resid_post"
        self._wish(Wish(kind="steer", hook=hook, vector=self.directions[name], scale=scale))

    def unsteer(self) -> None:
        """End the steering by hand."""
        self._wish(Wish(kind="unsteer"))

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

    # Behind the buttons --------------------------------------------------------------------------------------

    def _hand(self, what: str) -> None:
        hand = self._runner.hand
        if hand is None:
            raise ReportError(f"nothing to {what}: no run is going")
        {"hold": hand.hold, "step": hand.step, "resume": hand.resume}[what]()
        self._outbox.touch()

    def _wish(self, wish: Wish) -> None:
        hand = self._runner.hand
        if hand is None:
            raise ReportError(f"can't {wish.kind}: no run is going. Run first, or hold a run after each event.")
        hand.wish(wish)

    def _tokens(self, text: str | Sequence[int], doing: str) -> tuple[int, ...]:
        tokens = self.model.tokenizer.encode(text) if isinstance(text, str) else [int(token) for token in text]
        if doing and not tokens:
            raise ReportError(f"nothing to {doing}: give some text")
        return tuple(tokens)

    def _numbered(self, number: int) -> PlayedRun:
        if not 1 <= number <= len(self._runner.runs):
            raise ReportError(f"no run {number}; there are {len(self._runner.runs)}")
        return self._runner.runs[number - 1]

    def _run_shown(self) -> PlayedRun:
        return self._numbered(self._shown + 1)

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
        """What the window says of the run that is going: state, held event, tokens, speed, list of runs."""
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
        told = self.progress()
        if not self._runner.runs:
            self.tell("progress", told)
            return
        run = self._run_shown()
        if not run.trace.records:
            self.tell("progress", told)
            return
        reading = self._reading(run)
        now = [(i.life.uid, i.branch, i.life.removed_step, i.life.raw_logprob) for i in reading.items]
        same = next(
            (n for n, (a, b) in enumerate(zip(self._sent, now, strict=False)) if a != b), min(len(self._sent), len(now))
        )
        found = page(reading, same)
        self._sent = now[: same + found["count"]]
        history = reading.history
        told["told"] = f"{len(history.live)} tokens, {len(history.every) - len(history.live)} taken back"
        told["reason"] = history.reason or ""
        numbers = found.pop("numbers")
        self.tell("progress", {**told, "page": found}, [numbers])

    # Answers -------------------------------------------------------------------------------------------------

    def _answer_hello(self, content: Mapping[str, Any]) -> None:
        self._sent = []
        self._outbox.touch()

    def _answer_run(self, content: Mapping[str, Any]) -> None:
        """Run, with what the form says."""
        text = str(content["prompt"])
        prompt: Any = [{"role": "user", "content": text}] if content.get("chat") and text else text
        sampling = SamplingParams(
            temperature=float(content["temperature"]), top_k=int(content["top_k"]), top_p=float(content["top_p"])
        )
        mods = [parse(str(spec)) for spec in content.get("mods", ())]
        self.error = ""
        self.run(
            prompt, max_new_tokens=int(content["max_new_tokens"]), sampling=sampling, seed=int(content["seed"]),
            mods=mods, stepping=bool(content.get("stepping")),
        )  # fmt: skip

    def _answer_act(self, content: Mapping[str, Any]) -> None:
        """One press of a button of the run's controls."""
        text = content.get("text", "")
        given: Any = [int(content["token"])] if "token" in content else str(text)
        acts: dict[str, Callable[[], None]] = {
            "pause": self.pause, "step": self.step, "resume": self.resume, "stop": self.stop, "unban": self.unban,
            "unsteer": self.unsteer, "force": lambda: self.force(given), "ban": lambda: self.ban(given),
            "backtrack": lambda: self.backtrack(int(content["n"]), given),
            "steer": lambda: self.steer(str(content["name"]), int(content["layer"]), float(content["scale"])),
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
        self._shown = number
        self._sent = []
        self._outbox.touch()

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
            seed=int(content["seed"]), stepping=bool(content.get("stepping")),
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
        return f"<LiveRun: {self.status}, {len(self.runs)} runs>"

    def close(self) -> None:
        """Stop what is running and free everything; the traces of ``runs`` go with it."""
        if not self._open:
            return
        self._runner.close()
        self._outbox.close()
        super().close()
        self._sent = []


def _told(prompt: Any) -> str:
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
