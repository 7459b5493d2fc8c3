"""The package and its public names: what is imported when, whatever is imported first."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

import jitgrad

NEW = """
import sys
def ours(): return sorted(m for m in sys.modules if m.split(".")[0] == "jitgrad")
"""


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    run = subprocess.run(
        [sys.executable, "-c", NEW + code], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0 and not run.stderr, run.stderr
    return run.stdout.strip()


def test_importing_the_package_brings_its_names() -> None:
    code = "import jitgrad; print(type(jitgrad) is type(sys), 'tensor' in vars(jitgrad))"
    assert fresh(code) == "True True"


def test_runtime_needs_none_of_the_rest() -> None:
    code = """
from jitgrad.runtime import load
from jitgrad import runtime
assert runtime.load is load and not hasattr(sys.modules["jitgrad"], "__wrapped__")
print({m.split(".")[1] for m in ours()[1:]})
import jitgrad
print(jitgrad.runtime is runtime, jitgrad.ones(2).tolist(), jitgrad.runtime is runtime)
"""
    assert fresh(code).splitlines() == ["{'runtime'}", "True [1.0, 1.0] True"]


def test_runtime_imports_little_beside_numpy() -> None:
    """Modules that take milliseconds, which environments may have imported before."""
    code = """
import numpy
slow = ("pathlib", "tempfile", "inspect", "dataclasses", "urllib.parse", "ipaddress")
for name in slow:
    sys.modules.pop(name, None)
from jitgrad.runtime import load
print([name for name in slow if name in sys.modules])
"""
    assert fresh(code) == "[]"


FIRST = [
    "import jitgrad",
    "from jitgrad import tensor",
    "from jitgrad import *",
    "from jitgrad import nn",
    "import jitgrad.nn.functional",
    "import jitgrad.tensor",
    "import jitgrad.methods",
    "import jitgrad.namespace",
    "import jitgrad.distributions.kl",
    "import jitgrad; dir(jitgrad)",
    "import jitgrad; jitgrad.mine = 1; assert jitgrad.mine == 1",
    "import jitgrad, importlib; jitgrad.ones; importlib.reload(jitgrad); jitgrad.Dim",
    "import jitgrad.compiler.ir, jitgrad.runtime.dtypes",
    *(
        f"import jitgrad.runtime; {then}"
        for then in (
            "from jitgrad import tensor",
            "from jitgrad import *",
            "import jitgrad.nn.functional",
            "import jitgrad.tensor",
            "import jitgrad; dir(jitgrad)",
            "jitgrad.mine = 1; assert jitgrad.mine == 1",
        )
    ),
    "import jitgrad.special",
    "import jitgrad.optim",
    "import jitgrad.utils.data",
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_whatever_comes_first() -> None:
    """The names are the same, though modules are called as functions are (tensor, device). Each in
    a child of one interpreter that has NumPy only."""
    code = f"""
import numpy, os, traceback
for statement in {FIRST!r}:
    child = os.fork()
    if not child:
        try:
            exec(statement, {{}})
            import jitgrad
            assert jitgrad.tensor([1.0, 2.0]).sum().item() == 3
            assert jitgrad.device("cpu").type == "cpu" and callable(jitgrad.jit)
            assert jitgrad.nn.Linear(2, 1)(jitgrad.ones(3, 2)).shape == (3, 1)
            assert type(jitgrad) is type(sys) and "tensor" in dir(jitgrad)
            assert len(jitgrad.__all__) == {len(jitgrad.__all__)}
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        print(statement)
"""
    assert fresh(code) == ""


def test_threads_wait_for_the_names() -> None:
    code = """
import threading
import jitgrad.runtime
import jitgrad
assert "tensor" not in vars(jitgrad)
found, start = [], threading.Barrier(4)
def look():
    start.wait()
    found.append(jitgrad.tensor([1.0]).item() + jitgrad.device("cpu").type.count("c"))
threads = [threading.Thread(target=look) for _ in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
print(found)
"""
    assert fresh(code) == "[2.0, 2.0, 2.0, 2.0]"


def test_pickles_bring_the_package() -> None:
    text = pickle.dumps((jitgrad.ones(2), jitgrad.float32, jitgrad.nn.ReLU(), jitgrad.Size([1])))
    code = f"import pickle; print(pickle.loads({text!r}))"
    assert fresh(code).startswith("(tensor([1., 1.]), jitgrad.float32, ReLU()")


def test_a_name_that_is_not_there() -> None:
    code = """
import jitgrad
for name in ("nothing_such", "__nothing__"):
    try: getattr(jitgrad, name)
    except AttributeError as error: print(error)
"""
    first, second = fresh(code).splitlines()
    assert "limits.md" in first and second == "module 'jitgrad' has no attribute '__nothing__'"
