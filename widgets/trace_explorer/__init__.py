"""A trace comes in; a window on every token, its events, distributions and layers goes out."""

from .differences import first_parting
from .static import explorer_html
from .widget import TraceExplorer

__all__ = ["TraceExplorer", "explorer_html", "first_parting"]
