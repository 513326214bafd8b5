"""Progress bars for slow steps on files: one bar at a time, gone when the step ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

__all__ = ["byte_bar", "quiet_transformers", "step_bar"]

STEP_FORMAT = "{desc} (step {n_fmt} of {total_fmt}) [{elapsed}]"


@contextmanager
def byte_bar(label: str, total: int | None, *, show: bool) -> Iterator[Any]:
    """Yield a tqdm bar that counts bytes; silent when ``show`` is false or nobody watches the terminal."""
    from tqdm.auto import tqdm

    # disable=None means "only on a terminal or in a notebook", so pipes and CI stay quiet.
    with tqdm(
        desc=label,
        total=total,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        mininterval=0.2,
        leave=False,
        disable=None if show else True,
    ) as bar:
        yield bar


@contextmanager
def step_bar(label: str, steps: int, *, show: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that begins the next of ``steps`` steps and names it."""
    from tqdm.auto import tqdm

    disable = None if show else True
    with tqdm(desc=label, total=steps, bar_format=STEP_FORMAT, leave=False, disable=disable) as bar:

        def begin(step: str) -> None:
            bar.set_description_str(f"{label}: {step}", refresh=False)
            bar.n += 1
            bar.refresh()  # now: the step itself may be long and silent

        yield begin


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the bars and notes of transformers and the hub client inside the block, then restore them."""
    from transformers import modeling_gguf_pytorch_utils as loader
    from transformers.utils import logging

    verbosity, bars, tensor_bar = logging.get_verbosity(), logging.is_progress_bar_enabled(), loader.tqdm
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    loader.tqdm = partial(tensor_bar, disable=True)  # this one asks no setting
    try:
        yield
    finally:
        loader.tqdm = tensor_bar
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
