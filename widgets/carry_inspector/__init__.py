"""A model that carries and one of its traces come in; a window on what the states hold and do goes out."""

from .widget import CarryInspector

__all__ = ["CarryInspector"]
