"""How the documentation site is built; ``make docs`` does it.

Nothing is fetched, neither by the build nor by a page that is opened: system fonts, a search index beside the pages,
formulas as MathML. The rooms are imported for their docstrings, which downloads nothing and loads no model.
"""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "Interp Workbench"
author = "the authors of Interp Workbench"
project_copyright = "the authors of Interp Workbench, Apache-2.0"
release = version = installed_version("interp-workbench")

extensions = ["myst_parser", "sphinx.ext.autodoc", "contents", "mathml", "rooms"]
exclude_patterns = ["extensions"]

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]  # as git hosts write a displayed formula
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page may begin with a figure's caption in bold

default_role = "code"
highlight_language = "none"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True, "undoc-members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 96
add_module_names = False

toc_object_entries = False  # two thousand of them in every page's navigation would be slow and no help
nitpicky = True  # every reference leads somewhere; what may not is in extensions/rooms.py

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_domain_indices = False
html_use_index = False
html_math_renderer = "mathml"
html_theme_options = {
    "navigation_with_keys": False,  # arrow keys scroll wide tables
    "sidebar_hide_name": False,
}
