"""Records of a run come in; its tokens, tables, files and differences from another run go out."""

from .bounded_files import Allowance, file_within, read_json, read_table
from .compare import Difference, first_difference
from .history import History, TokenLife
from .ingest import from_ingest, read_ingest, to_ingest
from .one_writer import LOCK, hold
from .record import ACTION, EVENTS, WARNING, Record, Sink
from .trace import Trace
from .whole_files import replace_file, replace_table
from .writing import TraceWriter

__all__ = [
    "ACTION",
    "EVENTS",
    "LOCK",
    "WARNING",
    "Allowance",
    "Difference",
    "History",
    "Record",
    "Sink",
    "TokenLife",
    "Trace",
    "TraceWriter",
    "file_within",
    "first_difference",
    "from_ingest",
    "hold",
    "read_ingest",
    "read_json",
    "read_table",
    "replace_file",
    "replace_table",
    "to_ingest",
]
