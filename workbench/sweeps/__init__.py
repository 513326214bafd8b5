"""Prompts, sets of mods, seeds and models come in; every combination is run once, and one table goes out."""

from .plan import Cell, Sweep
from .results import SweepResult, load_sweep
from .running import sweep

__all__ = ["Cell", "Sweep", "SweepResult", "load_sweep", "sweep"]
