"""A checkpoint that somebody else made: its sizes are not believed, its code not run, its pickles not opened."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_files import outcome_within
from safetensors.torch import load_file, save_file

import workbench
from workbench.errors import ModelFileError, PromptError, WorkbenchError
from workbench.models.gguf_header import read_header
from workbench.models.tiny import tiny_checkpoint

FAMILIES = ("llama", "gpt2", "gpt_neox", "gemma3")
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written("llama", tmp_path_factory.mktemp("sound") / "model")


def written(family: str, place: Path) -> Path:
    model, tokenizer = tiny_checkpoint(family)
    model.save_pretrained(place)
    tokenizer.hf.save_pretrained(place)
    return place


@pytest.fixture
def model(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def changed(model: Path, file: str, change: Callable[[dict[str, Any]], Any]) -> Path:
    path = model / file
    told = json.loads(path.read_text("utf-8")) if path.exists() else {}
    change(told)
    path.write_text(json.dumps(told), "utf-8")
    return model


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """transformers warns of what it finds odd in a config, before it or we refuse it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def refused(model: Path, says: str = ".", kind: type[WorkbenchError] = WorkbenchError) -> None:
    began = time.thread_time()
    with pytest.raises(kind, match=says):
        workbench.load(str(model), progress=False)
    assert time.thread_time() - began < 20


# Configs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [10**7, 2**63, 0, -1])
@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer"])
def test_more_layers_than_there_are_weights_are_not_made(model: Path, key: str, value: int) -> None:
    """transformers makes them first and looks for their weights afterwards: ten million took all memory."""
    refused(
        changed(model, "config.json", lambda told: told.update({key: value})),
        rf"says {key}=-?\d+, but its",
        ModelFileError,
    )


def test_a_layer_count_in_a_part_of_the_config_is_seen(model: Path) -> None:
    def deep(told: dict[str, Any]) -> None:
        told["text_config"] = {"decoder": [{"num_hidden_layers": 10**9}]}

    refused(changed(model, "config.json", deep), "says num_hidden_layers=1000000000, but its weights allow 1 to 30")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 10**10), ("hidden_size", -4), ("hidden_size", "x"), ("hidden_size", 0), ("vocab_size", 10**10),
        ("vocab_size", -1), ("intermediate_size", 10**11), ("num_attention_heads", 0), ("num_attention_heads", 10**9),
        ("num_key_value_heads", 0), ("head_dim", 10**9), ("hidden_act", "__import__"), ("dtype", "evil"),
        ("rope_parameters", {"rope_type": "evil"}), ("quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("model_type", "nope"), ("model_type", "../x"), ("model_type", ["llama"]), ("architectures", ["os.system"]),
        ("pad_token_id", 10**9), ("tie_word_embeddings", "x"), ("layer_types", ["a"] * 3), ("eos_token_id", "x"),
        ("transformers_weights", "evil.bin"), ("rms_norm_eps", float("nan")), ("max_position_embeddings", 10**30),
    ],
)  # fmt: skip
def test_a_config_that_its_weights_do_not_back_is_refused(model: Path, key: str, value: Any) -> None:
    refused(changed(model, "config.json", lambda told: told.update({key: value})))


def test_absurd_contexts_take_no_memory(tmp_path: Path) -> None:
    """Older models kept a mask of context by context."""
    keys = ("max_position_embeddings", "n_positions", "n_ctx", "sliding_window")
    for family in FAMILIES:
        model = written(family, tmp_path / family)
        config = json.loads((model / "config.json").read_text("utf-8"))
        changed(model, "config.json", lambda told, held=config: told.update({k: 10**7 for k in keys if k in held}))
    program = f"""
import warnings; warnings.simplefilter("ignore")
for family in {FAMILIES}:
    try:
        workbench.models.load({str(tmp_path)!r} + "/" + family, progress=False)
    except WorkbenchError: pass
"""
    said, taken = outcome_within(4000, program)
    assert said == "read"
    assert taken < 1500


# Code --------------------------------------------------------------------------------------------------------------

EVIL = "open({canary!r}, 'w')\nclass Evil: pass\nEvilConfig = Evil\n"


@pytest.mark.parametrize(
    ("file", "entry"),
    [
        ("config.json", {"auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}}),
        (
            "config.json",
            {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}},
        ),
        (
            "config.json",
            {"auto_map": {"AutoModelForCausalLM": "someone/repository--evil.Evil"}, "trust_remote_code": True},
        ),
        ("config.json", {"custom_pipelines": {"text-generation": {"impl": "evil.Evil", "pt": ["Evil"]}}}),
        (
            "tokenizer_config.json",
            {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "trust_remote_code": True},
        ),
        ("tokenizer_config.json", {"tokenizer_class": "evil.Evil"}),
        ("processor_config.json", {"auto_map": {"AutoProcessor": "evil.Evil"}}),
        ("generation_config.json", {"custom_generate": "evil"}),
    ],
)
def test_code_beside_a_checkpoint_is_not_run(model: Path, tmp_path: Path, file: str, entry: dict[str, Any]) -> None:
    canary = tmp_path / "canary"
    for name in ("evil.py", "custom_generate/generate.py", "modeling_llama.py", "tokenization_evil.py", "conftest.py"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(EVIL.format(canary=str(canary)))
    changed(model, file, lambda told: told.update(entry))
    try:
        loaded = workbench.load(str(model), progress=False)
        workbench.Session(loaded).generate("hi", max_new_tokens=1, seed=0)
    except WorkbenchError:
        assert entry.get("model_type") == "evil"
    assert not canary.exists()


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation", "_experts_implementation"])
@pytest.mark.parametrize("value", ["kernels-community/flash-attn", "someone/kernel@main:evil", "paged|someone/x"])
def test_an_implementation_is_not_fetched_on_a_configs_word(model: Path, key: str, value: str) -> None:
    """With the package ``kernels`` installed, transformers would have fetched such a name from the hub and run it."""
    refused(
        changed(model, "config.json", lambda told: told.update({key: value})), "which is an address", ModelFileError
    )


@pytest.mark.parametrize("value", ["flash_attention_2", "sdpa", "flex_attention"])
def test_the_attention_that_a_config_names_is_not_taken(model: Path, value: str) -> None:
    """A named kernel that is not installed is looked for on the hub, too; and hooks need the plain one."""
    loaded: Any = workbench.load(
        str(changed(model, "config.json", lambda told: told.update(_attn_implementation=value)))
    )
    assert loaded.source["made_of"] == "a local directory"


def test_an_adapter_brings_in_no_other_model(model: Path) -> None:
    told = {
        "peft_type": "LORA",
        "base_model_name_or_path": "someone/else",
        "auto_mapping": {"base_model_class": "Evil"},
    }
    refused(changed(model, "adapter_config.json", lambda empty: empty.update(told)), "bring in weights from elsewhere")


# Pickles -----------------------------------------------------------------------------------------------------------


class Evil:
    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.canary,))


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "model.safetensors", "model.pt", "tf_model.h5", "flax_model.msgpack", "training_args.bin",
     "tokenizer.model", "adapter_model.bin", "rng_state.pth", "model-00001-of-00001.safetensors"],
)  # fmt: skip
@pytest.mark.parametrize("alone", [True, False])
def test_a_pickle_is_never_opened(model: Path, tmp_path: Path, name: str, alone: bool) -> None:
    canary = tmp_path / "canary"
    if alone:
        (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(Evil(canary)))
    changed(model, "pytorch_model.bin.index.json", lambda told: told.update(weight_map={"a": "pytorch_model.bin"}))
    try:
        workbench.load(str(model), progress=False)
    except WorkbenchError:
        assert alone or name == "model.safetensors"
    assert not canary.exists()
    pickle.loads(pickle.dumps(Evil(canary)))  # noqa: S301
    assert canary.exists(), "it would have shown"


# Weights -----------------------------------------------------------------------------------------------------------


def header(told: Any, data: int = 0) -> bytes:
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def entry(**other: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **other}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (struct.pack("<Q", 2**63) + b"{}", "truncated or no safetensors"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "truncated or no safetensors"),
        (header({"a": entry(shape=[-1])}, 4), "entry for tensor 'a' is malformed"),
        (header({"a": entry(shape=[-1, -1])}, 4), "is malformed"),
        (header({"a": entry(shape=["x" * 100, 10**12])}, 4), "is malformed"),
        (header({"a": entry(shape=[True])}, 4), "is malformed"),
        (header({"a": entry(shape=[1.0])}, 4), "is malformed"),
        (header({"a": entry(shape=[2**64, 0])}, 4), "is malformed"),
        (header({"a": entry(shape=[1] * 1000)}, 4), "is malformed"),
        (header({"a": entry(shape=[2**62, 4])}, 4), "has offsets that don't fit"),
        (header({"a": entry(shape="1")}, 4), "is malformed"),
        (header({"a": entry(data_offsets=[0, 2**64])}, 4), "is malformed"),
        (header({"a": entry(data_offsets=[-4, 0])}, 4), "is malformed"),
        (header({"a": entry(data_offsets=[4, 0])}, 4), "has offsets that don't fit"),
        (header({"a": entry(data_offsets=[0])}, 4), "is malformed"),
        (header({"a": entry(dtype="object")}, 4), "."),
        (header({"a": entry(dtype=["F32"])}, 4), "is malformed"),
        (header({"a" * 10**6: entry(shape=[-1])}, 4), "entry for tensor 'a{80}' is malformed"),
        (header({"a": entry(), "b": entry()}, 4), "."),
        (header({"a": entry(data_offsets=[0, 400], shape=[100])}, 4), "its header promises"),
        (header({"../../a": entry()}, 4), "."),
        (header(b'{"a":' * 100_000), "unreadable safetensors header"),
        (header(b'{"a": ' + b"9" * 10_000 + b"}"), "unreadable safetensors header"),
        (header({}), "."),
    ],
)
def test_absurd_headers_of_weights_are_refused(model: Path, content: bytes, says: str) -> None:
    (model / "model.safetensors").write_bytes(content)
    refused(model, says, ModelFileError)


@pytest.mark.parametrize("name", ["/etc/passwd", "../model.safetensors", "a/../../b", "\0", ".", "", "CON"])
def test_parts_of_weights_lie_in_their_directory(model: Path, name: str) -> None:
    (model / "model.safetensors").rename(model.parent / "model.safetensors")
    changed(model, "model.safetensors.index.json", lambda told: told.update(weight_map={"a": name}))
    refused(model, r"index.json lists .*which is not in|is not the name of a file", ModelFileError)


def test_weights_that_overlap_are_refused(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    save_file({name: torch.zeros_like(value) for name, value in tensors.items()}, model / "model.safetensors")
    content = (model / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    told = json.loads(content[8 : 8 + length])
    names = [name for name in told if name.endswith("layernorm.weight")]
    told[names[0]]["data_offsets"] = told[names[1]]["data_offsets"]
    (model / "model.safetensors").write_bytes(header(told) + content[8 + length :])
    refused(model, ".", ModelFileError)


# Tokenizers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tokenizer.json", lambda told: told.clear()),
        ("tokenizer.json", lambda told: told.update(model={"type": "Evil"})),
        ("tokenizer.json", lambda told: told["model"].update(vocab={"a": -1})),
        ("tokenizer.json", lambda told: told["model"].update(vocab={"a": 2**40})),
        ("tokenizer.json", lambda told: told.update(added_tokens=[{"id": "x"}])),
        ("tokenizer.json", lambda told: told.update(added_tokens=7)),
        ("tokenizer_config.json", lambda told: told.update(model_max_length="x")),
        ("tokenizer_config.json", lambda told: told.update(bos_token=7)),
        ("tokenizer_config.json", lambda told: told.update(added_tokens_decoder={"x": 3})),
        ("tokenizer_config.json", lambda told: told.update(extra_special_tokens=[[1]])),
        ("generation_config.json", lambda told: told.update(eos_token_id={"a": 1})),
    ],
)
def test_tokenizer_files_of_another_form_are_refused(model: Path, file: str, change: Any) -> None:
    refused(changed(model, file, change), ".", ModelFileError)


def test_replacements_that_multiply_a_text_are_refused(model: Path) -> None:
    """Four replacements of a letter by a thousand make a terabyte of it."""
    steps = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}] * 4
    for part in ("normalizer", "decoder"):
        kept = json.loads((model / "tokenizer.json").read_text("utf-8"))
        changed(
            model,
            "tokenizer.json",
            lambda told, part=part: told.update({part: {"type": "Sequence", part + "s": steps}}),
        )
        refused(model, f"the {part} in .* can make a text 1,000,000 times as long", ModelFileError)
        (model / "tokenizer.json").write_text(json.dumps(kept), "utf-8")


def test_a_regex_that_gives_up_is_a_refusal_and_no_panic(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    split = {"type": "Split", "pattern": {"Regex": "^(([a-c])+.)+[d-f]"}, "behavior": "Isolated", "invert": False}
    loaded = workbench.load(str(changed(model, "tokenizer.json", lambda told: told.update(pre_tokenizer=split))))
    began = time.thread_time()
    with pytest.raises(PromptError, match=r"the model's tokenizer gave up on this text: .*retry-limit"):
        workbench.Session(loaded).generate("a" * 200 + "!", max_new_tokens=1)
    assert time.thread_time() - began < 20
    assert "panicked" in capfd.readouterr().err  # Rust's own note; the run goes on
    assert loaded.tokenizer.encode("hi")


def test_end_tokens_that_are_not_in_the_vocabulary_end_nothing(model: Path, tmp_path: Path) -> None:
    changed(model, "generation_config.json", lambda told: told.update(eos_token_id=[2, 10**18, -5]))
    loaded = workbench.load(str(model), progress=False)
    assert loaded.tokenizer.eos_token_ids == (2,)
    workbench.Session(loaded).generate("hi", max_new_tokens=1, save=tmp_path / "run")
    assert workbench.Trace.load(tmp_path / "run").run["model"]["eos_token_ids"] == [2]


def test_script_in_tokens_is_shown_and_never_run(tmp_path: Path) -> None:
    """Every window and every report of a model whose tokens, name and template text are script."""
    from widgets import LiveRun, ResidualView, TraceExplorer
    from workbench.reports import Report

    place = tmp_path / "<img src=x onerror=alert(2)>"
    hf_model, tokenizer = tiny_checkpoint("llama")
    hf_model.save_pretrained(place)
    told = json.loads(tokenizer.hf.backend_tokenizer.to_str())
    letters = {letter: f"{SCRIPT}{number}" for number, letter in enumerate("abcdefgh")}
    told["model"]["vocab"] = {letters.get(text, text): token for text, token in told["model"]["vocab"].items()}
    tokenizer.hf.save_pretrained(place)
    (place / "tokenizer.json").write_text(json.dumps(told), "utf-8")
    model: Any = workbench.load(str(place), progress=False)
    wanted = [token for text, token in model.tokenizer.hf.get_vocab().items() if SCRIPT in text]
    assert len(wanted) == len(letters)
    session = workbench.Session(model, capture="blocks.*.hook_resid_post")
    trace = session.generate(wanted, max_new_tokens=2, seed=0).trace
    assert SCRIPT in model.tokenizer.token_text(wanted[0])
    live = LiveRun(model, "x")
    shown = [
        Report("x").trace(trace, model).save(tmp_path / "r.html").read_text("utf-8"), trace._repr_html_(),
        TraceExplorer(trace, model).static_html(), ResidualView(model, trace).static_html(), live.static_html(),
    ]  # fmt: skip
    live.close()
    for page in shown:
        assert "<script>alert" not in page
        assert "<img src=x" not in page


# GGUF --------------------------------------------------------------------------------------------------------------


def gguf(*records: bytes, tensors: int | None = None, keys: bytes = b"", count: int = 0) -> bytes:
    told = len(records) if tensors is None else tensors
    return b"GGUF" + struct.pack("<IQQ", 3, told, count) + keys + b"".join(records)


def record(name: bytes, shape: list[int], kind: int = 0, offset: int = 0, axes: int | None = None) -> bytes:
    lengths = struct.pack(f"<{len(shape)}Q", *shape)
    return (
        struct.pack("<Q", len(name))
        + name
        + struct.pack("<I", len(shape) if axes is None else axes)
        + lengths
        + struct.pack("<IQ", kind, offset)
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gguf(tensors=2**60), "claims 1152921504606846976 tensors"),
        (gguf(count=2**60), "claims 1152921504606846976 metadata keys"),
        (gguf(record(b"a", [1], offset=2**63)), "tensor 'a' at byte"),
        (gguf(record(b"a", [2**40])), "tensor 'a' at byte|needs"),
        (gguf(record(b"a", [2**63, 2**63])), "needs|can't fill"),
        (gguf(record(b"a", [2**64 - 1])), "needs"),  # -1 as a signed number
        (gguf(record(b"a", [0])), "can't fill"),
        (gguf(record(b"a", [1], axes=2**31) + bytes(64)), "has 2147483648 axes"),
        (gguf(record(b"a", [1], axes=0) + bytes(64)), "has 0 axes"),
        (gguf(record(b"a", [1], kind=999), bytes(64), tensors=1), "has type 999, unknown"),
        (gguf(record(b"a", [8]), record(b"b", [8]), bytes(64), tensors=2), "overlap"),
        (gguf(record(b"a", [8]), record(b"a", [8], offset=32), bytes(99), tensors=2), "have the same name"),
        (gguf(record(b"a", [8], offset=3), bytes(128), tensors=1), "not a multiple of 32"),
        (gguf(struct.pack("<Q", 2**60) + bytes(64), tensors=1), "a tensor name at byte"),
        (gguf(record(b"\xff\xfe", [8]), bytes(64), tensors=1), "a tensor name is not UTF-8"),
        (gguf(count=1, keys=struct.pack("<Q1sIIQ", 1, b"a", 9, 9, 2**60) + bytes(64)), "elements of type 9"),
    ],
)  # fmt: skip
def test_an_absurd_gguf_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(WorkbenchError, match=says):
        read_header(tmp_path / "x.gguf")


def test_a_sparse_gguf_of_a_terabyte_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf(record(b"a", [8]), tensors=1))
    os.truncate(tmp_path / "x.gguf", 1 << 40)
    began = time.thread_time()
    with pytest.raises(ModelFileError, match=r"no general\.architecture"):
        read_header(tmp_path / "x.gguf")
    assert time.thread_time() - began < 1


def test_the_name_of_a_gguf_file_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache's entry is named by letters of the file's name and its digest."""
    from workbench.models.entries import ConvertedEntry

    for name in ("..gguf", "....gguf", "a b;rm -rf.gguf", "\u202egpj.gguf", "x" * 200 + ".gguf"):
        entry_of = ConvertedEntry(root=tmp_path, source=tmp_path / name, sha256="0" * 64)
        assert entry_of.directory.parent == tmp_path / "converted"
        assert entry_of.directory.resolve().parent == (tmp_path / "converted").resolve()
        assert len(entry_of.directory.name) < 100
