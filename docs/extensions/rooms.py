"""``{room} workbench.engine``: everything in a room's ``__all__``, as a table and one entry each.

A name that another room owns gets a row that leads there, and no entry of its own.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import find_pending_xref_condition

import workbench

ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
MARKDOWN_CODE = re.compile(r"`` (`[^`]+`) ``")
UNSPOKEN = re.compile(r" ?= ?<[^<>]+>")
SHORT = 72
"""Longest constant whose value is shown, characters."""

KINDS = {
    "module": "Modules",
    "class": "Classes",
    "exception": "Exceptions",
    "function": "Functions",
    "data": "Constants and types",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One public name of a room."""

    name: str
    """As it is imported: ``workbench.engine.Session``."""
    source: str
    """Where it is defined: ``workbench.engine.session.Session``."""
    kind: str
    """A key of ``KINDS``."""
    text: str
    """Its docstring; empty if it has none."""

    value: str
    """What a constant holds, if that is short; else empty."""

    @property
    def summary(self) -> str:
        """The docstring's first sentence, on one line; what it refers to is shown, not linked."""
        line = ROLE.sub(r"``\1``", " ".join(self.text.strip().split("\n\n")[0].split()))
        return re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.) +(?=[A-Z`*])", line)[0]


def homes(room: ModuleType) -> dict[str, str]:
    """From which module each imported name of a doorway comes: ``BACKENDS`` from ``workbench.models.load``."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(inspect.getsource(room))):
        if isinstance(node, ast.ImportFrom):
            base = ".".join([*([room.__name__] if node.level else []), *([node.module] if node.module else [])])
            found |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
    return found


def text_of_data(source: str) -> str:
    """The string under a constant's or type's definition; empty if there is none."""
    module, _, name = source.rpartition(".")
    return "\n".join(ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name), []))


def kind_of(name: str, value: Any) -> str:
    """A key of ``KINDS``. An alias of somebody else's type, such as ``LogitsRow``, is data."""
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value) and value.__name__ == name:
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "data"


def own_text(value: Any) -> str:
    """A docstring that a person wrote: not an inherited one, nor the signature that ``dataclass`` puts there."""
    text = inspect.cleandoc(value.__doc__ or "")
    return "" if inspect.isclass(value) and text.startswith(f"{value.__name__}(") else text


def entries(room: str) -> list[Entry]:
    """The public names of a room, in the order of its ``__all__``."""
    module = import_module(room)
    sources = homes(module)
    made = []
    for name in module.__all__:
        value = getattr(module, name)
        kind = kind_of(name, value)
        source = sources.get(name, f"{room}.{name}")
        if kind in ("class", "exception", "function"):
            source = f"{value.__module__}.{value.__qualname__}"
        text = text_of_data(source) if kind == "data" else own_text(value)
        shown = repr(value) if isinstance(value, str | int | float | tuple) and len(repr(value)) <= SHORT else ""
        made.append(Entry(name=f"{room}.{name}", source=source, kind=kind, text=text, value=shown))
    return made


def foreign_bases(name: str) -> list[str]:
    """The bases of a class that other libraries bring: what it inherits from them is not listed."""
    room, _, last = name.rpartition(".")
    bases = getattr(sys.modules[room], last).__mro__
    return [base.__name__ for base in bases if base.__module__.partition(".")[0] not in ("workbench", "widgets")]


def lives_in(entry: Entry, room: str) -> bool:
    return room != "workbench" and entry.source.startswith(f"{room}.")


def public_rooms() -> list[str]:
    """Every room by its dotted name, ``widgets`` last."""
    found = (f"workbench.{module.name}" for module in iter_modules(workbench.__path__))
    return [*(room for room in found if "._" not in room), "widgets"]


@cache
def owners_of() -> dict[str, list[str]]:
    """For each public name the rooms that have an entry for it."""
    owners: dict[str, list[str]] = {}
    for room in public_rooms():
        for entry in entries(room):
            if lives_in(entry, room):
                owners.setdefault(entry.name.rpartition(".")[2], []).append(room)
    return owners


@cache
def entry_of() -> dict[str, str]:
    """The entry of a name as it is defined (``workbench.models.load.load``) or offered (``workbench.load``)."""
    found = {entry.source: entry.name for room in public_rooms() for entry in entries(room) if lives_in(entry, room)}
    offered = {entry.name: found[entry.source] for entry in entries("workbench")}
    return found | offered | {name: name for name in found.values()}


class Room(SphinxDirective):
    """The directive."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        room = self.arguments[0]
        found = entries(room)
        # By itself: what stands before the first heading of a text that has headings would be lost.
        top = self.parse_text_to_nodes("\n".join(fenced([f".. py:module:: {room}", "", *table(found, room)])))
        lines: list[str] = []
        for kind, heading in KINDS.items():
            mine = [entry for entry in found if entry.kind == kind and lives_in(entry, room)]
            if mine:
                lines += [f"## {heading}", "", *fenced([line for entry in mine for line in described(entry)])]
        return [*top, *self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)]


def fenced(lines: list[str]) -> list[str]:
    """Lines of reStructuredText, as a Markdown page takes them."""
    return ["````{eval-rst}", *lines, "````", ""]


def table(found: list[Entry], room: str) -> Iterator[str]:
    """Yield the lines of a table with a row for each name."""
    yield from (".. list-table::", "   :class: names", "   :header-rows: 1", "", "   * - Name", "     - What it is")
    for entry in found:
        target = entry.name if lives_in(entry, room) or entry.kind == "module" else entry.source
        yield f"   * - :py:obj:`{entry.name.removeprefix(room + '.')} <{target}>`"
        yield f"     - {entry.summary}"
    yield ""


def described(entry: Entry) -> Iterator[str]:
    """Yield the lines of one entry."""
    if entry.kind == "module":
        yield from (f".. automodule:: {entry.source}", "")
    elif entry.kind == "data":
        room, _, last = entry.name.rpartition(".")
        yield from (f".. py:data:: {last}", f"   :module: {room}")
        if entry.source != entry.name:
            yield f"   :canonical: {entry.source}"
        if entry.value:
            yield f"   :value: {entry.value}"
        yield ""
        yield from (f"   {line}" for line in entry.text.splitlines())
        yield ""
    else:
        yield f".. auto{entry.kind}:: {entry.name}"
        if entry.kind == "exception":
            yield "   :show-inheritance:"
        elif entry.kind == "class":
            yield f"   :inherited-members: {', '.join(foreign_bases(entry.name))}"
        yield ""


def settle_types(app: Sphinx, doctree: nodes.document) -> None:
    """Link the types in signatures that have an entry here, and show the rest plainly.

    A type without an entry is another library's, or one inside a room.
    """
    for signature in doctree.findall(desc_signature):
        for node in list(signature.findall(pending_xref)):
            entry = entry_of().get(meant(signature, str(node["reftarget"])))
            if entry:
                node["reftarget"] = entry
            else:
                short = find_pending_xref_condition(node, "resolved")
                node.replace_self(short.children if short else node.children)


def meant(signature: desc_signature, name: str) -> str:
    """The full name of a type that a signature calls ``name``: looked up where the signature was written."""
    room, owner = signature.get("module"), str(signature.get("fullname")).partition(".")[0]
    written = getattr(getattr(sys.modules.get(room), owner, None), "__module__", None)
    value = vars(sys.modules[written]).get(name) if written in sys.modules else None
    if value is not None:
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', name)}"
    owners = owners_of().get(name, [])
    return f"{owners[0]}.{name}" if len(owners) == 1 and "." not in name else name


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Node | None:
    """Find what a docstring calls by where it is defined, by what a notebook imports, or by the end of its name.

    A module inside a room has no page and is shown without a link. Anything else that is not found is an error.
    """
    domain = env.get_domain("py")
    target = str(node.get("reftarget"))
    if node.get("refdomain") != "py" or not isinstance(domain, PythonDomain):
        return None
    found = {name for name, entry in domain.objects.items() if name.endswith(f".{target}") and not entry.aliased}
    name = entry_of().get(target) or (found.pop() if len(found) == 1 else None)
    if name:
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)
    return content if node.get("reftype") == "mod" and find_spec(target) else None


def plain(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Code in backticks is written with spaces in Markdown, and in a docstring that quotes it; reST wants none."""
    lines[:] = [MARKDOWN_CODE.sub(r"``\1``", line) for line in lines]


def legible(
    app: Sphinx, what: str, name: str, value: Any, options: Any, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """A default that has no literal (``<factory>``) is written as ``...``; a protocol is not called at all."""
    if what == "class" and getattr(value, "_is_protocol", False):
        return "", None
    return UNSPOKEN.sub("=...", arguments) if arguments else arguments, result


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("room", Room)
    app.connect("doctree-read", settle_types)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", plain)
    app.connect("autodoc-process-signature", legible)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
