"""Traces for report tests: one from a real tiny model and a mod, one written by hand around a given text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import torch

import workbench
from workbench.trace import Record, Trace

LAYERS = 3
HOOKS = tuple(f"blocks.{layer}.hook_resid_post" for layer in range(LAYERS))


def real_trace(model: Any, prompt: Any = "Say something.", **options: Any) -> Trace:
    """A sampled run in which one mod takes tokens back and forces others, and another never acts."""

    @workbench.mod
    def second_thoughts(event: Any, actions: Any, tokenizer: Any) -> Any:
        count = len(event.request.generated)
        if isinstance(event, workbench.Added) and count == 4 and event.state.setdefault("turn", 0) < 2:
            event.state["turn"] += 1
            if event.state["turn"] == 1:
                return actions.backtrack(3, tokenizer.encode("ab"))
            return actions.force_tokens(tokenizer.encode("cd\n"))
        return None

    @workbench.mod
    def bystander(event: Any, actions: Any, tokenizer: Any) -> None:
        return None

    settings = {"max_new_tokens": 12, "seed": 4, **options}
    session = workbench.Session(model, mods=[second_thoughts, bystander], capture="blocks.*.hook_resid_post")
    result = session.generate(prompt, **settings)
    return result[0].trace if isinstance(result, list) else result.trace


def written_trace(text: str, *, tokens: int = 4, layers: int = LAYERS, width: int = 8) -> Trace:
    """A trace in which ``text`` is everywhere that something from outside can be."""
    hooks = [f"blocks.{layer}.hook_resid_post" for layer in range(layers)]
    request = {
        "capture": hooks, "seed": 0, "index": 0, "sampling": {"temperature": 1.0, "stop": [text]}, "max_new_tokens": 9,
        "mods": [{"name": text, "params": {text: text}, "source": text}, {"name": f"silent {text}"}],
    }  # fmt: skip
    run = {
        "run_id": text, "status": text, "model": {"name": text, "source": {text: text}}, "versions": {text: text},
        "requests": {text: request},
    }  # fmt: skip
    trace = Trace(run)
    numbers = torch.Generator().manual_seed(0)

    def emit(kind: str, step: int, position: int, **fields: Any) -> None:
        known = {"run_id": text, "request_id": text, "seq": len(trace.records), "duration_ns": 7}
        trace(Record(step=step, position=position, kind=kind, **known, **fields))

    emit("prefilled", 0, 0, tokens=(1, 2), text=text)
    for step in range(1, tokens + 1):
        held = {hook: torch.randn(1, width, generator=numbers) for hook in hooks}
        data = {"fed_start": step, "fed": 1, "row": step - 1}
        emit("forward_pass", step, step, entropy=step / tokens, top=((7, -1.0),), data=data, activations=held)
        chosen: dict[str, Any] = {"tokens": (7,), "text": text, "logprob": -0.5, "raw_logprob": -0.7}
        emit("sampled", step, step + 1, entropy=0.3, top=((7, -1.0), (8, -2.0)), **chosen)
        emit(
            "added", step, step + 1, tokens=(7,), text=text, origin="sampled", raw_logprob=-0.7, data={"texts": [text]}
        )
    asked = {"event": text, "message": text, text: {text: [text]}}
    emit("action", tokens, tokens + 1, mod=text, action="backtrack", status="applied", tokens=(7,), data=asked)
    emit("removed", tokens, tokens + 1, tokens=(7,), mod=text)
    emit("added", tokens, tokens + 1, tokens=(8,), text=text, origin="forced", mod=text, data={"texts": [text]})
    emit("action", tokens, tokens + 1, mod=text, action="raised", status="refused", data={"error": text})
    emit("warning", tokens, tokens + 1, data={"message": text})
    emit("finished", tokens, tokens + 2, data={"reason": text, "error": text, "tool_calls": text})
    return trace


class Page(HTMLParser):
    """What a browser would make of a document: elements with attributes, tables by caption, text."""

    VOID = frozenset({"meta", "br", "input", "img", "link"})

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: list[str] = []
        self.open: list[str] = []
        self._caption: str | None = None
        self._cell: list[str] | None = None
        self._row: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self._row = []
        if tag in ("td", "th", "caption"):
            self._cell = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("td", "th", "caption") and self._cell is not None:
            text = "".join(self._cell)
            self._cell = None
            if tag == "caption":
                self._caption = text
                self.tables[text] = []
            else:
                self._row.append(text)
        if tag == "tr" and self._caption is not None:
            self.tables[self._caption].append(self._row)

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)
        if not self.open or self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def having(self, name: str) -> list[tuple[str, dict[str, str | None]]]:
        return [(tag, attributes) for tag, attributes in self.elements if name in attributes]
