"""From a GGUF file to a Hugging Face directory: weights as float32 safetensors, tokenizer, configs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import ModelFileError, UnsupportedModelError
from .bounded_reader import ADVICE
from .gguf_header import GgufHeader, read_header
from .progress import quiet_transformers, step_bar

__all__ = ["CONVERTER", "convert"]

CONVERTER = 1
"""Raise this number when the output of ``convert`` changes: older cache entries are then rebuilt."""

DIGIT_SPLITTERS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
"""Values of ``tokenizer.ggml.pre`` that mean: each digit alone, then GPT-2's splits."""


def convert(gguf: Path, target: Path, *, label: str, progress: bool = True) -> dict[str, Any]:
    """Write config, safetensors, generation config and tokenizer of ``gguf`` into ``target``.

    Returns what made them, for the manifest. ``label`` names the file in errors. Raises
    ``ModelFileError`` when the file is broken or lacks weights, ``UnsupportedModelError`` when
    transformers doesn't know its architecture or tokenizer.
    """
    header = read_header(gguf)
    with step_bar(label, 4, show=progress) as begin, quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin("start transformers")
        import transformers  # noqa: F401  (seconds; named so that the wait is explained)

        begin("dequantize weights")
        model = read_model(gguf, header, label)
        begin("build tokenizer")
        tokenizer = read_tokenizer(gguf, header, label)
        check_vocabulary(model, tokenizer, label)
        tokenizer.model_max_length = model.config.max_position_embeddings
        begin("write safetensors")
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    warn_if_unused(model, header, label)
    return {
        "converter": CONVERTER,
        "versions": {name: version(name) for name in ("transformers", "gguf", "torch")},
    }


def read_model(gguf: Path, header: GgufHeader, label: str) -> Any:
    """The dequantized model in float32, on the CPU, with every weight taken from the file."""
    import torch
    from transformers import AutoModelForCausalLM

    with explained(label, f"architecture {header.architecture!r}"):
        model, report = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            output_loading_info=True,
            local_files_only=True,
        )
    missing = sorted({*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])})
    if missing:
        raise ModelFileError(
            f"{label} lacks {len(missing)} weights that {header.architecture!r} needs (first: {missing[0]}), "
            "and running with random ones would be silently wrong. Get a complete copy of the file."
        )
    bad = [name for name, values in model.named_parameters() if not bool(torch.isfinite(values).all())]
    if bad:
        raise ModelFileError(f"{label} is corrupt: {len(bad)} weights hold NaN or infinity (first: {bad[0]}). {ADVICE}")
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # the weights are plain float32 now
    model.hf_quantizer = None
    return model


def warn_if_unused(model: Any, header: GgufHeader, label: str) -> None:
    """Say so when the file holds more numbers than the model took: transformers skips tensors in silence."""
    unused = sum(tensor.elements for tensor in header.tensors) - sum(p.numel() for p in model.parameters())
    if unused <= 0:
        return
    odd = [tensor.name for tensor in header.tensors if tensor.name.startswith("rope_")]
    warnings.warn(
        f"{label}: {unused} of the file's numbers have no place in the converted model"
        f"{f' (among them {odd[0]}: its long-context scaling is lost)' if odd else ''}, so it may answer "
        "otherwise than in llama.cpp. Prefer the model's Hugging Face directory.",
        stacklevel=2,
    )


def read_tokenizer(gguf: Path, header: GgufHeader, label: str) -> Any:
    """The tokenizer the file describes, splitting digits the way its merges were learned."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    with explained(label, f"tokenizer {header.text('tokenizer.ggml.model')!r}"):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    if header.text("tokenizer.ggml.pre") in DIGIT_SPLITTERS:
        # transformers ignores this family: "  12" would become two tokens of one space instead of one of two.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer


def check_vocabulary(model: Any, tokenizer: Any, label: str) -> None:
    """Raise unless every token id has a row in the embedding."""
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ModelFileError(
            f"{label} is corrupt: its tokenizer has {len(tokenizer)} tokens, its embedding {rows} rows. {ADVICE}"
        )


@contextmanager
def explained(label: str, what: str) -> Iterator[None]:
    """Turn what transformers raises on content it can't convert into one ``UnsupportedModelError``."""
    try:
        yield
    except (MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:  # its native tokenizers raise nothing narrower
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a real one, such as a full disk; transformers' own carry no number
        raise UnsupportedModelError(
            f"{label} is a readable GGUF file, but its {what} can't be converted ({type(error).__name__}: "
            f"{error}). Use the model's Hugging Face directory (safetensors) instead."
        ) from error
