"""The house keeps its rooms in order: imports, heavy libraries, unsafe calls, excepts, file lengths.

The checks read source text with ``ast`` and never import it; each has a test on a small fake that breaks
it. Notebooks and benchmarks may use any library (they are a reader's code, and compare with peers).
Longer than 300 lines because the rule and the tests of the rule are best read together.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Rooms on one line are neighbours, who don't import each other; each line may import from those above it.
STAGES = (
    ("workbench.shapes", "workbench.errors", "workbench.bundled"),
    ("workbench.models",),
    ("workbench.trace",),
    ("workbench.engine",),
    ("workbench.flows", "workbench.carry", "workbench.mcmc"),
    ("workbench.mods",),
    ("workbench.reports", "workbench.compat", "workbench.sweeps"),
    ("workbench.cli",),
    ("workbench.__main__",),
    ("workbench",),  # the map of rooms; no room reads it
    ("widgets",),
    ("notebooks", "benchmarks"),
)
RANK = {room: rank for rank, rooms in enumerate(STAGES) for room in rooms}
HOMES = {
    "transformers": {"workbench.models"},
    "transformer_lens": {"workbench.models"},
    "gguf": {"workbench.models"},
    "triton": {"workbench.mcmc"},
    "ray": {"workbench.sweeps"},
    "numba": {"workbench.models"},
    "llvmlite": {"workbench.models"},
    "pandas": {"workbench.trace", "workbench.reports", "widgets"},
    "plotly": {"workbench.reports", "widgets"},
    "anywidget": {"widgets"},
    "ipywidgets": {"widgets"},
    "traitlets": {"widgets"},
}
IMPORT_CALLS = {"importlib.import_module", "import_module", "__import__"}
DOORWAY_DEPTH = 1  # dots in workbench.models, and in widgets.tree
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "marshal", "shelve", "joblib", "cloudpickle", "jsonpickle"}
UNSAFE_CALLS = {
    "eval", "exec", "compile", "torch.load", "torch.jit.load", "torch.hub.load", "yaml.load", "os.system", "os.popen",
    "subprocess.getoutput", "subprocess.getstatusoutput", "builtins.eval", "builtins.exec", "builtins.compile",
}  # fmt: skip
LOADS_ARRAYS = {"np.load", "numpy.load"}
"""Their own pickle is off unless asked for; here it is to be said."""
RUNNING_CALLS = {"exec_module", "run_path", "run_module", "InteractiveInterpreter"}
RUNS_USERS_CODE = {
    "workbench/cli/flow.py": "--functions FILE.py: a file that the user names on the command line",
    "workbench/compat/__main__.py": "python -m workbench.compat SCRIPT: a script that the user names",
    "workbench/compat/serialization.py": "load_mod_from_payload(…, allow_code=True): source that the user approves",
}
"""The only files that may run Python from outside the package, each because the user says so in so many words."""
SPARE_LINES = 330
LONGER_BECAUSE = "Longer than 300 lines because"

# --- where an import leads ---


def room_of(module: str) -> str:
    """Return the room that a dotted name lies in: ``workbench.models.fetch`` lies in ``workbench.models``."""
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "workbench" else 1])


def imports_in(tree: ast.AST, module: str, *, package: bool = False) -> Iterator[tuple[int, str, str]]:
    """Yield each import, also in functions and through ``importlib``, as line, module and full name.

    ``from .fetch import get`` in ``workbench.models.load`` gives ``workbench.models.fetch`` and
    ``workbench.models.fetch.get``. ``package`` says that ``module`` is a folder's ``__init__``.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[: len(parts) - node.level + package] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, source, f"{source}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and call_name(node) in IMPORT_CALLS:
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value, argument.value


def import_faults(
    tree: ast.AST, module: str, path: str, *, package: bool = False, private: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield a sentence for each import that the rule forbids. ``private`` names the modules inside rooms."""
    room = room_of(module)
    if room not in RANK:
        yield f"{path}:1 is in {room}, which is no room; the rule allows {', '.join(RANK)}."
        return
    for line, source, name in imports_in(tree, module, package=package):
        target = room_of(name)
        if target.startswith("workbench.") and target not in RANK:
            target = "workbench"  # a name that the map offers, such as `from workbench import load`
        where = f"{path}:{line} imports {name}; the rule allows"
        if target in RANK and target != room:
            if RANK[target] >= RANK[room]:
                earlier = ", ".join(other for other in RANK if RANK[other] < RANK[room]) or "no room"
                yield f"{where} {room} to import only from {earlier}."
            elif name in private or source.count(".") > DOORWAY_DEPTH:
                yield f"{where} only the doorway from outside: from {target} import …"
        elif target not in RANK and room not in STAGES[-1]:
            homes = HOMES.get(target.split(".")[0], {room})
            if room not in homes:
                yield f"{where} that library only in {' and '.join(sorted(homes))}."


# --- what a room may not do ---


def call_name(call: ast.Call) -> str:
    """Return ``f`` or ``a.f`` for a call of that form, ``?.f`` for a longer one, else an empty string."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
        case ast.Attribute(attr=name):
            return f"?.{name}"
    return ""


def unsafe_faults(tree: ast.AST, module: str, path: str, *, package: bool = False) -> Iterator[str]:
    """Yield a sentence for each thing that could run code found in a data file."""
    rule = "the rule allows no code hidden in data (safetensors, JSON and Parquet hold none)."
    for line, _, name in imports_in(tree, module, package=package):
        if name.split(".")[0] in UNSAFE_MODULES or name in UNSAFE_CALLS:
            yield f"{path}:{line} imports {name}; {rule}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = call_name(node)
            if called in UNSAFE_CALLS or called.split(".")[-1] in {"read_pickle", "to_pickle"}:
                yield f"{path}:{node.lineno} calls {called}(); {rule}"
            said = {keyword.arg: getattr(keyword.value, "value", True) for keyword in node.keywords}
            if said.get("shell") or (called in LOADS_ARRAYS and said.get("allow_pickle") is not False):
                yield f"{path}:{node.lineno} calls {called}() with a shell, or without allow_pickle=False; {rule}"
            if called.split(".")[-1] in RUNNING_CALLS and path not in RUNS_USERS_CODE:
                yield f"{path}:{node.lineno} calls {called}(); the rule allows it only in {', '.join(RUNS_USERS_CODE)}."
            if any(k.arg == "allow_pickle" and getattr(k.value, "value", True) for k in node.keywords):
                yield f"{path}:{node.lineno} calls {called}(allow_pickle=…); {rule}"


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = [kind.id for kind in caught if isinstance(kind, ast.Name)]
    return handler.type is None or not {"Exception", "BaseException"}.isdisjoint(names)


def raises_again(handler: ast.ExceptHandler) -> bool:
    waiting: list[ast.AST] = list(handler.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def except_faults(tree: ast.AST, source: str, path: str) -> Iterator[str]:
    """Yield a sentence for each except that catches all, raises nothing and gives no reason."""
    lines = source.splitlines()
    rule = "the rule allows it only where it raises again or the line says `# why: …`."
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and is_broad(node) and not raises_again(node):
            text = lines[node.lineno - 1].strip()
            if "# why:" not in text:
                yield f"{path}:{node.lineno} has `{text}`; {rule}"


def form_faults(tree: ast.Module, source: str, path: str, *, doorway: bool) -> Iterator[str]:
    """Yield a sentence for a file that is too long, and for a doorway that does not say what it offers."""
    docstring = " ".join((ast.get_docstring(tree) or "").split())
    length = len(source.splitlines())
    if length > SPARE_LINES and LONGER_BECAUSE not in docstring:
        allowed = f"{SPARE_LINES}, or a docstring with '{LONGER_BECAUSE} …'"
        yield f"{path}:1 has {length} lines; the rule allows {allowed}."
    if doorway and not docstring:
        yield f"{path}:1 has no docstring; the rule allows only a room that says what comes in and goes out."
    if doorway and exported_names(tree) is None:
        yield f"{path}:1 has no __all__; the rule allows only a room that lists what it offers."


def exported_names(tree: ast.Module) -> set[str] | None:
    """Return the strings of a module's ``__all__``, or None where it has none."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return None


# --- the house as it stands ---


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def notebook_source(path: Path) -> str:
    """Return a notebook's code cells as one program, without IPython's own ``%`` and ``!`` lines."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return re.sub(r"^(\s*)[%!?].*$", r"\1pass", code, flags=re.MULTILINE)


def inner_modules() -> frozenset[str]:
    """Return the modules inside rooms, less those whose name the doorway offers as something of its own."""
    inner = set()
    for doorway in (ROOT / "workbench").glob("*/__init__.py"):
        offered = exported_names(ast.parse(doorway.read_text("utf-8"))) or set()
        inner |= {module_name(p) for p in doorway.parent.rglob("*.py") if p != doorway and p.stem not in offered}
    return frozenset(inner)


def sources() -> Iterator[tuple[str, Path, str]]:
    for path in python_files("workbench", "widgets", "benchmarks"):
        yield module_name(path), path, path.read_text("utf-8")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        yield f"notebooks.{path.stem}", path, notebook_source(path)


def report(faults: list[str]) -> None:
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_every_import_goes_to_an_earlier_room_through_its_doorway() -> None:
    private = inner_modules()
    report(
        [
            fault
            for module, path, source in sources()
            for fault in import_faults(
                ast.parse(source),
                module,
                str(path.relative_to(ROOT)),
                package=path.name == "__init__.py",
                private=private,
            )
        ]
    )


def test_no_code_hides_in_data_and_no_except_hides_an_error() -> None:
    faults: list[str] = []
    for path in python_files("workbench", "widgets"):
        source = path.read_text("utf-8")
        tree, shown = ast.parse(source), str(path.relative_to(ROOT))
        faults += unsafe_faults(tree, module_name(path), shown, package=path.name == "__init__.py")
        faults += except_faults(tree, source, shown)
    report(faults)


def test_files_are_short_and_every_doorway_says_what_it_offers() -> None:
    faults: list[str] = []
    for path in python_files("workbench"):
        source = path.read_text("utf-8")
        shown = str(path.relative_to(ROOT))
        faults += form_faults(ast.parse(source), source, shown, doorway=path.name == "__init__.py")
    report(faults)


def test_importing_the_map_is_quick_and_loads_no_heavy_library() -> None:
    program = (
        "import json, sys, time; start = time.perf_counter(); import workbench;"
        "seconds = time.perf_counter() - start;"
        "print(json.dumps([seconds, sorted({name.split('.')[0] for name in sys.modules})]))"
    )
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
        taken, loaded = json.loads(done.stdout)
        seconds.append(taken)
        assert not {"torch", "transformers", "transformer_lens", "pandas", "plotly"} & set(loaded)
    assert min(seconds) < 1, f"import workbench took {min(seconds):.2f} s at best; the rule allows less than 1 s"


# --- the checks themselves ---

INNER = frozenset({"workbench.models.fetch", "workbench.mods.ask"})


@pytest.mark.parametrize(
    ("module", "source", "says"),
    [
        (
            "workbench.models.fetch",
            "from ..trace import Trace",
            "only from workbench.shapes, workbench.errors, workbench.bundled.",
        ),
        ("workbench.errors", "import workbench.models", "to import only from no room"),
        ("workbench.errors", "from .shapes import Tokens", "to import only from no room"),
        ("workbench.trace.disk", "from workbench.models.fetch import get", "only the doorway"),
        ("workbench.trace.disk", "from ..models.fetch import get", "only the doorway"),
        ("workbench.trace.disk", "from workbench.models import fetch", "only the doorway"),
        ("workbench.trace.disk", "import workbench.models.fetch", "only the doorway"),
        ("notebooks.00_tour", "from workbench.models.fetch import get", "only the doorway"),
        ("benchmarks.bench", "from widgets.tree.widget import Tree", "only the doorway"),
        ("workbench.flows.ask", "from workbench.carry import Thought", "workbench.flows to import only"),
        ("workbench.mcmc.chain", "from workbench import flows", "workbench.mcmc to import only"),
        ("workbench.mods.ask", "from workbench import load", "workbench.mods to import only"),
        ("workbench.mods.ask", "import workbench", "workbench.mods to import only"),
        ("workbench.reports.page", "import widgets.tree", "workbench.reports to import only"),
        ("workbench", "def show(): from widgets import Tree", "workbench to import only"),
        ("workbench.engine.loop", "def late(): from workbench.mods import Ask", "engine to import only"),
        ("workbench.engine.loop", "importlib.import_module('workbench.cli')", "engine to import only"),
        ("workbench.engine.loop", "import transformers", "that library only in workbench.models"),
        ("workbench.mods.ask", "from pandas import Series", "in widgets and workbench.reports and workbench.trace"),
        ("workbench.cli", "import plotly.express as px", "only in widgets and workbench.reports"),
        ("workbench.reports.page", "import ipywidgets", "that library only in widgets"),
        ("widgets.tree.widget", "import triton", "that library only in workbench.mcmc"),
        ("workbench.helpers", "", "no room; the rule allows workbench.shapes"),
    ],
)
def test_a_forbidden_import_is_reported(module: str, source: str, says: str) -> None:
    (fault,) = import_faults(ast.parse(source), module, "fake.py", private=INNER)
    assert fault.startswith("fake.py:1 ")
    assert says in fault


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("workbench.models.lean", "from .fetch import get; from workbench.models.fetch import get"),
        ("workbench.models.lean", "import transformers; import transformer_lens.utilities; import gguf"),
        ("workbench.trace.disk", "from ..models import HookedModel; from ..errors import TraceError"),
        ("workbench.trace.disk", "import pandas as pd; from dataclasses import dataclass"),
        ("workbench.cli", "from . import models, reports; from workbench.compat import Mod"),
        ("workbench", "def __getattr__(name): return importlib.import_module('workbench.models')"),
        ("widgets.tree.widget", "import workbench; from workbench.trace import Trace; import anywidget"),
        (
            "benchmarks.bench",
            "import transformers; from workbench import load; from widgets.tree import Tree",
        ),
    ],
)
def test_an_allowed_import_is_not_reported(module: str, source: str) -> None:
    assert list(import_faults(ast.parse(source), module, "fake.py", private=INNER)) == []


def test_an_import_deep_in_a_file_is_reported_with_its_line() -> None:
    tree = ast.parse("class Loop:\n    def late(self):\n        if True:\n            from ..mods import Ask")
    (fault,) = import_faults(tree, "workbench.engine.loop", "workbench/engine/loop.py")
    assert fault.startswith("workbench/engine/loop.py:4 imports workbench.mods.Ask; ")


def test_a_relative_import_in_a_doorway_starts_from_its_own_room() -> None:
    tree = ast.parse("from .fetch import get\nfrom ..engine import generate")
    (fault,) = import_faults(tree, "workbench.trace", "fake.py", package=True)
    assert fault.startswith("fake.py:2 imports workbench.engine.generate; the rule allows workbench.trace ")


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "exec('1')",
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "from torch import load",
        "yaml.load(text)",
        "numpy.load(path, allow_pickle=True)",
        "np.load(path)",
        "pd.read_pickle(path)",
        "import cloudpickle",
        "from _pickle import loads",
        "compile(text, 'a', 'exec')",
        "os.system('x')",
        "subprocess.run('x', shell=True)",
        "subprocess.Popen('x', shell=chosen)",
    ],
)
def test_code_hidden_in_data_is_reported(source: str) -> None:
    assert list(unsafe_faults(ast.parse(source), "workbench.trace.disk", "fake.py"))


@pytest.mark.parametrize(
    "source", ["spec.loader.exec_module(m)", "runpy.run_path(p)", "from runpy import run_path\nrun_path(p)"]
)
def test_running_a_users_file_is_reported_but_in_the_files_that_say_why(source: str) -> None:
    tree = ast.parse(source)
    (fault,) = unsafe_faults(tree, "workbench.trace.disk", "workbench/trace/disk.py")
    assert "the rule allows it only in workbench/cli/flow.py" in fault
    for path in RUNS_USERS_CODE:
        assert (ROOT / path).is_file()
        assert list(unsafe_faults(tree, "workbench.compat.x", path)) == []


def test_model_eval_and_plain_loads_are_not_reported() -> None:
    tree = ast.parse("model.eval()\njson.load(file)\nyaml.safe_load(text)\nnumpy.load(p, allow_pickle=False)")
    assert list(unsafe_faults(tree, "workbench.trace.disk", "fake.py")) == []


@pytest.mark.parametrize(
    ("handler", "is_fault"),
    [
        ("except:\n    pass", True),
        ("except Exception:\n    log()", True),
        ("except (ValueError, BaseException) as error:\n    pass", True),
        ("except Exception:\n    def later():\n        raise", True),
        ("except Exception:  # why: a mod is a stranger's code\n    log()", False),
        ("except Exception as error:\n    raise ModError from error", False),
        ("except ValueError:\n    pass", False),
    ],
)
def test_only_an_except_that_hides_errors_is_reported(handler: str, is_fault: bool) -> None:
    source = f"try:\n    run()\n{handler}"
    assert bool(list(except_faults(ast.parse(source), source, "fake.py"))) is is_fault


def test_a_long_file_and_a_silent_doorway_are_reported() -> None:
    long = "x = 1\n" * (SPARE_LINES + 1)
    excused = f'"""A table.\n\n{LONGER_BECAUSE} it is one table."""\n{long}'
    assert "has 331 lines" in next(form_faults(ast.parse(long), long, "fake.py", doorway=False))
    assert list(form_faults(ast.parse(excused), excused, "fake.py", doorway=False)) == []
    assert len(list(form_faults(ast.parse(""), "", "fake.py", doorway=True))) == 2
    good = '"""In: a name; out: a model."""\n__all__: list[str] = ["load"]'
    assert list(form_faults(ast.parse(good), good, "fake.py", doorway=True)) == []
