"""``python -m workbench.compat script.py …``: run a script of the user's with the public SDK's names in place.

The script is the user's own, named on the command line, and is run as ``python script.py`` would run it. This and
``load_mod_from_payload`` are the two places of this package where code from outside runs.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import CompatError
from .modules import install

ABOUT = "Run a Python script that imports the public mod SDK (quote_mod_sdk, sdk, shared, quote, max.driver)."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; returns an exit code where it could not be run."""
    parser = argparse.ArgumentParser(prog="python -m workbench.compat", description=ABOUT)
    parser.add_argument("--replace", action="store_true", help="hide real packages of these names for this run")
    parser.add_argument("script", help="the script to run; it is Python and does whatever it says")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script finds in sys.argv")
    rest.required = False  # else argparse asks for them too where the script is missing
    options = parser.parse_args(arguments)
    path = Path(options.script)
    if not path.is_file():
        sys.stderr.write(f"workbench.compat: there is no script {options.script}\n")
        return 2
    sys.path.insert(0, str(path.resolve().parent))  # as Python does for a script
    try:
        install(replace=options.replace)
    except CompatError as error:
        sys.stderr.write(f"workbench.compat: {error}\n")
        return 2
    sys.argv = [options.script, *options.arguments]
    runpy.run_path(str(path), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
