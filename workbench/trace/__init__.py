"""Records of a run come in; its tokens, tables, files and differences from another run go out."""

from .compare import Difference, first_difference
from .files import TraceWriter
from .history import History, TokenLife
from .record import ACTION, EVENTS, WARNING, Record, Sink
from .trace import Trace

__all__ = [
    "ACTION",
    "EVENTS",
    "WARNING",
    "Difference",
    "History",
    "Record",
    "Sink",
    "TokenLife",
    "Trace",
    "TraceWriter",
    "first_difference",
]
