"""A model and a prompt, or a trace, come in; a window on what every layer says at every position goes out."""

from .widget import ResidualView

__all__ = ["ResidualView"]
