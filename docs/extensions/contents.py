"""The index page is the navigation: each of its sections with links to pages becomes a part of the table of contents.

So the index reads well where it is plain Markdown, and there is no second list to keep.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

SECTION = re.compile(r"^## +(.+?) *$", re.MULTILINE)
PAGE = re.compile(r"\]\(([\w/-]+)\.md\)")


def with_navigation(text: str) -> str:
    """Put a hidden ``toctree`` behind each section (``##``) of the index that links to pages.

    A page belongs to the first section that links to it.
    """
    seen: set[str] = set()
    parts = SECTION.split(text)
    made = [parts[0]]
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        pages = [page for page in dict.fromkeys(PAGE.findall(body)) if page not in seen]
        seen.update(pages)
        made.append(f"## {heading}\n{body.rstrip()}\n\n")
        if pages:
            made.append("\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```\n\n"]))
    return "".join(made)


def read_index(app: Sphinx, page: str, source: list[str]) -> None:
    if page == app.config.root_doc:
        source[0] = with_navigation(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", read_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
