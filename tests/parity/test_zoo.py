"""Runs each program of zoo/ with PyTorch and with jitgrad, and compares all that it gives.

A program is public-style code against `import torch` alone; its source is run a second time with
the imports of torch turned into those of jitgrad, and nothing else changed. It defines

- `build()`: a Module, or a dict of them. Ours are given the state of PyTorch's;
- `run(models, compile)`: trains and evaluates, and returns a dict of numbers and tensors, nested in
  lists and dicts. It passes its step functions through `compile` (PyTorch runs them as they are);
- `COMPILED` (optional): "error", the default: the compiled program must not fall back. "silent":
  it looks at values in its steps. None: nothing is passed to `compile`;
- `SCALE` (optional): how many times the tolerances below its chain of operations may amplify.

Numbers that a program draws come from NumPy, so that both libraries see the same.
"""

import ast
import pathlib
import sys
import types

import numpy as np
import pytest
from parity.compare import dtype_name, numpy, torch

import jitgrad

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FILES = sorted((pathlib.Path(__file__).parent / "zoo").glob("*.py"))
# Beside the largest magnitude of a tensor. In float32 training amplifies roundings, so that run is
# for what its dtype and eager mode do; the numbers are held tightly in float64.
TOLERANCE = {"float32": 3e-3, "float64": 1e-9, "complex64": 3e-3, "complex128": 1e-9}


class SwapImports(ast.NodeTransformer):
    """`import torch` becomes `import jitgrad as torch`, `torch.x` is imported as `jitgrad.x`."""

    def rename(self, name):
        return "jitgrad" + name[len("torch") :] if name.split(".")[0] == "torch" else name

    def visit_Import(self, node):
        lines = []
        for alias in node.names:
            new = ast.alias(self.rename(alias.name), alias.asname)
            lines.append(ast.Import([new]))
            if alias.name.split(".")[0] == "torch" and alias.asname is None:
                lines.append(ast.Import([ast.alias("jitgrad", "torch")]))
        return [ast.copy_location(line, node) for line in lines]

    def visit_ImportFrom(self, node):
        node.module = self.rename(node.module)
        return node


def load(path, library):
    """The program as a module, importing `library`."""
    tree = ast.parse(path.read_text(), str(path))
    if library == "jitgrad":
        tree = ast.fix_missing_locations(SwapImports().visit(tree))
    module = types.ModuleType(f"zoo_{path.stem}_{library}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module


def as_dict(models):
    return models if isinstance(models, dict) else {"model": models}


def numbers(result, name=""):
    """(path, leaf) of nested lists and dicts."""
    if isinstance(result, dict):
        for key, value in result.items():
            yield from numbers(value, f"{name}.{key}")
    elif isinstance(result, (list, tuple)):
        for i, value in enumerate(result):
            yield from numbers(value, f"{name}[{i}]")
    else:
        yield name, result


def outcome(models, result):
    """{name: (dtype, array)} of results, states and gradients, and the largest gradient."""
    found = {}
    for name, x in numbers(result, "result"):
        if hasattr(x, "detach"):
            found[name] = (dtype_name(x), numpy(x))
        else:
            assert isinstance(x, (int, float, str)), f"{name} is a {type(x).__name__}"
            found[name] = (type(x).__name__, np.asarray(x))
    for top, model in as_dict(models).items():
        for key, x in model.state_dict().items():
            found[f"state {top}.{key}"] = (dtype_name(x), numpy(x))
        for key, p in model.named_parameters():
            if p.grad is not None:
                found[f"gradient {top}.{key}"] = (dtype_name(p.grad), numpy(p.grad))
    return found


def rounding_only(found, name, largest):
    """Which elements of a state have a gradient of rounding alone (biases before BatchNorm, of
    keys): in float32 Adam moves them by full steps in directions that mean nothing."""
    dtype, gradient = found.get(name.replace("state", "gradient"), ("", None))
    if dtype != "float32" or not name.startswith("state"):
        return False
    return np.abs(gradient) < 1e-6 * largest


def same(ours, theirs, scale):
    assert list(ours) == list(theirs)
    largest = max(
        (np.abs(a).max(initial=0) for name, (_, a) in theirs.items() if "gradient" in name),
        default=0.0,
    )
    for name, (dtype, b) in theirs.items():
        our_dtype, a = ours[name]
        assert our_dtype == dtype, f"{name}: {our_dtype} {dtype}"
        assert a.shape == b.shape, f"{name}: {a.shape} {b.shape}"
        bound = TOLERANCE.get("float64" if dtype == "float" else dtype)
        if bound is None or b.dtype.kind not in "fc":
            np.testing.assert_array_equal(a, b, err_msg=name)
            continue
        if dtype == "float":  # a number of Python may come from a tensor of any precision
            bound = TOLERANCE[dtype_name(torch.empty(()))]
        finite = np.abs(b[np.isfinite(b)]).max(initial=1e-30)
        size = max(largest, finite) if "gradient" in name else finite
        a = np.where(rounding_only(theirs, name, largest), b, a)
        np.testing.assert_allclose(a, b, rtol=0, atol=bound * scale * size, err_msg=name)


@pytest.fixture(params=["float32", "float64"])
def default(request):
    """The default dtype of both libraries."""
    for lib in (torch, jitgrad):
        lib.set_default_dtype(getattr(lib, request.param))
    yield request.param
    for lib in (torch, jitgrad):
        lib.set_default_dtype(lib.float32)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_program(path, default):
    """float32 eager; float64, compiled: so each program runs both ways, and in both dtypes."""
    check_program(path, compiled=default == "float64")


def check_program(path, compiled):
    """The program gives the same with both libraries (ours through `jit` if `compiled`)."""
    programs = {lib: load(path, lib) for lib in ("torch", "jitgrad")}
    models = {lib: program.build() for lib, program in programs.items()}
    for name, theirs in as_dict(models["torch"]).items():
        state = {k: jitgrad.from_numpy(numpy(v).copy()) for k, v in theirs.state_dict().items()}
        ours = as_dict(models["jitgrad"])[name]
        assert list(ours.state_dict()) == list(state)
        ours.load_state_dict(state)
    mode, jitted = getattr(programs["jitgrad"], "COMPILED", "error"), []

    def compile_ours(f):
        jitted.append(jitgrad.jit(f, fallback=mode))
        return jitted[-1]

    asis = programs["torch"].run(models["torch"], lambda f: f)
    ours = programs["jitgrad"].run(models["jitgrad"], compile_ours if compiled else lambda f: f)
    same(
        outcome(models["jitgrad"], ours), outcome(models["torch"], asis),
        getattr(programs["torch"], "SCALE", 1.0),
    )  # fmt: skip
    if compiled:
        assert bool(jitted) == (mode is not None)
    if compiled and mode == "error":
        assert all(f.stats.hits and not f.stats.fallbacks for f in jitted), [
            f.stats for f in jitted
        ]
