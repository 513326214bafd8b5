"""A checkpoint comes in by name, path or file; logits, named activations and a cache that rewinds go out."""

from .checkpoints import cache_dir, cached, listing, path, remove
from .hooks import match_hooks
from .load import BACKENDS, load
from .protocol import Cache, Edit, Forward, HookedModel
from .registry import KNOWN, KnownModel
from .tokenizer import Message, Tokenizer

__all__ = [
    "BACKENDS",
    "KNOWN",
    "Cache",
    "Edit",
    "Forward",
    "HookedModel",
    "KnownModel",
    "Message",
    "Tokenizer",
    "cache_dir",
    "cached",
    "listing",
    "load",
    "match_hooks",
    "path",
    "remove",
]
