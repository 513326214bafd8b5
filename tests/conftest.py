"""What holds for every test: no network, no time limits inside laws, one thread for torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

# Before anything imports torch or huggingface_hub; kernels and commands that tests start inherit these.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")

# A shared machine is no stopwatch, so no deadline. In continuous integration a law is checked on the same
# examples every time: a failure there must be about the change, not about the draw.
settings.register_profile(
    "workbench",
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("workbench")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For several processes: a file stays whole, and all of the browser's tests share one JupyterLab."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/browser" if nodeid.startswith("tests/browser/") else nodeid.partition("::")[0]

    config.option.loadscopereorder = False  # in order: the browser's tests, which take longest, begin at once
    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def one_thread_for_torch() -> None:
    """Two torch threads collapse when another process spins on the same cores; never imports torch itself."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process; the exit code, standard output and standard error come back."""

    from workbench.cli import main  # only those tests need it

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as leaving:  # argparse's own way out
            code = int(leaving.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run
