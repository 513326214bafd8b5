"""Records of a run come in; its tokens, tables, files and differences from another run go out."""

from .compare import Difference, first_difference
from .files import TraceWriter
from .history import History, TokenLife
from .ingest import from_ingest, read_ingest, to_ingest
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
    "from_ingest",
    "read_ingest",
    "to_ingest",
]
