"""A trace comes in; what each layer thought, figures and one offline document go out."""

from .blocks import number
from .legible import label, label_html, legible
from .lens import checked_model, logit_lens, residual_norms
from .report import Report, report_of
from .words import Words

__all__ = [
    "Report",
    "Words",
    "checked_model",
    "label",
    "label_html",
    "legible",
    "logit_lens",
    "number",
    "report_of",
    "residual_norms",
]
