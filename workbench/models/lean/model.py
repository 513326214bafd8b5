"""The lean backend: a Llama- or Gemma-3-shaped model with a short way through it, in two gears with one meaning.

The compiled gear (``compiled.py``) runs a whole pass on the CPU in float32 without coming back to Python. The twin
(``twin.py``) is a torch loop that knows every hook, device and dtype, and takes over where the compiled gear can't.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UnsupportedModelError
from ..hooks import WITHIN_BLOCK, known_hooks
from ..kv_rows import PassView
from ..protocol import Cache, Edit, Forward
from ..tokenizer import Tokenizer
from ..wrapped import WrappedModel, check_ids
from .compiled import CompiledGear
from .packed import BlockFile
from .rows import Fed, LeanRows
from .taps import Taps
from .twin import head, rms, run_twin
from .weights import LeanWeights, take_weights

__all__ = ["LeanModel"]

COMPILED = "compiled"
"""What a pass of the compiled gear says of itself."""


class LeanModel(WrappedModel):
    """A Hugging Face model of a shape in :data:`~workbench.models.lean.weights.SHAPES`, run by our own code.

    With ``blocks``, those of a GGUF file that holds the same weights, its matrices stay packed as they are there.

    :raises UnsupportedModelError: another shape, or a setting that it would leave out.
    """

    backend = "lean"

    def __init__(self, hf_model: Any, tokenizer: Tokenizer, name: str, blocks: BlockFile | None = None) -> None:
        config = hf_model.config
        if blocks is not None and (hf_model.device.type != "cpu" or hf_model.dtype != torch.float32):
            raise UnsupportedModelError(
                f"packed weights are decoded to float32 on the CPU, not to {hf_model.dtype} on {hf_model.device}. "
                "Leave out device= and dtype=, or packed=True."
            )
        self.weights: LeanWeights = take_weights(hf_model, blocks)
        self.n_layers = int(config.num_hidden_layers)
        self.d_model = int(config.hidden_size)
        self.n_ctx = int(config.max_position_embeddings)
        self.vocab_size = int(config.vocab_size)
        self.device = hf_model.device
        self.dtype = hf_model.dtype
        on_cpu = self.device.type == "cpu" and self.dtype == torch.float32
        self.gear = CompiledGear(self.weights) if on_cpu else None
        self.twin_passes: dict[str, int] = {}
        """How many passes the twin ran, by the reason why the compiled gear could not."""
        super().__init__(name, {}, tokenizer)
        self._offer(known_hooks(_names(self.n_layers)))

    def _editable(self) -> tuple[str, ...]:
        """All but the norms' inner values, which are read-outs beside the stream."""
        return tuple(name for name in self.hook_names if not name.endswith(("hook_normalized", "hook_scale")))

    def point(self, name: str) -> nn.Module:
        """Refused: there are no modules here to attach to.

        :raises UnsupportedModelError: always.
        """
        raise UnsupportedModelError(
            f"{self.name} is on backend 'lean', which has no module at {name!r} to attach a function to: pass edits= "
            f"to forward(), or load({self.name!r}, backend='bridge')."
        )

    def _run(self, tokens: Tensor, view: PassView, keep: int) -> Tensor:
        """Not used: :meth:`forward` runs rows of any lengths in one go."""
        raise NotImplementedError("LeanModel.forward does not go through groups of rows")

    def new_cache(self, batch: int = 1) -> LeanRows:  # type: ignore[override]
        weights = self.weights
        sizes = weights.n_layers, weights.n_kv_heads, weights.d_head
        like = weights.final.new_empty(0, dtype=self.dtype)
        return LeanRows(like, sizes, batch, self.n_ctx, enabled=self.cache_works)

    def forward(
        self,
        tokens: Sequence[Sequence[int]],
        cache: Cache,
        *,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
        keep: Sequence[int] | None = None,
    ) -> Forward:
        if not isinstance(cache, LeanRows):
            raise TypeError(f"cache must come from this model's new_cache(), got {type(cache).__name__}")
        self._check(tokens, cache, capture, edits)
        wanted = [1] * len(tokens) if keep is None else list(keep)
        with self.lock, torch.inference_mode():
            fed = cache.begin([len(ids) for ids in tokens])
            spans = dict(zip(fed.rows, fed.spans(), strict=True))
            kept = {row: range(max(s.start, s.stop - wanted[row]), s.stop) for row, s in spans.items()}
            columns = [column for row in kept.values() for column in row]
            way, logits, captured = self._pass(tokens, cache, fed, capture, edits, columns)
            cache.commit(fed)
        empty = torch.empty(0)
        by_row = dict(zip(fed.rows, torch.split(logits, [len(kept[row]) for row in fed.rows]), strict=True))
        rows = range(len(tokens))
        return Forward(
            logits=tuple(by_row[row] if kept.get(row) else empty for row in rows),
            activations={name: tuple([values.get(row, empty) for row in rows]) for name, values in captured.items()},
            owned=way == COMPILED,
            note=way,
        )

    def _pass(
        self,
        tokens: Sequence[Sequence[int]],
        cache: LeanRows,
        fed: Fed,
        capture: Sequence[str],
        edits: Sequence[Edit],
        kept: Sequence[int],
    ) -> tuple[str, Tensor, dict[str, dict[int, Tensor]]]:
        """The gear that could, logits ``[len(kept), vocab]`` and, by hook and row, captures ``[new, …]``."""
        if not fed.rows:
            return "", torch.empty(0, self.vocab_size), {name: {} for name in capture}
        flat = [token for row in fed.rows for token in tokens[row]]
        reason = "device or dtype" if self.gear is None else self.gear.refusal(fed, capture, edits)
        if self.gear is not None and reason is None:
            return COMPILED, *self.gear.run(cache, fed, flat, capture, edits, kept, torch.get_num_threads())
        self.twin_passes[str(reason)] = self.twin_passes.get(str(reason), 0) + 1
        taps = Taps(fed, capture, edits)
        logits = run_twin(self.weights, cache, fed, torch.tensor(flat, device=self.device), taps, kept)
        return f"twin: {reason}", logits, taps.seen()

    def unembed(self, residual: Tensor) -> Tensor:
        with self.lock, torch.inference_mode():
            rows = residual.to(self.device, self.dtype)
            return head(self.weights, rms(rows, self.weights.final, self.weights.epsilon))

    def check_against(self, reference: Tensor) -> None:
        """Compare with the logits ``[pos, vocab]`` that plain transformers gave for the check ids.

        :raises UnsupportedModelError: they differ.
        """
        ids = check_ids(self.vocab_size)
        found = self.forward([ids], self.new_cache(), keep=[len(ids)]).logits[0]
        self._agree(found, reference, "Use backend='bridge'.")


def _names(n_layers: int) -> list[str]:
    blocks = [f"blocks.{layer}.{name}" for layer in range(n_layers) for name in WITHIN_BLOCK]
    return ["hook_embed", *blocks, "ln_final.hook_scale", "ln_final.hook_normalized"]
