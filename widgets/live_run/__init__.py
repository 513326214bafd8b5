"""A model and mods come in; a window that runs, holds, changes and branches generations goes out."""

from .widget import LiveRun

__all__ = ["LiveRun"]
