"""A command line comes in; what it asks for goes out: results on standard output, all else on standard error."""

from .main import main, parser

__all__ = ["main", "parser"]
