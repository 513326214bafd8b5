"""From a name to a model that is ready to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, ModelFileError, UnsupportedModelError, did_you_mean
from .checkpoints import path as checkpoint_path
from .entries import GGUF
from .registry import KNOWN
from .store import read_manifest
from .threads import settle_threads
from .tiny import tiny_checkpoint
from .tokenizer import Tokenizer
from .wrapped import WrappedModel, allowed_difference, check_ids, relative_difference

__all__ = ["BACKENDS", "load"]

BACKENDS = ("bridge", "hooked", "lean")
"""What ``load`` takes as ``backend``; the first is the default."""
TRANSFORMERS_RANGE = ((5, 20), (5, 24))


def load(
    name: str | Path = "smollm2-135m-instruct",
    *,
    backend: str = "bridge",
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    accept_terms: bool = False,
    threads: int | None = None,
    packed: bool = False,
    progress: bool = True,
) -> WrappedModel:
    """Load a model: a known name, a local Hugging Face directory, a ``.gguf`` file or a hub name.

    ``backend`` is ``bridge`` (TransformerBridge; most architectures), ``hooked`` (HookedTransformer;
    Llama-, Gemma-3-, GPT-2- and NeoX-shaped) or ``lean`` (our own; Llama- and Gemma-3-shaped, faster).
    Hook names and results are the same. ``tiny-llama``, ``tiny-gemma3``, ``tiny-gpt2`` and
    ``tiny-gpt_neox`` are random models that need no download.
    ``packed=True`` (lean, on a CPU) keeps the matrices as the model's GGUF file has them and decodes them as they are
    used: the same weights in less memory, so each step reads less. Prompts are slower by the decoding.
    The KV cache is checked against an uncached pass before the model is handed out. On a CPU torch's thread
    count becomes ``threads``, or by a short trial whichever of one and the present number decodes faster.

    :raises UnknownModelError: nothing of that name here, and no network to look further.
    :raises ModelFileError: the files are damaged, or the tokenizer belongs to another model.
    :raises UnsupportedModelError: the backend can't run this architecture, or runs it otherwise than transformers; or
        the device gives other numbers than the CPU.
    """
    if backend not in BACKENDS:
        raise UnsupportedModelError(
            f"no backend {backend!r}; choose from {', '.join(BACKENDS)}.{did_you_mean(backend, BACKENDS)}"
        )
    _check_versions()
    where = _device(device)
    if threads is not None and threads < 1:
        raise ModelError(f"threads must be 1 or more, got {threads}")
    if packed and backend != "lean":
        raise UnsupportedModelError(f"packed=True is for backend='lean', which runs packed weights, not {backend!r}.")
    hf_model, tokenizer, source = _checkpoint(str(name), dtype, accept_terms, progress)
    reference = _moved(hf_model, where)  # before it is wrapped, which changes it
    model = _wrap(backend, hf_model, tokenizer, str(name), _blocks(str(name)) if packed else None)
    model.check_against(reference)
    model.source = {**source, "backend": backend, "dtype": str(dtype).removeprefix("torch.")}
    if packed:
        model.source["packed"] = True
    settle_threads(model, threads)
    model.check_cache()
    return model


def _device(wanted: str | torch.device | None) -> torch.device:
    """The device asked for, or CUDA if there is one.

    :raises ModelError: it is no device, or not in this machine or this build of torch.
    """
    try:
        device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            f"device {str(wanted)!r} can't be used here: {str(error).splitlines()[0]}. 'cpu' always works."
        ) from error
    return device


def _moved(hf_model: Any, where: torch.device) -> Tensor:
    """Put the model on its device; what transformers says there: logits ``[pos, vocab]`` of the check ids.

    :raises UnsupportedModelError: the device gives other numbers than the CPU. MPS has done so, without a word.
    """
    reference = _reference(hf_model)
    if where.type == "cpu":
        return reference
    hf_model.to(where)
    there = _reference(hf_model)
    difference = relative_difference(there.cpu(), reference)
    if not difference < allowed_difference(hf_model.dtype):
        raise UnsupportedModelError(
            f"{where} gives other logits than the CPU for the same model (by {difference:.2g} of their size): a fault "
            f"of torch {torch.__version__} or of the device. Use device='cpu', or another version of torch."
        )
    return there


def _reference(hf_model: Any) -> Tensor:
    """What transformers itself says: logits ``[pos, vocab]`` of the check ids."""
    ids = torch.tensor([check_ids(int(hf_model.config.vocab_size))], device=hf_model.device)
    try:
        with torch.inference_mode():
            logits: Tensor = hf_model(ids).logits[0].float()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a config can ask for anything, and it shows in the first pass
        raise ModelFileError(f"the model can't be run as its config says: {_told(error)}") from error
    return logits


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


def _blocks(name: str) -> Path:
    """The GGUF file that a checkpoint was made from.

    :raises UnsupportedModelError: it was made from none.
    """
    tiny = name.startswith("tiny-") and not Path(name).exists()
    file = None if tiny else checkpoint_path(name) / GGUF
    if file is None or not file.is_file():
        raise UnsupportedModelError(
            f"{name!r} was not made from a GGUF file, so there are no packed weights to keep. Leave out packed=True, "
            "or load a .gguf file."
        )
    return file


def _wrap(backend: str, hf_model: Any, tokenizer: Tokenizer, name: str, blocks: Path | None) -> WrappedModel:
    if backend == "hooked":
        from .hooked import HookedTransformerModel

        return HookedTransformerModel(hf_model, tokenizer, name)
    if backend == "lean":
        from .lean import BlockFile, LeanModel

        file = None if blocks is None else BlockFile(blocks, hf_model.config)
        return LeanModel(hf_model, tokenizer, name, file)
    from .bridge import BridgeModel

    try:
        return BridgeModel(hf_model, tokenizer, name)
    except (ValueError, AttributeError, AssertionError, NotImplementedError, RuntimeError) as error:
        kind = type(hf_model).__name__
        raise UnsupportedModelError(
            f"TransformerBridge can't run {kind} ({type(error).__name__}: {str(error)[:200]}). The workbench needs "
            "a causal transformer with a key-value cache, such as Llama-, Qwen-, Gemma- or GPT-shaped ones."
        ) from error


def _checkpoint(
    name: str, dtype: torch.dtype, accept_terms: bool, progress: bool
) -> tuple[Any, Tokenizer, dict[str, Any]]:
    family = name.removeprefix("tiny-")
    if name.startswith("tiny-") and not Path(name).exists():
        hf_model, tokenizer = tiny_checkpoint(family)
        return hf_model.to(dtype), tokenizer, {"name": name, "made_of": "random weights, seed 0"}
    directory = checkpoint_path(name, accept_terms=accept_terms, progress=progress)
    hf_model, tokenizer = read_checkpoint(directory, dtype, trusted=name in KNOWN)
    return hf_model, tokenizer, {"name": name, "made_of": read_manifest(directory).get("source", "a local directory")}


def read_checkpoint(directory: Path, dtype: torch.dtype, *, trusted: bool = False) -> tuple[Any, Tokenizer]:
    """A Hugging Face model and tokenizer from a local directory; nothing is asked of a hub.

    ``trusted`` says that its chat template is one of ours.

    :raises ModelFileError: weights are missing or do not fit, or the tokenizer is another model's.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as hf_logging

    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        config._attn_implementation = "eager"  # else one that the file names would win over the one asked for below
        model, report = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
        hf_tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        tokenizer = Tokenizer(hf_tokenizer, eos_token_ids=_eos(model), trusted=trusted)
        tokenizer.encode("a")
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # what libraries raise about somebody's files has no common root
        raise ModelFileError(f"{directory} can't be read as a Hugging Face model: {_told(error)}") from error
    finally:
        if bars:
            hf_logging.enable_progress_bar()
    if report["missing_keys"]:
        raise ModelFileError(
            f"{directory} lacks weights {sorted(report['missing_keys'])[:3]}…: they would be random. "
            "Fetch the checkpoint again."
        )
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        raise ModelFileError(
            f"the tokenizer in {directory} has {len(tokenizer)} tokens but the model only "
            f"{model.get_input_embeddings().weight.shape[0]}: it belongs to another model"
        )
    return model.eval(), tokenizer


def _eos(model: Any) -> list[int]:
    """End tokens in the generation config's order; it may hold one id, a list, or nothing."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        return []
    vocabulary = model.get_input_embeddings().weight.shape[0]  # what lies beyond it is never drawn
    return [int(i) for i in (ids if isinstance(ids, list) else [ids]) if 0 <= int(i) < vocabulary]


def _check_versions() -> None:
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    low, high = TRANSFORMERS_RANGE
    if not low <= version < high:
        raise ModelError(
            f"transformers {transformers.__version__} is outside the tested range >=5.20,<5.24 (5.24 renamed "
            "the attention cache argument, which silently breaks cached generation): "
            "pip install 'transformers>=5.20,<5.24'"
        )
