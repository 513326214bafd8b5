"""What the inspector and the browser tell each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.carry import Check, Control, CostPanel, Effect, JacobianLens, attention_shares, band_warning
from workbench.errors import CarryError
from workbench.reports import legible

from ..base import Window, marked
from . import studies
from .frames import attention_frame, cost_frame, effects_frame, gradient_frame, layers_frame, orbit_frame, records_frame
from .prose import PROSE
from .results import ablation_frame, results_frame
from .studies import INTERVENTIONS, Layers, Question
from .subject import Subject, read_token
from .told import motion_told, orbit_told, read_told, short, table_told
from .worker import Worker

__all__ = ["Found", "Talking"]


@dataclass(slots=True, kw_only=True)
class Found:
    """What was measured so far; None for what was not."""

    costs: CostPanel
    results: Mapping[str, Any] | None
    """Of trained controls, as ``results.json`` has them."""
    question: Question = field(default_factory=Question)
    """What ``effects`` answers."""
    effects: list[Effect] | None = None
    controls: list[Control] | None = None
    layers: Layers | None = None
    check: Check | None = None


class Talking(Window):
    """The half of the inspector that speaks with the browser.

    What the first tab shows is in ``state``; the rest is sent once a view says hello, or when it was made. Heavy work
    runs in the worker, so that no message waits for the model.
    """

    subject: Subject
    found: Found
    worker: Worker
    given: str
    """How the trace is called in code that is copied."""

    @property
    def model_name(self) -> str:
        """The base's name; of a path its last two parts, which is what tells them apart."""
        name = self.subject.model.base.name
        parts = Path(name).parts
        return legible("/".join(parts[-2:]) if len(parts) > 2 else name)

    @property
    def notes(self) -> list[str]:
        """What needs saying about the run before anything is read from it."""
        subject, notes = self.subject, []
        if subject.settings.mode == "carry" and not subject.trace.injection.any():
            notes.append(
                "The adapter adds nothing, as before any training: these are the base model's own states at pauses, "
                "and nothing is carried."
            )
        if subject.trace.config.get("intervened"):
            notes.append("This run's states were intervened on.")
        return notes

    def _listen(self) -> None:
        self.answers.update(
            hello=self._answer_hello, attention=self._answer_attention, watch=self._answer_watch,
            band=self._answer_band, start=self._answer_start, stop=lambda content: self.worker.stop(),
        )  # fmt: skip

    def _state(self) -> dict[str, Any]:
        subject = self.subject
        trace, settings, pause = subject.trace, subject.settings, subject.model.pause
        return {
            "title": f"{self.model_name} · {settings.mode}",
            "facts": [
                ["layers", subject.model.n_layers], ["band", f"{settings.band[0]} to {settings.band[1] - 1}"],
                ["prompt loops", settings.loops], ["pauses", trace.pauses], ["prompt tokens", trace.prompt_length],
                ["adapter", f"{subject.model.adapter.kind} {subject.model.adapter.fingerprint()}"],
                ["pause token", legible(pause.text)],
                ["its embedding's norm", f"{pause.norm:.3g} (median {pause.median_norm:.3g})"],
            ],
            "notes": self.notes, "prose": dict(PROSE),
            "band": list(settings.band),
            "n_layers": subject.model.n_layers,
            "heads": [] if trace.attention is None else list(trace.attention.shape[1:3]),
            "rows": len(subject.rows), "known": len(subject.known or subject.rows),
            "interventions": [[name, f"{name}: {told}"] for name, told in INTERVENTIONS.items()],
            "donors": [[name, legible(name)] for name in subject.others],
            "code": {"given": self.given, "watched": [subject.text(token) for token in subject.watched]},
            "read": read_told(subject),
            "costs": self._cost_told(),
            "results": self._results_told(),
        }  # fmt: skip

    def _results_told(self) -> dict[str, Any] | None:
        """V8 from ``results.json``."""
        if self.found.results is None:
            return None
        frame = results_frame(self.found.results, self.block_weights)
        return {"systems": table_told(frame), "changes": table_told(ablation_frame(self.found.results)),
                "chance": 1 / int(self.found.results["task"]["n_nodes"])}  # fmt: skip

    def _cost_told(self) -> dict[str, Any]:
        return table_told(cost_frame(self.found.costs, self.found.check))

    # Answers -------------------------------------------------------------------------------------------------

    def _answer_hello(self, content: Mapping[str, Any]) -> None:
        """A view has opened: everything that is not in the state."""
        self.tell("motion", motion_told(self.subject))
        self._tell_orbit()
        if self.subject.trace.attention is not None:
            self._answer_attention({})
        if self.subject.jacobian is not None or content.get("again"):
            self.tell("read", read_told(self.subject))
        for send in (self._tell_effects, self._tell_controls, self._tell_layers, self._tell_cost, self._tell_work):
            send()

    def _answer_attention(self, content: Mapping[str, Any]) -> None:
        layer, head = (None if content.get(name) in (None, "") else int(content[name]) for name in ("layer", "head"))
        frame = attention_frame(attention_shares(self.subject.trace, self.subject.windows), layer, head)
        told = {"layer": layer, "head": head, "columns": list(frame.columns), "rows": short(frame.to_numpy().tolist())}
        windows = self.subject.windows[self.subject.trace.band[0] :]
        self.tell("attention", {"asked": content.get("asked"), "windows": windows, **told})

    def _answer_watch(self, content: Mapping[str, Any]) -> None:
        """Follow another token, or no longer one."""
        watched = list(self.subject.watched)
        if content.get("token") is not None:
            watched = [token for token in watched if token != int(content["token"])]
        else:
            token = read_token(self.subject.model, str(content["text"]))
            watched = [*(each for each in watched if each != token), token][-8:]
        if watched:
            self.subject.watched = tuple(watched)
        self.tell("read", read_told(self.subject))

    def _answer_band(self, content: Mapping[str, Any]) -> None:
        first, last = int(content["first"]), int(content["last"])
        told = self.warning((first, last))
        self.tell("band", {"asked": content.get("asked"), "first": first, "last": last, "warning": told})

    def _answer_start(self, content: Mapping[str, Any]) -> None:
        """Begin a study, unless one runs. What it can't do is said at once."""
        name, subject = str(content["study"]), self.subject
        study, keep = self._study(name, content)
        if not self.worker.start(name, studies.ticks(subject, name), lambda: study(subject), keep):
            self._tell_work()

    def _study(self, name: str, content: Mapping[str, Any]) -> tuple[Callable[[Subject], Any], Callable[[Any], None]]:
        """What makes a study, and what keeps it."""
        if name == "effects":
            question = Question.of(self.subject, content)
            return (lambda subject: studies.effects(subject, question)), lambda made: self._keep_effects(question, made)
        table: dict[str, tuple[Callable[[Subject], Any], Callable[[Any], None]]] = {
            "lens": (studies.fit_lens, self._keep_lens),
            "controls": (studies.controls, self._keep_controls),
            "layers": (studies.layers, self._keep_layers),
            "check": (studies.check, self._keep_check),
            "ablated": (studies.ablated_runs, self._keep_ablated),
        }
        if name not in table:
            raise CarryError(f"no study {name!r}; there are effects, {', '.join(table)}")
        return table[name]

    def warning(self, band: tuple[int, int]) -> str | None:
        """A sentence if a band ends before the answer is readable; None where it is, or before layers were read."""
        return None if self.found.layers is None else band_warning(self.found.layers.readings, band)

    @property
    def block_weights(self) -> int:
        """Weights of one block."""
        return sum(weight.numel() for weight in self.subject.model.blocks.layers[0].parameters())

    # What was made ---------------------------------------------------------------------------------------------

    def _keep_effects(self, question: Question, made: Sequence[Effect]) -> None:
        self.found.question, self.found.effects = question, list(made)
        self._tell_effects()

    def _keep_controls(self, made: Sequence[Control]) -> None:
        self.found.controls = list(made)
        self._tell_controls()

    def _keep_layers(self, made: Layers) -> None:
        self.found.layers = made
        self._tell_layers()

    def _keep_check(self, made: Check) -> None:
        self.found.check = made
        self._tell_cost()

    def _keep_lens(self, made: JacobianLens) -> None:
        self.subject.use(made)
        self.tell("read", read_told(self.subject))

    def _keep_ablated(self, made: Mapping[str, Any]) -> None:
        self.subject.others = {**self.subject.others, **made}
        self._tell_orbit()

    def _tell_orbit(self) -> None:
        others = self.subject.others
        donors = [[name, legible(name)] for name in others]
        if self.subject.trace.steps < 3:
            self.tell("orbit", {"donors": donors, "runs": []})
            return
        self.tell("orbit", {"donors": donors, **orbit_told(orbit_frame({"this run": self.subject.trace, **others}))})

    def _tell_effects(self) -> None:
        if self.found.effects is not None:
            question = self.found.question
            told = {
                "kind": question.kind, "what": INTERVENTIONS[question.kind], "gain": question.gain,
                "swap": [marked(self.subject.text(token)) for token in question.tokens or ()],
                "donor": legible(question.donor),
            }  # fmt: skip
            self.tell("effects", {**told, **table_told(effects_frame(self.found.effects))})

    def _tell_controls(self) -> None:
        if self.found.controls is not None:
            self.tell("controls", table_told(records_frame(self.found.controls)))

    def _tell_layers(self) -> None:
        if self.found.layers is not None:
            readings, gradients = layers_frame(self.found.layers), gradient_frame(self.found.layers)
            self.tell("layers", {"readings": table_told(readings), "gradients": table_told(gradients),
                                 "warning": self.warning(self.subject.trace.band)})  # fmt: skip

    def _tell_cost(self) -> None:
        self.tell("costs", self._cost_told())

    def _tell_work(self) -> None:
        if not self._open:
            return
        worker = self.worker
        told = {"state": worker.state, "study": worker.name, "done": worker.done, "total": worker.total}
        self.tell("work", told)
        if worker.error:
            self.report(worker.error)
            worker.error = ""  # said once: a view that opens later is not to bring it back
