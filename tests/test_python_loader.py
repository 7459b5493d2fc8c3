"""The Python module beside a library: in a process that has NumPy, and nothing else to import."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler import link
from jitgrad.runtime import load

pytestmark = pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")

BARE = """
import sys, importlib.abc

class OnlyNumPy(importlib.abc.MetaPathFinder):  # as if nothing else were installed
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "libnet", "package"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, OnlyNumPy())
import numpy as np
import libnet
"""


def bare(folder: Path, body: str) -> str:
    """What a program that begins with `import libnet` prints, in the library's folder."""
    code = BARE + textwrap.dedent(body)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_results(tmp_path):
    jg.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = jg.rand(2, 4)
    jg.export(lambda x: (model(x), x.argmax(1)), x).native(tmp_path / "libnet.so")
    np.save(tmp_path / "x.npy", x.numpy())
    bare(tmp_path, """
        from concurrent.futures import ThreadPoolExecutor
        model = libnet.load(threads=2)
        x = np.load("x.npy")
        y, best = model(x)
        with ThreadPoolExecutor(4) as pool:
            for again, _ in pool.map(model, [x] * 50):
                assert (again == y).all()
        assert (model(np.asfortranarray(x))[0] == y).all()
        np.save("y.npy", y)
        assert best.dtype == np.int64 and (best == x.argmax(1)).all()
    """)  # fmt: skip
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), model(x).detach().numpy(), atol=1e-6)


def test_errors(tmp_path):
    table = jg.arange(10.0)
    jg.export(lambda i: table[i], jg.tensor([1, 2])).native(tmp_path / "libnet.so")
    said = bare(tmp_path, """
        model = libnet.load()
        for bad in [(), (np.zeros(2),), (np.zeros(3, int),), (np.array([1, 10]),), ("x",)]:
            try:
                model(*bad)
            except Exception as error:
                print(type(error).__name__, error)
        print(model(np.array([3, 4])))
        try:
            libnet.load("none.so")
        except OSError as error:
            print("OSError")
        for threads in (0, 1025, "2", True, None):
            try:
                libnet.load(threads=threads)
            except Exception as error:
                print(type(error).__name__, error)
    """).splitlines()  # fmt: skip
    assert said[0] == "TypeError [net] expected 1 inputs (i); got 0"
    assert "expected i to be an array of int64; got float64" in said[1]
    assert said[2].startswith("ValueError") and said[3].startswith("RuntimeError")
    assert "index" in said[3]
    assert said[4] == "TypeError [net] expected i to be an array of int64; got str"
    assert said[5:7] == ["[3. 4.]", "OSError"]
    assert said[7:] == [
        "ValueError [net] expected 1 to 1024 threads; got 0",
        "ValueError [net] expected 1 to 1024 threads; got 1025",
        "TypeError [net] expected threads to be an int; got '2'",
        "TypeError [net] expected threads to be an int; got True",
        "TypeError [net] expected threads to be an int; got None",
    ]


def test_names_of_system_libraries(tmp_path):
    """-lm would find either."""
    exported = jg.export(lambda x: x * 2, jg.rand(3))
    with pytest.warns(UserWarning, match=r"libm\.so is called as a library .* libm_model\.so"):
        exported.native(tmp_path / "libm.so")
    assert load(tmp_path / "libm.so")(np.ones(3, np.float32)).sum() == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("libmodel.so", "m.o"):
            exported.native(tmp_path / name)


def test_damaged_files(tmp_path):
    weight = jg.rand(64)
    exported = jg.export(lambda x: x * weight, jg.rand(64))
    exported.native(tmp_path / "libnet.so", weights=tmp_path / "m.weights")
    said = bare(tmp_path, """
        good = open("libnet.so", "rb").read()
        at = len(good) // 2
        altered = good[:at] + bytes([good[at] ^ 1]) + good[at + 1:]
        for bad in (b"", good[:-1], good[:at], good + b"0", altered, good[:-64]):
            with open("bad.so", "wb") as file:
                file.write(bad)
            try:
                libnet.load("bad.so")
            except RuntimeError as error:
                print(error)
        weights = open("m.weights", "rb").read()
        for bad in (weights[:-1] + bytes([weights[-1] ^ 1]), weights[:-1], weights[:-64]):
            with open("bad.weights", "wb") as file:
                file.write(bad)
            try:
                libnet.load(weights="bad.weights")
            except RuntimeError as error:
                print(error)
        x = np.ones(64, np.float32)
        with open("bad.so", "wb") as file:
            file.write(good[:-64])  # as strip leaves it
        assert (libnet.load("bad.so", verify=False)(x) == libnet.load()(x)).all()
    """).splitlines()  # fmt: skip
    assert len(said) == 9 and all("truncated, altered or stripped" in s for s in said[:6])
    assert "was altered; copy or export it again" in said[6] and "truncated" in said[7]


def test_state(tmp_path):
    total = jg.zeros(2)
    jg.export(lambda x: total.add_(x) * 1, jg.ones(2)).native(tmp_path / "libnet.so")
    bare(tmp_path, """
        model = libnet.load()
        one = np.ones(2, np.float32)
        assert model(one)[0] == 1 and model(one)[0] == 2
        assert (model.get_state()["total"] == 2).all()
        model.set_state({"total": one * 7})
        assert model(one)[0] == 8
        try:
            model.set_state([one])
            raise SystemExit("taken")
        except TypeError as error:
            assert "expected a dict of arrays by name; got list" in str(error)
        assert libnet.load()(one)[0] == 1
    """)  # fmt: skip


def test_state_of_no_dims_takes_numbers(tmp_path):
    total = jg.zeros((), dtype=jg.float64)
    jg.export(lambda x: total.add_(x) * 1, jg.ones((), dtype=jg.float64)).native(
        tmp_path / "libnet.so"
    )
    bare(tmp_path, """
        model = libnet.load()
        for seven in (7.0, np.float64(7), np.array(7.0)):
            model.set_state({"total": seven})
            assert model.get_state()["total"] == 7
        for wrong, kind, text in [
            ({"total": "7"}, TypeError, "expected total to be an array of float64; got <U1"),
            ({"total": np.float32(7)}, TypeError, "array of float64; got float32"),
            ({"total": [7.0]}, ValueError, "expected total to have shape []; got [1]"),
            ({"totl": 7.0}, KeyError, "no state is called 'totl'; there is ['total']"),
        ]:
            try:
                model.set_state(wrong)
                raise SystemExit(f"taken: {wrong}")
            except kind as error:
                assert text in error.args[0], error
        assert model.get_state()["total"] == 7
    """)  # fmt: skip


def test_the_import_of_a_library_runs_the_module_beside_it(tmp_path):
    """Python finds libnet.so before libnet.py."""
    exported = jg.export(lambda x: x * 2, jg.rand(3))
    exported.native(tmp_path / "libnet.so")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    exported.native(tmp_path / "package" / "libnet.so")
    said = bare(tmp_path, """
        import importlib, os
        import package.libnet
        one = np.ones(3, np.float32)
        assert (libnet.load()(one) == 2).all() and (package.libnet.load()(one) == 2).all()
        assert libnet.__name__ == "libnet" and package.libnet.__name__ == "package.libnet"
        assert importlib.reload(libnet).INPUTS == [("x", "float32", [3])]
        os.remove("libnet.py")
        del sys.modules["libnet"]
        try:
            import libnet
        except ImportError as error:
            print(error)
    """)  # fmt: skip
    assert (
        "libnet.so is a compiled model, and its Python module" in said and "copy or export" in said
    )


def test_a_process_without_python_loads_the_library(tmp_path):
    """Symbols of Python are weak."""
    jg.export(lambda x: x * 2, jg.rand(3)).native(tmp_path / "libnet.so")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "main.c").write_text("""
        #include "libnet.h"
        extern void *PyInit_libnet(void);
        int main(void) {
            jg_net *model = jg_net_create(1);
            float x[3] = {1, 2, 3}, y[3];
            int bad = !model || jg_net_call(model, x, y) || y[2] != 6 || PyInit_libnet();
            jg_net_destroy(model);
            return bad;
        }
    """)
    command = ["cc", "-Wall", "-Werror", "main.c", "libnet.so", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"]).returncode == 0
