"""`python -m jitgrad`: each command, and what users get wrong."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.command_line import main
from jitgrad.compiler import link
from jitgrad.runtime import load

MODEL = """
from jitgrad import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.drop(self.layer(x))

def double(a, b):
    return {"sum": a + b, "twice": a * 2}

def masked(x, y=None, *, mask, scale=None):
    x = x * mask
    return x if y is None else x - y
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    return tmp_path


def test_export_inspect_run_bench(folder, capsys):
    assert main(["export", "net.py:Net", "-o", "net.jgx", "--input", "x=nx4"]) == 0
    assert "float32[n, 4]" in capsys.readouterr().out
    assert main(["inspect", "net.jgx"]) == 0
    out = capsys.readouterr().out
    assert "input   x: float32[n, 4]" in out and "layer.weight: float32[3, 4]" in out
    assert "kernels; temporaries: peak" in out and "matmul(" in out
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    np.save("x.npy", x)
    assert main(["run", "net.jgx", "--input", "x.npy", "--output", "y.npz"]) == 0
    assert "output: float32[5, 3]" in capsys.readouterr().out
    want = jg.load_exported("net.jgx")(jg.from_numpy(x)).numpy()
    np.testing.assert_array_equal(np.load("y.npz")["output"], want)
    assert main(["bench", "net.jgx", "--size", "2", "--rounds", "1"]) == 0
    assert "x [2, 4]: median" in capsys.readouterr().out


def test_onnx_files(folder, capsys):
    """Run, timed, looked at and exported as others are."""
    pytest.importorskip("onnx.helper")
    assert main(["export", "net.py:Net", "-o", "net.onnx", "--input", "x=nx4"]) == 0
    assert main(["inspect", "net.onnx"]) == 0
    out = capsys.readouterr().out
    assert "input   x: float32[n, 4]" in out and "output  output: float32[n, 3]" in out
    assert "layer.weight: float32[3, 4]" in out and "1 MatMul" in out and "--input x=nx4" in out
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    np.save("x.npy", x)
    assert main(["run", "net.onnx", "--input", "x.npy", "--output", "y.npz"]) == 0
    assert "output: float32[5, 3]" in capsys.readouterr().out
    want = jg.onnx.load("net.onnx")(jg.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(np.load("y.npz")["output"], want, rtol=1e-6)
    assert main(["bench", "net.onnx", "--size", "2", "--rounds", "1"]) == 0
    assert "x [2, 4]: median" in capsys.readouterr().out
    assert main(["export", "net.onnx", "-o", "net.jgx", "--input", "x=nx4"]) == 0
    np.testing.assert_allclose(
        jg.load_exported("net.jgx")(jg.from_numpy(x)).numpy(), want, rtol=1e-6
    )
    np.save("bad.npy", x[:, :3])
    (folder / "bad.onnx").write_bytes(b"no model")
    for arguments, words in (
        (["run", "net.onnx", "--input", "bad.npy"], "input 'x' of shape"),
        (["run", "bad.onnx"], "expected an ONNX model"), (["inspect", "none.onnx"], "none.onnx"),
    ):  # fmt: skip
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


def test_inputs_are_exported_by_keyword(folder, capsys):
    """Those that are called as a parameter, wherever they stand; others are in order."""
    shapes = ["--input", "mask=nx3", "--input", "y=nx3", "--input", "nx3", "--max", "n=4"]
    assert main(["export", "net.py:masked", "-o", "m.jgx", *shapes]) == 0
    assert main(["export", "net.py:masked", "-o", "libmasked.so", *shapes]) == 0
    assert "x: float32[n, 3], y: float32[n, 3], mask: float32[n, 3]" in capsys.readouterr().out
    for name, value in (("x", 7), ("y", 2), ("mask", 3)):
        np.save(f"{name}.npy", np.full((2, 3), value, np.float32))
    for file in ("m.jgx", "libmasked.so"):
        given = ["--input", "mask=mask.npy", "--input", "x.npy", "--input", "y.npy"]
        assert main(["run", file, *given, "--output", "out.npz"]) == 0
        assert (np.load("out.npz")["output"] == 19).all()
    for inputs, words in (
        (["x=2x3", "mask=2x3", "mask=2x3"], "an input is given twice: x=2x3 mask=2x3 mask=2x3"),
        (["2x3", "x=2x3", "mask=2x3"], "multiple values for argument 'x'"),
        (["2x3"], "missing a required"),
    ):
        given = [part for text in inputs for part in ("--input", text)]
        assert main(["export", "net.py:masked", "-o", "m.jgx", *given]) == 2
        assert words in capsys.readouterr().err


def test_several_inputs_by_name_and_in_order(folder, capsys):
    arguments = ["--input", "a=2x3", "--input", "b=2x3"]
    assert main(["export", "net.py:double", "-o", "d.jgx", *arguments]) == 0
    np.save("a.npy", np.full((2, 3), 1, np.float32))
    np.save("b.npy", np.full((2, 3), 5, np.float32))
    given = ["--input", "b=b.npy", "--input", "a.npy"]
    assert main(["run", "d.jgx", *given, "--output", "y.npz"]) == 0
    found = np.load("y.npz")
    assert (found["sum"] == 6).all() and (found["twice"] == 2).all()


@pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")
def test_libraries(folder, capsys):
    assert main(["export", "net.py:Net", "-o", "libnet.so", "--input", "1x4:float32"]) == 0
    assert main(["inspect", "libnet.so"]) == 0
    assert "output  output: float32[1, 3]" in capsys.readouterr().out
    np.save("x.npy", np.ones((1, 4), np.float32))
    assert main(["run", "libnet.so", "--input", "x.npy"]) == 0


@pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")
def test_sizes_and_weights_of_a_library(folder, capsys):
    options = ["--input", "x=nx4", "--max", "n=8", "--weights", "net.weights"]
    assert main(["export", "net.py:Net", "-o", "libnet.so", *options]) == 0
    assert main(["inspect", "libnet.so"]) == 0
    assert "size    n: 0 to 8" in capsys.readouterr().out
    np.save("x.npy", np.ones((7, 4), np.float32))
    assert main(["run", "libnet.so", "--input", "x.npy"]) == 0
    assert "output: float32[7, 3]" in capsys.readouterr().out


def test_checksums_of_objects(folder, capsys):
    for file in ("net.o", "libnet.a"):
        options = ["--input", "1x4", "--weights", "net.weights"]
        assert main(["export", "net.py:Net", "-o", file, *options]) == 0
        capsys.readouterr()
        assert main(["inspect", file]) == 0
        assert capsys.readouterr().out.count("is right") == (2 if file == "libnet.a" else 1)
        data = (folder / file).read_bytes()
        for damaged in (data[:-9], data[: len(data) // 2], data[:900] + b"!" + data[901:]):
            (folder / file).write_bytes(damaged)
            assert main(["inspect", file]) == 2
            said = capsys.readouterr().err
            assert "truncated" in said or "altered" in said


@pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")
def test_weights_alone_and_a_least_size(folder, capsys):
    options = ["--input", "x=nx4", "--max", "n=8", "--min", "n=0"]
    assert main(["export", "net.py:Net", "-o", "m.jgx", *options]) == 0
    options += ["--weights", "net.weights"]
    assert main(["export", "net.py:Net", "-o", "libnet.so", *options]) == 0
    assert main(["weights", "m.jgx", "again.weights"]) == 0
    size = (folder / "again.weights").stat().st_size
    assert f"written to again.weights: {size:,} bytes" in capsys.readouterr().out
    library = load(folder / "libnet.so", weights=folder / "again.weights")
    assert library.sizes == {"n": (0, 8)} and library(np.ones((2, 4), np.float32)).shape == (2, 3)
    assert main(["weights", "m.jgx", "libnet.so"]) == 2
    assert "expected weights to be the path" in capsys.readouterr().err
    assert main(["weights", "net.py", "again.weights"]) == 2


@pytest.mark.parametrize(("file", "target"), [
    ("net.o", None), ("net.o", "riscv64-linux-gnu"), ("net.o", "wasm32"),
    ("libnet.a", "aarch64-linux-gnu"),
    ("libnet.so", "aarch64-linux-gnu"), ("libnet.so", "portable"), ("libnet.dylib", None),
    ("net.wasm", None),
])  # fmt: skip
def test_native_files_of_any_machine_say_what_they_are(file, target, folder, capsys):
    if not file.endswith((".o", ".a")) and importlib.util.find_spec("ziglang") is None:
        pytest.skip("linking for other machines needs ziglang")
    target = "aarch64-macos" if file.endswith(".dylib") else target
    options = ["--target", target] if target else []
    arguments = ["export", "net.py:Net", "-o", file, "--input", "x=nx4", "--max", "n=8", *options]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main(["inspect", file]) == 0
    out = capsys.readouterr().out
    for row in ("input   x: float32[n, 4]", "output  output: float32[n, 3]", "size    n: 0 to 8",
                "triple", "kernels", "weights_bytes", "arena_bytes"):  # fmt: skip
        assert f"\n  {row}" in out, row
    has_checksum = not file.endswith(".dylib")
    assert out.count("is right") == has_checksum
    if has_checksum:
        data = bytearray((folder / file).read_bytes())
        data[len(data) // 2] ^= 4
        (folder / file).write_bytes(data)
        assert main(["inspect", file]) == 2
        assert "altered" in capsys.readouterr().err


def test_info_and_the_module_itself(capsys):
    assert main(["info"]) == 0
    assert f"jitgrad      {jg.version.jitgrad}" in capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-m", "jitgrad", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "serve" in done.stdout
    assert main([]) == 2
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert not end.value.code
    assert capsys.readouterr().out == f"jitgrad {jg.version.jitgrad}\n"


def test_exported_files_become_native_code(folder, capsys):
    assert main(["export", "net.py:Net", "-o", "net.jgx", "--input", "x=2x4"]) == 0
    assert main(["export", "net.jgx", "-o", "libagain.so"]) == 0
    x = np.ones((2, 4), np.float32)
    want = jg.load_exported("net.jgx")(jg.from_numpy(x))
    np.testing.assert_allclose(jg.runtime.load("libagain.so")(x), want.numpy(), rtol=1e-5)
    assert main(["export", "net.jgx", "-o", "again.so", "--input", "2x4"]) == 2
    assert "--input, --max and --min are for what is recorded" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "99999"])
def test_ports_that_are_none(folder, capsys, port):
    assert main(["serve", "net.py", "--port", port]) == 2
    said = capsys.readouterr().err
    assert said == f"jitgrad serve: [serve] expected a port from 0 to 65535; got {port}\n"


@pytest.mark.parametrize(("arguments", "message"), [
    (["inspect", "none.jgx"], "none.jgx"),
    (["inspect", "net.py"], "expected a library, an object file, an archive"),
    (["run", "net.py"], "expected a .jgx file"),
    (["export", "net.py", "-o", "m.jgx"], "expected file.py:name"),
    (["export", "net.py:nothing", "-o", "m.jgx"], "net.py has no 'nothing'"),
    (["export", "other.py:f", "-o", "m.jgx"], "expected a Python file"),
    (["export", "net.py:Net", "-o", "m.jgx", "--input", "2x"], "expected"),
    (["export", "net.py:Net", "-o", "m.jgx", "--input", "2x4:float31"], "no dtype"),
    (["export", "net.py:Net", "-o", "m.jgx", "--input", "2x5"], "the last dims must be equal"),
    (["export", "net.py:Net", "-o", "m.jgx", "--input", "nx4", "--max", "n"], "NAME=SIZE"),
    (["export", "net.py:Net", "-o", "m.jgx", "--input", "nx4", "--max", "k=3"], "is called k"),
    (["export", "net.py:Net", "-o", "m.jgx", "--input", "2x4", "--target", "wasm32"], "native"),
    (["export", "net.py:Net", "-o", "libnet.so", "--input", "nx4"], ": --max n=64"),
    (["export", "net.py:Net", "-o", "m.txt", "--input", "2x4"], "expected a path that ends in"),
])  # fmt: skip
def test_mistakes(folder, capsys, arguments, message):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert any(m in said for m in message.split("|")) and said.startswith(
        f"jitgrad {arguments[0]}:"
    )
    assert "Traceback" not in said


def test_inputs_of_run(folder, capsys):
    assert main(["export", "net.py:Net", "-o", "net.jgx", "--input", "x=2x4"]) == 0
    assert main(["run", "net.jgx"]) == 2
    assert "missing inputs: x: float32[2, 4]" in capsys.readouterr().err
    np.save("y.npy", np.ones((2, 5), np.float32))
    assert main(["run", "net.jgx", "--input", "y.npy"]) == 2
    assert "expected input 'x'" in capsys.readouterr().err
    assert main(["run", "net.jgx", "--input", "z=y.npy"]) == 2
    assert "no input is called 'z'" in capsys.readouterr().err
    np.save("p.npy", np.array([{"a": 1}], object), allow_pickle=True)
    assert main(["run", "net.jgx", "--input", "p.npy"]) == 2  # no pickle is read
    assert "expected a .npy file of numbers; 'p.npy' is none" in capsys.readouterr().err
    np.save("good.npy", np.ones((2, 4), np.float32))
    np.savez("z.npz", a=np.ones((2, 4), np.float32), b=np.ones(2))
    np.save("s.npy", np.array(["a"]))
    (folder / "empty.npy").write_bytes(b"")
    for given, words in (
        (["z.npz"], "'z.npz' holds several arrays, by name: a, b"),
        (["s.npy"], "'s.npy' has dtype <U1"), (["empty.npy"], "'empty.npy' is none"),
        (["x=good.npy", "x=good.npy"], "input 'x' is given twice"),
        (["good.npy", "good.npy"], "expected 1 inputs (x); got one more, 'good.npy'"),
        (["x=good.npy", "good.npy"], "expected 1 inputs (x); got one more, 'good.npy'"),
    ):  # fmt: skip
        inputs = [text for name in given for text in ("--input", name)]
        assert main(["run", "net.jgx", *inputs]) == 2
        assert words in capsys.readouterr().err
    assert main(["run", "net.jgx", "--input", "good.npy"]) == 0
