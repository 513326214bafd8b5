"""What all windows have in common: how they are shown, answer the browser, report errors and go away."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any
from uuid import uuid4

import anywidget
import comm
import traitlets

from workbench.errors import ReportError
from workbench.reports import legible

from .incoming import checked_message, told_error
from .showing import is_static

__all__ = ["LARGEST_MESSAGE", "Window", "json_safe", "table_html"]

LARGEST_MESSAGE = 256_000
"""Bound on one message to the browser, bytes."""
MOST_NOTICES, LONGEST_NOTICE = 8, 1000
"""How many warnings stay in sight, and how many characters of each."""
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
Answer = Callable[[Mapping[str, Any]], None]


class Window(anywidget.AnyWidget):  # type: ignore[misc]
    """A view of something that Python holds. ``state`` is what the browser needs to draw its first picture.

    The browser owns the cursor and asks for details by messages; each kind has its method in ``answers``. An
    error in such a method is shown in the window (and raised under pytest), never lost.
    """

    state = traitlets.Dict().tag(sync=True)
    window_id = traitlets.Unicode().tag(sync=True)
    """By which a view finds the HTML form that stands in for it."""
    error = traitlets.Unicode("").tag(sync=True)
    """Shown as a red row until it is dismissed."""
    notices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """Warnings, shown as a row until it is dismissed."""

    _open = False  # also of one whose making failed: it is deleted, hence closed, all the same

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.answers: dict[str, Answer] = {}
        # In the constructor, so that the message that opens the window draws it: no later one can come too early.
        super().__init__(state=dict(state), window_id=uuid4().hex)
        self._open = True
        self.on_msg(self._heard)

    # Talking to the browser ------------------------------------------------------------------------------

    def _heard(self, _window: Any, content: Any, _buffers: Any) -> None:
        """One message from the browser."""
        try:
            kind = checked_message(content)
        except ReportError as error:
            self.report(str(error))
            return
        if kind == "ping":
            self.tell("pong", {})
            return
        answer = self.answers.get(kind)
        if answer is None:
            self.report(f"the browser sent {kind[:80]!r}, which this window does not know: reload the page")
            return
        self.guarded(lambda: answer(content), kind=kind)

    def guarded(self, work: Callable[[], None], *, kind: str = "") -> None:
        """Do something for the browser; what goes wrong becomes the red row, and an exception under pytest."""
        try:
            work()
        except Exception as error:  # why: shown in the window; a callback's exception would vanish
            if "PYTEST_CURRENT_TEST" in os.environ:
                raise
            self.report(told_error(error, kind))
            self.send({"type": "failed", "of": kind})

    def report(self, message: str) -> None:
        """Show an error in the window."""
        self.error = message

    def notice(self, message: str) -> None:
        """Show a warning in the window, beside those that are there; one that is there already changes nothing."""
        text = legible(message)[:LONGEST_NOTICE]
        if self._open and text not in self.notices:
            self.notices = [*self.notices, text][-MOST_NOTICES:]

    def tell(self, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> None:
        """Send a message to the browser, if the window is still open.

        :raises ValueError: it is too large for one message.
        """
        size = sum(map(len, buffers))
        if size > LARGEST_MESSAGE:
            raise ValueError(f"a message of {size:,} bytes; the bound is {LARGEST_MESSAGE:,}: send it in parts")
        if self._open:
            self.send({"type": kind, **content}, buffers=list(buffers) or None)

    # Showing -----------------------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether it is shown as a live window: not in static mode, not outside a kernel, not after closing."""
        return self._open and not is_static() and not isinstance(self.comm, comm.DummyComm)

    def static_html(self) -> str:
        """The same content as HTML that needs no script, no style and no kernel: for saved notebooks and exports."""
        raise NotImplementedError

    def _fallback(self) -> dict[str, str]:
        html = self.static_html() if self._open else f"<p>{escape(repr(self))} was closed: make a new one.</p>"
        return {"text/html": html, "text/plain": repr(self)}

    def _view(self) -> dict[str, Any]:
        return {WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.model_id}}

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The live view with HTML and text beside it."""
        return ({**self._fallback(), **self._view()} if self.live else dict(self._fallback())), {}

    def _ipython_display_(self) -> None:
        """Show it as two outputs: the HTML form, and the live view that hides it.

        JupyterLab draws nothing but an error for a saved view without its kernel, even where the same output has
        HTML too. As an output of its own the HTML stays visible then.
        """
        from IPython.display import display, publish_display_data

        if not self.live:
            publish_display_data(self._fallback())  # type: ignore[no-untyped-call]
            return
        form = self._fallback()
        form["text/html"] = (
            f'{_HIDING}<div class="wb-fallback" data-window="{self.window_id}">{form["text/html"]}</div>'
        )
        publish_display_data(form)  # type: ignore[no-untyped-call]
        # With a word of HTML for exporters, which else complain that they have nothing to show of it.
        display({**self._view(), "text/html": "<span hidden></span>"}, raw=True)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    # Going away --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove its views and free what it holds; twice does no harm."""
        if not self._open:
            return
        self._open = False
        self.answers.clear()
        self.on_msg(self._heard, remove=True)
        layout = self.layout
        super().close()
        layout.close()  # a widget of its own, which the registry would keep for ever
        self.state = {}


# The view hides the form before it, also while it still loads; without a view the form is what there is.
_HIDING = (
    "<style>"
    ".jp-OutputArea-child:has(.wb-fallback):has(+ .jp-OutputArea-child .wb:not([data-plain])),"
    ".jp-OutputArea-child:has(.wb-fallback) + .jp-OutputArea-child:not(:has(.wb)){display:none}"
    "</style>"
)


def json_safe(value: Any) -> Any:
    """Numbers that JSON has: NaN and infinities become None; containers are copied."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_safe(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(inner) for inner in value]
    return value


def table_html(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table for static forms; every text is escaped."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
