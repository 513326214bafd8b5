"""Traces for report tests: one from a real tiny model and a mod, one written by hand around a given text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import torch
from eventful_mods import having_second_thoughts

import workbench
from workbench.carry import CarryTrace
from workbench.flows import FlowDefinition, FlowQuestion
from workbench.mcmc import Chains, ChainText, Decision, Settings, Target, acceptance
from workbench.trace import Record, Trace

LAYERS = 3
HOOKS = tuple(f"blocks.{layer}.hook_resid_post" for layer in range(LAYERS))


def real_trace(model: Any, prompt: Any = "Say something.", **options: Any) -> Trace:
    """A sampled run in which one mod takes tokens back and forces others, and another never acts."""

    @workbench.mod
    def bystander(event: Any, actions: Any, tokenizer: Any) -> None:
        return None

    settings = {"max_new_tokens": 12, "seed": 4, **options}
    session = workbench.Session(
        model, mods=[having_second_thoughts("ab", "cd\n"), bystander], capture="blocks.*.hook_resid_post"
    )
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


def written_flow(text: str) -> FlowDefinition:
    """A flow in which ``text`` is everywhere that a flow may have it: names, prompts, answers, messages."""
    answer = text.encode("utf-8", "replace").decode()[:500]  # an answer has to be whole characters, and not too many
    last = FlowQuestion(f"q {text}", text, [f"a{answer}", "b"])
    first = FlowQuestion(text.strip() or "q", f"p {text}", ["yes", "no"]).on("yes", last).on("no", f"m {text}")
    return FlowDefinition(f"f {text}", first)


def written_chains(text: str) -> Chains:
    """Two decisions of one chain whose text is ``text``."""
    settings = Settings(
        target=Target(alpha=2.0, block_size=2, n_mcmc=2, max_tokens=2), seed=0, chains=1, tries=1, ladder=None,
        swap_every=1, capture=(), prompt=(1,),
    )  # fmt: skip
    old, new = np.array([[0.0, 1.0, 1.0]]), np.array([[0.5, 1.0, 0.8]])
    terms = acceptance(old, new, 2.0, 0.5, old_length=2, new_length=2)
    decisions = tuple(
        Decision(
            chain=0, block=0, iteration=number, alpha=2.0, tau=0.5, pivot=1, old_tokens=(7,), new_tokens=(8,),
            old_scalars=old, new_scalars=new, terms=terms, log_a=terms.log_a, u=0.5, accepted=True, tries=1,
            forwarded=1, length=2, log_p=-2.0,
        )
        for number in (1, 2)
    )  # fmt: skip
    standing = ChainText(chain=0, alpha=2.0, tokens=(7, 8), scalars=np.zeros((2, 3)), text=text, log_p=-2.0)
    return Chains(
        settings=settings, texts=(standing,), decisions=decisions, swaps=(), contrasts=(), prefilled=0, forwarded=4,
        finished=False,
    )  # fmt: skip


def written_carry(text: str) -> CarryTrace:
    """A carried prompt of two tokens, a pause and an answer, all of which are ``text``."""
    numbers = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=numbers)

    config = {
        "band": [1, 2], "loops": 1, "mode": text, "adapter": {"kind": text}, "adapter_fingerprint": text,
        "pause_token": text, "model": {"name": text, "made_of": text}, "intervened": True,
    }  # fmt: skip
    return CarryTrace(
        ids=(1, 2, 3, 4), texts=(text,) * 4, prompt_length=2, pauses=1, config=config, e=draw(4, 8), x=draw(4, 8),
        s=draw(4, 8), carried=draw(2, 8), injection=torch.zeros(2, 8), residuals=draw(3, 4, 8), loop_x=draw(2, 2, 8),
        loop_s=draw(2, 2, 8), loop_residuals=draw(2, 1, 2, 8),
    )  # fmt: skip


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
