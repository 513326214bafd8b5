"""A flow's file: written whole or not at all after every change, and never over what somebody else wrote there."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from workbench.errors import FlowError
from workbench.flows import FlowDefinition
from workbench.trace import replace_file

from .draft import Draft

__all__ = ["Autosave", "opened"]

FOLDER = Path("data/flows")
LARGEST = 4_000_000
"""Bytes of a file that is read: a document has at most a million characters."""


def file_for(name: str) -> Path:
    """Where a flow of this name is kept when nobody says where: under ``data/flows`` of the working directory."""
    return FOLDER / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name).strip('._') or 'flow'}.json"


class Autosave:
    """One file, and what this process last knew to be in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = self._read()
        """The text that the file held when it was last looked at; None where there was no file."""

    def write(self, text: str) -> str:
        """Save; gives what there is to say, which is nothing where all went well.

        A file that changed meanwhile is left alone: from then on a new one beside it is written.

        :raises FlowError: it can't be written; the flow is in the editor still.
        """
        told = ""
        if self._read() != self.known:
            old = self.path
            self.leave()
            told = f"{old} was changed by someone else and is left as it is; saving to {self.path} from now on"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, text.encode())
        except OSError as error:
            raise FlowError(
                f"the flow could not be saved to {self.path}: {error.strerror or error}. It is safe in this window: "
                "export it, or open FlowEditor(path=…) where files may be written"
            ) from None
        self.known = text
        return told

    def _read(self) -> str | None:
        try:
            if self.path.stat().st_size > LARGEST:
                raise FlowError(f"{self.path} has more than {LARGEST:,} bytes: this is no flow file")
            with self.path.open(encoding="utf-8", newline="") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise FlowError(f"{self.path} can't be read as a flow file: {error}") from None

    def leave(self) -> None:
        """Leave the file as it is, and write a new one beside it from now on."""
        stem, suffix = self.path.stem, self.path.suffix
        names = (self.path.with_name(f"{stem}-{number}{suffix}") for number in itertools.count(2))
        self.path, self.known = next(path for path in names if not path.exists()), None


def opened(path: str | Path | None, given: str) -> tuple[Autosave, str]:
    """The file to save to, and what there is to say about it."""
    if path is None and given:
        name = FlowDefinition.from_json(given).name
        save = Autosave(file_for(name))
        if save.known in (None, given):
            return save, ""
        held = save.path
        save.leave()
        return save, f"{held} holds another version of it: FlowEditor(path={str(held)!r}) opens that one."
    save = Autosave(file_for("untitled") if path is None else Path(path))
    if save.known is None:
        return save, ""
    kept = Draft(save.known).text
    if given and kept != Draft(given).text:
        raise FlowError(f"{save.path} holds another flow than the one given: give one of them, or another path")
    return save, f"Opened {save.path}."
