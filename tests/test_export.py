"""Exported libraries: their numbers, their C interface, the loader's checks, damaged files.

Everything here goes through a linker; where the machine has none, those tests are skipped.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from random_graphs import random_graph

import jitgrad as jg
from jitgrad.compiler import link, native
from jitgrad.compiler.codegen import features, objects
from jitgrad.compiler.codegen.target import host, named
from jitgrad.compiler.ir import Graph, Input
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.pipeline import compile_graph
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import artifact, artifact_format, dtypes, load
from jitgrad.runtime.errors import ArtifactError, CompileError

pytestmark = pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 features")


def tensor(dtype, *shape):
    return TensorType(shape, dtype)


def mlp(batch=4, width=32):
    """relu(x @ w + b) @ v, sums of it, and its largest columns; state w, b, v."""
    rng = np.random.default_rng(0)
    state = {
        "model.w": rng.standard_normal((8, width), np.float32),
        "model.b": rng.standard_normal(width, np.float32),
        "model.v": rng.standard_normal((width, 3), np.float32),
    }
    g = Graph(name="mlp")
    x = g.add_input(tensor(dtypes.float32, batch, 8), "arg", "x")
    w, b, v = (g.add_input(tensor(dtypes.float32, *a.shape), "state", k) for k, a in state.items())
    h = g.add(OPS["relu"], g.add(OPS["add"], g.add(OPS["matmul"], x, w), b))
    y = g.add(OPS["matmul"], h, v)
    g.outputs = [y, g.add(OPS["sum"], y, axes=(1,), keepdim=False),
                 g.add(OPS["argmax"], y, axes=(1,), keepdim=False)]  # fmt: skip
    return g, state


def expected(g, state, *arrays):
    """What the same graph gives in this process."""
    given = iter(arrays)
    return compile_graph(g).run(
        [state[i.name] if i.kind == "state" else next(given) for i in g.inputs]
    )


def picker():
    """table[index], checked: a graph that can find bad values."""
    g = Graph(name="picker")
    table = g.add_input(tensor(dtypes.float32, 5, 2), "state", "table")
    index = g.add_input(tensor(dtypes.int64, 3), "arg", "index")
    g.outputs = [g.add(OPS["index"], table, index, dims=(0,), line="secret/folder/user.py:12")]
    return g, {"table": np.arange(10, dtype=np.float32).reshape(5, 2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="module")
def mlp_path(folder):
    g, state = mlp()
    native.write_native(g, state, folder / "libmlp.so", output_names=["logits", "sums", "best"])
    return folder / "libmlp.so"


@pytest.fixture(scope="module")
def picker_path(folder):
    native.write_native(*picker(), folder / "libpicker.so")
    return folder / "libpicker.so"


@pytest.fixture
def x():
    return np.random.default_rng(1).standard_normal((4, 8), np.float32)


# -- numbers -------------------------------------------------------------------------------------
def test_same_bits_as_in_process(mlp_path, x):
    g, state = mlp()
    model = load(mlp_path)
    results = model(x)
    assert isinstance(results, tuple) and len(results) == 3
    for got, want in zip(results, expected(g, state, x), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_description(mlp_path):
    model = load(mlp_path, threads=2)
    assert model.inputs == (artifact.Port("x", "float32", (4, 8)),)
    assert [str(p) for p in model.outputs] == [
        "logits: float32[4, 3]", "sums: float32[4]", "best: int64[4]",
    ]  # fmt: skip
    assert repr(model).startswith(
        "<jitgrad.runtime.Model mlp: (x: float32[4, 8]) -> (logits: float32[4, 3], sums"
    )
    assert model.info["weights_bytes"] >= 4 * (8 * 32 + 32 + 32 * 3)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed, folder):
    """Every other input becomes state; outputs are the library's, bit for bit."""
    g, arrays = random_graph(seed)
    g.writes, g.rebinds = [], []
    if not g.outputs:
        pytest.skip("the graph only writes")
    state = {}
    for k, item in enumerate(g.inputs):
        kind = "state" if k % 2 else "arg"
        g.inputs[k] = Input(item.value, kind, item.name)
        if kind == "state":
            state[item.name] = arrays[k]
    native.write_native(g, state, folder / f"librandom{seed}.so")
    model = load(folder / f"librandom{seed}.so", threads=2)
    given = [a for a, item in zip(arrays, g.inputs, strict=True) if item.kind == "arg"]
    results = model(*given)
    results = results if isinstance(results, tuple) else (results,)
    for got, want in zip(results, expected(g, state, *given), strict=True):
        np.testing.assert_array_equal(got, want)


def test_many_threads_and_large_arrays(folder):
    """Parallel kernels, an arena and scratch for each thread."""
    g = Graph(name="large")
    a = g.add_input(tensor(dtypes.float32, 500, 300), "arg", "a")
    b = g.add_input(tensor(dtypes.float32, 300, 400), "state", "b")
    y = g.add(OPS["matmul"], a, b)
    g.outputs = [g.add(OPS["matmul"], g.add(OPS["tanh"], y), g.add(OPS["permute"], b, axes=(1, 0)))]
    rng = np.random.default_rng(2)
    state = {"b": rng.standard_normal((300, 400), np.float32)}
    native.write_native(g, state, folder / "liblarge.so")
    x = rng.standard_normal((500, 300), np.float32)
    (want,) = expected(g, state, x)
    for threads in (1, 2, 3, 7):
        model = load(folder / "liblarge.so", threads=threads)
        for _ in range(3):
            np.testing.assert_array_equal(model(x), want)
    np.testing.assert_allclose(want, np.tanh(x @ state["b"]) @ state["b"].T, rtol=2e-4, atol=2e-3)


def test_calls_from_many_python_threads(mlp_path):
    model = load(mlp_path, threads=2)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal((4, 8), np.float32) for _ in range(8)]
    wanted = [model(x) for x in inputs]
    wrong = []

    def work(k):
        for _ in range(300):
            got = model(inputs[k])
            wrong.extend(k for g, w in zip(got, wanted[k], strict=True) if not np.array_equal(g, w))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_dtypes_0d_and_empty_arrays(folder):
    g = Graph(name="mixed")
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64"]
    values = [g.add_input(tensor(dtypes.BY_NAME[n], 3), "arg", f"in.{n}") for n in names]
    scalar = g.add_input(tensor(dtypes.float32), "arg", "scalar")
    empty = g.add_input(tensor(dtypes.float32, 0, 4), "arg", "empty")
    g.outputs = [g.add(OPS["clone"], v) for v in [*values, scalar, empty]]
    g.outputs.append(g.add(OPS["sum"], empty, axes=(0,), keepdim=False))
    native.write_native(g, {}, folder / "libmixed.so")
    model = load(folder / "libmixed.so")
    arrays = [np.array([0, 1, 1]).astype(dtypes.BY_NAME[n].np) for n in names]
    arrays += [np.array(2.5, np.float32), np.zeros((0, 4), np.float32)]
    *same, zeros = model(*arrays)
    for got, want in zip(same, arrays, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(zeros, np.zeros(4))
    assert model(*arrays[:-2], np.float32(7), arrays[-1])[9] == 7  # a NumPy scalar is 0-d


def test_output_that_is_state_or_input(folder, x):
    """Each output is memory of its own."""
    g = Graph(name="same")
    v = g.add_input(tensor(dtypes.float32, 4, 8), "arg", "v")
    s = g.add_input(tensor(dtypes.float32, 2), "state", "s")
    g.add_input(tensor(dtypes.float32, 1000), "state", "unused")
    g.outputs = [v, s, v]
    state = {"s": np.array([1, 2], np.float32), "unused": np.zeros(1000, np.float32)}
    native.write_native(g, state, folder / "libsame.so")
    model = load(folder / "libsame.so")
    a, b, c = model(x)
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b, [1, 2])
    assert not np.shares_memory(a, c) and not np.shares_memory(a, x)
    b[:] = 0
    np.testing.assert_array_equal(model(x)[1], [1, 2])
    assert model.info["weights_bytes"] < 1000  # state that nothing reads is left out


def test_same_object_twice():
    """Exporting is deterministic."""
    g, state = mlp()
    build = [native.build_object(g, state, "m", (), host(), "test") for _ in range(2)]
    assert build[0] == build[1]


# -- arguments -----------------------------------------------------------------------------------
def test_arrays_that_need_a_copy(mlp_path, x):
    model = load(mlp_path)
    want = model(x)[0]
    wide = np.zeros((8, 16), np.float32)
    wide[::2, ::2] = x
    unaligned = np.frombuffer(b"-" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 8)
    read_only = x.copy()
    read_only.flags.writeable = False
    for given in (wide[::2, ::2], np.asfortranarray(x), unaligned, read_only, x.view(np.matrix)):
        np.testing.assert_array_equal(model(given)[0], want)


def test_inputs_by_name(tmp_path):
    """Of a library, by jitgrad and by the module beside it, and of the exported graph."""
    n = jg.Dim("n", max=4)
    exported = jg.export(
        lambda a, b, c: a * 100 + b["k"] * 10 + c, jg.rand(3), {"k": jg.rand(3)}, jg.rand(3),
        dynamic_shapes={"a": {0: n}, "b.k": {0: n}, "c": {0: n}},
    )  # fmt: skip
    exported.native(tmp_path / "libnamed.so")
    spec = importlib.util.spec_from_file_location("named", tmp_path / "libnamed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    a, b, c = (np.full(2, k, np.float32) for k in (1, 2, 3))

    def of_graph(*given, **named):
        made = {k: jg.from_numpy(v) for k, v in named.items()}
        return exported(*map(jg.from_numpy, given), **made).numpy()

    for call in (load(tmp_path / "libnamed.so"), module.load(), of_graph):
        assert call(a, b, c).tolist() == [123, 123]
        assert call(a, c=c, **{"b.k": b}).tolist() == [123, 123]
        assert call(**{"c": c, "b.k": b, "a": a}).tolist() == [123, 123]
        for given, more, words in (
            ((a, b), {"a": a}, "'a' is given twice|missing, given twice or none of them: a, c"),
            ((a,), {"c": c}, r"missing inputs: b\.k|none of them: b\.k"),
            ((a, b), {"d": c}, r"no input is called 'd'; expected a, b\.k, c|none of them: c, d"),
            ((a, b, c), {"c": c}, "'c' is given twice|none of them: c"),
        ):
            with pytest.raises(TypeError, match=words):
                call(*given, **more)


def test_wrong_arguments(mlp_path, x):
    model = load(mlp_path)
    cases = [
        ((), TypeError, r"\[mlp\] expected 1 inputs \(x: float32\[4, 8\]\); got 0: missing x"),
        ((x, x[:2]), TypeError, r"expected 1 inputs .*; got 2: too many by float32\[2, 8\]"),
        ((x.tolist(),), TypeError, r"input 0 \(x: float32\[4, 8\]\) as a NumPy array; got list"),
        ((None,), TypeError, r"as a NumPy array; got NoneType"),
        ((x.astype(np.float64),), TypeError,
         r"expected input 0 \(x: float32\[4, 8\]\); got dtype float64\[4, 8\]; .*astype"),
        ((x.astype(">f4"),), TypeError, r"got dtype >f4"),
        ((x[:3],), ValueError, r"got float32\[3, 8\]; the library was compiled for this shape"),
        ((x.T,), ValueError, r"got float32\[8, 4\]"),
        ((x[0, 0],), ValueError, r"got float32\[\]"),
    ]  # fmt: skip
    for arguments, error, text in cases:
        with pytest.raises(error, match=text):
            model(*arguments)
    assert len(model(x)) == 3


def test_out(mlp_path, x):
    model = load(mlp_path)
    want = model(x)
    out = [np.zeros((4, 3), np.float32), np.zeros(4, np.float32), np.zeros(4, np.int64)]
    got = model(x, out=out)
    assert all(a is b for a, b in zip(got, out, strict=True))
    for a, b in zip(want, out, strict=True):
        np.testing.assert_array_equal(a, b)
    a, b, c = out
    both = np.zeros(8, np.float32)
    frozen = b.copy()
    frozen.flags.writeable = False
    cases = [
        ((a, b), TypeError, "expected 3 arrays as out; got 2"),
        (a, TypeError, "expected 3 arrays as out; got 1"),
        ((a, b, [0] * 4), TypeError, r"out 2 \(best: int64\[4\]\) as a NumPy array; got list"),
        ((a, b, c.astype(np.int32)), TypeError, r"got int32\[4\]"),
        ((a, b[:3], c), ValueError, r"out 1 .* got float32\[3\]"),
        ((a, both[::2], c), ValueError, "dense row-major"),
        ((a, frozen, c), ValueError, "writable"),
        ((a, a.reshape(-1)[2:6], c), ValueError, "overlap"),
        ((x.reshape(-1)[:12].reshape(4, 3), b, c), ValueError, "overlap"),
    ]
    for given, error, text in cases:
        with pytest.raises(error, match=text):
            model(x, out=given)


def test_threads_argument(mlp_path):
    for bad, error in ((0, ValueError), (-1, ValueError), (10**6, ValueError),
                       ("2", TypeError), (1.0, TypeError), (True, TypeError)):  # fmt: skip
        with pytest.raises(error, match="threads"):
            load(mlp_path, threads=bad)


def test_bad_values_are_reported_and_the_next_call_works(picker_path):
    model = load(picker_path)
    good = np.array([0, 4, -1])
    np.testing.assert_array_equal(model(good), [[0, 1], [8, 9], [8, 9]])
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"\[picker\].*index.*user.py:12") as caught:
            model(np.array([0, 5, 1]))
        assert "secret" not in str(caught.value)  # of the exporter's machine only file names
        np.testing.assert_array_equal(model(good), [[0, 1], [8, 9], [8, 9]])


def test_without_the_fast_call(mlp_path, x, monkeypatch):
    want = load(mlp_path)(x)
    monkeypatch.setattr(artifact.buffers, "LAYOUT_HOLDS", False)
    for got, w in zip(load(mlp_path)(x), want, strict=True):
        np.testing.assert_array_equal(got, w)


def test_after_fork(folder):
    """The child has none of the parent's threads, and makes its own."""
    g = Graph(name="forked")
    a = g.add_input(tensor(dtypes.float32, 200_000), "arg", "a")
    g.outputs = [g.add(OPS["tanh"], a)]
    native.write_native(g, {}, folder / "libforked.so")
    model = load(folder / "libforked.so", threads=3)
    assert model.threads > 1
    x = np.linspace(-3, 3, 200_000, dtype=np.float32)
    want = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork() of a threaded process
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            if np.array_equal(model(x), want):
                del model
                gc.collect()
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(model(x), want)


# -- files ---------------------------------------------------------------------------------------
def test_a_file_that_was_exported_anew(tmp_path):
    """Old models keep their code; a new load sees the new one."""
    path = tmp_path / "libagain.so"
    models = []
    for k in range(3):
        g = Graph(name="again")
        v = g.add_input(tensor(dtypes.float32, 2), "arg", "v")
        s = g.add_input(tensor(dtypes.float32, 2), "state", "s")
        g.outputs = [g.add(OPS["add"], v, s)]
        native.write_native(g, {"s": np.full(2, k, np.float32)}, path)
        models.append(load(path))
        for j, model in enumerate(models):
            np.testing.assert_array_equal(model(np.zeros(2, np.float32)), [j, j])
    files = sorted(p.name for p in tmp_path.iterdir())
    assert files == ["libagain.h", "libagain.py", "libagain.so"]


def test_damaged_files(mlp_path, tmp_path):
    """A flipped bit anywhere, a cut anywhere, something appended: an error, never a crash."""
    whole = mlp_path.read_bytes()
    path = tmp_path / "libdamaged.so"
    step = max(1, len(whole) // 40)
    places = {0, 4, 5, 16, 18, 24, *range(0, len(whole), step), *range(len(whole) - 64, len(whole))}
    for at in sorted(places):
        data = bytearray(whole)
        data[at] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=r"^\[load\] .*libdamaged.so"):
            load(path)
    for size in {0, 1, 3, 4, 63, 64, 100, len(whole) // 2, len(whole) - 64, len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(ArtifactError, match=r"^\[load\] .*libdamaged.so"):
            load(path)
    for extra in (b"\0", whole):
        path.write_bytes(whole + extra)
        if extra == whole:  # its own seal at the end, but of another length
            with pytest.raises(ArtifactError, match="does not match its checksum"):
                load(path)
        else:
            with pytest.raises(ArtifactError, match="does not end with its seal"):
                load(path)


def test_not_a_library(tmp_path, mlp_path):
    with pytest.raises(FileNotFoundError, match=r"\[load\] expected a library file"):
        load(tmp_path / "libmissing.so")
    with pytest.raises(IsADirectoryError, match=r"\[load\] expected a library file"):
        load(tmp_path)
    text = tmp_path / "text.so"
    text.write_text("not a library " * 50)
    with pytest.raises(ArtifactError, match=r"expected an ELF shared library; .*text.so.* is none"):
        load(text)
    unsealed = tmp_path / "libunsealed.so"
    unsealed.write_bytes(mlp_path.read_bytes()[: -artifact_format.SEAL_BYTES])
    with pytest.raises(ArtifactError, match="does not end with its seal"):
        load(unsealed)
    g, state = mlp()
    native.write_native(g, state, tmp_path / "mlp.o")
    with pytest.raises(ArtifactError, match="another kind of ELF file"):
        load(tmp_path / "mlp.o")


def test_other_machines(mlp_path, tmp_path):
    """Also when the seal is right."""
    content = mlp_path.read_bytes()[: -artifact_format.SEAL_BYTES]
    other = tmp_path / "libother.so"
    here = platform.machine()
    machine, name = (62, "x86_64") if here == "aarch64" else (183, "aarch64")
    for at, value, text in ((18, machine, f"is for {name}"), (4, 1, "32-bit"), (5, 2, "big-end")):
        data = bytearray(content)
        data[at] = value
        other.write_bytes(artifact_format.sealed(bytes(data)))
        with pytest.raises(ArtifactError, match=text):
            load(other)


def test_another_format_version(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_format, "FORMAT_VERSION", 99)
    g, state = mlp()
    native.write_native(g, state, tmp_path / "libfuture.so")
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match=r"of format \d+; .* has format 99"):
        load(tmp_path / "libfuture.so")


def test_library_without_descriptor(tmp_path, mlp_path):
    """A sealed library of somebody else's."""
    source, plain = tmp_path / "plain.o", tmp_path / "libplain.so"
    text = f'target triple = "{host().triple}"\ndefine i32 @plain() {{\n  ret i32 1\n}}'
    source.write_bytes(objects.compile_object(text, host()))
    link.link_shared(source, plain, "libplain.so")
    plain.write_bytes(artifact_format.sealed(plain.read_bytes()))
    with pytest.raises(ArtifactError, match="has no symbol jg_model"):
        load(plain)


@needs_x86
def test_missing_processor_features_are_refused(tmp_path, monkeypatch):
    """A library for features that this processor lacks opens, and says what is missing."""
    missing = [f for f in ("xop", "avx512fp16", "avx512vp2intersect", "tbm", "fma4", "avxifma")
               if f"-{f}" in host().features]  # fmt: skip
    if not missing:
        pytest.skip("this processor has everything")
    g, state = mlp()
    real = features.required_features
    monkeypatch.setattr(features, "required_features", lambda t: [*real(t), missing[0]])
    native.write_native(g, state, tmp_path / "libnew.so")
    with pytest.raises(ArtifactError, match=f"processors with {missing[0]}, which this processor"):
        load(tmp_path / "libnew.so")
    library = ctypes.CDLL(str(tmp_path / "libnew.so"))
    library.jg_new_create.restype = ctypes.c_void_p
    library.jg_new_status.restype = ctypes.c_char_p
    assert library.jg_new_create(1) is None
    assert missing[0].encode() in library.jg_new_status()


@needs_x86
def test_required_features():
    triple = host().triple
    assert features.required_features(named(triple, "x86-64")) == []
    v3 = features.required_features(named(triple, "x86-64-v3"))
    assert {"avx2", "fma", "bmi2", "lzcnt"} <= set(v3) and "avx512f" not in v3
    assert "avx512bw" in features.required_features(named(triple, "x86-64-v4"))
    for target in (named(triple, "skylake"), named(triple, "x86-64", "+egpr")):
        with pytest.raises(CompileError, match="expected a target whose features"):
            features.required_features(target)
    assert features.required_features(named("aarch64-unknown-linux-gnu")) == []


@needs_x86
def test_code_before_the_feature_check_is_for_any_processor(tmp_path):
    """create, status and the rest hold no VEX- or EVEX-encoded instruction."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    g, state = mlp()
    native.write_native(g, state, tmp_path / "m.o", target=named(host().triple, "x86-64-v3"))
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(tmp_path / "m.o")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    seen = 0
    for name, body in re.findall(r"<(jg[._]\S+)>:\n((?: .*\n)+)", listing):
        if name == "jg.missing" or (name.startswith("jg_m_") and name != "jg_m_run"):
            seen += 1
            assert not re.search(r"\t(v[a-z]|andn|bextr|blsi|blsr|shlx|shrx|sarx|lzcnt)", body), (
                name
            )
    assert seen >= 10


def test_no_linker(tmp_path, monkeypatch, x):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(link.importlib.util, "find_spec", lambda name: None)
    g, state = mlp()
    with pytest.raises(CompileError, match=r"expected a linker; found none of cc, .*ziglang") as e:
        native.write_native(g, state, tmp_path / "libalone.so")
    command = re.search(r"link it with `(.*?)`", str(e.value)).group(1)
    assert str(tmp_path / "libalone.o") in command
    assert sorted(p.name for p in tmp_path.iterdir()) == ["libalone.h", "libalone.o"]
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(CompileError, match=r"found none of \$CC \(no-such-compiler -m64\)"):
        native.write_native(g, state, tmp_path / "libalone.so")
    monkeypatch.undo()
    if shutil.which("cc"):  # the command that the error gave
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)
        library = ctypes.CDLL(str(tmp_path / "libalone.so"))
        assert library.jg_alone_n_inputs() == 1


def test_linker_that_fails(tmp_path, monkeypatch):
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\necho cannot find -lc >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    g, state = mlp()
    with pytest.raises(CompileError, match=r"the linker failed \(status 3\)(.|\n)*cannot find -lc"):
        native.write_native(g, state, tmp_path / "libfails.so")
    assert (tmp_path / "libfails.o").exists() and not (tmp_path / "libfails.so").exists()


@pytest.mark.parametrize("name", ["ld.lld", "ld"])
def test_bare_linkers(name, tmp_path, monkeypatch, x):
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"no {name}")
    monkeypatch.setattr(link, "find_linker", lambda target=None: link.Linker((program,), False))
    g, state = mlp()
    native.write_native(g, state, tmp_path / "libbare.so")
    np.testing.assert_array_equal(load(tmp_path / "libbare.so")(x)[0], expected(g, state, x)[0])


def test_bad_paths_and_names(tmp_path, monkeypatch):
    g, state = mlp()
    cases = [
        (tmp_path / "m.dll", ValueError, r"ends in \.so .* or \.wasm"),
        (tmp_path / "m", ValueError, r"ends in \.so"),
        (tmp_path / "none" / "m.so", FileNotFoundError, "expected an existing folder"),
    ]
    (tmp_path / "folder.so").mkdir()
    cases.append((tmp_path / "folder.so", IsADirectoryError, "is a folder"))
    for path, error, text in cases:
        with pytest.raises(error, match=text):
            native.write_native(g, state, path)
    with pytest.raises(ValueError, match="C identifier; got 'two words'"):
        native.write_native(g, state, tmp_path / "m.o", name="two words")
    native.write_native(g, state, tmp_path / "lib3-odd name.o")
    assert "jg_m3_odd_name_create" in (tmp_path / "lib3-odd name.h").read_text()


@pytest.mark.parametrize(
    ("library", "own"), [("m.so", "m.py"), ("m.so", "m.h"), ("m.o", "m.h"), ("m.wasm", "m.js")]
)
def test_files_of_the_user_are_not_written_over(library: str, own: str, tmp_path: Path) -> None:
    g, state = mlp()
    (tmp_path / own).write_text("x = 1\n")
    with pytest.raises(FileExistsError, match=rf"{own}.*not made by an export"):
        native.write_native(g, state, tmp_path / library)
    assert (tmp_path / own).read_text() == "x = 1\n"
    assert [f.name for f in tmp_path.iterdir()] == [own]
    (tmp_path / own).unlink()
    if not library.endswith("wasm"):  # which needs a linker for it
        for _ in range(2):  # what an export made is renewed
            native.write_native(g, state, tmp_path / library)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
    g, state = mlp()
    with pytest.raises(PermissionError, match=r"expected a folder that can be written"):
        native.write_native(g, state, closed / "m.o")


def test_folder_that_refuses_files(tmp_path, monkeypatch):
    """As above, for root too: the system says no."""
    g, state = mlp()

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(native.os, "open", refuse)
    with pytest.raises(PermissionError, match=r"m\.o' cannot be: Permission denied; choose"):
        native.write_native(g, state, tmp_path / "m.o")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported(tmp_path):
    g, state = mlp()
    from_text = Graph(name="dynamic")
    n = from_text.env.dim("n", 8)
    v = from_text.add_input(TensorType((n,), dtypes.float32), "arg", "v")
    from_text.outputs = [from_text.add(OPS["neg"], v)]
    with pytest.raises(CompileError, match="expected a largest size of each symbolic dim"):
        native.write_native(from_text, {}, tmp_path / "m.o")
    with pytest.raises(CompileError, match="weights in a library"):
        native._WEIGHTS_LIMIT, limit = 100, native._WEIGHTS_LIMIT
        try:
            native.write_native(g, state, tmp_path / "m.o")
        finally:
            native._WEIGHTS_LIMIT = limit


# -- from C --------------------------------------------------------------------------------------
MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "libmlp.h"
#include "libpicker.h"

static int failures = 0;
#define CHECK(ok) \
    do { if (!(ok)) { failures++; fprintf(stderr, "line %d\n", __LINE__); } } while (0)

int main(int argc, char **argv) {
    float x[JG_MLP_INPUT0_SIZE], logits[JG_MLP_OUTPUT0_SIZE], sums[JG_MLP_OUTPUT1_SIZE];
    int64_t best[JG_MLP_OUTPUT2_SIZE], good[3] = {0, 4, -1}, bad[3] = {0, 5, 0};
    float rows[JG_PICKER_OUTPUT0_SIZE];
    const void *inputs[JG_MLP_INPUTS];
    void *outputs[JG_MLP_OUTPUTS];
    int n;
    FILE *file = fopen(argv[argc - 1], "rb");
    if (!file || fread(x, sizeof x, 1, file) != 1) return 2;
    fclose(file);

    CHECK(strcmp(jg_mlp_status(), "ready") == 0);
    CHECK(strstr(jg_mlp_version(), "jitgrad") != NULL);
    CHECK(jg_mlp_n_inputs() == 1 && jg_mlp_n_outputs() == 3);
    CHECK(strcmp(jg_mlp_input_name(0), "x") == 0 && strcmp(jg_mlp_output_name(1), "sums") == 0);
    CHECK(jg_mlp_input_dtype(0) == JG_FLOAT32 && jg_mlp_output_dtype(2) == JG_INT64);
    CHECK(jg_mlp_input_rank(0) == 2 && jg_mlp_output_rank(1) == 1);
    CHECK(jg_mlp_input_dims(0)[0] == 4 && jg_mlp_input_dims(0)[1] == 8);
    CHECK(jg_mlp_input_name(1) == NULL && jg_mlp_input_dims(-1) == NULL);
    CHECK(jg_mlp_output_rank(3) == -1 && jg_mlp_output_dtype(-7) == -1);

    for (n = -1; n < 4; n++) {
        jg_mlp *model = jg_mlp_create(n);
        if (!model) return 3;
        inputs[0] = x;
        outputs[0] = logits;
        outputs[1] = sums;
        outputs[2] = best;
        CHECK(jg_mlp_run(model, inputs, outputs) == JG_OK);
        CHECK(strcmp(jg_mlp_last_error(model), "") == 0);
        outputs[1] = NULL;
        CHECK(jg_mlp_run(model, inputs, outputs) == JG_BAD_ARGUMENT);
        CHECK(strstr(jg_mlp_last_error(model), "outputs[1] (sums, float32[4])") != NULL);
        inputs[0] = (const char *)x + 1;
        CHECK(jg_mlp_run(model, inputs, outputs) == JG_BAD_ARGUMENT);
        CHECK(strstr(jg_mlp_last_error(model), "aligned to 4 bytes") != NULL);
        CHECK(jg_mlp_run(model, NULL, outputs) == JG_BAD_ARGUMENT);
        CHECK(jg_mlp_run(model, inputs, NULL) == JG_BAD_ARGUMENT);
        CHECK(jg_mlp_run(NULL, inputs, outputs) == JG_BAD_ARGUMENT);
        CHECK(strstr(jg_mlp_last_error(NULL), "NULL") != NULL);
        CHECK(jg_mlp_call(model, x, logits, sums, best) == JG_OK);
        jg_mlp_destroy(model);
    }
    jg_mlp_destroy(NULL);

    jg_picker *picker = jg_picker_create(1);
    if (!picker) return 3;
    CHECK(jg_picker_call(picker, good, rows) == JG_OK && rows[2] == 8 && rows[5] == 9);
    CHECK(jg_picker_call(picker, bad, rows) == JG_FAULT);
    CHECK(strstr(jg_picker_last_error(picker), "index") != NULL);
    CHECK(jg_picker_call(picker, good, rows) == JG_OK && rows[2] == 8 && rows[5] == 9);
    jg_picker_destroy(picker);

    for (n = 0; n < JG_MLP_OUTPUT0_SIZE; n++) printf("%a ", (double)logits[n]);
    for (n = 0; n < JG_MLP_OUTPUT1_SIZE; n++) printf("%a ", (double)sums[n]);
    for (n = 0; n < JG_MLP_OUTPUT2_SIZE; n++) printf("%d ", (int)best[n]);
    return failures != 0;
}
"""
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic"]


def run_program(folder, program, x, wrapper=()):
    (folder / "x.bin").write_bytes(x.tobytes())
    done = subprocess.run(
        [*wrapper, program, folder / "x.bin"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [float.fromhex(word) if "x" in word else int(word) for word in done.stdout.split()]


def compare(numbers, g, state, x):
    wanted = np.concatenate([w.reshape(-1).astype(float) for w in expected(g, state, x)])
    np.testing.assert_array_equal(numbers, wanted)


@needs_cc
@pytest.mark.parametrize("language", ["c99", "c++"])
def test_c_program(language, folder, mlp_path, picker_path, x):
    compiler = "cc" if language == "c99" else "c++"
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = folder / ("main.c" if language == "c99" else "main.cc")
    source.write_text(MAIN)
    program = folder / f"main-{language}"
    standard = "-std=c99" if language == "c99" else "-std=c++11"
    command = [compiler, standard, *WARNINGS, "-o", program, source, mlp_path, picker_path]
    subprocess.run([*command, f"-Wl,-rpath,{folder}"], check=True)
    compare(run_program(folder, program, x), *mlp(), x)


@needs_cc
def test_the_header_says_how_to_link(folder, mlp_path, tmp_path):
    """Its command, run as it stands, makes a program that finds the library beside it."""
    for path in (mlp_path, mlp_path.with_suffix(".h")):
        shutil.copy(path, tmp_path)
    header = (tmp_path / mlp_path.name).with_suffix(".h").read_text()
    (command,) = re.findall(r"To link: +(.*)", header)
    (tmp_path / "main.c").write_text(
        '#include "libmlp.h"\nint main(void) { jg_mlp *m = jg_mlp_create(1); jg_mlp_destroy(m); '
        "return m == 0; }"
    )
    subprocess.run(f"{command} -o main", shell=True, check=True, cwd=tmp_path)
    subprocess.run([tmp_path / "main"], check=True, cwd="/")  # wherever it is called from
    (tmp_path / mlp_path.name).rename(tmp_path / "elsewhere.so")
    failed = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert failed.returncode and "libmlp.so" in failed.stderr  # the library's own name (soname)


@needs_cc
def test_c_program_with_object_files(tmp_path, x):
    """Two models in one program: nothing but the interface is a global symbol."""
    g, state = mlp()
    names = ["logits", "sums", "best"]
    native.write_native(g, state, tmp_path / "libmlp.o", output_names=names)
    native.write_native(*picker(), tmp_path / "libpicker.o")
    public = set(objects.defined_symbols((tmp_path / "libmlp.o").read_bytes()))
    assert public and all(s.startswith("jg_mlp_") or s == "jg_model" for s in public)
    (tmp_path / "main.c").write_text(MAIN)
    files = [tmp_path / f for f in ("main.c", "libmlp.o", "libpicker.o")]
    subprocess.run(
        ["cc", "-std=c99", *WARNINGS, "-o", tmp_path / "main", *files, "-pthread"], check=True
    )
    compare(run_program(tmp_path, tmp_path / "main", x), g, state, x)


@needs_cc
@pytest.mark.long
def test_c_program_under_valgrind(tmp_path, x):
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind")
    target = named(host().triple, "x86-64-v3") if host().arch == "x86_64" else host()
    g, state = mlp()
    names = ["logits", "sums", "best"]
    native.write_native(g, state, tmp_path / "libmlp.so", output_names=names, target=target)
    native.write_native(*picker(), tmp_path / "libpicker.so", target=target)
    (tmp_path / "main.c").write_text(MAIN)
    command = ["cc", "-g", "-Wall", "-Wextra", "-Werror"]
    command += ["-o", tmp_path / "main", tmp_path / "main.c"]
    libraries = [tmp_path / "libmlp.so", tmp_path / "libpicker.so"]
    subprocess.run([*command, *libraries, f"-Wl,-rpath,{tmp_path}"], check=True)
    wrapper = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full"]
    numbers = run_program(tmp_path, tmp_path / "main", x, wrapper)
    wanted = np.concatenate([w.reshape(-1).astype(float) for w in expected(g, state, x)])
    np.testing.assert_allclose(numbers, wanted, rtol=1e-5, atol=1e-5)


def test_fresh_process_without_the_compiler(mlp_path, x, tmp_path):
    np.save(tmp_path / "x.npy", x)
    code = f"""
import sys
import numpy as np
from jitgrad.runtime import load
model = load({str(mlp_path)!r})
np.save({str(tmp_path / "y.npy")!r}, model(np.load({str(tmp_path / "x.npy")!r}))[0])
heavy = {{"llvmlite", "numba", "networkx"}}
print(sorted(m for m in sys.modules if m.split(".")[0] in heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    g, state = mlp()
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected(g, state, x)[0])


def test_header_is_not_broken_by_names(tmp_path):
    g = Graph(name="names")
    v = g.add_input(tensor(dtypes.float32, 2), "arg", 'x */ int evil; /* "\n?')
    g.outputs = [g.add(OPS["neg"], v)]
    native.write_native(g, {}, tmp_path / "libnames.so", output_names=["*/"])
    model = load(tmp_path / "libnames.so")
    assert model.inputs[0].name == 'x */ int evil; /* "\n?'
    np.testing.assert_array_equal(model(np.ones(2, np.float32)), [-1, -1])
    if shutil.which("cc"):
        (tmp_path / "main.c").write_text('#include "libnames.h"\nint main(void) { return 0; }\n')
        command = ["cc", *WARNINGS, "-fsyntax-only", "main.c"]
        subprocess.run(command, check=True, cwd=tmp_path)


def test_paths_are_paths(mlp_path, monkeypatch, x):
    monkeypatch.chdir(mlp_path.parent)
    assert load("libmlp.so").path == str(mlp_path)
    assert load(Path("libmlp.so"))(x)[0].shape == (4, 3)
