"""Where a flow enters, as data; and a saved run's visits read back."""

from __future__ import annotations

from typing import Any

import pytest

from workbench import SamplingParams, Session, Trace, load
from workbench.errors import FlowError, ModError
from workbench.flows import (
    AfterText,
    FlowDefinition,
    FlowEngine,
    FlowQuestion,
    WhenUnsure,
    after_text,
    states_of,
    when_unsure,
)

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def model() -> Any:
    return load("tiny-llama")


def ask(name: str = "ask") -> FlowQuestion:
    return FlowQuestion(name, f" {name}?", ["yes", "no"], erase_mode="all")


@pytest.mark.parametrize("pattern", ["", None, 3, "(", "[a", "(?P<x>a)(?P<x"])
def test_what_is_no_pattern_is_refused(pattern: Any) -> None:
    with pytest.raises(FlowError, match="after_text"):
        after_text(pattern)


@pytest.mark.parametrize("entropy", [-1, float("nan"), float("inf"), True, "2", None])
def test_what_is_no_entropy_is_refused(entropy: Any) -> None:
    with pytest.raises(FlowError, match="when_unsure needs an entropy in nats"):
        when_unsure(entropy)


def test_a_pattern_that_never_ends_its_search_is_cut_with_a_clear_error(model: Any) -> None:
    hostile = FlowEngine(ask().when(after_text("(x+x+x+)+y")))
    answer = model.tokenizer.encode("x" * 200)
    forced = FlowEngine(FlowQuestion("first", " x", ["y"], erase_mode="all").then("x" * 200))
    assert len(answer) == 200
    with pytest.raises(ModError) as caught:
        Session(model, [forced.as_mod(), hostile.as_mod()]).generate("x", max_new_tokens=230, sampling=GREEDY)
    assert "use a pattern that backtracks less" in str(caught.value)


@pytest.mark.parametrize("condition", [after_text("[0-9] =$"), when_unsure(1.5), when_unsure(0)])
def test_a_condition_of_a_file_is_the_condition_that_was_written(condition: Any) -> None:
    text = FlowDefinition("f", ask().when(condition)).to_json()
    again = FlowDefinition.from_json(text)
    assert again.root.entry == condition
    assert isinstance(again.root.entry, (AfterText, WhenUnsure))
    scope: dict[str, Any] = {}
    exec(again.to_python(), scope)
    assert scope["flow"].root.entry == condition


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"after_text": "("}, r"\$\.questions\[0\]\.when: after_text: '\(' is no regular expression"),
        ({"when_unsure": -1}, "must be at least 0"),
        ({"when_unsure": "much"}, r"must be of JSON type number"),
        ({"after_text": ""}, "must not be empty"),
        ({"after": "x"}, r'this is one of .*\{"after_text": …\}'),
        ({"after_text": "x", "when_unsure": 1}, "the keys allowed here are 'after_text'"),
        ({}, "this is one of"),
        (3, "this is one of"),
        ("never_registered", "no flow function is registered as 'never_registered'"),
    ],
)
def test_a_condition_that_is_wrong_says_where_and_why(when: Any, message: str) -> None:
    import json

    document = json.loads(FlowDefinition("f", ask()).to_json())
    document["questions"][0]["when"] = when
    with pytest.raises(FlowError, match=message):
        FlowDefinition.from_json(json.dumps(document))


class TestStatesOfATrace:
    def flow(self) -> FlowQuestion:
        auto = ask("auto").with_auto_answer(lambda state: "no").then("!")
        return ask("first").on("yes", ask("second").then(auto)).then(auto)

    def test_a_saved_run_tells_the_visits_that_the_engine_saw(self, model: Any, tmp_path: Any) -> None:
        engine = FlowEngine(self.flow(), name="asking")
        Session(model, [engine.as_mod()]).generate(["a", "bc"], max_new_tokens=8, seed=1, save=tmp_path / "run")
        told = states_of(Trace.load(tmp_path / "run"), "asking")
        assert list(told) == ["r0", "r1"]
        for mine, other in zip(engine.states.values(), told.values(), strict=True):
            assert mine.history == other.history
            assert (mine.answers, mine.answer_probs) == (other.answers, other.answer_probs)
        last = told["r0"].history[-1]
        assert (last.question, last.answer, last.auto, last.route, last.choices) == (
            "auto", "no", True, "message: !", 2,
        )  # fmt: skip

    def test_the_drawing_of_a_saved_run_is_that_of_the_live_one(self, model: Any) -> None:
        engine = FlowEngine(self.flow())
        result = Session(model, [engine.as_mod()]).generate("a", max_new_tokens=8, sampling=GREEDY)
        drawn = engine.definition.draw(states_of(result.trace).values())
        assert drawn == engine.definition.draw(engine.states.values())
        assert "1 visit" in drawn
        assert drawn._repr_mimebundle_()["text/vnd.mermaid"] == str(drawn)

    def test_of_two_flows_one_must_be_named(self, model: Any) -> None:
        engines = [FlowEngine(ask("one")), FlowEngine(ask("two").when(after_text(".{3}")))]
        result = Session(model, [each.as_mod() for each in engines]).generate("a", max_new_tokens=8, sampling=GREEDY)
        with pytest.raises(ValueError, match="several flows: choose one of 'one', 'two'"):
            states_of(result.trace)
        assert [visit.question for visit in states_of(result.trace, "two")["r0"].history] == ["two"]
        with pytest.raises(ValueError, match="no flow 'three'; it tells of 'one', 'two'"):
            states_of(result.trace, "three")
        assert states_of(Session(model).generate("a", max_new_tokens=1).trace, "three") == {}
