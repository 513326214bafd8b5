"""The residual view of a request: norms by layer, and the logit lens at chosen tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from ..models import HookedModel
from ..trace import TokenLife, Trace
from .blocks import Alert, Block, Fold, Grid, Heading, Note, Picture, grid_of
from .legible import label
from .lens import checked_model, find_token, has_residuals, logit_lens, residual_norms
from .panels import Line, line_panels
from .svg import PROBABILITY, diverging, heat_strip

__all__ = ["chosen_tokens", "layer_blocks"]

MOST_COLUMNS = 240
"""Columns of a heat strip; more tokens than that share columns."""
AGREEMENT = 0.1
"""Largest difference (nats) between the lens's last layer and the recorded log-probability."""


def layer_blocks(
    trace: Trace,
    request_id: str,
    model: HookedModel | None,
    tokens: Sequence[TokenLife | int] | None,
    file: str,
) -> Iterator[Block]:
    """What the layers say, as far as residuals were captured and a model is there to read them.

    ``file`` is the stem of the attached file of norms.
    """
    yield Heading(text="Layers", level=3)
    chosen = _chosen(trace, request_id, tokens)
    norms = residual_norms(trace, request_id) if has_residuals(trace) else pd.DataFrame()
    if norms.empty:
        yield Note(
            text="No residual stream was captured here. Run with `capture='blocks.*.hook_resid_post'` to see norms "
            "by layer and the logit lens."
        )
        return
    if model is None:
        yield Note(text="Give the model along with the trace to see the logit lens: `report.trace(trace, model)`.")
    else:
        checked_model(model, trace)
        yield from _lens_blocks(trace, model, chosen)
    yield from _norm_blocks(file, norms, chosen)


def chosen_tokens(trace: Trace, request_id: str) -> list[TokenLife]:
    """The tokens worth a look: the first that a mod put there, and the three the model was least sure of.

    Sureness is the entropy of the model's own distribution before a sampled token; only tokens with
    captured activations count, visible ones first.
    """
    history = trace.history(request_id)
    seen = [life for life in history.every if life.source_row is not None]
    entropies = {
        (record.step, record.position + 1): record.entropy
        for record in trace.records
        if record.request_id == request_id and record.kind == "forward_pass" and record.entropy is not None
    }

    def doubt(life: TokenLife) -> tuple[bool, float, int]:
        entropy = entropies.get((life.added_step, life.position), -math.inf)
        return (not life.visible, -entropy, life.uid)

    put = [life for life in seen if life.origin != "sampled"]
    first = sorted(put, key=lambda life: (life.origin != "forced", life.uid))[:1]
    unsure = sorted((life for life in seen if life.origin == "sampled"), key=doubt)[:3]
    return sorted([*first, *unsure], key=lambda life: life.uid)


def _chosen(trace: Trace, request_id: str, tokens: Sequence[TokenLife | int] | None) -> list[TokenLife]:
    if tokens is None:
        return chosen_tokens(trace, request_id)
    numbers = [find_token(trace, token, request_id) for token in tokens if isinstance(token, int)]
    lives = [token for token in tokens if isinstance(token, TokenLife) and token.request_id == request_id]
    return sorted([*numbers, *lives], key=lambda life: life.uid)


# Logit lens --------------------------------------------------------------------------------------------------


def _lens_blocks(trace: Trace, model: HookedModel, chosen: Sequence[TokenLife]) -> Iterator[Block]:
    frames = [logit_lens(model, trace, life) for life in chosen]
    if not frames:
        yield Note(text="No token of this request has captured residuals, so there is no logit lens.")
        return
    yield from _disagreement(model, chosen, frames)
    layers = [str(layer) for layer in frames[0]["layer"]]
    yield Picture(
        html=heat_strip(
            list(zip(*(frame["probability"] for frame in frames), strict=True)),
            rows=layers,
            columns=[f"{life.position} {label(life.text)}" for life in chosen],
            scale=PROBABILITY,
            texts=list(zip(*([label(text) for text in frame["top_1"]] for frame in frames), strict=True)),
            alternative=f"Logit lens of {len(chosen)} tokens over {len(layers)} layers; the table has the numbers.",
        ),
        caption="Logit lens. Columns are tokens (with their position), rows are layers, the last on top. A cell says "
        "which token the layer likes best; its colour is the probability of the token that was committed.",
        twin=grid_of(_lens_matrix(chosen, frames), "Probability of the committed token by layer"),
    )
    for life, frame in zip(chosen, frames, strict=True):
        yield _lens_table(life, frame)


def _lens_matrix(chosen: Sequence[TokenLife], frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    columns = {f"#{life.uid} {label(life.text)}": f["probability"] for life, f in zip(chosen, frames, strict=True)}
    return pd.DataFrame({"layer": frames[0]["layer"], **columns})


def _lens_table(life: TokenLife, frame: pd.DataFrame) -> Fold:
    """One token's lens, best guesses as text and probability."""
    shown = frame.copy()
    for name in shown.columns:
        if str(name).startswith("top_"):
            shown[name] = [label(text) for text in shown[name]]
    shown.columns = shown.columns.str.replace("_", " ")
    gone = "" if life.visible else f", taken back at step {life.removed_step}"
    name = f"token #{life.uid} {label(life.text)} at position {life.position} ({life.origin}{gone})"
    return Fold(
        summary=f"Logit lens of {name}",
        blocks=(grid_of(shown, f"Layer by layer where {name} was chosen; rank and probability are that token's"),),
    )


def _disagreement(model: HookedModel, chosen: Sequence[TokenLife], frames: Sequence[pd.DataFrame]) -> Iterator[Alert]:
    """The lens's last row is the model's own distribution: where it is not, these are other weights."""
    differences = [
        (abs(math.log(last["probability"]) - life.raw_logprob), life)
        for life, last in ((life, frame.iloc[-1]) for life, frame in zip(chosen, frames, strict=True))
        if life.raw_logprob is not None and int(last["layer"]) == model.n_layers - 1 and last["probability"]
    ]
    worst, life = max(differences, key=lambda pair: pair[0], default=(0.0, None))
    if life is not None and worst > AGREEMENT:
        yield Alert(
            text=f"The last layer gives token #{life.uid} {label(life.text)} a log-probability {worst:.2g} nats from "
            f"the recorded one: {model.name} here is not quite the model that made the trace."
        )


# Norms -------------------------------------------------------------------------------------------------------


def _norm_blocks(file: str, norms: pd.DataFrame, chosen: Sequence[TokenLife]) -> Iterator[Block]:
    wide = norms.pivot(index="uid", columns="layer", values="norm")
    about = norms.drop_duplicates("uid").set_index("uid")[["position", "text", "visible"]]
    usual = wide.quantile([0.25, 0.5, 0.75])
    layers = [int(layer) for layer in wide.columns]
    band = tuple((float(a), float(b), float(c)) for a, b, c in zip(*usual.to_numpy(), strict=True))
    lines = [
        Line(title=f"{life.position} {label(life.text)}", values=tuple(map(float, wide.loc[life.uid])), usual=band)
        for life in chosen
        if life.uid in wide.index
    ]
    text = pd.Series([label(value) for value in about["text"]], index=about.index, dtype=object)
    table = about.assign(text=text).join(wide.rename(columns=lambda layer: f"layer {layer}")).reset_index()
    twin = grid_of(table, "Residual norm by token and layer", shown=100, attach=f"{file}-norms.csv")
    if lines:
        yield Picture(
            html=line_panels(
                lines, layers, alternative=f"Residual norm over {len(layers)} layers, {len(lines)} tokens"
            ),
            caption="Residual norm by layer (logarithmic) where these tokens were chosen. Dashed: the median of all "
            "tokens; band: the middle half.",
            twin=grid_of(table[table["uid"].isin([life.uid for life in chosen])], "Residual norm of these tokens"),
        )
    yield _norm_strip(wide, layers, twin)


def _norm_strip(wide: pd.DataFrame, layers: Sequence[int], twin: Grid) -> Picture:
    """Layer x token, each norm against the median of its layer; long runs share columns."""
    ratio = np.log2(wide.to_numpy() / np.nanmedian(wide.to_numpy(), axis=0, keepdims=True).clip(1e-30))
    share = math.ceil(len(ratio) / MOST_COLUMNS)
    starts = np.arange(0, len(ratio), share)
    means = np.add.reduceat(ratio, starts, axis=0) / np.diff([*starts, len(ratio)])[:, None]
    together = f" Each column is the mean of {share} tokens." if share > 1 else ""
    return Picture(
        html=heat_strip(
            means.T.tolist(),
            rows=[str(layer) for layer in layers],
            columns=[str(uid) for uid in wide.index[::share]],
            scale=diverging(means.ravel().tolist(), "norm against the median of its layer"),
            alternative=f"Residual norms of {len(wide)} tokens over {len(layers)} layers against each layer's median",
        ),
        caption="Residual norm of every token (by number of commit, taken back ones too) and layer, the last on top: "
        f"orange above, blue below the median of its layer.{together}",
        twin=twin,
    )
