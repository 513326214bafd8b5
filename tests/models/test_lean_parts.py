"""The lean backend's parts: the store, the weights, which gear runs what, and the threads that share a pass."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.errors import UnsupportedModelError
from workbench.models import Edit, load
from workbench.models.lean import LeanModel
from workbench.models.lean.crew import Crew
from workbench.models.lean.weights import take_weights
from workbench.models.tiny import tiny_checkpoint

IDS = [5, 99, 123, 7, 43, 8, 200, 17, 64, 3, 250, 31, 90, 12, 77, 6]
LOGITS = 1e-3


@cache
def lean(family: str) -> LeanModel:
    hf_model, tokenizer = tiny_checkpoint(family)
    return LeanModel(hf_model, tokenizer, f"tiny-{family}")


@cache
def bridge(family: str) -> Any:
    return load(f"tiny-{family}")


class TestStore:
    def test_a_fork_shares_memory_and_a_fork_of_a_fork_goes_on_rightly(self) -> None:
        model = lean("gemma3")
        store = model.new_cache(2)
        model.forward([[1], IDS[:10]], store)
        fork = store.fork(1, 2)
        assert fork.shared is not None
        assert fork.shared.keys is store.keys
        model.forward([IDS[10:12], IDS[10:11]], fork)
        deeper = fork.fork(0, 2)
        found = model.forward([IDS[12:], [9]], deeper, keep=[4, 1]).logits
        wanted = model.forward([IDS, [*IDS[:12], 9]], model.new_cache(2), keep=[4, 1]).logits
        for one, two in zip(found, wanted, strict=True):
            assert (one - two).abs().max() < LOGITS
        with pytest.raises(ValueError, match="can't rewind row 0 by 5: it holds 4 positions"):
            deeper.rewind(0, 5)

    def test_rewinding_moves_no_memory(self) -> None:
        store = lean("llama").new_cache()
        lean("llama").forward([IDS], store)
        before = store.keys.data_ptr(), store.values.data_ptr(), store.keys.clone()
        store.rewind(0, 9)
        assert (store.keys.data_ptr(), store.values.data_ptr()) == before[:2]
        assert torch.equal(store.keys, before[2])

    def test_what_is_taken_out_comes_back_bit_for_bit(self) -> None:
        model = lean("llama")
        store = model.new_cache()
        model.forward([IDS], store)
        before = store.keys.clone()
        tail = store.take(0, 6)
        model.forward([[7] * 6], store)
        store.rewind(0, 6)
        store.put(0, tail)
        assert torch.equal(store.keys, before)
        assert store.lengths == (16,)

    def test_without_a_working_cache_whole_rows_are_fed(self) -> None:
        hf_model, tokenizer = tiny_checkpoint("llama")
        model = LeanModel(hf_model, tokenizer, "tiny-llama")
        model.cache_works = False
        store = model.new_cache()
        one, two = (model.forward([IDS], store).logits[0] for _ in range(2))
        assert store.lengths == (0,)
        assert torch.equal(one, two)
        with pytest.raises(ValueError, match="cache is switched off"):
            store.fork(0, 2)

    def test_another_models_cache_is_refused(self) -> None:
        with pytest.raises(TypeError, match="must come from this model's new_cache"):
            lean("llama").forward([IDS], bridge("llama").new_cache())


class TestWeights:
    def test_nothing_is_held_twice(self) -> None:
        whole = tiny_checkpoint("gemma3")[0]
        weights = take_weights(whole)
        layer = whole.model.layers[1]
        assert layer.self_attn.q_proj.weight.data_ptr() == weights.qkv[1].data_ptr()
        assert layer.mlp.up_proj.weight.data_ptr() == weights.gate_up[1, 64:].data_ptr()
        assert layer.mlp.down_proj.weight.data_ptr() == weights.down[1].data_ptr()
        assert whole.model.embed_tokens.weight.data_ptr() == weights.embedding.data_ptr()

    def test_the_hugging_face_model_still_works(self) -> None:
        whole, plain = tiny_checkpoint("llama")[0], tiny_checkpoint("llama")[0]
        take_weights(whole)
        with torch.inference_mode():
            assert torch.equal(whole(torch.tensor([IDS])).logits, plain(torch.tensor([IDS])).logits)

    @pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
    def test_another_architecture_is_refused_by_name(self, family: str) -> None:
        with pytest.raises(UnsupportedModelError, match=f"covers llama and gemma3_text models, not '{family}'"):
            load(f"tiny-{family}", backend="lean")

    @pytest.mark.parametrize(
        ("family", "setting", "value", "message"),
        [
            ("llama", "attention_bias", True, "biases"),
            ("llama", "mlp_bias", True, "biases"),
            ("llama", "hidden_act", "relu", "the activation 'relu'"),
            ("llama", "rope_parameters", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "the length"),
            ("gemma3", "attn_logit_softcapping", 50.0, "softcapped attention"),
            ("gemma3", "use_bidirectional_attention", True, "both directions"),
        ],
    )
    def test_a_setting_it_would_leave_out_is_refused(self, family: str, setting: str, value: Any, message: str) -> None:
        whole = tiny_checkpoint(family)[0]
        setattr(whole.config, setting, value)
        with pytest.raises(UnsupportedModelError, match=f"does not know .*{message}"):
            take_weights(whole)

    def test_wrong_logits_are_noticed_at_load(self) -> None:
        hf_model, tokenizer = tiny_checkpoint("llama")
        model = LeanModel(hf_model, tokenizer, "tiny-llama")
        right = bridge("llama").forward([[(7 * i + 3) % 260 for i in range(8)]], bridge("llama").new_cache(), keep=[8])
        model.check_against(right.logits[0])
        with pytest.raises(UnsupportedModelError, match="gives other logits for tiny-llama than transformers does"):
            model.check_against(right.logits[0] + 1.0)

    def test_logits_are_capped_in_both_gears_where_the_config_says_so(self) -> None:
        results = []
        for gear in (True, False):
            hf_model, tokenizer = tiny_checkpoint("gemma3")
            hf_model.config.final_logit_softcapping = 3.0
            model = LeanModel(hf_model, tokenizer, "capped")
            if not gear:
                model.gear = None
            post = "blocks.2.hook_resid_post"
            passed = model.forward([IDS], model.new_cache(), keep=[16], capture=[post])
            with torch.inference_mode():
                wanted = hf_model(torch.tensor([IDS])).logits[0]
            assert (passed.logits[0] - wanted).abs().max() < LOGITS
            assert passed.logits[0].abs().max() <= 3
            assert (model.unembed(passed.activations[post][0]) - wanted).abs().max() < LOGITS
            results.append(passed.logits[0])
        assert (results[0] - results[1]).abs().max() < LOGITS


class TestGears:
    @pytest.mark.parametrize("family", ["llama", "gemma3"])
    @pytest.mark.parametrize("n", [2, 3, 5, 12, 50, 96])
    def test_both_give_the_same_for_any_number_of_tokens(self, family: str, n: int) -> None:
        hf_model, tokenizer = tiny_checkpoint(family, n_ctx=1024)
        one, two = (LeanModel(hf_model, tokenizer, family) for _ in range(2))
        two.gear = None
        ids = (IDS * 7)[:n]
        found, wanted = (m.forward([ids], m.new_cache(), keep=[n]) for m in (one, two))
        assert (found.note, two.gear) == ("compiled", None)
        assert (found.logits[0] - wanted.logits[0]).abs().max() < LOGITS

    def test_what_the_compiled_gear_leaves_to_the_twin_is_counted_with_its_reason(self) -> None:
        hf_model, tokenizer = tiny_checkpoint("llama", n_ctx=1024)
        model = LeanModel(hf_model, tokenizer, "tiny-llama")
        edit = Edit(hook="blocks.0.hook_mlp_out", row=0, start=0, stop=1, fn=lambda value: value)
        model.forward([IDS], model.new_cache())
        model.forward([IDS], model.new_cache(), capture=["ln_final.hook_scale"])
        model.forward([IDS], model.new_cache(), edits=[edit])
        model.forward([[1] * 600], model.new_cache())
        assert model.twin_passes == {"capture of ln_final.hook_scale": 1, "edit of hook_mlp_out": 1, "many tokens": 1}

    def test_half_precision_runs_on_the_twin(self) -> None:
        model: Any = load("tiny-llama", backend="lean", dtype=torch.bfloat16)
        assert model.gear is None
        model.forward([IDS], model.new_cache())
        assert model.twin_passes["device or dtype"] >= 1

    def test_results_are_the_callers_to_keep(self) -> None:
        model = lean("llama")
        hook = "blocks.1.attn.hook_q"
        first = model.forward([IDS], model.new_cache(), capture=[hook])
        before = first.logits[0].clone(), first.activations[hook][0].clone()
        model.forward([list(reversed(IDS))], model.new_cache(), capture=[hook])
        assert torch.equal(first.logits[0], before[0])
        assert torch.equal(first.activations[hook][0], before[1])

    def test_two_models_may_run_at_the_same_time(self) -> None:
        models = [lean("llama"), lean("gemma3")]
        wanted = [model.forward([IDS], model.new_cache()).logits[0] for model in models]
        wrong: list[str] = []

        def work(model: LeanModel, right: Tensor) -> None:
            for _ in range(50):
                if not torch.equal(model.forward([IDS], model.new_cache()).logits[0], right):
                    wrong.append(model.name)

        threads = [threading.Thread(target=work, args=pair) for pair in zip(models, wanted, strict=True) for _ in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_compiled_code_is_found_on_disk_by_the_next_process(self) -> None:
        lean("llama").forward([IDS], lean("llama").new_cache())  # compiled and kept by now, whoever was first
        program = (
            "from workbench.models import load\n"
            "from workbench.models.lean import compiled\n"
            "load('tiny-llama', backend='lean')\n"
            "stats = compiled._function().stats\n"
            "print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))\n"
        )
        command = [sys.executable, "-W", "ignore", "-c", program]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert found.stdout.split() == ["1", "0"]


class TestCrew:
    def test_every_thread_calls_the_function(self) -> None:
        crew, meeting = Crew(), threading.Barrier(3)
        names: list[str] = []

        def work(mark: str) -> None:
            meeting.wait(timeout=30)
            names.append(mark + threading.current_thread().name)

        for _ in range(5):
            crew.run(3, work, ("x",))
        while len(names) < 15:
            meeting.wait(timeout=0.01) if meeting.n_waiting else None
        assert names.count("xlean-helper") == 10

    def test_an_interrupt_waits_for_helpers_that_are_still_at_work(self) -> None:
        crew, here = Crew(), threading.current_thread()
        began, left = threading.Event(), []

        def work() -> None:
            if threading.current_thread() is here:
                began.wait(timeout=30)
                raise KeyboardInterrupt
            began.set()
            threading.Event().wait(0.2)
            left.append(True)

        with pytest.raises(KeyboardInterrupt):
            crew.run(2, work, ())
        assert left == [True]
