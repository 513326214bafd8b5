"""A checkpoint comes in by name, path or file; logits, named activations and a cache that rewinds go out."""

from .blocks import Blocks, KeysValues, blocks_of, hooks_on
from .checkpoints import cache_dir, cached, listing, path, remove
from .hooks import match_hooks
from .kv_rows import KVRows, PassView, Tail
from .load import BACKENDS, load
from .protocol import Cache, Edit, Forward, HookedModel
from .registry import KNOWN, KnownModel
from .row_summary import RowSummary, read_rows, reads_compiled, summarize_row, weigh_rows
from .tokenizer import Message, Tokenizer

__all__ = [
    "BACKENDS",
    "KNOWN",
    "Blocks",
    "Cache",
    "Edit",
    "Forward",
    "HookedModel",
    "KVRows",
    "KeysValues",
    "KnownModel",
    "Message",
    "PassView",
    "RowSummary",
    "Tail",
    "Tokenizer",
    "blocks_of",
    "cache_dir",
    "cached",
    "hooks_on",
    "listing",
    "load",
    "match_hooks",
    "path",
    "read_rows",
    "reads_compiled",
    "remove",
    "summarize_row",
    "weigh_rows",
]
