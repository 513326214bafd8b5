"""Scripts, styles and numbers come in; the class that every window is made of goes out."""

from .assets import script, style
from .labels import joined_glyphs, marked
from .showing import display, is_static
from .window import Window, json_safe, table_html

__all__ = ["Window", "display", "is_static", "joined_glyphs", "json_safe", "marked", "script", "style", "table_html"]
