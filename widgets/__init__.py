"""Traces and models come in; windows on them, for notebooks, go out. Look here, work in ``workbench``."""

from .base import Window, display
from .carry_inspector import CarryInspector
from .flow_editor import FlowEditor
from .live_run import LiveRun
from .mcmc_stepper import MCMCStepper
from .residual_view import ResidualView
from .trace_explorer import TraceExplorer

__all__ = [
    "CarryInspector",
    "FlowEditor",
    "LiveRun",
    "MCMCStepper",
    "ResidualView",
    "TraceExplorer",
    "Window",
    "display",
]
