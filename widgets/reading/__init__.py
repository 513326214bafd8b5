"""A trace comes in; its tokens in the order of display, and what can be said of each, go out."""

from .detail import detail
from .layers import LayerView, checked_directions, norm_matrix, residual_hooks
from .pages import COLUMNS, GONE, ORIGINS, PAGE, SPECIAL, page
from .reading import Branching, Item, Reading
from .steps import StepView

__all__ = [
    "COLUMNS",
    "GONE",
    "ORIGINS",
    "PAGE",
    "SPECIAL",
    "Branching",
    "Item",
    "LayerView",
    "Reading",
    "StepView",
    "checked_directions",
    "detail",
    "norm_matrix",
    "page",
    "residual_hooks",
]
