"""A chain sampler, running or kept, comes in; a window on each of its decisions goes out."""

from .widget import MCMCStepper

__all__ = ["MCMCStepper"]
