"""A run comes in; what each layer thought, figures and one offline document go out, which can be run again."""

from .blocks import number
from .legible import label, label_html, legible
from .lens import checked_model, logit_lens, residual_norms
from .notebook_page import NotebookReport, notebook_report
from .printing import find_browser
from .remaking import made_carry
from .report import Report, report_of
from .reproducing import Outcome, Reproduction, reproduce
from .words import Words

__all__ = [
    "NotebookReport",
    "Outcome",
    "Report",
    "Reproduction",
    "Words",
    "checked_model",
    "find_browser",
    "label",
    "label_html",
    "legible",
    "logit_lens",
    "made_carry",
    "notebook_report",
    "number",
    "report_of",
    "reproduce",
    "residual_norms",
]
