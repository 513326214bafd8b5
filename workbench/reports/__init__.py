"""A trace comes in; what each layer thought, figures and one offline document go out."""

from .lens import logit_lens, residual_norms
from .report import Report, report_of

__all__ = ["Report", "logit_lens", "report_of", "residual_norms"]
