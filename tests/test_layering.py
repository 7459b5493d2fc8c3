"""The rules about imports, on every file of the three layers: jitgrad -> compiler -> runtime in one
direction only, no star imports, no cycles, no imports inside functions but for heavy dependencies.

The files are parsed, not run, so that an import on a rare path counts like any other. What
`import jitgrad` costs is measured in fresh interpreters at the end of this file.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[1]

# Slow to import or optional: imported inside the function that needs them. A module of ours that
# imports one of them at its top (or reaches one that does) is heavy too, and may be imported inside
# functions likewise. Nothing else may.
HEAVY = frozenset(
    {
        "llvmlite",
        "matplotlib",
        "ml_dtypes",
        "mpi4py",
        "networkx",
        "numba",
        "numba_cuda",
        "onnx",
        "onnxruntime",
        "prometheus_client",
        "safetensors",
        "starlette",
        "tensorboard",
        "tqdm",
        "uvicorn",
    }
)
# Ours that `import jitgrad` must do without, though they reach none of those: a third of its time.
HEAVY_OF_OURS = frozenset({"jitgrad.compiler.one_node"})
# layer -> the layers that it may import
MAY_IMPORT = {
    "jitgrad": {"jitgrad", "jitgrad.compiler", "jitgrad.runtime"},
    "jitgrad.compiler": {"jitgrad.compiler", "jitgrad.runtime"},
    "jitgrad.runtime": {"jitgrad.runtime"},
}
FOLDERS = {"jitgrad": "jitgrad", "jitgrad.compiler": "compiler", "jitgrad.runtime": "runtime"}
# Modules of the standard library, of later Pythons too.
STANDARD = sys.stdlib_module_names | {"_sha2"}
# layer -> what it may import from outside, besides the standard library
THIRD_PARTY = {
    "jitgrad": HEAVY | {"numpy"},
    "jitgrad.compiler": HEAVY | {"numpy"},
    "jitgrad.runtime": frozenset({"numpy", "ml_dtypes"}),
}
IMPORT_LIMITS = {
    "Python calls": 28_000,
    "C calls": 42_000,
    "modules": 145,
    "bytes of bytecode": 3_000_000,
    "processes": 0,
}


def is_around(package: str, module: str) -> bool:
    return module == package or module.startswith(package + ".")


def layer_of(module: str) -> str:
    for layer in ("jitgrad.compiler", "jitgrad.runtime"):
        if is_around(layer, module):
            return layer
    return "jitgrad"


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The absolute name of the module that a `from` statement in `package` names."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join(parts + ([node.module] if node.module else []))


@dataclass(frozen=True)
class Import:
    """One import statement, or one call of import_module or __import__."""

    importer: str
    place: str  # path:line
    target: str  # "" where the name is computed
    names: tuple[str, ...]  # from target import names; () for import target
    in_function: bool
    typing_only: bool  # under `if TYPE_CHECKING:`, so never executed

    @property
    def is_ours(self) -> bool:
        return self.target.split(".")[0] == "jitgrad"


class Collector(ast.NodeVisitor):
    def __init__(self, module: str, package: str, path: str) -> None:
        self.module, self.package, self.path = module, package, path
        self.found: list[Import] = []
        self.functions = 0
        self.typing_only = False

    def add(self, node: ast.stmt | ast.expr, target: str, names: tuple[str, ...] = ()) -> None:
        place = f"{self.path}:{node.lineno}"
        in_function = self.functions > 0
        self.found.append(Import(self.module, place, target, names, in_function, self.typing_only))

    def visit_function(self, node: ast.AST) -> None:
        if (
            self.functions == 0
            and getattr(node, "name", "") in ("__getattr__", "_complete")
            and self.only_own(node)
        ):
            return  # PEP 562: a package loads its own submodules at their first use
        self.functions += 1
        self.generic_visit(node)
        self.functions -= 1

    def only_own(self, node: ast.AST) -> bool:
        """Whether a function imports submodules of this very package only, by import_module.
        That may be the package's __init__.py, or namespace.py, which holds its names."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                return False
            if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "importlib.import_module":
                text = ast.unparse(inner.args[0]).lstrip("f").strip("'\"")
                if self.module not in (self.package, f"{self.package}.namespace"):
                    return False
                if not text.startswith(f"{self.package}."):
                    return False
        return True

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_function

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)
            return
        outer, self.typing_only = self.typing_only, True
        for statement in node.body:
            self.visit(statement)
        self.typing_only = outer
        for statement in node.orelse:
            self.visit(statement)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.add(node, absolute(node, self.package), tuple(alias.name for alias in node.names))

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__"):
            argument = node.args[0] if node.args else None
            literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            self.add(node, argument.value if literal else "")
        self.generic_visit(node)


class Tree:
    """The modules below `root`, by their import names, and what they import."""

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, ast.Module] = {}
        self.packages: set[str] = set()
        self.imports: list[Import] = []
        for layer, folder in FOLDERS.items():
            for path in sorted((root / folder).rglob("*.py")):
                parts = (layer, *path.relative_to(root / folder).with_suffix("").parts)
                is_package = parts[-1] == "__init__"
                module = ".".join(parts[:-1] if is_package else parts)
                package = ".".join(parts[:-1])
                tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
                self.modules[module] = tree
                if is_package:
                    self.packages.add(module)
                collector = Collector(module, package, str(path.relative_to(root)))
                collector.visit(tree)
                self.imports += collector.found

    @cached_property
    def bound(self) -> dict[str, set[str]]:
        """package -> the names that its __init__.py binds to something else than a submodule.

        `from jitgrad import jit` gives such a name, not the module jitgrad.jit: it needs the whole
        of jitgrad/namespace.py to have run.
        """
        names: dict[str, set[str]] = {package: set() for package in self.packages}
        for package in self.packages:
            for node in self.modules[self.names_of(package)].body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    names[package].add(node.name)
                elif isinstance(node, ast.ImportFrom):
                    origin = absolute(node, package)
                    names[package].update(
                        alias.asname or alias.name
                        for alias in node.names
                        if f"{origin}.{alias.name}" not in self.modules
                    )
                elif isinstance(node, ast.Assign):
                    names[package].update(t.id for t in node.targets if isinstance(t, ast.Name))
        return names

    def targets(self, found: Import) -> set[str]:
        """The modules of ours that the statement names."""
        if not found.is_ours:
            return set()
        if not found.names:
            return {found.target}
        modules = set()
        for name in found.names:
            submodule = f"{found.target}.{name}"
            if submodule in self.modules:
                modules.add(submodule)
            if submodule not in self.modules or name in self.bound.get(found.target, ()):
                modules.add(self.names_of(found.target))
        return modules

    def names_of(self, package: str) -> str:
        """The module that holds a package's names: namespace.py where there is one, which is run
        when the first of them is asked for; else its __init__.py."""
        inner = f"{package}.namespace"
        return inner if inner in self.modules else package

    def executed(self, found: Import) -> set[str]:
        """The modules that the statement runs: those named, and the packages around them. Not the
        packages around the importer: they are running already.
        """
        targets = self.targets(found)
        packages = {
            package
            for target in targets
            for package in self.packages
            if is_around(package, target) and not is_around(package, found.importer)
        }
        return ((targets | packages) & set(self.modules)) - {found.importer}

    @cached_property
    def graph(self) -> networkx.DiGraph:
        """An edge for each import that is executed, those inside functions included: a heavy
        dependency is a reason to import late, a cycle is not.
        """
        graph = networkx.DiGraph()
        for found in self.imports:
            if not found.typing_only:
                for module in self.executed(found):
                    graph.add_edge(
                        found.importer, module, place=found.place, late=found.in_function
                    )
        return graph

    @cached_property
    def heavy(self) -> set[str]:
        """Our modules that import a heavy dependency when they are imported."""
        early = [i for i in self.imports if not i.in_function and not i.typing_only]
        heavy = {i.importer for i in early if i.target.split(".")[0] in HEAVY} | HEAVY_OF_OURS
        needs = [(i.importer, self.executed(i)) for i in early]
        while more := {importer for importer, used in needs if used & heavy} - heavy:
            heavy |= more
        return heavy


def wrong_direction(tree: Tree) -> Iterator[str]:
    for found in tree.imports:
        layer = layer_of(found.importer)
        if found.is_ours:
            for target in sorted(tree.targets(found)):
                if layer_of(target) not in MAY_IMPORT[layer]:
                    yield f"{found.place}: {layer} must not import {target}"
        elif found.target:
            top = found.target.split(".")[0]
            if top not in STANDARD and top not in THIRD_PARTY[layer]:
                yield f"{found.place}: {layer} must not import {found.target}"


def star_imports(tree: Tree) -> Iterator[str]:
    for found in tree.imports:
        if "*" in found.names:
            yield f"{found.place}: name what is imported from {found.target}"


def late_imports(tree: Tree) -> Iterator[str]:
    for found in tree.imports:
        if not found.target:
            yield f"{found.place}: the name of an imported module must be a literal"
        elif found.in_function:
            targets = tree.targets(found)
            light = (
                not targets <= tree.heavy if targets else found.target.split(".")[0] not in HEAVY
            )
            if light:
                yield f"{found.place}: import {found.target} at the top of the file"


def cycles(tree: Tree) -> Iterator[str]:
    for component in networkx.strongly_connected_components(tree.graph):
        if len(component) > 1:
            part = tree.graph.subgraph(component)
            edges = networkx.find_cycle(part, min(component))
            path = [
                f"{importer} -> {module} ({part.edges[importer, module]['place']})"
                for importer, module, *_ in edges
            ]
            yield f"{len(component)} modules import each other: " + ", ".join(path)


RULES = [wrong_direction, star_imports, late_imports, cycles]


@pytest.fixture(scope="module")
def repository() -> Tree:
    return Tree(ROOT)


@pytest.mark.parametrize("rule", RULES)
def test_repository(repository: Tree, rule) -> None:
    faults = list(rule(repository))
    assert not faults, "\n" + "\n".join(faults)


# rule -> files -> the start of the only fault that they hold
BAD = [
    (
        wrong_direction,
        {"compiler/a.py": "from jitgrad.tensor import Tensor", "jitgrad/tensor.py": "Tensor = 1"},
        "compiler/a.py:1: jitgrad.compiler must not import jitgrad.tensor",
    ),
    (
        wrong_direction,
        {"compiler/a.py": "import jitgrad"},
        "compiler/a.py:1: jitgrad.compiler must not import jitgrad",
    ),
    (
        wrong_direction,
        {"compiler/a.py": "from jitgrad import Tensor", "jitgrad/__init__.py": "Tensor = 1"},
        "compiler/a.py:1: jitgrad.compiler must not import jitgrad",
    ),
    (
        wrong_direction,
        {"runtime/a.py": "def f():\n    from ..compiler import ir", "compiler/ir.py": ""},
        "runtime/a.py:2: jitgrad.runtime must not import jitgrad.compiler.ir",
    ),
    (
        wrong_direction,
        {
            "runtime/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    from jitgrad.compiler.ir import Graph",
            "compiler/ir.py": "",
        },
        "runtime/a.py:3: jitgrad.runtime must not import jitgrad.compiler.ir",
    ),
    (
        wrong_direction,
        {"runtime/a.py": "def f():\n    import llvmlite.binding"},
        "runtime/a.py:2: jitgrad.runtime must not import llvmlite.binding",
    ),
    (
        wrong_direction,
        {"jitgrad/a.py": "from compiler import ir", "compiler/ir.py": ""},
        "jitgrad/a.py:1: jitgrad must not import compiler",
    ),
    (
        wrong_direction,
        {"jitgrad/a.py": "import pandas"},
        "jitgrad/a.py:1: jitgrad must not import pandas",
    ),
    (
        star_imports,
        {"jitgrad/a.py": "from math import *"},
        "jitgrad/a.py:1: name what is imported from math",
    ),
    (
        late_imports,
        {"jitgrad/a.py": "def f():\n    import json"},
        "jitgrad/a.py:2: import json at the top of the file",
    ),
    (
        late_imports,
        {
            "jitgrad/a.py": "class A:\n    def f(self):\n        from jitgrad import b",
            "jitgrad/b.py": "def g():\n    import llvmlite",
        },
        "jitgrad/a.py:3: import jitgrad at the top of the file",
    ),
    (
        late_imports,
        {"jitgrad/a.py": "import importlib\ndef f():\n    importlib.import_module('json')"},
        "jitgrad/a.py:3: import json at the top of the file",
    ),
    (
        late_imports,
        {"jitgrad/a.py": "import importlib\nimportlib.import_module(__name__ + 'b')"},
        "jitgrad/a.py:2: the name of an imported module must be a literal",
    ),
    (
        cycles,
        {"jitgrad/a.py": "import jitgrad.b", "jitgrad/b.py": "from . import a"},
        "2 modules import each other: jitgrad.a -> jitgrad.b (jitgrad/a.py:1), ",
    ),
    (  # a name taken from the package that is still being imported
        cycles,
        {"jitgrad/__init__.py": "from jitgrad.a import f", "jitgrad/a.py": "from jitgrad import g"},
        "2 modules import each other: jitgrad -> jitgrad.a (jitgrad/__init__.py:1), ",
    ),
    (  # the same, behind a submodule of the same name
        cycles,
        {
            "jitgrad/__init__.py": "from jitgrad.a import f\nfrom .jit import jit",
            "jitgrad/a.py": "from jitgrad import jit",
            "jitgrad/jit.py": "",
        },
        "2 modules import each other: jitgrad -> jitgrad.a (jitgrad/__init__.py:1), ",
    ),
    (  # through the __init__.py of a package that is passed on the way
        cycles,
        {
            "jitgrad/a.py": "import jitgrad.nn.layers",
            "jitgrad/nn/__init__.py": "import jitgrad.a",
            "jitgrad/nn/layers.py": "",
        },
        "2 modules import each other: jitgrad.a -> jitgrad.nn (jitgrad/a.py:1), ",
    ),
    (  # hidden in a function, with a heavy module for an excuse
        cycles,
        {
            "compiler/a.py": "def f():\n    from jitgrad.compiler import b",
            "compiler/b.py": "import llvmlite\nimport jitgrad.compiler.a",
        },
        "2 modules import each other: jitgrad.compiler.a -> jitgrad.compiler.b",
    ),
]

GOOD = {
    "jitgrad/__init__.py": "from jitgrad import a, nn\nfrom jitgrad.a import f",
    "jitgrad/a.py": "from jitgrad.compiler import build\nimport numpy as np",
    "jitgrad/nn/__init__.py": "from jitgrad.nn.layers import Linear",
    "jitgrad/nn/layers.py": "from jitgrad import a\nfrom jitgrad.a import f",
    "compiler/__init__.py": "",
    "compiler/build.py": "def f():\n    from jitgrad.compiler import llvm\n    import networkx",
    "compiler/llvm.py": "import llvmlite.ir as ir\nfrom jitgrad.runtime import arena",
    "runtime/__init__.py": "",
    "runtime/arena.py": "import os\ndef f():\n    import ml_dtypes",
}


def write(root: Path, files: dict[str, str]) -> Tree:
    for name in ("jitgrad/__init__.py", "compiler/__init__.py", "runtime/__init__.py"):
        files = {name: "", **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(root)


@pytest.mark.parametrize(("rule", "files", "fault"), BAD)
def test_rule_finds_fault(tmp_path: Path, rule, files: dict[str, str], fault: str) -> None:
    (found,) = rule(write(tmp_path, files))
    assert found.startswith(fault)


@pytest.mark.parametrize("rule", RULES)
def test_rule_accepts(tmp_path: Path, rule) -> None:
    assert list(rule(write(tmp_path, GOOD))) == []


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    # As a user's second start: bytecode may be written, and is there after the first run.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, env=env)
    assert result.returncode == 0, result.stderr
    return result


def test_import_leaves_heavy_dependencies_out() -> None:
    code = """
import sys, json, jitgrad
jitgrad.Tensor
print(json.dumps([m.split('.')[0] for m in sys.modules]))
"""
    loaded = set(json.loads(run_python("-c", code).stdout))
    assert not loaded & HEAVY


# What `import jitgrad` does beyond NumPy's import, counted: times depend on the machine and on who
# else uses it (`python -X importtime` and benchmarks/table.py --processes show them). With these
# counts it takes about 0.7 of the time of NumPy's own import.
IMPORT_WORK = """
import collections, json, os, sys, numpy
before, counts = set(sys.modules), collections.Counter()
sys.setprofile(lambda frame, event, arg: counts.update([event]))
import jitgrad
jitgrad.Tensor  # brings the public names
sys.setprofile(None)
new = [sys.modules[name] for name in set(sys.modules) - before]
files = {os.path.realpath(file) for m in new if (file := getattr(m, "__cached__", None))}
print(json.dumps({
    "Python calls": counts["call"],
    "C calls": counts["c_call"],
    "modules": len(new),
    "bytes of bytecode": sum(map(os.path.getsize, files)),
    "processes": os.times().children_user + os.times().children_system,
}))
"""


def test_import_does_little() -> None:
    run_python("-c", "import jitgrad; jitgrad.Tensor")  # bytecode is there, as at a second start
    work = json.loads(run_python("-c", IMPORT_WORK).stdout)
    over = {what: count for what, count in work.items() if count > IMPORT_LIMITS[what]}
    assert not over, f"{work}, where the limits are {IMPORT_LIMITS}\n{slowest_imports()}"


def slowest_imports() -> str:
    """The cumulative times of numpy and jitgrad, and the modules of ours that take longest."""
    cumulative, own = {}, {}
    for line in run_python("-X", "importtime", "-c", "from jitgrad import *").stderr.splitlines():
        fields = line.removeprefix("import time:").split("|")
        if len(fields) == 3 and fields[0].strip().isdigit():
            name = fields[2].strip()
            own[name], cumulative[name] = (int(field) / 1000 for field in fields[:2])
    ours = sorted((name for name in own if name.startswith("jitgrad")), key=own.__getitem__)
    lines = [f"{name}: {cumulative[name]:.1f} ms in all" for name in ("jitgrad", "numpy")]
    lines += [f"{name}: {own[name]:.1f} ms of its own" for name in reversed(ours[-10:])]
    return "python -X importtime says:\n" + "\n".join(lines)


def test_no_module_hides_a_public_name() -> None:
    """Importing a module sets its name on the package: it must not be a function's name."""
    code = """
import importlib, pkgutil, jitgrad
before = {name: getattr(jitgrad, name) for name in jitgrad.__all__}
for module in pkgutil.iter_modules(jitgrad.__path__, "jitgrad."):
    importlib.import_module(module.name)
print([name for name, value in before.items() if getattr(jitgrad, name) is not value])
"""
    assert run_python("-c", code).stdout.strip() == "[]"


def test_records_that_come_late_are_in_the_table() -> None:
    """Each module that compiler/ops loads at first use makes the records that its table says."""
    code = """
import jitgrad.compiler.ops as ops
early = {op.name for op in ops.OPS.early()}
assert not early & set(ops.OPS.late), early & set(ops.OPS.late)
table = {name: f"jitgrad.compiler.ops.{module}" for name, module in ops.OPS.late.items()}
made = {op.name: type(op).__module__ for op in ops.OPS.values() if op.name not in early}
print({k: (table.get(k), made.get(k)) for k in table.keys() | made.keys()
       if table.get(k) != made.get(k)})
"""
    assert run_python("-c", code).stdout.strip() == "{}"
