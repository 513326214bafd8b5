"""What the SDK's documents teach, as a user would write it, in real runs of this engine."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from workbench import SamplingParams, Session, compat
from workbench.engine import Mod, Result
from workbench.errors import CompatError, InvalidActionError

ASK = [{"role": "user", "content": "Tell me."}]


def run(
    model: Any, mod: Any, prompt: Any = ASK, *, tokens: int = 24, seed: int = 1, temperature: float = 1.0
) -> Result:
    session = Session(model, mods=[mod])
    return session.generate(prompt, max_new_tokens=tokens, seed=seed, sampling=SamplingParams(temperature=temperature))


def test_events_come_once_and_are_counted_from_zero(model: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass, Prefilled, Sampled, mod

    heard: list[Any] = []

    @mod
    def listen(event: Any, actions: Any, tokenizer: Any) -> Any:
        heard.append(event)
        return actions.noop()

    assert isinstance(listen, Mod)
    result = run(model, listen, tokens=3)
    assert [type(event) for event in heard] == [Prefilled, *[ForwardPass, Sampled, Added] * 3]
    assert [event.step for event in heard] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    first = heard[0]
    assert first.max_steps == 3
    assert first.context_info.tokens[: first.context_info._prompt_len].tolist() == list(result.prompt_tokens)
    assert dict(first.context_info)["_prompt_len"] == len(result.prompt_tokens)
    assert [event.tokens_so_far_len for event in heard if isinstance(event, Added)] == [1, 2, 3]
    assert tuple(event.sampled_token for event in heard if isinstance(event, Sampled)) == result.tokens
    assert {event.logits.shape for event in heard if isinstance(event, ForwardPass)} == {(1, model.vocab_size)}
    assert len({event.request_id for event in heard}) == 1


def test_a_prefix_is_put_before_the_answer(model: Any) -> None:
    from quote_mod_sdk import ForwardPass, Prefilled, mod

    states: dict[str, dict[str, bool]] = {}

    @mod
    def begin_with(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Prefilled):
            states.setdefault(event.request_id, {"done": False})
        elif isinstance(event, ForwardPass) and event.step == 0 and not states[event.request_id]["done"]:
            states[event.request_id]["done"] = True
            return actions.force_tokens(tokenizer.encode("Well, ", add_special_tokens=False))
        return actions.noop()

    result = run(model, begin_with)
    assert result.text.startswith("Well, ")
    assert len(result.tokens) > 6


def test_a_word_is_replaced_by_taking_it_back(model: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass, Prefilled, mod

    @dataclass
    class State:
        text: str = ""
        forced: bool = False

    states: dict[str, State] = {}

    @mod
    def soften(event: Any, actions: Any, tokenizer: Any) -> Any:
        state = states.setdefault(event.request_id, State())
        if isinstance(event, Prefilled):
            return actions.noop()
        if isinstance(event, ForwardPass) and not state.forced:
            state.forced = True
            return actions.force_tokens(tokenizer.encode("It is ba", add_special_tokens=False))
        if isinstance(event, Added):
            state.text += tokenizer.decode(event.added_tokens)
            if state.text.endswith("ba"):
                old = tokenizer.encode("ba", add_special_tokens=False)
                new = tokenizer.encode("good", add_special_tokens=False)
                state.text = state.text[:-2] + "good"
                return actions.backtrack(len(old), new)
        return actions.noop()

    result = run(model, soften)
    assert result.text.startswith("It is good")
    gone = [life for life in result.trace.history().every if not life.visible]
    assert "".join(life.text for life in gone[:2]) == "ba"


def test_logits_are_raised_and_banned_with_numpy(model: Any) -> None:
    from max.driver import Tensor
    from quote_mod_sdk import ForwardPass, mod

    @mod
    def prefer(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass):
            logits = event.logits.to_numpy().copy()
            logits[0, tokenizer.encode("y", add_special_tokens=False)[0]] += 1000.0
            logits[tokenizer.encode("n", add_special_tokens=False)[0]] = -math.inf
            logits[[tokenizer.eos_token_id]] = -1e9
            return actions.adjust_logits(logits if event.step % 2 else Tensor.from_numpy(logits))
        return actions.noop()

    assert run(model, prefer, tokens=6).text == "yyyyyy"


def test_a_temperature_for_one_token_is_kept(model: Any) -> None:
    from quote_mod_sdk import ForwardPass, mod

    @mod
    def likeliest(event: Any, actions: Any, tokenizer: Any) -> Any:
        return actions.adjust_logits(event.logits, token_temp=0.0) if isinstance(event, ForwardPass) else None

    plain = Session(model).generate(ASK, max_new_tokens=12, seed=3, sampling=SamplingParams(temperature=0))
    assert run(model, likeliest, tokens=12, seed=9).tokens == plain.tokens


def test_generation_stops_early_with_an_output(model: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass, mod

    texts: dict[str, str] = {}

    @mod
    def until_answer(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass) and event.request_id not in texts:
            texts[event.request_id] = ""
            return actions.force_tokens(tokenizer.encode("So ANSWER: 42", add_special_tokens=False))
        if isinstance(event, Added):
            texts[event.request_id] += tokenizer.decode(event.added_tokens)
            if "ANSWER:" in texts[event.request_id]:
                answer = texts[event.request_id].split("ANSWER:")[-1].strip()
                return actions.force_output(tokenizer.encode(answer, add_special_tokens=False))
        return actions.noop()

    result = run(model, until_answer)
    assert (result.text, result.reason) == ("42", "force_output")


def test_a_phrase_is_caught_and_something_put_behind_it(model: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass, mod

    @dataclass
    class State:
        text: str = ""
        begun: bool = False
        caught: bool = False

    states: dict[str, State] = {}
    phrase, more = "Thus", " (let me check)"

    @mod
    def second_look(event: Any, actions: Any, tokenizer: Any) -> Any:
        state = states.setdefault(event.request_id, State())
        if isinstance(event, ForwardPass) and not state.begun:
            state.begun = True
            return actions.force_tokens(tokenizer.encode("Thus", add_special_tokens=False))
        if isinstance(event, Added) and not state.caught:
            state.text += tokenizer.decode(event.added_tokens)
            if state.text.endswith(phrase):
                state.caught = True
                old = tokenizer.encode(phrase, add_special_tokens=False)
                return actions.backtrack(len(old), tokenizer.encode(phrase + more, add_special_tokens=False))
        return actions.noop()

    assert run(model, second_look).text.startswith("Thus (let me check)")


def test_the_prompt_is_rewritten_before_the_first_pass(model: Any) -> None:
    from quote_mod_sdk import Prefilled, mod

    @mod
    def swap(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Prefilled):
            prompt = tokenizer.decode(event.context_info.tokens[: event.context_info._prompt_len])
            return actions.adjust_prefill(tokenizer.encode(prompt.replace("Tell", "Show"), add_special_tokens=False), 5)
        return actions.noop()

    result = run(model, swap)
    assert "Show me." in model.tokenizer.decode(result.trace.history().prompt)
    assert result.trace.history().prompt.count(model.tokenizer.bos_token_id) == 1
    assert len(result.tokens) <= 5


def test_a_tool_is_called_from_what_the_user_wrote(model: Any) -> None:
    from quote_mod_sdk import Prefilled, get_conversation, mod

    asked: list[str] = []

    @mod
    def search(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Prefilled):
            asked.append(event.request_id)
            last = get_conversation(event.request_id)[-1]
            if last["role"] == "user" and last["content"].startswith("/find"):
                call = {"id": f"call_{event.request_id.split('-')[0]}", "function": {"name": "find"}}
                return actions.tool_calls([call])
        return actions.noop()

    called = run(model, search, [{"role": "user", "content": "/find cats"}])
    assert called.reason == "tool_calls"
    assert called.tool_calls[0]["function"] == {"name": "find"}
    assert run(model, search).reason in ("eos", "max_tokens")
    assert [get_conversation(request_id) for request_id in asked] == [[], []]  # forgotten once a request has ended


def test_json_that_can_not_be_is_rolled_again(model: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass, mod

    @dataclass
    class State:
        text: str = ""
        rejected: set[int] = field(default_factory=set)
        last: int = -1
        begun: bool = False

    states: dict[str, State] = {}

    @mod
    def digits(event: Any, actions: Any, tokenizer: Any) -> Any:
        """Lets ``[1`` go on as a JSON list of numbers only: a token that breaks it is taken back and barred."""
        state = states.setdefault(event.request_id, State())
        if isinstance(event, ForwardPass):
            if not state.begun:
                state.begun = True
                return actions.force_tokens(tokenizer.encode("[1", add_special_tokens=False))
            logits = event.logits.to_numpy()
            if state.rejected:
                logits[list(state.rejected)] = -1e9
            return actions.adjust_logits(logits)
        if isinstance(event, Added):
            new = state.text + tokenizer.decode(event.added_tokens)
            try:
                json.loads(new)
                return actions.force_output(tokenizer.encode(new, add_special_tokens=False))
            except json.JSONDecodeError:
                pass
            if event.forced or new[-1].isdigit():
                state.text, state.rejected = new, set()
                return actions.noop()
            state.rejected.add(event.added_tokens[0])
            return actions.backtrack(1)
        return actions.noop()

    result = run(model, digits, tokens=12)
    value = json.loads(result.text) if result.reason == "force_output" else json.loads(result.text + "]")
    assert isinstance(value, list)
    assert any(life.removed_by == "digits" for life in result.trace.history().every)


def test_a_three_question_flow_asks_all_three_and_leaves_no_mark(model: Any) -> None:
    from quote_mod_sdk import get_conversation, mod
    from quote_mod_sdk.flow import FlowDefinition, FlowEngine, FlowQuestion, route_question, route_summary
    from quote_mod_sdk.self_prompt import EraseMode
    from quote_mod_sdk.strategies.primitives import CharsMode, UntilEndType
    from quote_mod_sdk.strategies.strategy_constructor import CharsStrat, ChoicesStrat, UntilStrat

    size = FlowQuestion(
        name="size", prompt=" Size: ", strategy=ChoicesStrat(["small", "large"]), erase_mode=EraseMode.ALL
    )
    count = FlowQuestion(
        name="count", prompt=" How many: ", strategy=CharsStrat(CharsMode.NUMERIC, min=2, stop=2),
        erase_mode=EraseMode.ALL,
    )  # fmt: skip
    why = FlowQuestion(
        name="why", prompt=" Why: ", strategy=UntilStrat("<", UntilEndType.ANYCHAR, "aeiou "), erase_mode=EraseMode.ALL
    )
    size.then(route_question(count))
    count.then(why)
    why.then(route_summary())
    flow = FlowDefinition("order", size, lambda state: f"{state.answers['size']} x {state.answers['count']}")
    engine = FlowEngine(entry_question=size, flows={flow.name: flow})

    @mod
    def order(event: Any, actions: Any, tokenizer: Any) -> Any:
        assert get_conversation()[0]["content"] == "Tell me."
        return engine.handle_event(event, actions, tokenizer)

    result = run(model, order, tokens=20)
    (state,) = engine._states.values()
    assert set(state.answers) == {"size", "count", "why"}
    assert state.answers["size"] in ("small", "large")
    assert state.answers["count"].isdigit()
    assert result.text == f"{state.answers['size']} x {state.answers['count']}"
    assert result.reason == "eos"


def test_a_self_prompts_words_do_not_count_against_the_output(model: Any) -> None:
    from quote_mod_sdk import self_prompt_mod
    from quote_mod_sdk.strategies.strategy_constructor import ChoicesStrat

    asking = self_prompt_mod(prompt={"text": " Is it so? " * 4}, strategy=ChoicesStrat(["yes", "no"]), erase="all")
    result = run(model, asking, tokens=5)
    assert len(result.tokens) == 5
    plain = Session(model).generate(ASK, max_new_tokens=5, seed=1)
    assert len(plain.tokens) == 5
    assert "Is it so" not in result.text


STRATEGIES = {
    "choices": ("ChoicesStrat(['red', 'blue'])", r"red|blue"),
    "tag": ("UntilStrat('<a>', UntilEndType.ANYCHAR, 'aeiou')", r"<a>[^aeiou]*[aeiou]"),
    "digits": ("CharsStrat(CharsMode.NUMERIC, stop=4, min=4)", r"[0-9]{4}"),
    "letters": ("CharsStrat(CharsMode.ALPHANUMERIC, stop='.', min=2)", r"[A-Za-z0-9]{2,}"),
    "list": (
        "ListStrat(ChoicesStrat(['A', 'B']), open='[', close=']', wrap='\"', sep=', ', min=1, max=3)",
        r'\["[AB]"(, "[AB]"){0,2}\]',
    ),
    "fields": ("ListStrat([CharsStrat(CharsMode.ALPHA, stop=2), ChoicesStrat(['x'])], sep='-')", r"[^\W\d_]{2}-x"),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_answer_has_the_form_of_its_strategy(model: Any, name: str, seed: int) -> None:
    import re

    from quote_mod_sdk import Added, ForwardPass, Prefilled, mod
    from quote_mod_sdk.self_prompt import EraseMode, SelfPrompt
    from quote_mod_sdk.strategies import strategy_constructor

    written, pattern = STRATEGIES[name]
    strategy = eval(written, dict(vars(strategy_constructor)))
    asking = SelfPrompt(prompt={"text": " Say: "}, strategy=strategy, erase=EraseMode.PROMPT)

    @mod
    def ask(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, Prefilled):
            asking.handle_prefilled(event, tokenizer)
        if isinstance(event, ForwardPass):
            if asking.is_complete(event.request_id):
                return actions.force_output(asking.answer_tokens(event.request_id))
            return asking.handle_forward_pass(event, actions, tokenizer)
        if isinstance(event, Added):
            asking.handle_added(event, actions, tokenizer)
        return actions.noop()

    result = run(model, ask, tokens=200, seed=seed)
    assert result.reason == "force_output"
    assert re.fullmatch(pattern, result.text), result.text


def test_reasoning_with_sampling_runs_and_keeps_one_of_its_texts(model: Any) -> None:
    from quote_mod_sdk import Added, ForwardPass, mod
    from quote_mod_sdk.mod import ActionBuilder

    def log_softmax(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        row = row.astype(np.float64, copy=False)
        shifted = row - row.max()
        return shifted - np.log(np.exp(shifted).sum())

    class Chain:
        """Draw a block; then, some times, draw its end anew at a lower temperature and accept or go back."""

        def __init__(self, size: int = 6, rounds: int = 3, alpha: float = 4.0) -> None:
            self.size, self.rounds, self.alpha = size, rounds, alpha
            self.random = random.Random(3)
            self.phase, self.pivot = "old", 0
            self.rows: list[Any] = []
            self.old: list[int] = []
            self.old_rows: list[Any] = []
            self.new: list[int] = []

        def weight(self, tokens: list[int], rows: list[Any]) -> float:
            sums = [
                self.alpha * log_softmax(r)[t] - log_softmax(r * self.alpha)[t]
                for t, r in zip(tokens, rows, strict=True)
            ]
            return float(sum(sums))

        def propose(self, actions: ActionBuilder) -> Any:
            if self.rounds == 0:
                self.phase = "done"
                return actions.force_output(self.old)
            self.rounds -= 1
            self.phase, self.new, self.rows = "new", [], []
            self.pivot = self.random.randrange(self.size)
            return actions.backtrack(self.size - self.pivot)

        def take(self, token: int, actions: ActionBuilder) -> Any:
            kept = self.old if self.phase == "old" else self.new
            kept.append(token)
            if self.phase == "old" and len(self.old) == self.size:
                self.old_rows = self.rows
                return self.propose(actions)
            if self.phase == "new" and len(self.new) == self.size - self.pivot:
                before = self.weight(self.old[self.pivot :], self.old_rows[self.pivot :])
                after = self.weight(self.new, self.rows)
                if math.log(self.random.random()) < after - before:
                    self.old[self.pivot :], self.old_rows[self.pivot :] = self.new, self.rows
                    return self.propose(actions)
                self.phase = "restored"
                return actions.backtrack(len(self.new), self.old[self.pivot :])
            return actions.noop()

    chains: dict[str, Chain] = {}

    @mod
    def reasoning_with_sampling(event: Any, actions: ActionBuilder, tokenizer: Any) -> Any:
        chain = chains.setdefault(event.request_id, Chain())
        if isinstance(event, ForwardPass) and chain.phase in ("old", "new"):
            row = event.logits.to_numpy().copy()
            row[tokenizer.eos_token_id] = -1e9
            chain.rows.append(row)
            return actions.adjusted_logits(event.logits.from_numpy(row) / (1.0 if chain.phase == "old" else 0.25))
        if isinstance(event, Added):
            if chain.phase == "restored":
                return chain.propose(actions)
            return chain.take(event.tokens[0], actions)
        return actions.noop()

    result = run(model, reasoning_with_sampling, tokens=8)
    (chain,) = chains.values()
    assert result.reason == "force_output"
    assert list(result.tokens) == chain.old
    assert len(result.tokens) == 6
    assert chain.rounds == 0


# What is said aloud ----------------------------------------------------------------------------------------


def test_a_change_of_logits_that_was_not_returned_is_told(model: Any) -> None:
    from quote_mod_sdk import ForwardPass, mod

    @mod
    def forgetful(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass):
            event.logits.to_numpy()[5] = 99.0
        return actions.noop()

    with pytest.warns(
        UserWarning, match=r"mod 'forgetful' wrote into event.logits.to_numpy\(\) without returning"
    ) as told:
        run(model, forgetful)
    assert len(told) == 1


def test_an_action_that_can_not_be_carried_out_says_which_mod_and_where(model: Any) -> None:
    from quote_mod_sdk import Added, mod

    @mod
    def greedy(event: Any, actions: Any, tokenizer: Any) -> Any:
        return actions.backtrack(5) if isinstance(event, Added) else None

    with pytest.raises(InvalidActionError, match=r"mod 'greedy' on Added at step 1 .*reaches past the first generated"):
        run(model, greedy)

    @mod
    def early(event: Any, actions: Any, tokenizer: Any) -> Any:
        return actions.force_tokens([1])

    with pytest.raises(InvalidActionError, match=r"mod 'early': force_tokens\(\) can't answer Prefilled"):
        run(model, early)


def test_a_plain_function_is_adapted_and_a_session_says_what_is_missing(model: Any) -> None:
    from quote_mod_sdk import ForceOutput, Prefilled

    def plain(event: Any, tokenizer: Any) -> Any:
        return ForceOutput(tokenizer.encode("hi")) if isinstance(event, Prefilled) else None

    assert run(model, compat.adapt(plain)).text == "hi"
    assert compat.adapt(plain, name="other").name == "other"
    with pytest.raises(TypeError, match="is not a mod"):
        run(model, plain)
    with pytest.raises(CompatError, match="is a mod of this engine already"):
        compat.adapt(__import__("workbench").mod(lambda event, actions, tokenizer: None))
    with pytest.raises(TypeError, match="an SDK mod is a function of"):
        compat.adapt(3)


def test_a_trace_keeps_the_mods_name_and_source(model: Any) -> None:
    from quote_mod_sdk import mod

    @mod
    def silent(event: Any, actions: Any, tokenizer: Any) -> Any:
        return actions.noop()

    (told,) = run(model, silent).trace.run["requests"]["r0"]["mods"]
    assert told["name"] == "silent"
    assert "return actions.noop()" in told["source"]


def test_sdk_mods_and_mods_of_this_engine_work_side_by_side(model: Any) -> None:
    from quote_mod_sdk import ForwardPass, mod

    from workbench.mods import ban_tokens

    @mod
    def letters(event: Any, actions: Any, tokenizer: Any) -> Any:
        if isinstance(event, ForwardPass):
            logits = event.logits.to_numpy()
            logits[tokenizer.encode("ab", add_special_tokens=False)] += 1000.0
            return actions.adjust_logits(logits)
        return None

    session = Session(model, mods=[letters, ban_tokens(tokens=model.tokenizer.encode("b"))])
    results = session.generate([ASK, ASK], max_new_tokens=4, seed=1)
    assert [result.text for result in results] == ["aaaa", "aaaa"]


def test_an_own_class_of_action_is_refused(model: Any) -> None:
    from quote_mod_sdk import Added
    from shared.types import ModAction

    class Own(ModAction):
        pass

    mod = compat.adapt(lambda event, tokenizer: Own() if isinstance(event, Added) else None, name="own")
    with pytest.raises(Exception, match="Own is no action of the SDK"):
        run(model, mod)


def test_the_tokenizer_hides_no_special_tokens(model: Any) -> None:
    from quote_mod_sdk.tokenizer import tokenize

    from workbench.compat.tokenizer import sdk_tokenizer

    face = sdk_tokenizer(model.tokenizer)
    assert face is sdk_tokenizer(model.tokenizer)
    assert face.encode("hi") == tokenize("hi", face) == model.tokenizer.encode("hi")
    assert tokenize("", face) == []
    assert face.decode(face.encode("hi")) == "hi"
    assert face.decode(face.encode("h")[0]) == "h"
    assert face.decode([face.eos_token_id], skip_special_tokens=True) == ""
    assert len(face) == len(face.get_vocab()) == face.vocab_size
    assert face("hi")["input_ids"][-2:] == face.encode("hi")
