"""``workbench carry`` and ``workbench mcmc``: what they print, keep and refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.carry import CarryTrace
from workbench.mcmc import load_chains

Command = Callable[..., tuple[int, str, str]]
CARRY = ("carry", "run", "--model", "tiny-llama", "--raw", "--prompt", "hi there", "--pauses", "2", "--band", "1:2")
MCMC = ("mcmc", "--model", "tiny-llama", "--prompt", "hi", "--block-size", "3", "--n-mcmc", "2", "--max-tokens", "6")


class TestCarry:
    def test_a_run_reads_every_state_checks_itself_and_keeps_its_trace(self, command: Command, tmp_path: Path) -> None:
        out = tmp_path / "run"
        code, told, err = command(*CARRY, "--loops", "1", "--max-new-tokens", "2", "--check", "--out", out)
        assert code == 0, err
        assert "band 1:2 of 3 layers, 2 pauses" in told
        assert told.count("'<unused0>'") >= 2
        assert "against the whole-sequence scan: largest difference" in told
        trace = CarryTrace.load(out)
        assert (trace.pauses, trace.band) == (2, (1, 2))
        assert command(*CARRY, "--out", out)[0] == 2

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (("--band", "2"), "a band is L0:L1, such as 6:12"),
            (("--band", "2:2"), "the band must be layers"),
            (("--pause-token", "<no such>"), "has no token '<no such>'"),
            (("--adapter", "nothing"), "nothing"),
            (("--prompt", ""), "the prompt is empty"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, command: Command, change: tuple[str, str], says: str) -> None:
        code, told, err = command(*CARRY, *change)
        assert (code, told) == (2, "")
        assert says in err

    def test_unknown_controls_are_named_with_those_there_are(self, command: Command, tmp_path: Path) -> None:
        code, _, err = command("carry", "controls", "--system", "karry", "--out", tmp_path / "c")
        assert code == 2
        assert "--system 'karry': there are carry" in err or "there are" in err
        assert not (tmp_path / "c").exists()


class TestChains:
    def test_a_run_is_kept_told_and_gone_on_with(self, command: Command, tmp_path: Path) -> None:
        out = tmp_path / "chains"
        code, told, err = command(*MCMC, "--chains", "2", "--seed", "3", "--out", out)
        assert code == 0, err
        chains = load_chains(out)
        assert len(chains) == 2
        assert chains.finished
        for text in chains:
            assert f"chain {text.chain}: {len(text.tokens)} tokens, log p {text.log_p:.2f}" in told
        assert f"{len(chains.decisions)} decisions" in err
        again = command("mcmc", "--resume", out)
        assert (again[0], again[1]) == (0, told)

    def test_the_same_seed_gives_the_same_chains(self, command: Command, tmp_path: Path) -> None:
        told = [command(*MCMC, "--seed", seed, "--out", tmp_path / str(n))[1] for n, seed in enumerate((5, 5, 6))]
        assert told[0] == told[1] != told[2]

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (("--alpha", "-1"), "alpha must be above 0"),
            (("--n-mcmc", "-1"), "n_mcmc must be 0 or more"),
            (("--prompt", " "), "the prompt is empty"),
        ],
    )
    def test_what_is_out_of_range_is_refused(
        self, command: Command, tmp_path: Path, change: tuple[str, str], says: str
    ) -> None:
        code, told, err = command(*MCMC, *change, "--out", tmp_path / "x")
        assert (code, told) == (2, "")
        assert says in err

    def test_a_place_to_keep_it_is_needed_and_must_be_free(self, command: Command, tmp_path: Path) -> None:
        assert "--out" in command(*MCMC)[2]
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        assert "already holds files" in command(*MCMC, "--out", tmp_path / "full")[2]
        assert "--prompt is needed" in command("mcmc", "--out", tmp_path / "new")[2]
        assert command("mcmc", "--resume", tmp_path / "nowhere")[0] == 2
