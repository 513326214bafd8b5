"""ResidualView: layers by positions as one grid, read through the logit lens, by norm, direction or attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench import SamplingParams, Session
from workbench.errors import PromptError, ReportError, did_you_mean
from workbench.models import HookedModel
from workbench.reports import label, legible, number
from workbench.trace import Trace

from ..base import Window, json_safe, marked, script, style, table_html
from ..reading import Reading, checked_directions
from .positions import Positions

__all__ = ["ResidualView"]

HERE = Path(__file__).parent
CAPTURE = "blocks.*.hook_resid_post"
PAGE = 24
"""Positions that are read at once; with 30 layers some 700 unembeddings."""
MOST_CELLS = 512
"""Largest side of an attention map that is sent; beyond it neighbours share a cell, which shows the largest weight."""
MODES = ("lens", "norm", "attention")


class ResidualView(Window):
    """A window on the residual stream at every position of a text.

    ``text`` is a prompt (a string, chat messages or token ids), which is run through the model once, or a trace that
    captured ``blocks.*.hook_resid_post``. At a position stands what the model computed there: its guess at the next
    token. ``directions`` are named vectors, or ``workbench.mods.Direction``. The same numbers: :meth:`frame`,
    :meth:`lens`, :meth:`norms`, :meth:`cosines`, :meth:`attention`.

    :raises PromptError: an empty or too long prompt.
    :raises TraceError: a trace without residuals, or with several requests and none named.
    :raises ReportError: a trace of another model, or a mode that does not exist.
    """

    _esm = script(HERE, "cards", "panels", "layers", "grid")
    _css = style(HERE, "residual", "parts")

    def __init__(
        self,
        model: HookedModel,
        text: str | Sequence[Any] | Trace,
        *,
        request_id: str | None = None,
        directions: Mapping[str, Any] | None = None,
        mode: str = "lens",
    ) -> None:
        named = checked_directions(directions, model.d_model)
        modes = [*MODES, *(f"direction {name}" for name in named)]
        if mode not in modes:
            raise ReportError(f"no mode {mode!r}; choose from {', '.join(modes)}.{did_you_mean(mode, modes)}")
        self.model = model
        self.mode = mode
        self.fresh = not isinstance(text, Trace)
        self.trace = text if isinstance(text, Trace) else _run(model, text)
        self._positions = Positions(Reading(self.trace, request_id, model), model, named)
        self._modes = modes
        super().__init__(self._state())
        self.answers.update(columns=self._answer_columns, detail=self._answer_detail, attention=self._answer_attention)

    # The same numbers ----------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """One row per position and layer: ``position, text, next_text, layer, norm, top_1, p_1, next_rank,
        next_probability``. Long texts take a while: every cell is an unembedding.
        """
        found = self._positions
        pieces = [self._piece(start, min(start + PAGE, len(found))) for start in range(0, len(found), PAGE)]
        return pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame()

    def _piece(self, start: int, stop: int) -> pd.DataFrame:
        found = self._positions
        lens, norms, layers = found.lens(start, stop), found.norms(start, stop), found.layers
        lives = [life for life in found.lives[start:stop] for _ in layers]
        follow = [found.following.get(life.position) for life in lives]
        return pd.DataFrame(
            {
                "position": [life.position for life in lives],
                "text": pd.Series([life.text for life in lives], dtype=object),
                "next_text": pd.Series([None if life is None else life.text for life in follow], dtype=object),
                "layer": layers * (stop - start),
                "norm": norms.ravel(),
                "top_1": pd.Series([found.text(token) for token in lens.tokens[:, :, 0].ravel()], dtype=object),
                "p_1": lens.chances[:, :, 0].ravel(),
                "next_rank": lens.next_rank.ravel(),
                "next_probability": lens.next_chance.ravel(),
            }
        )

    def lens(self, position: int, k: int = 5) -> pd.DataFrame:
        """One row per layer at a position: ``layer, norm, rank, probability`` of the token that follows, ``top_1,
        p_1`` … and ``cosine NAME`` per direction.

        :raises ReportError: nothing was computed at that position.
        """
        found = self._positions
        place = found.place(position)
        lens = found.lens(place, place + 1, k)
        frame = pd.DataFrame({"layer": found.layers, "norm": found.norms(place, place + 1)[0]})
        frame["rank"], frame["probability"] = lens.next_rank[0], lens.next_chance[0]
        for n in range(lens.tokens.shape[-1]):
            frame[f"top_{n + 1}"] = pd.Series([found.text(token) for token in lens.tokens[0, :, n]], dtype=object)
            frame[f"p_{n + 1}"] = lens.chances[0, :, n]
        for name in found.directions:
            frame[f"cosine {name}"] = found.cosines(name, place, place + 1)[0]
        return frame

    def norms(self) -> pd.DataFrame:
        """L2 norms, one row per position, one column per layer."""
        return self._matrix(self._positions.norms(0, len(self._positions)))

    def cosines(self, name: str) -> pd.DataFrame:
        """Cosine of the residual stream with a direction, one row per position, one column per layer."""
        return self._matrix(self._positions.cosines(name, 0, len(self._positions)))

    def attention(self, layer: int, head: int = 0) -> pd.DataFrame:
        """Attention weights of a head, one row per query position, one column per key position.

        :raises UnknownHookError: no such layer.
        :raises ReportError: no such head.
        """
        heads = self._positions.attention(layer)
        if not 0 <= head < len(heads):
            raise ReportError(f"no head {head} in layer {layer}; heads go from 0 to {len(heads) - 1}")
        places = [life.position for life in self._positions.lives]
        return pd.DataFrame(heads[head], index=pd.Index(places, name="position"), columns=places)

    def _matrix(self, values: np.ndarray) -> pd.DataFrame:
        index = pd.Index([life.position for life in self._positions.lives], name="position")
        return pd.DataFrame(values, index=index, columns=self._positions.layers)

    # What the browser is told --------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        found = self._positions
        last = max(len(found) - 1, 0)
        return {
            "title": f"{legible(self.model.name)} · {len(found)} positions, {len(found.layers)} layers",
            "labels": [marked(life.text) for life in found.lives],
            "positions": [life.position for life in found.lives],
            "layers": found.layers,
            "attention": self.model.n_layers,
            "modes": [[mode, legible(mode)] for mode in self._modes],
            "mode": self.mode,
            "page": PAGE,
            "begin": last,
            "columns": self._columns(self.mode, (last // PAGE) * PAGE)
            if len(found) and self.mode != "attention"
            else None,
            "detail": self._detail(last) if len(found) else None,
        }

    def _columns(self, mode: str, start: int) -> dict[str, Any]:
        """Cells of some positions: ``[position, layer]`` float32, and in the lens the texts to write into them."""
        found = self._positions
        stop = min(start + PAGE, len(found))
        told: dict[str, Any] = {"mode": mode, "start": start, "count": stop - start}
        if mode == "lens":
            lens = found.lens(start, stop)
            texts = [[marked(found.text(token)) for token in row] for row in lens.tokens[:, :, 0]]
            follow = np.where(np.isnan(lens.next_chance), -1.0, lens.next_chance)
            return {**told, "texts": texts, "values": _packed(lens.chances[:, :, 0]), "follow": _packed(follow)}
        if mode == "norm":
            return {**told, "values": _packed(found.norms(start, stop))}
        return {**told, "values": _packed(found.cosines(mode.removeprefix("direction "), start, stop))}

    def _detail(self, place: int) -> dict[str, Any]:
        found = self._positions
        life = found.lives[place]
        follow = found.following.get(life.position)
        frame = self.lens(life.position)
        names = {legible(name): frame[f"cosine {name}"].tolist() for name in found.directions}
        known = follow is not None
        return {
            "place": place,
            "facts": [
                ["position", life.position], ["token", life.token],
                ["followed by", label(follow.text) if follow is not None else "nothing yet"],
            ],
            "layers": json_safe({
                "layer": frame["layer"].tolist(), "norm": frame["norm"].tolist(),
                "rank": [int(rank) if known else None for rank in frame["rank"]],
                "probability": frame["probability"].astype(float).tolist(),
                "top": [
                    [[marked(str(row[f"top_{n}"])), float(row[f"p_{n}"])] for n in range(1, 6)]
                    for _, row in frame.iterrows()
                ],
                "cosines": names, "note": "",
            }),
            "code": self._code(life.position),
        }  # fmt: skip

    def _code(self, position: int) -> str:
        given = "trace" if not self.fresh else repr(list(self.trace.history(self._request).prompt))
        return (
            "from widgets import ResidualView\n\n"
            f"view = ResidualView(model, {given}{'' if self.fresh else f', request_id={self._request!r}'})\n"
            f"view.lens({position})"
        )

    @property
    def _request(self) -> str:
        return self._positions.lives[0].request_id

    # Answers -------------------------------------------------------------------------------------------------

    def _answer_columns(self, content: Mapping[str, Any]) -> None:
        mode, start = str(content["mode"]), int(content["start"])
        if mode not in self._modes or not 0 <= start < len(self._positions):
            raise ReportError(f"no columns of {mode!r} from {start} on; reload the page")
        told = self._columns(mode, start)
        buffers = [told.pop("values"), *([told.pop("follow")] if "follow" in told else [])]
        self.tell("columns", told, buffers)

    def _answer_detail(self, content: Mapping[str, Any]) -> None:
        place = min(max(int(content["place"]), 0), len(self._positions) - 1)
        self.tell("detail", {"asked": content.get("asked"), **self._detail(place)})

    def _answer_attention(self, content: Mapping[str, Any]) -> None:
        """One head's map, made small enough; and the row of the chosen position in full."""
        heads = self._positions.attention(int(content["layer"]))
        head = min(max(int(content["head"]), 0), len(heads) - 1)
        small = _shrunk(heads[head])
        told = {"layer": int(content["layer"]), "head": head, "heads": len(heads), "size": len(small)}
        rows = heads[head].astype("<f4")
        place = min(max(int(content["place"]), 0), len(rows) - 1)
        note = (
            "From a fresh pass over the visible tokens, without the edits of the run." if self._positions.edited else ""
        )
        self.tell(
            "attention",
            {**told, "place": place, "asked": content.get("asked"), "note": note},
            [small.astype("<f4").tobytes(), rows[place, : place + 1].tobytes()],
        )

    # Without a browser ---------------------------------------------------------------------------------------

    def static_html(self) -> str:
        found = self._positions
        if not len(found):
            return "<p>Nothing was computed: there is no position to look at.</p>"
        last = found.lives[-1].position
        frame = self.lens(last)
        columns = ["layer", "norm", *(f"{n}" for n in range(1, 6))]
        rows = [
            [
                str(row["layer"]),
                number(row["norm"]),
                *(f"{label(str(row[f'top_{n}']))} {number(row[f'p_{n}'])}" for n in range(1, 6)),
            ]
            for _, row in frame.iloc[::-1].iterrows()
        ]
        text = escape(legible(self.model.tokenizer.decode([life.token for life in found.lives]))[-2000:])
        return f"<pre>{text}</pre>" + table_html(f"Logit lens at position {last}, the last layer on top", columns, rows)

    def __repr__(self) -> str:
        return f"<ResidualView: {len(self._positions)} positions>" if self._open else "<ResidualView>"

    def close(self) -> None:
        super().close()
        self._positions = self.trace = self.model = None  # type: ignore[assignment]


def _run(model: HookedModel, prompt: Any) -> Trace:
    """The prompt through the model, residuals captured; the one token that is generated is the model's likeliest."""
    if not isinstance(prompt, str) and not prompt:
        raise PromptError("the prompt is empty: give some text, chat messages or token ids")
    session = Session(model, capture=CAPTURE)
    result = session.generate(prompt, max_new_tokens=1, sampling=SamplingParams(temperature=0), seed=0)
    result.release()
    return Trace(result.trace.run, result.trace.records)


def _packed(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def _shrunk(square: np.ndarray) -> np.ndarray:
    """At most ``MOST_CELLS`` by as many: neighbours share a cell, which has the largest of their weights."""
    share = math.ceil(len(square) / MOST_CELLS)
    if share == 1:
        return square
    starts = np.arange(0, len(square), share)
    return np.asarray(np.maximum.reduceat(np.maximum.reduceat(square, starts, axis=0), starts, axis=1))
