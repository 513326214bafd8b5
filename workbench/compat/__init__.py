"""Mods written for the public SDK come in; mods that a Session of this workbench runs go out.

``install()`` puts the SDK's module names where ``import`` finds them, ``uninstall()`` takes them away; importing this
package does neither. See docs/compat.md.
"""

from .adapter import SdkMod, adapt
from .decorator import mod
from .manager import ModManager
from .modules import TOP_NAMES, install, installed, uninstall
from .serialization import load_mod_from_payload, serialize_mod
from .tensor import LogitsArray, Tensor
from .tokenizer import SdkTokenizer, sdk_tokenizer

__all__ = [
    "TOP_NAMES",
    "LogitsArray",
    "ModManager",
    "SdkMod",
    "SdkTokenizer",
    "Tensor",
    "adapt",
    "install",
    "installed",
    "load_mod_from_payload",
    "mod",
    "sdk_tokenizer",
    "serialize_mod",
    "uninstall",
]
