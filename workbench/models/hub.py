"""From a hub name (``owner/name``) to a local snapshot, when there is a network or a hub cache."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from ..errors import FetchError, UnknownModelError
from .registry import KNOWN

__all__ = ["hub_snapshot", "is_hub_name"]

OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
WANTED = ["*.json", "*.safetensors", "*.model", "*.jinja", "vocab.txt", "merges.txt"]
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)


def is_hub_name(name: str) -> bool:
    """Whether ``name`` has the form ``owner/name``."""
    return HUB_NAME.fullmatch(name) is not None and ".." not in name and not name.endswith(".gguf")


def is_offline() -> bool:
    """Whether the user asked for no hub access. Read now: the hub client only looks when it is imported."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in OFFLINE_VARIABLES)


def hub_snapshot(name: str, *, progress: bool = True) -> Path:
    """The directory of a hub model in the hub client's own cache; only configs, tokenizer and safetensors.

    Raises ``UnknownModelError`` when there is no such model, or offline no copy of it, and ``FetchError``
    when the download fails.
    """
    from huggingface_hub import errors, snapshot_download

    offline = is_offline()
    try:
        with nullcontext() if progress else quiet_hub():
            return Path(snapshot_download(name, allow_patterns=WANTED, local_files_only=offline))
    except errors.GatedRepoError as error:
        advice = "accept its terms on its hub page and log in with `hf auth login`"
        raise FetchError(f"{name!r} is gated: {advice}. {other_ways(name)}") from error
    except errors.RepositoryNotFoundError as error:
        raise UnknownModelError(f"the hub has no model {name!r}, or it is private. {other_ways(name)}") from error
    except errors.LocalEntryNotFoundError as error:
        why = "offline mode is on" if offline else "the hub can't be reached"
        raise UnknownModelError(f"{name!r} is not in the local hub cache, and {why}. {other_ways(name)}") from error
    except OSError as error:  # the root of what the hub client and its HTTP library raise
        raise FetchError(f"downloading {name!r} from the hub failed: {error}. {other_ways(name)}") from error


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Without the hub client's progress bars inside the block."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def other_ways(name: str) -> str:
    """What works without the hub, first of all the same model under its known name."""
    twin = name.split("/")[-1].lower()
    hint = f"The same model is known here as {twin!r}. " if twin in KNOWN else ""
    return (
        f"{hint}Without the hub these work: a known model ({', '.join(KNOWN)}), the path of a directory "
        "in Hugging Face format, or the path of a .gguf file."
    )
