"""The page of complaints tells the truth: it has all of them, and every test that it names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from named_tests import ROOT, defined
from window_kinds import KINDS, tiny_model

import workbench
from widgets.reading import COLUMNS, Reading, page
from widgets.reading.pages import SPECIAL

PAGE = (ROOT / "docs/acceptance.md").read_text("utf-8")
FOLDERS = {
    "explorer": "trace_explorer", "residual": "residual_view", "live": "live_run", "flow": "flow_editor",
    "carry": "carry_inspector", "mcmc": "mcmc_stepper",
}  # fmt: skip


def rows() -> Iterator[tuple[int, list[str]]]:
    """Number of a complaint, and the tests that it names."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].isdecimal():
            assert len(cells) == 4, line
            yield int(cells[0]), re.findall(r"`(tests/[^`]+)`", cells[3])


def test_every_complaint_is_there_and_names_tests() -> None:
    told = dict(rows())
    assert list(told) == list(range(1, 26))
    assert all(told.values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_window_is_looked_at_in_both_themes(kind: str) -> None:
    """A window with no theme test of its own would earn the last complaint."""
    path = f"tests/browser/test_{FOLDERS[kind]}.py"
    assert [name for name in defined(path) if name.startswith("test_both_themes")], path


# Those that had no home elsewhere -----------------------------------------------------------------------------------


def test_the_prompt_in_the_strip_is_what_the_model_was_fed_with_its_bos_as_a_chip() -> None:
    model = tiny_model()
    chat = [{"role": "user", "content": "Hi"}]
    trace = workbench.Session(model).generate(chat, max_new_tokens=2, seed=1).trace
    prefilled = next(record for record in trace.records if record.kind == "prefilled")
    first_pass = next(record for record in trace.records if record.kind == "forward_pass")
    reading = Reading(trace, "r0", model)
    prompt = [item.life.token for item in reading.items if item.life.origin == "prompt"]
    assert tuple(prompt) == prefilled.tokens == tuple(model.tokenizer.chat(chat))
    assert (first_pass.data["fed_start"], first_pass.data["fed"]) == (0, len(prefilled.tokens))
    numbers = np.frombuffer(page(reading, 0)["numbers"], "<f4").reshape(len(COLUMNS), -1)
    chips = (numbers[COLUMNS.index("flags"), : len(prompt)].astype(int) & SPECIAL).astype(bool)
    bos = model.tokenizer.bos_token_id
    assert [place for place, token in enumerate(prompt) if token == bos] == [0]
    assert chips[0]
    assert chips.tolist() == [model.tokenizer.is_special(token) for token in prompt]
