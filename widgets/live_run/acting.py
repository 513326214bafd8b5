"""What a person does to a run by hand, as methods: hold, step, force, take back, ban, steer, stop."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.errors import ReportError
from workbench.mods import ban_tokens

from .hand import Wish
from .telling import Telling

__all__ = ["Acting"]


class Acting(Telling):
    """A window on runs, in the newest of which a person can act."""

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
