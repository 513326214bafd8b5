"""``workbench trace``: a saved trace as request logs of the public engine, and such logs as a trace."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .commands import Commands, say
from .loading import load_model
from .running import refuse_used

__all__ = ["add"]

EXPORT = "workbench trace export runs/sum --ingest-json -o sum.json"
IMPORT = "workbench trace import sum.json --out runs/old"


def add(commands: Commands) -> None:
    trace = commands.group("trace", "exchange traces with the public engine's request logs", EXPORT, IMPORT)
    export = trace.add("export", _export, "write a trace as request logs (without activations)", EXPORT)
    export.add_argument("trace", type=Path, metavar="DIR", help="what `workbench run --out DIR` wrote")
    export.add_argument(
        "--ingest-json", action="store_true", required=True, help="the form: JSON as the public engine sends it"
    )
    export.add_argument("-o", "--out", type=Path, metavar="FILE.json", help="where to (default: standard output)")
    export.add_argument("--request", metavar="NAME", help="only this request (default: all; several make a list)")
    read = trace.add("import", _import, "make a trace of request logs, to open in TraceExplorer", IMPORT)
    read.add_argument("file", type=Path, metavar="FILE.json", help="one log, or a list of logs")
    read.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the trace goes")
    read.add_argument("--overwrite", action="store_true", help="replace a trace that is there already")
    read.add_argument("--model", metavar="NAME", help="spell token ids with this model's tokenizer")
    read.set_defaults(backend=None, device=None)


def _export(options: argparse.Namespace) -> int:
    from ..trace import Trace, to_ingest

    logs = to_ingest(Trace.load(options.trace), options.request)
    text = json.dumps(logs[0] if len(logs) == 1 else logs, indent=1, allow_nan=False)
    if options.out is None:
        print(text)
        return 0
    options.out.write_text(text + "\n", "utf-8")
    if not options.quiet:
        say(f"written: {options.out} ({_counted(len(logs), 'request')})")
    return 0


def _import(options: argparse.Namespace) -> int:
    from ..trace import WARNING, read_ingest

    refuse_used(None if options.overwrite else options.out)
    tokenizer = load_model(options, options.model, "bridge").tokenizer if options.model else None

    def decode(token: int) -> str:
        return tokenizer.token_text(token) if tokenizer is not None and token < len(tokenizer) else f"#{token}"

    trace = read_ingest(options.file, None if tokenizer is None else decode)
    place = trace.save(options.out, overwrite=options.overwrite)
    if not options.quiet:
        for record in trace.records:
            if record.kind == WARNING:
                say(f"{record.request_id}: {record.data['message']}")
    tokens = sum(len(history.live) for history in trace.histories.values())
    print(f"{place}: {_counted(len(trace.request_ids), 'request')}, {_counted(tokens, 'token')}")
    return 0


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
