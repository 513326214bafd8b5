"""Tools that a flow calls: exact sums, the right passage, dates; and nothing where there is nothing to say."""

from __future__ import annotations

import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import SamplingParams, Session, load
from workbench.bundled import bundled
from workbench.flows import FlowDefinition, FlowEngine, FlowQuestion, registered
from workbench.mods import (
    Collection,
    Passage,
    Tool,
    calculator_tool,
    date_tool,
    evaluate,
    find_sum,
    ready_tools,
    search_tool,
    tool_flow,
)
from workbench.mods.calendar import calendar_facts

GREEDY = SamplingParams(temperature=0.0)
TODAY = date(2026, 11, 30)


@pytest.fixture(scope="module")
def collection() -> Collection:
    return Collection.load()


@pytest.fixture(scope="module")
def model() -> Any:
    return load("tiny-llama")


class TestSums:
    @pytest.mark.parametrize(
        ("question", "expression", "value"),
        [
            ("What is 17 * 23?", "17 * 23", "391"),
            ("what's 3 plus 4 times 5", "3 + 4 * 5", "23"),
            ("Compute (12+3)/5 please", "(12+3)/5", "3"),
            ("What is 12 divided by 4?", "12 / 4", "3"),
            ("How much is 19 multiplied by 21, roughly?", "19 * 21", "399"),
            ("(2+3)*4 and 7-1 or so", "(2+3)*4", "20"),
            ("On 2026-12-24, 3+4", "3+4", "7"),
            ("1.5*2?", "1.5*2", "3"),
            ("3 + 4 = ?", "3 + 4", "7"),
        ],
    )
    def test_the_sum_of_a_question_is_found(self, question: str, expression: str, value: str) -> None:
        found = find_sum(question)
        assert found is not None
        assert (found.expression, found.result_text) == (expression, value)

    @pytest.mark.parametrize(
        "question", ["", "I have 3 apples", "2026-12-24", "what a time", "x1 + y", "9**9**9", "1/0", "call 555-1234"]
    )
    def test_where_there_is_no_sum_there_is_none(self, question: str) -> None:
        assert find_sum(question) is None

    @given(st.text(alphabet="0123456789+-*/^%.,()x =times", max_size=400))
    def test_no_text_makes_it_fail_or_wrong(self, text: str) -> None:
        found = find_sum(text)
        if found is not None:
            assert float(found.result_text) == pytest.approx(float(evaluate(found.expression)))

    def test_a_hostile_text_costs_little(self) -> None:
        begun = time.perf_counter()
        find_sum("1+" * 100_000 + "1")
        find_sum("((((1+1)" * 10_000)
        assert time.perf_counter() - begun < 5


class TestCollection:
    @pytest.mark.parametrize(
        ("question", "title"),
        [
            ("What is the capital of Australia?", "Australia"),
            ("who painted the mona lisa", "The Mona Lisa"),
            ("How many bones does a human have?", "Bones"),
            ("Who first walked on the Moon?", "The Moon landing"),
            ("how fast is light", "The speed of light"),
            ("What do bees do?", "Honey bees"),
        ],
    )
    def test_a_question_finds_its_passage(self, collection: Collection, question: str, title: str) -> None:
        assert collection.search(question)[0].passage.title == title

    def test_every_passage_is_found_by_its_own_words(self, collection: Collection) -> None:
        for passage in collection.passages:
            assert collection.search(f"{passage.title} {passage.text}", 1)[0].passage == passage

    @pytest.mark.parametrize("question", ["", "   ", "tell me what is", "zzzz qqqq", "\ud800", "💥"])
    def test_a_question_about_nothing_held_finds_nothing(self, collection: Collection, question: str) -> None:
        assert collection.search(question) == []

    def test_scores_fall_and_are_above_zero(self, collection: Collection) -> None:
        scores = [found.score for found in collection.search("the highest mountain of Japan", 48)]
        assert scores == sorted(scores, reverse=True)
        assert min(scores) > 0

    def test_its_origin_and_licence_are_in_the_file(self) -> None:
        told = json.loads(bundled("collection/passages.json").read_text("utf-8"))
        assert told["licence"] == "CC0-1.0"
        assert "written for this project" in told["origin"]

    def test_an_own_collection_may_be_given(self, tmp_path: Path) -> None:
        path = tmp_path / "own.json"
        path.write_text('{"passages": [{"title": "Zebra", "text": "It has stripes."}]}')
        assert [found.passage for found in Collection.load(path).search("zebras")] == [
            Passage(title="Zebra", text="It has stripes.")
        ]

    @pytest.mark.parametrize("text", ["", "[]", '{"passages": [{"title": "x"}]}', '{"passages": 3}'])
    def test_a_file_of_another_form_is_refused(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "bad.json"
        path.write_text(text)
        with pytest.raises(ValueError, match="a collection is JSON of the form"):
            Collection.load(path)

    def test_a_collection_without_words_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no passage has a word to search by"):
            Collection([Passage(title="the", text="and of it")])

    def test_an_empty_collection_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one passage"):
            Collection([])


class TestCalendar:
    @pytest.mark.parametrize(
        ("question", "told"),
        [
            ("What day is it?", "Today is Monday, 30 November 2026."),
            ("How many days until Christmas?", "Friday, 25 December 2026 is 25 days away."),
            ("When was May 5th 1999?", "Wednesday, 5 May 1999 is 10071 days ago."),
            ("Is it long to 24 December", "Thursday, 24 December 2026 is 24 days away."),
            ("and 2026-12-01?", "Tuesday, 1 December 2026 is 1 day away."),
            ("what was yesterday", "Sunday, 29 November 2026 is 1 day ago."),
            ("1 Jan.", "Friday, 1 January 2027 is 32 days away."),
            ("next 29 February", "Tuesday, 29 February 2028 is 456 days away."),
            ("on 30 November 2026", "Today is Monday, 30 November 2026."),
            ("31 February 2027", "Today is Monday, 30 November 2026."),
            ("31 February", "Today is Monday, 30 November 2026."),
            ("When is Christmas Eve?", "Thursday, 24 December 2026 is 24 days away."),
            ("and New Year\u2019s Eve", "Thursday, 31 December 2026 is 31 days away."),
            ("the day after tomorrow", "Wednesday, 2 December 2026 is 2 days away."),
            ("You may 3 times", "Today is Monday, 30 November 2026."),
            ("Sept 5", "Sunday, 5 September 2027 is 279 days away."),
        ],
    )
    def test_it_says_today_and_how_far_another_day_is(self, question: str, told: str) -> None:
        assert calendar_facts(question, TODAY).endswith(told)

    @given(st.dates(date(1, 1, 1), date(9999, 12, 31)), st.dates(date(1, 1, 1), date(9980, 12, 31)))
    def test_the_difference_is_that_of_the_dates(self, asked: date, today: date) -> None:
        told = calendar_facts(f"what about {asked.isoformat()}?", today)
        assert asked == today or f" {abs((asked - today).days)} day" in told


class TestFlow:
    def call(self, model: Any, tool: Tool, question: str) -> tuple[str, list[Any]]:
        """What stands in the text after a flow has called ``tool``, and what its notes say."""
        flow = FlowQuestion("go", " Go?", ["now", "later"], erase_mode="all").then(
            lambda ctx, actions, tokenizer: tool.fn(actions, tokenizer)
        )
        result = Session(model, [FlowEngine(flow).as_mod()]).generate(
            [{"role": "user", "content": question}], max_new_tokens=120, sampling=GREEDY, max_forward_tokens=10**6
        )
        notes = [r.data for r in result.trace.records if r.action == "note" and "tool" in r.data]
        return result.text, [{"tool": note["tool"], "found": note["found"]} for note in notes]

    def test_the_calculator_writes_the_sum_that_was_asked_for(self, model: Any) -> None:
        text, notes = self.call(model, calculator_tool(), "What is 17 * 23?")
        assert text.startswith("17 * 23 = 391.\n")
        assert notes == [{"tool": "calculator", "found": "17 * 23 = 391"}]

    def test_the_search_quotes_with_its_source(self, model: Any) -> None:
        text, notes = self.call(model, search_tool(), "What is the capital of Canada?")
        assert text.startswith("Canada: Canada is the second largest country of the world by area. Its capital is")
        assert notes == [{"tool": "search", "found": "Canada"}]

    def test_the_calendar_uses_the_day_it_is_given(self, model: Any) -> None:
        assert self.call(model, date_tool(TODAY), "What day is it?")[0].startswith(
            "Today is Monday, 30 November 2026.\n"
        )

    @pytest.mark.parametrize("tool", [calculator_tool(), search_tool()], ids=str)
    def test_a_tool_that_finds_nothing_says_so_in_the_trace_only(self, model: Any, tool: Tool) -> None:
        question = [{"role": "user", "content": "qqq zzz"}]
        text, notes = self.call(model, tool, "qqq zzz")
        plain = Session(model).generate(question, max_new_tokens=120, sampling=GREEDY)
        assert text == plain.text
        assert notes == [{"tool": tool.name, "found": None}]

    def test_the_bundled_flow_is_the_one_that_the_code_makes(self) -> None:
        text = bundled("flows/runtime_tools.json").read_text("utf-8")
        assert FlowDefinition("runtime_tools", tool_flow()).to_json() == text
        assert FlowDefinition.from_json(text).check() == []
        with pytest.raises(ValueError, match="no tool ''; there are calculator, search, calendar"):
            registered("call_runtime_tool")(type("State", (), {"answers": {}})(), None, None)

    def test_it_needs_tools_to_choose_among(self) -> None:
        with pytest.raises(ValueError, match="two tools or more"):
            tool_flow([calculator_tool()])
        with pytest.raises(ValueError, match="each with its own name"):
            tool_flow([calculator_tool(), calculator_tool()])

    def test_data_that_is_not_there_is_an_error(self) -> None:
        with pytest.raises(FileNotFoundError, match="no bundled data 'nothing'"):
            bundled("nothing")


@pytest.mark.real
def test_the_seeds_flow_calls_real_tools_on_the_real_model() -> None:
    """Routed by the model itself: sums to the calculator, the day to the calendar, a joke to neither."""
    model = load("smollm2-135m-instruct")
    calculate, search, _ = ready_tools()
    engine = FlowEngine(entry_question=tool_flow([calculate, search, date_tool(TODAY)]))
    told = {}
    for question in ("What is 17 * 23?", "What day is it today?", "Tell me a joke."):
        result = Session(model, [engine.as_mod()]).generate(
            [{"role": "user", "content": question}], max_new_tokens=24, sampling=GREEDY, max_forward_tokens=4000
        )
        state = next(reversed(engine.states.values()))
        told[question] = (state.answers.get("runtime_tool_router"), result.text)
        assert "tool" not in result.text
        assert sum(state.answer_probs["runtime_tool_calls"].values()) == pytest.approx(1)
    assert told["What is 17 * 23?"][0] == "calculator"
    assert told["What is 17 * 23?"][1].startswith("17 * 23 = 391.\n")
    assert told["What day is it today?"][0] == "calendar"
    assert told["What day is it today?"][1].startswith("Today is Monday, 30 November 2026.\n")
    assert told["Tell me a joke."][0] is None
