"""Running one prompt and keeping what happens on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..errors import PromptError
from ..models import Message, hooks_on
from .generation import INCREMENTAL, generate
from .runner import Where
from .scan import Do
from .settings import CarrySettings
from .spans import Layout, pack
from .trace import CarryTrace

if TYPE_CHECKING:
    from .model import CarryModel

__all__ = ["Prompt", "ResidualRecorder", "prompt_ids", "record"]

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""Text as it is, chat messages (through the model's template), or token ids."""


def prompt_ids(model: CarryModel, prompt: Prompt, pauses: int = 0) -> list[int]:
    """Token ids of a prompt with its pauses, which stand after a chat's generation prompt.

    :raises PromptError: an empty or malformed prompt.
    """
    if isinstance(prompt, str):
        ids = model.tokenizer.prompt(prompt)
    elif len(prompt) and isinstance(prompt[0], Mapping):
        ids = model.tokenizer.chat([message for message in prompt if isinstance(message, Mapping)])
    else:
        ids = [int(token) for token in prompt if isinstance(token, int)]
    if not ids or (not isinstance(prompt, str) and isinstance(prompt[0], int) and len(ids) != len(prompt)):
        raise PromptError("the prompt is empty or mixed: give some text, chat messages or token ids")
    return ids + [model.pause.id] * pauses


@torch.no_grad()
def record(
    model: CarryModel,
    prompt: Prompt,
    settings: CarrySettings,
    *,
    answer: Prompt | None,
    max_new_tokens: int,
    do: Do | None,
    attention: bool,
) -> CarryTrace:
    """See :meth:`CarryModel.run`."""
    ids = prompt_ids(model, prompt)
    if answer is None:
        following = _own_answer(model, ids, settings, max_new_tokens, do)
    else:
        following = model.tokenizer.encode(answer) if isinstance(answer, str) else prompt_ids(model, answer)
    batch = pack([(ids, settings.pauses, following)], model.pause.id, device=model.device)
    recorder = _Recorder(model, settings, len(ids), batch.ids.shape[1])
    with model.blocks.lock, hooks_on(model.base, recorder.attention_hooks() if attention else {}):
        found = model.states(
            batch.ids,
            batch.mask,
            batch.prompt_lengths,
            loops=settings.loops,
            mode=settings.mode,
            do=recorder.noting(do),
            watcher=recorder,
        )
        model.residuals(found, recorder)
    whole = batch.ids[0].tolist()
    return recorder.trace(
        ids=tuple(whole),
        texts=tuple(map(model.tokenizer.token_text, whole)),
        e=found.e[0],
        x=found.x[0],
        s=found.s[0],
        changed=do is not None,
    )


def _own_answer(
    model: CarryModel, ids: Sequence[int], settings: CarrySettings, max_new_tokens: int, do: Do | None
) -> list[int]:
    """Greedy tokens that are fed after the pauses; none where the mode can't generate."""
    if max_new_tokens < 1 or settings.mode not in INCREMENTAL:
        return []
    return list(generate(model, [ids], settings, max_new_tokens=max_new_tokens, do=do)[0].tokens)


class ResidualRecorder:
    """A watcher that keeps what left every layer for a batch, as it came: the prompt's last loop, steps, suffix."""

    def __init__(self, n_layers: int) -> None:
        self._parts: list[dict[int, Tensor]] = [{} for _ in range(n_layers)]
        self._where = Where(phase="prefix", loop=0, step=0, first=0, count=0)

    def enter(self, where: Where, x: Tensor) -> None:
        self._where = where

    def left_block(self, layer: int, x: Tensor) -> None:
        self._parts[layer][self._where.first] = x.detach()

    def at(self, layer: int, layout: Layout, step: int) -> Tensor:
        """Each row's residual leaving ``layer`` at a step after its prompt, ``[batch, d_model]`` float32, CPU.

        Prefix and suffix hold a row's positions in order; the band holds the prompt block, padded to the longest,
        then one column per step.
        """
        columns = torch.cat([part for _, part in sorted(self._parts[layer].items(), key=lambda item: item[0])], 1)
        padded = len(self._parts[layer]) > 1
        places = [(max(layout.prompts) if padded and step else prompt) - 1 + step for prompt in layout.prompts]
        rows = torch.arange(len(places), device=columns.device)
        return _kept(columns[rows, torch.tensor(places, device=columns.device)])


class _Recorder:
    """A watcher that keeps the residual of every layer, loop and step of a single row."""

    def __init__(self, model: CarryModel, settings: CarrySettings, prompt: int, length: int) -> None:
        self._model, self._settings, self._prompt = model, settings, prompt
        first, last = settings.band
        self._residuals = torch.zeros(model.n_layers, length, model.d_model)
        self._loop_x: list[Tensor] = []
        self._loop_layers: list[list[Tensor]] = []
        self._handed: list[Tensor] = []
        self._maps: dict[int, Tensor] = {}
        self._layers = range(first, model.n_layers)
        self._length = length
        self._band_end = last - 1
        self._where = Where(phase="prefix", loop=0, step=0, first=0, count=length)

    def enter(self, where: Where, x: Tensor) -> None:
        self._where = where
        if where.phase == "prompt":
            self._loop_x.append(_kept(x[0, : self._prompt]))
            self._loop_layers.append([])

    def left_block(self, layer: int, x: Tensor) -> None:
        where = self._where
        self._residuals[layer, where.first : where.first + where.count] = _kept(x[0])
        if where.phase == "prompt":
            self._loop_layers[-1].append(_kept(x[0, : self._prompt]))

    def noting(self, do: Do | None) -> Do:
        """The intervention, and a note of what was handed on."""

        def noted(step: int, states: Tensor) -> Tensor:
            handed = states if do is None else do(step, states)
            self._handed.append(_kept(handed[0]))
            return handed

        return noted

    def attention_hooks(self) -> dict[str, Callable[[Tensor], None]]:
        return {f"blocks.{layer}.attn.hook_pattern": self._map_hook(layer) for layer in self._layers}

    def _map_hook(self, layer: int) -> Callable[[Tensor], None]:
        def note(value: Tensor) -> None:
            if layer not in self._maps:
                self._maps[layer] = torch.zeros(self._length, value.shape[1], self._length)
            where = self._where
            rows = slice(where.first, where.first + where.count)
            self._maps[layer][rows, :, : value.shape[-1]] = _kept(value[0].transpose(0, 1))

        return note

    def trace(
        self, *, ids: tuple[int, ...], texts: tuple[str, ...], e: Tensor, x: Tensor, s: Tensor, changed: bool
    ) -> CarryTrace:
        e, x, s = _kept(e), _kept(x), _kept(s)
        handed = torch.stack(self._handed) if self._handed else e.new_zeros(0, e.shape[1])
        entering = e[self._prompt : self._prompt + len(handed)].to(self._model.device)
        injection = _kept(self._model.adapter.injection(entering, handed.to(self._model.device)))
        maps = [self._maps[layer][self._prompt - 1 :] for layer in self._layers] if self._maps else None
        loops = torch.stack([torch.stack(layers) for layers in self._loop_layers])
        return CarryTrace(
            ids=ids,
            texts=texts,
            prompt_length=self._prompt,
            pauses=self._settings.pauses,
            config=self._config(changed),
            e=e,
            x=x,
            s=s,
            carried=handed,
            injection=injection,
            residuals=self._residuals,
            loop_x=torch.stack(self._loop_x),
            loop_s=loops[:, -1],
            loop_residuals=loops,
            attention=None if maps is None else torch.stack(maps, 1),
        )

    def _config(self, changed: bool) -> dict[str, Any]:
        return {
            **self._model.config(),
            **self._settings.to_dict(),
            "model": dict(self._model.base.source),
            "intervened": changed,
        }


def _kept(value: Tensor) -> Tensor:
    """A float32 copy on the CPU that holds no graph and no larger tensor."""
    return value.detach().to("cpu", torch.float32, copy=True)
