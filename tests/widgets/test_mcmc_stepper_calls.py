"""MCMCStepper from Python: its numbers, a live chain in a thread, branches, messages, the form without a browser."""

from __future__ import annotations

import gc
import json
import math
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ipywidgets.widgets.widget import _instances

from widgets import MCMCStepper
from widgets.base.assets import LARGEST_SCRIPT
from widgets.base.window import LARGEST_MESSAGE
from widgets.mcmc_stepper.told import PAGE, STRIP_PART, decision_told
from widgets.mcmc_stepper.tracks import TokenTexts, Track
from workbench.errors import ChainError
from workbench.mcmc import Chains, PowerSampler, load_chains, state_after, token_terms

PROMPT = "A <b>letter</b>: "
SETTINGS: dict[str, Any] = {"alpha": 2.0, "block_size": 5, "n_mcmc": 4, "max_tokens": 10, "seed": 3, "chains": 2}
HOOKS = "blocks.*.hook_resid_post"


@pytest.fixture(scope="module")
def chains(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Chains:
    return PowerSampler(
        model, PROMPT, capture=HOOKS, save=tmp_path_factory.mktemp("chains") / "run", **SETTINGS
    ).run()  # fmt: skip


@pytest.fixture
def stepper(chains: Chains, model: Any) -> Iterator[MCMCStepper]:
    window = MCMCStepper(chains, model, tile=50)
    yield window
    window.close()


@pytest.fixture
def live(model: Any) -> Iterator[MCMCStepper]:
    window = MCMCStepper(PowerSampler(model, PROMPT, **SETTINGS))
    yield window
    window.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], list[bytes]]]:
    """What windows send to the browser."""
    heard: list[tuple[dict[str, Any], list[bytes]]] = []
    monkeypatch.setattr(MCMCStepper, "send", lambda self, content, buffers=None: heard.append((content, buffers or [])))
    return heard


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def index_of(chains: Chains, kind: str) -> int:
    return next(i for i, d in enumerate(chains.decisions) if d.kind == kind and len(d.new_tokens) > 1)


# Numbers ----------------------------------------------------------------------------------------------------------


def test_the_timeline_is_the_runs_own_table(stepper: MCMCStepper, chains: Chains) -> None:
    table, frame = chains.table().to_pandas(), stepper.frame()
    for name in ("chain", "block", "iteration", "kind", "accepted", "pivot", "log_a", "u", "margin", "log_p", "length"):
        assert frame[name].tolist() == table[name].tolist(), name
    assert frame.old.tolist() == [len(d.old_tokens) for d in chains.decisions]


def test_tokens_add_up_to_log_a(stepper: MCMCStepper, chains: Chains) -> None:
    for index, decision in enumerate(chains.decisions):
        tokens = stepper.tokens(index)
        assert tokens["share"].sum() + decision.terms.pivot == pytest.approx(decision.log_a, abs=1e-9)
        new = tokens[tokens.side == "new"]
        terms = token_terms(decision.new_scalars, decision.alpha, decision.tau)
        assert new.alpha_log_p.tolist() == pytest.approx(terms[:, 0].tolist())
        assert (new.log_p * decision.alpha).tolist() == pytest.approx(terms[:, 0].tolist())
        assert new.log_q.tolist() == pytest.approx(terms[:, 1].tolist())
        assert new["sum"].iloc[-1] == pytest.approx(new["share"].sum())
        assert new.position.tolist() == list(range(decision.pivot, decision.pivot + len(new)))
        assert "".join(new.text) == "".join(stepper.model.tokenizer.token_text(t) for t in decision.new_tokens)


def test_the_terms_and_the_verdict_are_the_decisions(stepper: MCMCStepper, chains: Chains) -> None:
    for index, decision in enumerate(chains.decisions):
        terms = stepper.terms(index).set_index("term")
        assert terms.added.iloc[:-1].sum() == pytest.approx(terms.added["log A"])
        assert terms.added["log A"] == pytest.approx(decision.log_a)
        assert terms.value["log q(old)"] == pytest.approx(decision.terms.log_q_old)
        assert terms.added["log q(new)"] == pytest.approx(-decision.terms.log_q_new)
        verdict = stepper.verdict(index)
        assert (verdict["u"], verdict["accepted"]) == (decision.u, decision.accepted)
        high, low = verdict["random"][:2]
        assert ((high >> 5) * 2**26 + (low >> 6)) / 2**53 == decision.u
        assert verdict["counter"][:2] == [decision.iteration, decision.chain]


def test_the_kernels_tiles_lead_to_the_kept_scalars(stepper: MCMCStepper, chains: Chains) -> None:
    index = index_of(chains, "rejected")
    programs = stepper.programs(index)
    for program in programs.itertuples():
        frame = stepper.kernel(index, program.row, program.side)
        assert frame["last"].iloc[-1] == 259
        assert frame.attrs["lse_1"] == pytest.approx(program.lse_1, abs=1e-4)
        assert frame.attrs["x_tok"] == pytest.approx(program.x_tok, abs=1e-4)
        assert frame["max"].iloc[-1] + math.log(frame["sum_1"].iloc[-1]) == pytest.approx(program.lse_1, abs=1e-4)
        assert frame["max"].iloc[-1] * 2 + math.log(frame["sum_tau"].iloc[-1]) == pytest.approx(
            program.lse_tau, abs=1e-4
        )
        assert frame.rescale_1.iloc[0] == 0
        assert (frame.rescale_1.iloc[1:] <= 1).all()
    assert len(stepper.kernel(index, 0, tile=7)) == 38


def test_the_contrast_is_kept_or_computed(stepper: MCMCStepper, chains: Chains) -> None:
    accepted, rejected = (stepper.contrast(index_of(chains, kind)) for kind in ("accepted", "rejected"))
    assert accepted.layer.tolist() == rejected.layer.tolist() == [0, 1, 2]
    first = chains.contrasts[0]
    place = next(
        i for i, d in enumerate(chains.decisions)
        if (d.chain, d.block, d.iteration) == (first.chain, first.block, first.iteration)
    )  # fmt: skip
    kept = stepper.contrast(place)
    assert kept.difference.tolist() == pytest.approx([float(first.difference(hook).norm()) for hook in first.old])
    assert kept.attrs["position"] == first.position


def test_keys_and_values_are_told_as_recorded(stepper: MCMCStepper, chains: Chains) -> None:
    index = index_of(chains, "rejected")
    move = chains.decisions[index].cache
    positions = stepper.cache(index).positions.tolist()
    assert move is not None
    assert positions[1:] == [
        move.kept - chains.prefilled, move.taken, move.fed, move.dropped, move.restored, move.after
    ]  # fmt: skip
    assert positions[0] + positions[1] + positions[5] == positions[6]


def test_indices_count_from_the_end_too_and_others_are_refused(stepper: MCMCStepper) -> None:
    assert stepper.terms(-1).equals(stepper.terms(15))
    with pytest.raises(ChainError, match="there is no decision 16 in the run; it has decisions 0 to 15"):
        stepper.terms(16)
    with pytest.raises(ChainError, match="there is no track 1; there are 0 to 0"):
        stepper.frame(1)
    with pytest.raises(ChainError, match="track 0 is no branch"):
        stepper.compare(0)


# Sources ----------------------------------------------------------------------------------------------------------


def test_a_saved_run_opens_without_a_model_and_says_what_it_lacks(model: Any, tmp_path: Path) -> None:
    PowerSampler(model, PROMPT, save=tmp_path / "run", **SETTINGS).run()
    window = MCMCStepper(tmp_path / "run")
    assert window.tokens(0).text.iloc[0].startswith("#")
    assert window.terms(0).equals(MCMCStepper(load_chains(tmp_path / "run")).terms(0))
    with pytest.raises(ChainError, match="this needs the model: MCMCStepper"):
        window.kernel(0, 0)
    with pytest.raises(ChainError, match="this needs the model"):
        window.branch(0)
    with pytest.raises(ChainError, match="is a result, which nothing steps: MCMCStepper"):
        window.step()
    with pytest.raises(ChainError, match="give the model, or run with capture="):
        window.contrast(next(i for i, kind in enumerate(window.frame().kind) if kind != "null"))
    named = MCMCStepper(str(tmp_path / "run"), model)
    assert not named.tokens(0).text.iloc[0].startswith("#")
    for each in (window, named):
        each.close()


def test_what_is_no_run_is_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ChainError, match=r"MCMCStepper looks at a PowerSampler.*got int"):
        MCMCStepper(3)  # type: ignore[arg-type]
    with pytest.raises(ChainError, match="holds no readable chain"):
        MCMCStepper(tmp_path)
    with pytest.raises(ChainError, match="a sampler has its model with it"):
        MCMCStepper(PowerSampler(model, PROMPT, **SETTINGS), object())  # type: ignore[arg-type]
    with pytest.raises(ChainError, match="a tile has 1 column or more, got 0"):
        MCMCStepper(PowerSampler(model, PROMPT, **SETTINGS), tile=0)


def test_several_tries_are_told_apart_from_the_sum_of_the_terms(model: Any) -> None:
    window = MCMCStepper(PowerSampler(model, PROMPT, tries=3, **SETTINGS).run(), model)
    for index, decision in enumerate(window.tracks[0].decisions):
        verdict = window.verdict(index)
        assert (verdict["log_a"], verdict["tries"]) == (decision.log_a, 3)
        assert verdict["recomputed_log_a"] == pytest.approx(decision.terms.log_a)
    window.close()


# A live chain -----------------------------------------------------------------------------------------------------


def test_a_step_is_one_decision_and_the_whole_is_the_uninterrupted_run(live: MCMCStepper, model: Any) -> None:
    assert "No decision yet" in live.static_html()
    with pytest.raises(ChainError, match="it has made none yet: step"):
        live.terms(0)
    for count in (1, 2, 3):
        assert live.step()
        assert live.wait(20)
        assert len(live.frame()) == count
    assert live.step(4)
    assert live.wait(20)
    assert len(live.frame()) == 7
    assert live.run()
    assert live.wait(60)
    assert live.tracks[0].chains == PowerSampler(model, PROMPT, **SETTINGS).run()
    assert live.state_of_work == "idle"
    assert live.step()  # a finished run has nothing to add
    assert live.wait(20)
    assert len(live.frame()) == 16


class Slow:
    """A model whose passes wait for ``gate``."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.gate = threading.Event()
        self.gate.set()
        self.passes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, *args: Any, **named: Any) -> Any:
        assert self.gate.wait(20)
        self.passes += 1
        return self._model.forward(*args, **named)


def test_a_stop_ends_a_run_within_one_pass_and_nothing_is_lost(model: Any) -> None:
    slow = Slow(model)
    window = MCMCStepper(PowerSampler(slow, PROMPT, **SETTINGS))
    window.step()
    assert window.wait(20)
    slow.gate.clear()
    assert window.run()
    assert not window.run()
    assert not window.step()
    until(lambda: window.state_of_work == "running")
    assert len(window.frame()) == 1  # the kernel's thread is free meanwhile
    window.stop()
    window.stop()
    assert window.state_of_work == "stopping"
    passes = slow.passes
    slow.gate.set()
    assert window.wait(20)
    assert slow.passes <= passes + 1
    assert window.run()
    assert window.wait(60)
    assert window.tracks[0].chains == PowerSampler(model, PROMPT, **SETTINGS).run()
    window.close()


def test_a_row_is_read_while_a_run_goes_on(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(model)
    window = MCMCStepper(PowerSampler(slow, PROMPT, **SETTINGS))
    window.step()
    assert window.wait(20)
    told = []
    monkeypatch.setattr(
        MCMCStepper, "send", lambda self, content, buffers=None: told.append((content, self.tracks[0].shown))
    )
    slow.gate.clear()
    window.run()
    window.answers["kernel"]({"track": 0, "index": 0, "side": "new", "row": 0})
    slow.gate.set()
    assert window.wait(60)
    ((content, shown),) = [(content, shown) for content, shown in told if content["type"] == "kernel"]
    assert content["rows"] == window.kernel(0, 0).to_numpy().tolist()
    assert shown < len(window.frame()) == 16
    window.close()


def test_an_error_of_the_model_is_shown_and_the_window_goes_on(model: Any) -> None:
    slow = Slow(model)
    window = MCMCStepper(PowerSampler(slow, PROMPT, **SETTINGS))
    fine, slow.forward = slow.forward, lambda *a, **k: 1 / 0  # type: ignore[method-assign]
    window.run()
    assert window.wait(20)
    assert (window.state_of_work, window.error) == ("failed", "ZeroDivisionError: division by zero")
    slow.forward = fine  # type: ignore[method-assign]
    window.run()
    assert window.wait(60)
    assert window.tracks[0].chains == PowerSampler(model, PROMPT, **SETTINGS).run()
    window.close()


def test_decisions_made_elsewhere_are_taken_over(live: MCMCStepper) -> None:
    sampler = live.tracks[0].sampler
    assert sampler is not None
    for _ in zip(range(3), sampler.steps(), strict=False):
        pass
    live.refresh()
    assert len(live.frame()) == sampler.given >= 3


def test_closing_ends_what_runs_and_leaves_the_sampler_usable(model: Any) -> None:
    sampler = PowerSampler(model, PROMPT, **SETTINGS)
    window = MCMCStepper(sampler)
    window.run()
    window.close()
    assert not any(thread.name == "workbench-chain" for thread in threading.enumerate())
    assert sampler.run() == PowerSampler(model, PROMPT, **SETTINGS).run()


# What if, and branches --------------------------------------------------------------------------------------------


def test_a_branch_is_a_track_of_its_own(stepper: MCMCStepper, chains: Chains) -> None:
    index = index_of(chains, "rejected")
    decision = chains.decisions[index]
    number = stepper.branch(index, verdict="accept")
    track = stepper.tracks[number]
    assert number == 1
    assert track.chains.texts[0].tokens[decision.pivot :] == decision.new_tokens
    assert "no longer a sample of the target" in track.warnings[0]
    assert stepper.run(track=1)
    assert stepper.wait(60)
    assert track.shown == track.total == (2 - decision.block) * 4 - decision.iteration
    frame = stepper.compare(1)
    for row in frame.itertuples():
        one, other = chains.decisions[int(row.index_run)], track.decisions[int(row.index_branch)]
        assert (one.chain, one.block, one.iteration) == (decision.chain, row.block, row.iteration)
        assert (other.block, other.iteration) == (row.block, row.iteration)
        assert (row.log_p_run, row.log_p_branch) == (one.log_p, other.log_p)
        texts = [
            state_after(t.chains, int(i)) for t, i in ((stepper.tracks[0], row.index_run), (track, row.index_branch))
        ]
        assert row.same_text == (texts[0] == texts[1])
    assert stepper.tracks[0].chains is chains
    second = stepper.branch(0, track=1)
    assert (stepper.tracks[second].parent, stepper.tracks[second].warnings) == (1, ())
    seeds = {t.chains.settings.seed for t in stepper.tracks}
    assert len(seeds) == 3
    assert stepper.terms(-1, track=1).equals(stepper.terms(track.shown - 1, track=1))
    assert "Verdict set by hand" in stepper.static_html()


def test_a_branch_that_can_not_be_made_is_told(stepper: MCMCStepper, sent: Any) -> None:
    with pytest.raises(ChainError, match="no decision is left behind the run's last one"):
        stepper.branch(-1)
    stepper.answers["branch"]({"track": 0, "index": 15})
    assert stepper.wait(20)
    assert "no decision is left" in stepper.error
    stepper.answers["branch"]({"track": 0, "index": 15, "n_mcmc": 6})
    assert stepper.wait(20)
    assert stepper.tracks[1].total == 2


# Messages ---------------------------------------------------------------------------------------------------------


def test_no_name_of_ours_hides_one_that_the_browser_goes_by(stepper: MCMCStepper) -> None:
    assert (stepper._model_name, stepper._model_module) == ("AnyModel", "anywidget")
    assert (stepper._view_name, stepper._view_module) == ("AnyView", "anywidget")


def test_what_opens_a_window_and_its_script_are_bounded(stepper: MCMCStepper) -> None:
    state = json.dumps(stepper.state, allow_nan=False)
    assert len(state) + len(stepper._esm) + len(stepper._css) < LARGEST_MESSAGE
    assert len(stepper._esm) < LARGEST_SCRIPT


def repeated(chains: Chains, count: int) -> Chains:
    """A run of one chain with ``count`` decisions that all repeat one."""
    decision = next(d for d in reversed(chains.of(0)) if not d.accepted)
    state = state_after(chains, chains.decisions.index(decision))
    text = replace(chains.texts[0], tokens=state.tokens, scalars=state.scalars)
    many = tuple(replace(decision, block=0, iteration=i + 1) for i in range(count))
    return replace(chains, decisions=many, texts=(text,), settings=replace(chains.settings, chains=1))


def test_thousands_of_decisions_come_page_by_page(chains: Chains, model: Any, sent: Any) -> None:
    count = 2 * PAGE + 50
    window = MCMCStepper(repeated(chains, count), model)
    window.answers["hello"]({})
    until(lambda: sum(content["page"]["count"] for content, _ in sent if content.get("page")) >= count)
    pages = [(content["page"], buffers[0]) for content, buffers in sent if content.get("page")]
    assert [page["start"] for page, _ in pages] == [0, PAGE, 2 * PAGE]
    assert all(len(buffer) < LARGEST_MESSAGE for _, buffer in pages)
    numbers = np.frombuffer(pages[-1][1]).reshape(11, -1)
    assert numbers[2].tolist() == list(range(2 * PAGE + 1, count + 1))
    began = time.monotonic()
    decision_told(window.tracks[0], 0, window.texts)
    assert time.monotonic() - began < 2
    window.close()


def test_a_fast_run_sends_ten_messages_a_second_at_most(live: MCMCStepper, sent: Any) -> None:
    began = time.monotonic()
    live.run()
    assert live.wait(60)
    time.sleep(0.3)
    news = [content for content, _ in sent if content["type"] == "news"]
    assert len(news) <= 10 * (time.monotonic() - began) + 2
    assert news[-1]["tracks"][0]["shown"] == 16
    assert sum(content["page"]["count"] for content in news if content["page"]) == 16
    assert all(len(json.dumps(content, allow_nan=False)) < LARGEST_MESSAGE for content, _ in sent)


def long_decision(model: Any, length: int) -> Track:
    """A decision between two suffixes of ``length`` tokens, made up."""
    short = PowerSampler(model, PROMPT, **(SETTINGS | {"chains": 1})).run()
    random = np.random.default_rng(0)
    old, new = (tuple(int(token) for token in random.integers(0, 256, length)) for _ in range(2))
    scalars = np.stack([random.normal(size=length), random.normal(size=length) + 5, random.normal(size=length) + 9], 1)
    decision = replace(
        short.decisions[0], pivot=0, old_tokens=old, new_tokens=new, old_scalars=scalars, new_scalars=scalars[::-1],
        accepted=False, length=length,
    )  # fmt: skip
    text = replace(short.texts[0], tokens=old, scalars=scalars)
    return Track(number=0, told="the run", chains=replace(short, texts=(text,), decisions=(decision,)), shown=1)


def test_the_longest_texts_fit_a_message_and_come_in_pages(model: Any) -> None:
    track = long_decision(model, 10_000)
    told, buffers = decision_told(track, 0, TokenTexts(model.tokenizer))
    assert len(json.dumps(told, allow_nan=False)) + sum(map(len, buffers)) < LARGEST_MESSAGE
    assert told["strip"]["omitted"] == 2 * (10_000 - STRIP_PART)
    assert [len(told["tokens"][side]) for side in ("old", "new")] == [100, 100]


def test_a_ladders_exchanges_and_the_meaning_of_the_bars_are_said(model: Any) -> None:
    settings = SETTINGS | {"ladder": (2.0, 1.0), "tau": 0.5}
    window = MCMCStepper(PowerSampler(model, PROMPT, **settings).run(), model)
    swap = window.tracks[0].chains.swaps[0]
    found = {}
    for index, decision in enumerate(window.tracks[0].decisions):
        told, _ = decision_told(window.tracks[0], index, window.texts)
        here = (decision.block, decision.iteration) == (swap.block, swap.iteration)
        assert not here or "Then chains 0 and 1" in told["said"]["strip"]
        found[decision.chain] = "Rényi entropy" in told["said"]["suffixes"]
    assert found == {0: True, 1: False}  # tau is 1 / alpha for the first chain alone
    window.close()


def test_an_error_in_a_message_is_no_end_of_the_window(stepper: MCMCStepper, sent: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    stepper._heard(stepper, {"type": "decision", "track": 0, "index": 99}, [])
    assert "there is no decision 99" in stepper.error
    stepper._heard(stepper, {"type": "decision", "track": 0, "index": 3, "asked": 1}, [])
    assert sent[-1][0]["type"] == "decision"


# Without a browser ------------------------------------------------------------------------------------------------


def test_the_plain_form_has_the_numbers_and_no_script(stepper: MCMCStepper, chains: Chains) -> None:
    html = stepper.static_html()
    assert not re.search(r"<(script|img|iframe|style)|https?:", html)
    for caption in (
        "Decisions of the run",
        "Terms of log A",
        "Old and new suffix",
        "Inside the kernel",
        "Keys and values",
    ):
        assert caption in html, caption
    assert "<b>letter</b>" not in html
    assert f"Decision 15 of the run: <b>{chains.decisions[15].kind}</b>" in html
    data, _ = stepper._repr_mimebundle_()
    assert set(data) == {"text/html", "text/plain"}
    assert (
        data["text/plain"]
        == "<MCMCStepper decisions=16 of 16 accepted="
        + str(sum(d.accepted for d in chains.decisions))
        + " branches=0 saved>"
    )


def test_text_of_the_model_can_not_break_out(chains: Chains, model: Any) -> None:
    evil = replace(
        chains, texts=tuple(replace(text, text="<img src=x onerror=alert(1)>\u202e") for text in chains.texts)
    )
    window = MCMCStepper(evil, model)
    assert "<img" not in window.static_html()
    assert "<U+202E>" in window.state["tracks"][0]["texts"][0]["text"]
    window.close()


def test_fifty_windows_leave_nothing_behind(chains: Chains, model: Any) -> None:
    MCMCStepper(chains, model).close()
    gc.collect()
    before, alive = len(_instances), []
    for _ in range(50):
        window = MCMCStepper(PowerSampler(model, PROMPT, **SETTINGS))
        window.step()
        alive.append(weakref.ref(window))
        window.close()
        window.close()
        del window
    gc.collect()
    assert [ref() for ref in alive if ref() is not None] == []
    assert len(_instances) == before
    assert repr(MCMCStepper(chains, model)).startswith("<MCMCStepper decisions=16")
