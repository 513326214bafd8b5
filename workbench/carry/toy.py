"""The toy base: a tiny Llama that knows one hop of pointer chasing, as an ordinary checkpoint directory.

It is trained for one hop and nothing else. Half of its loss reads the answer through the model's own head after the
exit layer, before the last block: without that auxiliary exit the answer forms in the last block, outside the band,
and no carry can learn to use it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from ..models import Blocks, HookedModel, blocks_of, hooks_on, load
from .optimise import Plan, optimise
from .task import PointerChase, stream

__all__ = ["BASE_PLAN", "EIGHT_NODES", "RECORD", "REPEATS", "TOY_SHAPE", "ToyShape", "train_base", "write_blank"]

BASE_PLAN = Plan(steps=2000, learning_rate=1.5e-3)
REPEATS = 3
"""Pauses after which the base still gives the one-hop answer, if nothing else is asked for."""
WEIGHTS, RECORD = "model.safetensors", "toy.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyShape:
    """The size of the base: about 0.2 million weights as it stands."""

    n_layers: int = 4
    d_model: int = 64
    n_heads: int = 4
    d_mlp: int = 176
    n_ctx: int = 64
    exit_layer: int = 2
    """The answer is also read after this layer, counted from 0, so that a band ending there holds it."""


EIGHT_NODES, TOY_SHAPE = PointerChase(), ToyShape()


def train_base(
    directory: Path,
    *,
    task: PointerChase = EIGHT_NODES,
    shape: ToyShape = TOY_SHAPE,
    plan: Plan = BASE_PLAN,
    repeats: int = REPEATS,
    limit: int | None = None,
    progress: bool = True,
) -> Path:
    """Train the one-hop base and leave it in ``directory`` as a checkpoint that :func:`workbench.load` reads.

    The base gives the one-hop answer at the query and again at each of ``repeats`` pauses after it. A directory whose
    training has ended is left as it is; one whose training was broken off goes on. ``limit`` stops after that many
    steps; the checkpoint is written at the end of the training only.
    """
    if (directory / RECORD).is_file():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as blank:
        write_blank(Path(blank), task, shape, plan.seed)
        model = load(blank, threads=torch.get_num_threads(), progress=False)
        weights = _checkpoint_weights(blocks_of(model), Path(blank))
        loss = _base_loss(model, task, shape, plan, repeats)
        training = optimise(
            weights, loss, plan, folder=directory, label=f"base, seed {plan.seed}", limit=limit, progress=progress
        )
        if len(training.losses) == plan.steps:
            for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
                shutil.copyfile(Path(blank) / name, directory / name)
            tensors = {name: weight.detach().contiguous() for name, weight in weights.items()}
            save_file(tensors, directory / WEIGHTS, {"format": "pt"})
            record = {
                "task": asdict(task),
                "shape": asdict(shape),
                "plan": asdict(plan),
                "repeats": repeats,
                "last_loss": training.last_loss(),
                "cpu_seconds": training.seconds,
            }
            (directory / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return directory


def _checkpoint_weights(blocks: Blocks, checkpoint: Path) -> dict[str, nn.Parameter]:
    """The weights of a model under their checkpoint's names, without biases that the bridge adds and nobody saves."""
    with safe_open(str(checkpoint / WEIGHTS), framework="pt") as file:
        names = set(file.keys())
    found = {name.replace("_original_component.", ""): weight for name, weight in blocks.whole.named_parameters()}
    return {name: found[name] for name in sorted(names)}


def _base_loss(
    model: HookedModel, task: PointerChase, shape: ToyShape, plan: Plan, repeats: int
) -> Callable[[int], Tensor]:
    """Cross-entropy of the one-hop answer at the query and at each pause, from the last layer and from the exit."""
    blocks, last, seen = blocks_of(model), repeats + 1, {}

    def note(value: Tensor) -> None:
        seen["exit"] = value[:, -last:]

    def loss_at(step: int) -> Tensor:
        problems = task.sample(plan.batch, stream("base", plan.seed, step))
        wanted = problems.answers(1).repeat_interleave(last)
        with hooks_on(model, {f"blocks.{shape.exit_layer}.hook_resid_post": note}):
            logits = blocks.whole(task.with_pauses(problems, repeats), use_cache=False, logits_to_keep=last).logits
        early = blocks.unembed(blocks.norm(seen["exit"]))
        both = [functional.cross_entropy(part.flatten(0, 1), wanted) for part in (logits, early)]
        total: Tensor = both[0] + both[1]
        return total

    return loss_at


def write_blank(directory: Path, task: PointerChase, shape: ToyShape, seed: int) -> Path:
    """Write an untrained Llama checkpoint for ``task``: config, tokenizer and random weights by ``seed``.

    Matrices are normal with variance 1 / (width of their input), those that write to the residual stream divided by
    the root of twice the number of layers, so that the stream starts with about unit variance at every depth.
    """
    directory.mkdir(parents=True, exist_ok=True)
    task.write_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps(_config(task, shape), indent=1) + "\n", encoding="utf-8")
    save_file(_weights(task, shape, stream("toy weights", seed)), directory / WEIGHTS, {"format": "pt"})
    return directory


def _config(task: PointerChase, shape: ToyShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(task.vocabulary),
        "hidden_size": shape.d_model,
        "intermediate_size": shape.d_mlp,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_heads,
        "max_position_embeddings": shape.n_ctx,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": task.vocabulary.index("<eos>"),
        "pad_token_id": task.vocabulary.index("<pad>"),
        "dtype": "float32",
    }


def _weights(task: PointerChase, shape: ToyShape, generator: torch.Generator) -> dict[str, Tensor]:
    width, vocabulary = shape.d_model, len(task.vocabulary)
    small = (2 * shape.n_layers) ** -0.5

    def normal(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * scale * float(columns**-0.5)

    weights = {"model.embed_tokens.weight": torch.randn(vocabulary, width, generator=generator)}
    for layer in range(shape.n_layers):
        block = f"model.layers.{layer}."
        weights |= {block + f"self_attn.{name}_proj.weight": normal(width, width) for name in "qkv"}
        weights[block + "self_attn.o_proj.weight"] = normal(width, width, small)
        weights |= {block + f"mlp.{name}_proj.weight": normal(shape.d_mlp, width) for name in ("gate", "up")}
        weights[block + "mlp.down_proj.weight"] = normal(width, shape.d_mlp, small)
        weights |= {block + f"{name}_layernorm.weight": torch.ones(width) for name in ("input", "post_attention")}
    return weights | {"model.norm.weight": torch.ones(width), "lm_head.weight": normal(vocabulary, width)}
