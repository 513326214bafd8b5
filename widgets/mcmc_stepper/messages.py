"""What the stepper and the browser tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.errors import ChainError, WorkbenchError
from workbench.mcmc import Chains, PowerSampler, branch, contrast_of, trace_row, what_if
from workbench.models import HookedModel

from ..base import Outbox, Window, marked
from .frames import compare_frame, contrast_frame, kernel_frame, tokens_frame
from .prose import KEYS, PROSE
from .told import (
    COLUMNS,
    STRIP_COLUMNS,
    STRIP_ORIGINS,
    decision_told,
    page_told,
    records_told,
    supposed_told,
    tokens_told,
    track_told,
)
from .tracks import TokenTexts, Track
from .work import Job, Work

__all__ = ["Talking"]

MOST_TILES = 400
MOST_COMPARED = 500
"""Rows of one message; the calls give all."""
NO_LOGITS = "The tiles of a row need its logits, which a run does not keep: MCMCStepper(chains, model) computes them."


class Talking(Window):
    """The half of the stepper that speaks with the browser.

    Decisions are told page by page as they are made, ten messages a second at most; all about one of them when the
    cursor stands on it. What needs the model is done in the worker's thread.
    """

    model: HookedModel | None
    tracks: list[Track]
    texts: TokenTexts
    tile: int
    work: Work
    outbox: Outbox
    _sent: dict[int, int]

    def _listen(self) -> None:
        self.answers.update(
            hello=self._answer_hello, decision=self._answer_decision, tokens=self._answer_tokens,
            kernel=self._answer_kernel, contrast=self._answer_contrast, suppose=self._answer_suppose,
            branch=self._answer_branch, step=self._answer_step, run=self._answer_run, compare=self._answer_compare,
            stop=lambda content: self.stop(),
        )  # fmt: skip

    def _state(self) -> dict[str, Any]:
        return {
            "columns": list(COLUMNS), "strip": {"columns": list(STRIP_COLUMNS), "origins": list(STRIP_ORIGINS)},
            "tracks": [track_told(track) for track in self.tracks], "model": self._told_model(),
            "named": self.texts.tokenizer is not None, "tile": self.tile, "work": {"state": "idle", "doing": ""},
            "keys": KEYS, "prose": dict(PROSE),
        }  # fmt: skip

    def _told_model(self) -> str | None:
        return None if self.model is None else str(self.model.name)

    # News ------------------------------------------------------------------------------------------------------

    def _answer_hello(self, content: Mapping[str, Any]) -> None:
        """A view has opened: tell it all decisions, page by page."""
        self._sent = {}
        self.outbox.touch()

    def _tell_news(self) -> None:
        """The state of the work, the tracks, and the next page of decisions that was not told."""
        page, numbers = None, []
        sent = self._sent  # a view that opens meanwhile begins a new one
        for track in self.tracks:
            start = sent.get(track.number, 0)
            if start < track.shown and page is None:
                page, buffer = page_told(track, start)
                numbers = [buffer]
                sent[track.number] = start + page["count"]
        work = {"state": self.work.state, "doing": self.work.doing}
        self.tell("news", {"work": work, "tracks": [track_told(t) for t in self.tracks], "page": page}, numbers)
        if any(self._sent.get(track.number, 0) < track.shown for track in self.tracks):
            self.outbox.touch()

    # One decision ------------------------------------------------------------------------------------------------

    def _place(self, content: Mapping[str, Any]) -> tuple[Track, int]:
        track = self.track(int(content.get("track", 0)))
        return track, track.place(int(content["index"]))

    def _answer_decision(self, content: Mapping[str, Any]) -> None:
        track, index = self._place(content)
        told, buffers = decision_told(track, index, self.texts)
        told["contrast"] = self._contrast_known(track, index)
        self.tell("decision", {"asked": content.get("asked"), **told}, buffers)

    def _contrast_known(self, track: Track, index: int) -> dict[str, Any]:
        """The contrast if the run kept one; else whether it can be computed, and what to do where it can't."""
        try:
            return self._contrast_told(track, index, None)
        except ChainError as error:
            differs = track.decision(index).first_difference is not None
            return {"missing": str(error), "can": differs and self.model is not None}

    def _contrast_told(self, track: Track, index: int, model: HookedModel | None) -> dict[str, Any]:
        found = contrast_of(track.chains, index, model)
        pair = [marked(self.texts.of(token)) for token in (found.old_token, found.new_token)]
        source = "kept by the run" if model is None else "computed now"
        return {**records_told(contrast_frame(found)), "pair": pair, "position": found.position, "source": source}

    def _answer_tokens(self, content: Mapping[str, Any]) -> None:
        track, index = self._place(content)
        frame = tokens_frame(track, index, self.texts)
        page = tokens_told(track.decision(index), frame, int(content["start"]))
        self.tell("tokens", {"track": track.number, "index": index, "tokens": page})

    def _answer_kernel(self, content: Mapping[str, Any]) -> None:
        track, index = self._place(content)
        side, row = str(content["side"]), int(content["row"])
        named = {"track": track.number, "index": index, "side": side, "row": row}
        if self.model is None:
            self.tell("kernel", {**named, "missing": NO_LOGITS})
            return
        self._read("kernel", named, lambda model: self._kernel_told(model, track, index, side, row))

    def _kernel_told(self, model: HookedModel, track: Track, index: int, side: str, row: int) -> dict[str, Any]:
        frame = kernel_frame(trace_row(model, track.chains, index, side, row, tile=self.tile))
        told = records_told(frame.head(MOST_TILES))
        return {
            **told,
            "about": dict(frame.attrs),
            "tiles": len(frame),
            "label": marked(self.texts.of(frame.attrs["token"])),
        }

    def _answer_contrast(self, content: Mapping[str, Any]) -> None:
        track, index = self._place(content)
        named = {"track": track.number, "index": index}
        self._read("contrast", named, lambda model: {"contrast": self._contrast_told(track, index, model)})

    def _read(self, kind: str, named: Mapping[str, Any], make: Any) -> None:
        """Compute something with the model in the worker's thread, and tell it; an error is told in its place."""

        def read() -> None:
            assert self.model is not None
            try:
                with self.work.model_lock:
                    told = make(self.model)
            except WorkbenchError as error:
                told = {"missing": str(error)}
            self.tell(kind, {**named, **told})

        self.work.submit(Job(name="read", work=read))

    # What if, and branches -----------------------------------------------------------------------------------------

    def _answer_suppose(self, content: Mapping[str, Any]) -> None:
        track, index = self._place(content)
        try:
            told = supposed_told(what_if(track.chains, index, **_supposed(content)))
        except ChainError as error:
            told = {"missing": str(error)}
        self.tell("supposed", {"asked": content.get("asked"), "track": track.number, "index": index, **told})

    def _answer_branch(self, content: Mapping[str, Any]) -> None:
        track, index = self._place(content)
        how = _supposed(content)
        if content.get("tau") is not None:
            how["tau"] = float(content["tau"])
        if content.get("n_mcmc") is not None:
            how["n_mcmc"] = int(content["n_mcmc"])
        self._checked_model()
        what_if(track.chains, index, **_supposed(content))  # what can't be supposed is told at once

        def grow() -> None:
            self.tell("branched", {"view": content.get("view"), "track": self._grow(track, index, how)})

        self.work.submit(Job(name="branch", work=grow))

    def _grow(self, track: Track, index: int, how: Mapping[str, Any]) -> int:
        """Make a branch and its track; the track's number."""
        model = self._checked_model()
        with self.work.model_lock:
            chains: Chains = track.chains
            sampler: PowerSampler = branch(model, chains, index, number=len(self.tracks), **how)
        named = {name: how[name] for name in ("redraw", "verdict", "alpha") if name in how}
        number = len(self.tracks)
        grown = Track(
            number=number, told=f"branch {number}", chains=sampler.result(), sampler=sampler, parent=track.number,
            at=index, supposed=what_if(chains, index, **named),
        )  # fmt: skip
        self.tracks.append(grown)
        self.outbox.touch()
        return number

    def _answer_compare(self, content: Mapping[str, Any]) -> None:
        grown = self.track(int(content["track"]))
        if grown.parent is not None:
            frame = compare_frame(self.track(grown.parent), grown)
            told = records_told(frame.tail(MOST_COMPARED))
            self.tell("compared", {"track": grown.number, "count": len(frame), **told})

    def _checked_model(self) -> HookedModel:
        if self.model is None:
            raise ChainError("this needs the model: MCMCStepper(chains, model), with the model that made the run")
        return self.model

    # Stepping ------------------------------------------------------------------------------------------------------

    def _answer_step(self, content: Mapping[str, Any]) -> None:
        self.step(track=int(content.get("track", 0)))

    def _answer_run(self, content: Mapping[str, Any]) -> None:
        self.run(track=int(content.get("track", 0)))

    def _advance(self, track: Track, name: str, count: int | None) -> bool:
        """Let a track's sampler make ``count`` decisions (None: all) in the worker; false while it does already."""
        sampler = track.sampler
        if sampler is None:
            raise ChainError(
                f"{track.told} is a result, which nothing steps: MCMCStepper(resume(path, model)) goes on with a kept "
                "run, and branch() makes a chain that can be stepped"
            )
        if self.work.waits("run") or self.work.waits("step"):
            return False

        def advance() -> None:
            steps = sampler.steps()
            try:
                while not self.work.stopping and (count is None or track.shown < until):
                    with self.work.model_lock:
                        decision = next(steps, None)
                        track.refresh()
                    if decision is None:
                        break
                    self.outbox.touch()
                    self.work.serve()
            finally:
                with self.work.model_lock:
                    steps.close()
                    track.refresh()

        until = track.shown + (count or 0)
        self.work.submit(Job(name=name, work=advance, halt=sampler.stop))
        return True

    def track(self, number: int) -> Track:
        """A run or branch by number.

        :raises ChainError: there is none of that number.
        """
        if not 0 <= number < len(self.tracks):
            raise ChainError(f"there is no track {number}; there are 0 to {len(self.tracks) - 1}")
        return self.tracks[number]

    def step(self, n: int = 1, *, track: int = 0) -> bool:
        """Let a live chain make ``n`` more decisions, in a thread; false while it is at work already.

        :raises ChainError: the track comes from a file.
        """
        return self._advance(self.track(track), "step", n)

    def run(self, *, track: int = 0) -> bool:
        """Let a live chain go on to its end, in a thread; false while it is at work already.

        :raises ChainError: the track comes from a file.
        """
        return self._advance(self.track(track), "run", None)

    def stop(self) -> None:
        """End what runs within one pass of the model; what is half made is kept, and the next step goes on with it."""
        self.work.stop()


def _supposed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``what_if`` in a message."""
    alpha = content.get("alpha")
    return {
        "redraw": int(content.get("redraw") or 0), "verdict": content.get("verdict") or None,
        "alpha": None if alpha is None else float(alpha),
    }  # fmt: skip
