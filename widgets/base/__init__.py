"""Scripts, styles and numbers come in; the class that every window is made of goes out."""

from .assets import script, style
from .background import Background, Task
from .frames import SHOWN_ROWS, frame_html
from .labels import joined_glyphs, marked
from .outbox import Outbox
from .showing import display, is_static
from .typed import typed_number
from .window import Window, json_safe, table_html

__all__ = [
    "SHOWN_ROWS",
    "Background",
    "Outbox",
    "Task",
    "Window",
    "display",
    "frame_html",
    "is_static",
    "joined_glyphs",
    "json_safe",
    "marked",
    "script",
    "style",
    "table_html",
    "typed_number",
]
