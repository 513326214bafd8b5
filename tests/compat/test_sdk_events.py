"""The SDK's events, actions and tensors have the SDK's constructors and refuse what an event does not allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.compat import LogitsArray, Tensor


def test_events_are_made_by_position_in_the_new_order_and_in_the_old() -> None:
    from shared.types import Added, ForwardPass, Prefilled, Sampled

    new, old = Added("r", 3, [1, 2], True), Added("r", 3, [1, 2], 9, True)
    assert (new.added_tokens, new.tokens, new.forced, new.tokens_so_far_len) == ([1, 2], [1, 2], True, None)
    assert (old.added_tokens, old.forced, old.tokens_so_far_len) == ([1, 2], True, 9)
    assert Added(request_id="r", step=0, added_tokens=(1,), forced=False).forced is False
    assert Prefilled("r", 0, 8).max_steps == 8
    assert Prefilled("r", 0, 8, {"tokens": [1]}).context_info == {"tokens": [1]}
    assert Prefilled(request_id="r", step=0, max_steps=8, context_info={}).context_info == {}
    older = Prefilled("r", 0, 5, 8)
    assert (older.tokens_so_far_len, older.max_steps) == (5, 8)
    assert Sampled("r", 1, 7).sampled_token == 7
    assert ForwardPass("r", 1, "logits").logits == "logits"


@pytest.mark.parametrize("arguments", [(), ([1],), ([1], 2, True, 4)])
def test_an_event_with_too_few_or_too_many_values_is_refused(arguments: tuple[Any, ...]) -> None:
    from shared.types import Added, Prefilled

    with pytest.raises(TypeError, match=r"Added takes \(request_id, step, added_tokens, forced\)"):
        Added("r", 0, *arguments)
    with pytest.raises(TypeError, match="Prefilled takes"):
        Prefilled("r", 0)


def test_actions_are_made_by_position() -> None:
    from quote_mod_sdk import AdjustedLogits, AdjustedPrefill, Backtrack, ForceOutput, ForceTokens, ToolCalls
    from shared.types import EmitError, Noop

    assert AdjustedPrefill((1, 2), 5) == AdjustedPrefill([1, 2], 5)
    assert ForceTokens((1,)).tokens == [1]
    assert AdjustedLogits("x").token_temp is None
    assert ForceOutput([3]).tokens == [3]
    assert ToolCalls({"a": 1}).tool_calls == {"a": 1}
    assert (Backtrack(2).n, Backtrack(2).tokens, Backtrack(2, (1,)).tokens) == (2, None, [1])
    assert EmitError("no").err_str == "no"
    assert Noop() == Noop()


CASES = {
    "noop": ("noop", (), "PFSA"),
    "adjust_prefill": ("adjust_prefill", ([1],), "P"),
    "adjust_logits": ("adjust_logits", ([0.0],), "F"),
    "adjusted_logits": ("adjusted_logits", ([0.0],), "F"),
    "force_tokens": ("force_tokens", ([1],), "FSA"),
    "backtrack": ("backtrack", (1,), "FSA"),
    "force_output": ("force_output", ([1],), "PFSA"),
    "tool_calls": ("tool_calls", ({},), "PFSA"),
    "emit_error": ("emit_error", ("no",), "PFSA"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_builder_makes_what_its_event_allows_and_refuses_the_rest(name: str) -> None:
    from quote_mod_sdk import Added, ForwardPass, InvalidActionError, Prefilled, Sampled, for_event, validate_action

    method, arguments, allowed = CASES[name]
    events = {"P": Prefilled("r", 0, 8), "F": ForwardPass("r", 1, None), "S": Sampled("r", 1, 2)}
    events["A"] = Added("r", 1, [2], False)
    for letter, event in events.items():
        make = getattr(for_event(event), method)
        if letter in allowed:
            assert validate_action(event, make(*arguments)) is not None
        else:
            with pytest.raises(InvalidActionError, match=rf"can't answer {type(event).__name__} .*Allowed here: noop"):
                make(*arguments)
    assert issubclass(InvalidActionError, ValueError)


def test_backtrack_takes_both_names_of_its_number() -> None:
    from quote_mod_sdk import Added, for_event

    build = for_event(Added("r", 1, [2], False))
    assert build.backtrack(steps=2, tokens=[1]) == build.backtrack(n=2, tokens=[1]) == build.backtrack(2, [1])
    with pytest.raises(TypeError, match="number of tokens"):
        build.backtrack()


def test_an_answer_is_none_or_an_action() -> None:
    from shared.types import Noop, Sampled
    from shared.utils import InvalidActionError, validate_action

    event = Sampled("r", 1, 2)
    assert validate_action(event, None) == Noop()
    with pytest.raises(InvalidActionError, match=r"answered Sampled with list '.1.'"):
        validate_action(event, [1])


def test_a_mod_is_a_plain_function_that_keeps_its_handler() -> None:
    from quote_mod_sdk import Added, ForceTokens, InvalidActionError, Prefilled, Sampled, mod
    from shared.types import Noop

    def handler(event: Any, actions: Any, tokenizer: Any) -> Any:
        """Says what it does."""
        if isinstance(event, Added):
            return actions.force_tokens([tokenizer])
        return ForceTokens([1]) if isinstance(event, Prefilled) else None

    made = mod(handler)
    assert type(made).__name__ == "function"
    assert (made.__wrapped__, made.__name__, made.__doc__) == (handler, "handler", "Says what it does.")
    assert made(Added("r", 0, [1], False), 7) == ForceTokens([7])
    assert made(Sampled("r", 0, 1)) == Noop()
    with pytest.raises(InvalidActionError, match=r"force_tokens\(\) can't answer Prefilled"):
        made(Prefilled("r", 0, 8))
    with pytest.raises(TypeError, match="@mod wraps a function"):
        mod("handler")


def test_a_manager_calls_its_mods_in_order_and_hides_no_failure() -> None:
    from quote.mods.manager import ModManager
    from quote_mod_sdk import Added, ForceTokens, get_conversation, mod
    from quote_mod_sdk.conversation import clear_conversation, set_conversation
    from shared.types import Noop

    @mod
    def first(event: Any, actions: Any, tokenizer: Any) -> Any:
        return actions.force_tokens(tokenizer.encode(get_conversation()[0]["content"]))

    def second(event: Any, tokenizer: Any) -> Any:
        return None

    set_conversation("r", [{"role": "user", "content": "hi"}])
    manager = ModManager(tokenizer=None)
    manager.register(first)
    manager.register(second)
    manager.set_tokenizer(type("T", (), {"encode": staticmethod(lambda text: [len(text)])}))
    assert manager.dispatch(Added("r", 0, [1], False)) == [ForceTokens([2]), Noop()]
    assert manager.mods == [first, second]
    clear_conversation("r")
    with pytest.raises(ZeroDivisionError):
        ModManager([lambda event, tokenizer: 1 / 0]).dispatch(Added("r", 0, [1], False))


# Tensors ---------------------------------------------------------------------------------------------------


def logits(*values: float) -> Tensor:
    return Tensor.of_logits(torch.tensor(values))


def test_a_lone_index_of_logits_is_a_token() -> None:
    array = logits(0.0, 1.0, 2.0, 3.0).to_numpy()
    assert array.shape == (1, 4)
    assert (array[3], array[0, 3], array[0], array[-1]) == (3.0, 3.0, 0.0, 3.0)
    assert array[[1, 2]].tolist() == [1.0, 2.0]
    assert array[np.array([2])].tolist() == [2.0]
    assert array[1:3].tolist() == [1.0, 2.0]
    assert array[0, :].tolist() == array[:].tolist() == [0.0, 1.0, 2.0, 3.0]
    array[1], array[[2, 3]], array[0, 0] = 9.0, -1.0, 5.0
    array[array > 8] = 7.0
    assert array.tolist() == [[5.0, 7.0, -1.0, -1.0]]


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=8), st.data())
def test_arithmetic_of_logits_goes_on_as_numpy_does(values: list[float], data: st.DataObject) -> None:
    plain = np.asarray(values, dtype=np.float64)
    token = data.draw(st.integers(0, len(values) - 1))
    array = logits(*values).to_numpy().astype(np.float64)
    shifted = array - array.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    expected = plain - plain.max() - np.log(np.exp(plain - plain.max()).sum())
    assert logprobs[token] == pytest.approx(expected[token], abs=1e-9)
    assert int(array.argmax()) == int(plain.argmax())


def test_nothing_is_copied_until_asked_and_a_copy_is_ones_own() -> None:
    source = torch.zeros(3)
    tensor = Tensor.of_logits(source)
    assert tensor.shape == (1, 3)
    source[1] = 4.0
    array = tensor.to_numpy()
    assert array[1] == 4.0
    assert not tensor.written_into()
    other = tensor.copy()
    array[2] = 8.0
    assert source.tolist() == [0.0, 4.0, 8.0]
    assert tensor.written_into()
    assert other.to_numpy().tolist() == [[0.0, 4.0, 0.0]]


def test_a_tensor_has_what_the_look_alike_needs() -> None:
    from max.driver import Tensor as Driver

    assert Driver is Tensor
    tensor = Driver.from_numpy(np.array([[2.0, 4.0]]))
    assert (tensor / 2).to_numpy().tolist() == [[1.0, 2.0]]
    assert (tensor / Driver.from_numpy(np.array([1.0, 4.0]))).to_numpy().tolist() == [[2.0, 1.0]]
    assert tensor.to("gpu") is tensor
    assert (tensor.device, tensor.shape, len(tensor)) == ("cpu", (1, 2), 1)
    assert tensor[0, 1].item() == 4.0
    assert np.asarray(tensor).tolist() == [[2.0, 4.0]]
    with pytest.raises(ValueError, match="convert an array of size 1"):
        tensor.item()
    assert type(logits(1.0).to_numpy()) is LogitsArray


def test_the_likeliest_tokens_come_best_first() -> None:
    from quote_mod_sdk import ForwardPass

    values, tokens = ForwardPass("r", 0, logits(0.0, 3.0, 1.0)).top_k_logprob(2)
    assert tokens.tolist() == [[1, 2]]
    expected = torch.log_softmax(torch.tensor([0.0, 3.0, 1.0]), 0)[[1, 2]]
    assert values[0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


# Conversations ---------------------------------------------------------------------------------------------


def test_a_mod_sees_its_own_requests_conversation_and_no_other() -> None:
    from shared.conversation import (
        clear_conversation,
        get_conversation,
        get_schemas,
        pop_request_context,
        push_request_context,
        set_conversation,
        set_schemas,
        tool_call_pairs,
    )

    call = {"id": "c1", "type": "function", "function": {"name": "f"}}
    open_call = {"id": "c2", "type": "function", "function": {"name": "g"}}
    reply = {"role": "tool", "tool_call_id": "c1", "content": "4"}
    set_conversation("a", [{"role": "assistant", "tool_calls": [call, open_call]}, reply])
    set_conversation("b", [{"role": "user", "content": "secret"}])
    set_schemas("a", [{"type": "object"}])
    token = push_request_context("a")
    assert tool_call_pairs() == tool_call_pairs(get_conversation()) == [(call, reply)]
    assert get_schemas() == [{"type": "object"}]
    get_conversation()[0]["role"] = "user"
    assert get_conversation("a")[0]["role"] == "assistant"
    with pytest.raises(PermissionError, match="the mod of request 'a' may not read the conversation of 'b'"):
        get_conversation("b")
    pop_request_context(token)
    clear_conversation("a")
    clear_conversation("b")
    assert get_conversation("a") == get_schemas("a") == []
