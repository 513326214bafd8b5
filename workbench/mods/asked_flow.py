"""A flow from its document, as a mod."""

from __future__ import annotations

from ..engine import FunctionMod
from ..flows import FlowDefinition, FlowEngine

__all__ = ["flow"]


def flow(flow: str, max_visits: int = 64) -> FunctionMod:
    """Ask the questions of a flow; ``flow`` is the text that :meth:`FlowDefinition.to_json` gives.

    :raises FlowError: the text is no such document, or names a function that is not registered.
    """
    return FlowEngine(FlowDefinition.from_json(flow), max_visits=max_visits).as_mod()
