"""A flow, and a model to try it on, come in; a window that authors and tries flows goes out."""

from .widget import FlowEditor

__all__ = ["FlowEditor"]
