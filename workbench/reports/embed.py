"""Files inside a document, as links that save them: no script, no second file, readable as text."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from .blocks import Attachment
from .legible import legible

__all__ = ["csp_hash", "download_link", "json_for_script"]

PLAIN = ',:;{}[]()/=+*!@$|^"'
"""Characters that neither the attribute (in single quotes) nor the data URL gives a meaning."""


def download_link(file: Attachment) -> Markup:
    """A link that saves the file. A lone surrogate, which UTF-8 can't hold, is written ``\\udXXX``."""
    body = file.text.encode("utf-8", "backslashreplace")
    size = f"{len(body) / 1e6:.1f} MB" if len(body) >= 1e6 else f"{max(len(body) / 1e3, 0.1):.1f} kB"
    name = escape(legible(file.name))
    # Percent-encoding leaves no quote, bracket or ampersand of the data in the attribute.
    url = f"data:{file.media_type};charset=utf-8,{quote(body, safe=PLAIN)}"
    return Markup(f"<a download='{name}' href='{url}'>{name}</a> <small>({size})</small>")


def json_for_script(value: Any) -> Markup:
    """JSON that may stand between script tags: nothing in it can end the script or open a comment."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def csp_hash(text: str) -> str:
    """What a Content-Security-Policy calls this very script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
