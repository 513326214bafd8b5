"""Formulas as MathML, which browsers draw by themselves: no script, no font, no request."""

from __future__ import annotations

from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOG = logging.getLogger(__name__)


def mathml(node: nodes.math | nodes.math_block, *, displayed: bool) -> str:
    """A formula as markup; as it was written, with a warning, if it is not understood."""
    try:
        return tex2mathml(node.astext(), as_block=displayed)
    except MathError as error:
        LOG.warning("formula: %s", error, location=node)
        return f"<code>{escape(node.astext())}</code>"


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(mathml(node, displayed=False))
    raise nodes.SkipNode


def visit_displayed(self: HTML5Translator, node: nodes.math_block) -> None:
    formula = mathml(node, displayed=True)
    self.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_displayed, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
