"""Loading: from a name or a path to a model that runs, or one error that says what is wrong and what to do."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_fakes import write_gguf
from safetensors.torch import load_file, save_file
from test_contract import BACKENDS, IDS, needs_hooked
from torch import Tensor

from workbench.errors import ModelError, ModelFileError, UnknownModelError, UnsupportedModelError
from workbench.models import HookedModel, load, threads
from workbench.models.tiny import TINY_FAMILIES, tiny_checkpoint

Damage = Callable[[Path], object]


@cache
def checkpoint(family: str) -> Any:
    return tiny_checkpoint(family)


def save(directory: Path, hf_model: Any) -> Path:
    """A checkpoint as ``save_pretrained`` writes it, with the byte tokenizer of the tiny models."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    hf_model.save_pretrained(directory)
    checkpoint("llama")[1].hf.save_pretrained(directory)
    logging.enable_progress_bar()
    return directory


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a saved tiny model; not to be changed."""

    @cache
    def of(family: str) -> Path:
        return save(tmp_path_factory.mktemp("saved") / family, checkpoint(family)[0])

    return of


@pytest.fixture
def llama(saved: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a saved tiny Llama, to be changed."""
    return Path(shutil.copytree(saved("llama"), tmp_path / "tiny llama"))


def logits(model: HookedModel) -> Tensor:
    return model.forward([IDS], model.new_cache(), keep=[len(IDS)]).logits[0]


class TestDirectories:
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("family", TINY_FAMILIES)
    def test_a_saved_model_is_the_original(self, saved: Callable[[str], Path], family: str, backend: str) -> None:
        model = load(saved(family), backend=backend)
        assert torch.equal(logits(model), logits(load(f"tiny-{family}", backend=backend)))
        with torch.inference_mode():
            plain = checkpoint(family)[0](torch.tensor([IDS])).logits[0]
        assert (logits(model) - plain).abs().max() < 1e-3
        assert model.tokenizer.fingerprint == checkpoint(family)[1].fingerprint
        assert model.name == str(saved(family))
        assert model.source == {
            "name": str(saved(family)),
            "made_of": "a local directory",
            "backend": backend,
            "dtype": "float32",
        }

    def test_nothing_is_asked_of_a_network(self, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError("touched the network")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        for backend in ("bridge", "hooked"):
            assert load(llama, backend=backend).backend == backend

    @pytest.mark.parametrize(("told", "ends"), [([7, 5], (7, 5, 2)), (9, (9, 2)), (None, (2,)), ([2], (2,))], ids=str)
    def test_all_end_tokens_of_the_generation_config_count(
        self, llama: Path, told: object, ends: tuple[int, ...]
    ) -> None:
        path = llama / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": told}))
        assert load(llama).tokenizer.eos_token_ids == ends

    def test_without_a_generation_config_the_end_token_is_the_configs(self, llama: Path) -> None:
        (llama / "generation_config.json").unlink()
        assert load(llama).tokenizer.eos_token_ids == (2,)

    def test_weights_in_several_parts_are_read(self, saved: Callable[[str], Path], tmp_path: Path) -> None:
        checkpoint("llama")[0].save_pretrained(tmp_path, max_shard_size="40KB")
        checkpoint("llama")[1].hf.save_pretrained(tmp_path)
        assert (tmp_path / "model.safetensors.index.json").is_file()
        assert torch.equal(logits(load(tmp_path)), logits(load(saved("llama"))))

    @pytest.mark.parametrize("shown", [True, False])
    @pytest.mark.parametrize("whole", [True, False])
    def test_progress_bars_of_transformers_are_left_as_they_were(self, llama: Path, shown: bool, whole: bool) -> None:
        from transformers.utils import logging

        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
        try:
            if whole:
                load(llama)
            else:
                (llama / "tokenizer.json").write_text("{}")
                with pytest.raises(ModelFileError):
                    load(llama)
            assert logging.is_progress_bar_enabled() is shown
        finally:
            logging.enable_progress_bar()


def widen_tokenizer(directory: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save_pretrained(directory)


def drop_weights(directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layers.1" not in name}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})


def cut(name: str) -> Damage:
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:-100])


def change(name: str, **values: object) -> Damage:
    return lambda directory: (directory / name).write_text(
        json.dumps({**json.loads((directory / name).read_text()), **values})
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (widen_tokenizer, r"the tokenizer in .* has 261 tokens but the model only 260: it belongs to another model"),
        (drop_weights, r"lacks weights \['model\.layers\.1\..*they would be random\. Fetch the checkpoint again"),
        (cut("model.safetensors"), r"model\.safetensors is truncated or corrupt: its header promises \d+ bytes"),
        (cut("tokenizer.json"), r"tokenizer.json is not valid JSON: .* Download it again"),
        (cut("config.json"), r"config\.json is not valid JSON"),
        (change("config.json", hidden_size=64), r"can't be read as a Hugging Face model"),
        (change("config.json", model_type="llamma"), r"can't be read as a Hugging Face model.*llamma"),
        (lambda directory: (directory / "model.safetensors").unlink(), r"has no weights"),
        (lambda directory: (directory / "tokenizer.json").unlink(), r"has no tokenizer"),
    ],
)
@pytest.mark.filterwarnings("default")  # what transformers says before it fails is its own
def test_a_damaged_directory_is_named_with_what_is_wrong(llama: Path, damage: Damage, message: str) -> None:
    damage(llama)
    with pytest.raises(ModelFileError, match=f"(?s){message}") as caught:
        load(llama)
    assert str(llama) in str(caught.value)


def test_a_truncated_gguf_is_named_before_anything_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    for keep in (0, 10, 1000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.gguf").write_bytes(whole[:keep])
        with pytest.raises(ModelFileError, match=r"cut\.gguf"):
            load(tmp_path / "cut.gguf")
    assert not list((tmp_path / "cache").glob("converted/*"))


class TestNames:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("smollm2-135m-instuct", r"unknown model 'smollm2-135m-instuct'\. Did you mean 'smollm2-135m-instruct'\?"),
            ("smollm2", r"Did you mean 'smollm2-135m-instruct'\?"),
            ("gpt-5", r"unknown model 'gpt-5'\. Known models: .*a local Hugging Face directory, a \.gguf file"),
            ("tiny-lama", r"no tiny model 'lama'; the families are llama, .*Did you mean 'llama'"),
            ("./tiny-llama", r"there is no file or directory './tiny-llama' \(looked in "),
            ("", r"unknown model ''"),
        ],
    )
    def test_a_name_that_leads_nowhere_says_what_would(self, name: str, message: str) -> None:
        with pytest.raises(UnknownModelError, match=message):
            load(name)

    def test_a_hub_name_offline_fails_at_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        started = time.monotonic()
        with pytest.raises(UnknownModelError, match=r"not in the local hub cache, and offline mode is on.*\.gguf file"):
            load("somebody/some-model")
        assert time.monotonic() - started < 5

    def test_a_directory_goes_before_a_tiny_model_of_that_name(
        self, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        llama.rename(tmp_path / "tiny-gpt2")
        monkeypatch.chdir(tmp_path)
        assert "blocks.0.ln1.hook_scale" in load("tiny-gpt2").hook_names
        assert load("tiny-gpt2").source["made_of"] == "a local directory"


class TestBackends:
    def test_an_unknown_one_is_named_with_the_near_one(self) -> None:
        with pytest.raises(UnsupportedModelError, match=r"no backend 'bridgee'; .*Did you mean 'bridge'\?"):
            load("tiny-llama", backend="bridgee")

    @needs_hooked
    def test_an_architecture_that_only_the_bridge_runs(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM, MistralConfig

        config = MistralConfig(
            vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        mistral = AutoModelForCausalLM.from_config(config).eval()
        directory = save(tmp_path / "mistral", mistral)
        with torch.inference_mode():
            plain = mistral(torch.tensor([IDS])).logits[0]
        assert (logits(load(directory)) - plain).abs().max() < 1e-4
        with pytest.raises(UnsupportedModelError, match=r"covers llama, .*not 'mistral'\. Use backend='bridge'"):
            load(directory, backend="hooked")

    @needs_hooked
    def test_a_rotary_scaling_that_only_the_bridge_knows(self, llama: Path) -> None:
        rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
        change("config.json", rope_parameters=rope)(llama)
        assert load(llama).backend == "bridge"
        with pytest.raises(UnsupportedModelError, match=r"rope_type='linear'\. Use backend='bridge'"):
            load(llama, backend="hooked")


@pytest.mark.parametrize(
    ("share", "refused"),
    [(0.0, False), (1e-5, False), (0.05, True), (float("nan"), True)],
)
def test_a_device_that_gives_other_numbers_than_the_cpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, share: float, refused: bool
) -> None:
    """A stand-in for such a device: what is moved there stays where it is, and its numbers change a little."""
    from transformers import PreTrainedModel

    def moved(model: Any, where: torch.device) -> Any:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + share)
        return model

    monkeypatch.setattr(import_module("workbench.models.load"), "_device", lambda wanted: torch.device("mps"))
    monkeypatch.setattr(PreTrainedModel, "to", moved)
    if refused:
        with pytest.raises(UnsupportedModelError, match=r"mps gives other logits than the CPU .* Use device='cpu'"):
            load("tiny-llama")
    else:
        assert load("tiny-llama").name == "tiny-llama"


@pytest.mark.parametrize("version", ["5.19.4", "5.24.0", "6.0.0.dev0", "4.57.1"])
def test_another_transformers_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    import transformers

    monkeypatch.setattr(transformers, "__version__", version)
    with pytest.raises(ModelError, match=rf"^transformers {version} is outside the tested range >=5\.20,<5\.24 .*pip"):
        load("tiny-llama")


class TestThreads:
    @pytest.fixture(autouse=True)
    def as_before(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Nobody said how many threads they want, and torch would use two."""
        before = torch.get_num_threads()
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        torch.set_num_threads(2)
        yield
        torch.set_num_threads(before)

    @staticmethod
    def stopwatch(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, list[float]]) -> list[int]:
        """Times of decoding steps by the number of threads; returns which were asked for."""
        asked: list[int] = []

        def step(model: Any, cache: Any) -> float:
            count = torch.get_num_threads()
            asked.append(count)
            return seconds[count][asked.count(count) - 1]

        monkeypatch.setattr(threads, "_step", step)
        return asked

    @pytest.mark.parametrize(
        ("seconds", "chosen"),
        [
            ({1: [0.1, 0.1, 0.1], 2: [0.2, 0.2, 0.2]}, 1),
            ({1: [0.2, 0.2, 0.2], 2: [0.1, 0.1, 0.1]}, 2),
            ({1: [0.2, 0.2, 0.2], 2: [9.0, 9.0, 0.1]}, 2),  # the best of three: a box may be busy for a moment
            ({1: [0.1, 0.1, 0.1], 2: [0.1, 0.1, 0.1]}, 1),
        ],
    )
    def test_the_faster_number_is_chosen(
        self, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, list[float]], chosen: int
    ) -> None:
        asked = self.stopwatch(monkeypatch, seconds)
        load("tiny-llama")
        assert asked == [1, 1, 1, 2, 2, 2]
        assert torch.get_num_threads() == chosen

    def test_a_number_given_is_taken_unmeasured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = self.stopwatch(monkeypatch, {})
        load("tiny-llama", threads=1)
        assert (torch.get_num_threads(), asked) == (1, [])
        load("tiny-llama", threads=2)
        assert (torch.get_num_threads(), asked) == (2, [])

    def test_what_the_environment_says_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        asked = self.stopwatch(monkeypatch, {})
        load("tiny-llama")
        assert (torch.get_num_threads(), asked) == (2, [])

    def test_one_thread_needs_no_trial(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.set_num_threads(1)
        asked = self.stopwatch(monkeypatch, {})
        load("tiny-llama")
        assert (torch.get_num_threads(), asked) == (1, [])


def test_a_cache_that_does_not_work_is_said_and_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.models.bridge import _RowLayer

    # What a renamed argument once did: attention sees only the tokens of this pass.
    monkeypatch.setattr(_RowLayer, "update", lambda self, keys, values, *_, **__: (keys, values))
    with pytest.warns(UserWarning, match=r"cached logits differ .* the KV cache is switched off: results stay exact"):
        model = load("tiny-gpt2")
    assert not model.cache_works


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_number_formats_are_loaded_as_asked(dtype: torch.dtype, saved: Callable[[str], Path]) -> None:
    model = load(saved("llama"), dtype=dtype)
    assert (model.dtype, model.source["dtype"]) == (dtype, str(dtype).removeprefix("torch."))
    plain = logits(load("tiny-llama"))
    assert (logits(model) - plain).abs().max() < 0.05 * plain.abs().max()
