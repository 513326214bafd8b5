"""How a command of the ``workbench`` program is declared: its name, what it says of itself, examples."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Commands", "say"]

AS_WRITTEN = argparse.RawDescriptionHelpFormatter


class Commands:
    """Commands of a parser; ``group`` opens commands of a command, such as ``workbench flow check``."""

    def __init__(self, parser: argparse.ArgumentParser, metavar: str = "command") -> None:
        self._parsers = parser.add_subparsers(required=True, metavar=metavar)

    def add(self, name: str, function: Callable[..., int], says: str, *examples: str) -> argparse.ArgumentParser:
        """Declare a command: ``function(options)`` gives its exit code, ``examples`` can be typed as they are."""
        listed = "\n  ".join(("examples:", *examples))
        made = self._made(name, says, listed)
        made.add_argument("-q", "--quiet", action="store_true", help="print results and errors only")
        made.set_defaults(command=function)
        return made

    def group(self, name: str, says: str, *examples: str) -> Commands:
        return Commands(self._made(name, says, "\n  ".join(("examples:", *examples))))

    def _made(self, name: str, says: str, epilog: str) -> argparse.ArgumentParser:
        made: Any = self._parsers.add_parser(
            name, help=says, description=says, epilog=epilog, formatter_class=AS_WRITTEN
        )
        return made  # type: ignore[no-any-return]


def say(message: str) -> None:
    """Tell the person at the terminal something that is not the result."""
    print(f"workbench: {message}", file=sys.stderr)
