"""Libraries whose sizes may differ from call to call: one program, memory for the largest."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import threading

import numpy as np
import pytest
from test_export_programs import IN_VALGRIND, TARGET, run
from test_native_targets import HARNESS, build, close, needs_node, needs_x86, needs_zig, node
from test_python_loader import bare

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.compiler import link, native
from jitgrad.compiler.codegen.target import host
from jitgrad.pytree import leaves_of
from jitgrad.runtime import load
from jitgrad.runtime.errors import CompileError
from jitgrad.serve.models import load_model

pytestmark = pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

batch, seq = jg.Dim("batch", max=9), jg.Dim("seq", max=12)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return {"hidden": self.layer(self.embed(x)), "last": x[:, -1], "best": x.argmax(1)}


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(3, 5), nn.Softmax(1),
    ).eval()  # fmt: skip


def mlp():
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))


def windows(x):
    """Shapes that are formulas of the sizes."""
    n = x.shape[0]
    halves = x[: n // 2 * 2].reshape(n // 2, 2, x.shape[1])
    return halves.sum(1), jg.cat([x, x * 2], 1), x[1:] - x[:-1]


def resized(**options):
    return lambda x: F.interpolate(x, **options)


CASES = {
    "mlp": (mlp, (4, 6), {0: batch}),
    "convolutions": (convolutions, (3, 2, 8, 8), {0: batch}),
    "fully convolutional": (
        lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 2, 5, 6),
        {0: batch, 2: jg.Dim("h", max=8), 3: jg.Dim("w", max=8)},
    ),
    "encoder": (lambda: Encoder().eval(), (3, 7), {0: batch, 1: seq}),
    "formulas": (lambda: windows, (6, 4), {0: jg.Dim("n", min=4, max=11), 1: seq}),
    "numbers": (
        lambda: lambda x: (x.sum(0) * (1 / x.shape[0]), x * (x.shape[0] - 0.5) ** 0.5,
                           x / x.shape[1], jg.linspace(-1, 2, x.shape[0])[:, None] + x),
        (5, 7), {0: batch, 1: seq},
    ),
    "linear": (lambda: resized(scale_factor=2, mode="bilinear"), (2, 3, 5, 4), {0: batch, 2: seq}),
    "cubic": (lambda: resized(size=(8, 5), mode="bicubic"), (2, 3, 5, 4), {2: seq, 3: batch}),
    "corners": (lambda: resized(size=(1, 9), mode="bilinear", align_corners=True), (2, 3, 5, 4),
                {2: seq, 3: batch}),
    "nearest": (lambda: resized(size=(7, 3)), (2, 3, 5, 4), {2: seq, 3: batch}),
    "nearest-exact": (lambda: resized(scale_factor=3, mode="nearest-exact"), (2, 3, 5),
                      {0: batch, 2: seq}),
    "reductions": (lambda: lambda x: (x.mean(), x.sum(0), x.cumsum(1), x.sort(0)[0]), (5, 7),
                   {0: batch, 1: seq}),
}  # fmt: skip


def exported(name):
    jg.manual_seed(0)
    make, shape, dims = CASES[name]
    f = make()
    x = jg.randint(0, 20, shape) if name == "encoder" else jg.rand(*shape)
    return f, jg.export(f, x, dynamic_shapes=[dims]), dims


def inputs(name):
    """Of the smallest, the largest and some other sizes."""
    _, shape, dims = CASES[name]
    rng = np.random.default_rng(1)
    for at in (0.0, 1.0, 0.4, 0.7):
        sizes = list(shape)
        for axis, d in dims.items():
            least = max(1, d.min)
            sizes[axis] = least + round(at * (d.max - least))
        integers = rng.integers(0, 20, sizes)
        yield integers if name == "encoder" else rng.standard_normal(sizes).astype(np.float32)


def results_of(f, x):
    made = f(jg.from_numpy(x))
    made = tuple(made.values()) if isinstance(made, dict) else made
    return [y.detach().numpy() for y in (made if isinstance(made, tuple) else (made,))]


@pytest.mark.parametrize("name", CASES)
def test_every_size_gives_what_eager_gives(name, tmp_path):
    f, graph, _ = exported(name)
    graph.native(tmp_path / "libnet.so")
    model = load(tmp_path / "libnet.so", threads=2)
    for x in inputs(name):
        got = model(x)
        got = got if isinstance(got, tuple) else (got,)
        again = leaves_of(graph(jg.from_numpy(x)))
        for y, z, want in zip(got, again, results_of(f, x), strict=True):
            assert y.shape == tuple(z.shape) == want.shape and y.dtype == want.dtype
            np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-6)
            np.testing.assert_allclose(z.numpy(), want, rtol=2e-5, atol=2e-6)


def test_the_bits_are_those_of_a_library_of_that_size(tmp_path):
    f, graph, _ = exported("convolutions")
    graph.native(tmp_path / "libany.so")
    model = load(tmp_path / "libany.so")
    for n in (1, 7):
        x = jg.rand(n, 2, 8, 8)
        jg.export(f, x).native(tmp_path / f"lib{n}.so")
        assert (load(tmp_path / f"lib{n}.so")(x.numpy()) == model(x.numpy())).all()


def test_description_and_mistakes(tmp_path):
    _, graph, _ = exported("encoder")
    graph.native(tmp_path / "libnet.so")
    model = load(tmp_path / "libnet.so")
    assert model.sizes == {"batch": (0, 9), "seq": (1, 12)}
    assert str(model.inputs[0]) == "x: int64[batch, seq]"
    assert [str(p) for p in model.outputs] == [
        "hidden: float32[batch, seq, 8]", "last: int64[batch]", "best: int64[batch]",
    ]  # fmt: skip
    x = np.zeros((2, 3), np.int64)
    want = model(x)
    with pytest.raises(ValueError, match="expected batch to be 0 to 9; got 10"):
        model(np.zeros((10, 3), np.int64))
    with pytest.raises(ValueError, match="expected seq to be 1 to 12; got 0"):
        model(np.zeros((2, 0), np.int64))
    assert [y.shape for y in model(np.zeros((0, 3), np.int64))] == [(0, 3, 8), (0,), (0,)]
    with pytest.raises(ValueError, match=r"int64\[batch, seq\]\); got int64\[2\]"):
        model(x[:, 0])
    with pytest.raises(TypeError, match="got dtype float64"):
        model(np.zeros((2, 3)))
    out = [np.empty_like(y) for y in want]
    assert model(x, out=out)[0] is out[0] and (out[0] == want[0]).all()
    with pytest.raises(ValueError, match="expected out 0 .*got float32"):
        model(np.zeros((3, 3), np.int64), out=out)
    assert (model(x)[0] == want[0]).all()


def test_a_least_size_that_was_declared(tmp_path):
    dims = {0: jg.Dim("n", min=2, max=8), 1: jg.Dim("m", min=3, max=3)}
    graph = jg.export(lambda x: x * 2, jg.rand(4, 3), dynamic_shapes=[dims])
    graph.native(tmp_path / "libnet.so")
    assert load(tmp_path / "libnet.so").sizes == {"n": (2, 8), "m": (3, 3)}
    with pytest.raises(ValueError, match="expected sizes with 2 <= n"):
        graph(jg.rand(1, 3))


@pytest.mark.parametrize(
    ("f", "shape", "sizes"),
    [  # the least and the most that hold, for f and for the conditions of its recording
        (lambda x: x * 2, (3, 2), (0, 8)),
        (lambda x: x.sum(0), (3, 2), (1, 8)),
        (lambda x: x.std(0), (3, 2), (1, 8)),
        (lambda x: (x * 2, x.sum()), (3, 2), (1, 8)),
        (lambda x: x[1:] - x[:-1], (3, 2), (1, 8)),
        (lambda x: x[4:] * 2, (7, 2), (5, 8)),
        (lambda x: F.max_pool1d(x.T[None], 3), (7, 2), (3, 8)),
    ],
)
def test_all_sizes_that_are_promised_hold(tmp_path, f, shape, sizes):
    """And no example outside its Dim is taken."""
    n = jg.Dim("n", max=8)
    graph = jg.export(f, jg.rand(shape), dynamic_shapes=[{0: n}])
    graph.native(tmp_path / "libnet.so")
    model = load(tmp_path / "libnet.so")
    assert model.sizes == {"n": sizes}
    for size in range(sizes[0], sizes[1] + 1):
        x = jg.rand(size, *shape[1:])
        want, found = f(x), model(x.numpy())
        pairs = zip(want, found, strict=True) if isinstance(want, tuple) else [(want, found)]
        for a, b in pairs:
            close(b, a.numpy())
    with pytest.raises(ValueError, match=r"n to be \d to 8; got 9; export the model"):
        model(np.zeros((9, *shape[1:]), np.float32))
    with pytest.raises(ValueError, match="size of Dim 'n' to be 0 to 2; got"):
        jg.export(f, jg.rand(shape), dynamic_shapes=[{0: jg.Dim("n", max=2)}])
    with pytest.raises(ValueError, match="size of Dim 'n' to be 8 or more; got"):
        jg.export(f, jg.rand(shape), dynamic_shapes=[{0: jg.Dim("n", min=8)}])


def test_what_is_exported_has_no_variance_of_nothing(tmp_path):
    graph = jg.export(lambda x: x.var(0), jg.rand(3, 2), dynamic_shapes=[{0: jg.Dim("n")}])
    for n in (0, 1):
        assert graph(jg.ones(n, 2)).isnan().all()
    assert (graph(jg.ones(2, 2)) == 0).all()


def test_sizes_of_two_names_that_must_be_equal(tmp_path):
    """The compiler writes one for the other; callers give both."""
    graph = jg.export(
        lambda x, y: (x + y, x[1:] * 2), jg.rand(3, 2), jg.rand(3, 2),
        dynamic_shapes=({0: jg.Dim("n", max=8)}, {0: jg.Dim("m", max=9)}),
    )  # fmt: skip
    graph.native(tmp_path / "libnet.so")
    graph.save(tmp_path / "m.jgx")
    library, again = load(tmp_path / "libnet.so"), jg.load_exported(tmp_path / "m.jgx")
    assert [str(p) for p in library.inputs] == ["x: float32[n, 2]", "y: float32[m, 2]"]
    assert [low for low, _ in library.sizes.values()] == [1, 1]
    x, y = jg.rand(5, 2), jg.rand(5, 2)
    for made in (graph(x, y), again(x, y), library(x.numpy(), y.numpy())):
        close(np.asarray(made[0]), (x + y).numpy())
        assert made[1].shape == (4, 2)
    for model, other in ((library, np.ones((4, 2), np.float32)), (again, jg.ones(4, 2))):
        with pytest.raises(ValueError, match=r"expected sizes with n == m"):
            model(x if model is again else x.numpy(), other)


def test_sizes_of_one_name_are_equal(tmp_path):
    graph = jg.export(
        lambda x, y: x @ y, jg.rand(2, 3), jg.rand(3, 4),
        dynamic_shapes=({1: jg.Dim("k", max=8)}, {0: jg.Dim("k", max=8)}),
    )  # fmt: skip
    graph.native(tmp_path / "libnet.so")
    model = load(tmp_path / "libnet.so")
    x, y = np.ones((2, 5), np.float32), np.ones((5, 4), np.float32)
    assert (model(x, y) == 5).all()
    with pytest.raises(ValueError, match=r"float32\[k, 4\]\), where k = 5; got float32\[4, 4\]"):
        model(x, y[1:])


def test_conditions_of_the_recording_are_checked(tmp_path):
    def f(x):
        return x * 2 if x.shape[0] <= x.shape[1] else x * 3

    dims = {0: jg.Dim("n", max=8), 1: jg.Dim("m", max=8)}
    jg.export(f, jg.rand(2, 4), dynamic_shapes=[dims]).native(tmp_path / "libnet.so")
    model = load(tmp_path / "libnet.so")
    assert (model(np.ones((3, 3), np.float32)) == 2).all()
    with pytest.raises(ValueError, match="expected sizes with n <= m; .*got n = 4, m = 3"):
        model(np.ones((4, 3), np.float32))
    assert (model(np.ones((1, 8), np.float32)) == 2).all()


def test_bad_values_and_threads(tmp_path):
    table = jg.arange(10.0)
    graph = jg.export(lambda i: table[i], jg.tensor([1, 2]), dynamic_shapes=[{0: batch}])
    graph.native(tmp_path / "libnet.so")
    model = load(tmp_path / "libnet.so")
    with pytest.raises(RuntimeError, match="index"):
        model(np.array([1, 10, 3]))
    wrong = []

    def work(n):
        for k in range(60):
            i = np.arange((n + k) % 9 + 1)
            if not np.array_equal(model(i), i.astype(np.float32)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_a_largest_size_is_needed(tmp_path):
    graph = jg.export(mlp(), jg.rand(4, 6), dynamic_shapes=[{0: "batch"}])
    with pytest.raises(CompileError, match=r"largest size.*'batch' has none.*Dim\(\"batch\", max"):
        graph.native(tmp_path / "libnet.so")
    assert not list(tmp_path.iterdir())


def test_memory_is_for_the_largest_sizes(tmp_path):
    def bytes_of(largest):
        graph = jg.export(
            lambda x: (x @ x.T).softmax(1) @ x, jg.rand(4, 8),
            dynamic_shapes=[{0: jg.Dim("n", max=largest)}],
        )  # fmt: skip
        _, model = native.build_object(graph.graph, {}, "m", (), host(), "test")
        return model.image.arena_bytes

    assert bytes_of(8) < 8 * 128 * 16 <= bytes_of(128) // 2


def test_after_saving(tmp_path):
    f, graph, _ = exported("encoder")
    graph.save(tmp_path / "m.jgx")
    jg.load_exported(tmp_path / "m.jgx").native(tmp_path / "libnet.so")
    x = np.ones((9, 1), np.int64)
    close(load(tmp_path / "libnet.so")(x)[0], f(jg.from_numpy(x))["hidden"].detach().numpy())


@needs_x86
def test_portable(tmp_path):
    f, graph, _ = exported("mlp")
    graph.native(tmp_path / "libnet.so", target="portable")
    for x in inputs("mlp"):
        close(load(tmp_path / "libnet.so")(x), results_of(f, x)[0])


def test_requests_that_share_a_call(tmp_path):
    _, graph, _ = exported("mlp")
    graph.native(tmp_path / "libnet.so")
    served = load_model(tmp_path / "libnet.so")
    assert served.rows == 9 and served.inputs[0].shape == (-1, 6)
    _, graph, _ = exported("formulas")
    graph.native(tmp_path / "libf.so")
    assert load_model(tmp_path / "libf.so").rows == 0


def test_the_python_module_beside_it(tmp_path):
    f, graph, _ = exported("encoder")
    graph.native(tmp_path / "libnet.so")
    for k, x in enumerate(inputs("encoder")):
        np.savez(tmp_path / f"{k}.npz", x, *results_of(f, x))
    said = bare(tmp_path, """
        model = libnet.load()
        for k in range(4):
            x, *want = np.load(f"{k}.npz").values()
            for y, w in zip(model(x), want):
                assert y.shape == w.shape and np.allclose(y, w, atol=2e-6)
        for bad in (np.zeros((10, 3), int), np.zeros(3, int)):
            try:
                model(bad)
            except ValueError as error:
                print(error)
        assert libnet.SIZES == {"batch": (0, 9), "seq": (1, 12)}
    """).splitlines()  # fmt: skip
    assert said == [
        "[net] expected batch to be 0 to 9; it is not; got {'batch': 10, 'seq': 3}",
        "[net] expected x to have shape ['batch', 'seq']; got [3]",
    ]


PROGRAM = r"""
#include <stdio.h>
#include "libnet.h"
static void tell(jg_net *model, int status) {
    printf("%d %s\n", status, jg_net_last_error(model));
}
int main(void) {
    static int64_t x[JG_NET_INPUT0_SIZE];
    static float hidden[JG_NET_OUTPUT0_SIZE];
    static int64_t last[JG_NET_OUTPUT1_SIZE], best[JG_NET_OUTPUT2_SIZE];
    for (int i = 0; i < JG_NET_INPUT0_SIZE; i++) x[i] = (i * 7) % 20;
    jg_net *model = jg_net_create(2);
    if (!model) { puts(jg_net_status()); return 1; }
    printf("%d %s %d %d\n", jg_net_n_sizes(), jg_net_size_name(1), (int)jg_net_size_min(1),
           (int)jg_net_size_max(0));
    printf("%d %d %d\n", jg_net_size_name(2) == NULL, (int)jg_net_size_max(-1),
           (int)jg_net_input_dims(0)[1]);
    tell(model, jg_net_call(model, x, hidden, last, best));
    printf("%d\n", jg_net_output_shape(model, 0) == NULL);
    tell(model, jg_net_resize(model, 10, 2));
    const int64_t shape[2] = {3, 5}, *shapes[1] = {shape};
    tell(model, jg_net_set_shapes(model, shapes));
    printf("%d\n", jg_net_set_shapes(model, NULL));
    printf("%d\n", jg_net_set_sizes(NULL, shape));
    const int64_t *y = jg_net_output_shape(model, 0);
    printf("%d %d %d %d\n", (int)y[0], (int)y[1], (int)y[2], (int)*jg_net_output_shape(model, 1));
    printf("%d\n", jg_net_output_shape(model, 3) == NULL);
    if (jg_net_call(model, x, hidden, last, best)) { puts(jg_net_last_error(model)); return 2; }
    for (int i = 0; i < 3 * 5 * 8; i++) printf("%.9g ", hidden[i]);
    puts("");
    jg_net_destroy(model);
    return 0;
}
"""


@needs_cc
@pytest.mark.parametrize("valgrind", [False, True], ids=["alone", "valgrind"])
@pytest.mark.parametrize("language", ["c", "c++"])
def test_from_c(language, valgrind, tmp_path):
    f, graph, _ = exported("encoder")
    graph.native(tmp_path / "libnet.a", target=TARGET)
    (tmp_path / "main.c").write_text(PROGRAM)
    command = ["cc", "-x", language, "-Wall", "-Wextra", "-Werror", "-pedantic", "main.c", "-x",
               "none", "libnet.a", "-pthread", "-o", "main"]  # fmt: skip
    if language == "c++" and shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    subprocess.run(command, cwd=tmp_path, check=True)
    said = run(["./main"], tmp_path, valgrind).splitlines()
    assert said[:2] == ["2 seq 1 9", "1 -1 -1"]
    assert (
        said[2] == "2 expected the sizes (batch, seq) to be set before the first run; they are not"
    )
    assert said[3:5] == ["1", "2 expected batch to be 0 to 9; it is not"]
    assert said[5:10] == ["0 ", "2", "2", "3 5 8 3", "1"]
    x = (np.arange(15) * 7 % 20).reshape(3, 5)
    close(np.array(said[10].split(), float).reshape(3, 5, 8), results_of(f, x)[0])


@needs_zig
@pytest.mark.parametrize(("target", "qemu"), [
    ("aarch64-linux-gnu", "qemu-aarch64"), ("riscv64-linux-gnu", "qemu-riscv64"),
])  # fmt: skip
def test_other_processors(target, qemu, tmp_path):
    if shutil.which(qemu) is None:
        pytest.skip(f"no {qemu}")
    f, graph, _ = exported("convolutions")
    graph.native(tmp_path / "m.a", target=target)
    x = jg.rand(7, 2, 8, 8)
    want = f(x).detach().numpy()
    sized = HARNESS.replace(
        "int status = model", "int status = model && jg_NAME_resize(model, 7) == JG_OK"
    )
    program = build(tmp_path, "m", target.split("-")[0], x.numpy().nbytes, want.nbytes, sized)
    done = subprocess.run([qemu, program], input=x.numpy().tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr
    close(np.frombuffer(done.stdout, np.float32).reshape(7, 5), want)


@needs_zig
@needs_node
def test_wasm(tmp_path):
    f, graph, _ = exported("convolutions")
    graph.native(tmp_path / "m.wasm")
    x = jg.rand(5, 2, 8, 8)
    said = node(tmp_path, f"""
        const tell = (f) => {{ try {{ f(); }} catch (e) {{ console.log(`${{e}}`); }} }};
        const x = new Float32Array({json.dumps(x.numpy().ravel().tolist())});
        tell(() => model.resize({{}}));
        tell(() => model.resize({{ batch: 10 }}));
        for (const bad of [undefined, null, 5, {{ batch: 2 ** 64 + 3 }}, {{ batch: 1, n: 2 }}]) {{
          tell(() => model.resize(bad));
        }}
        model.resize({{ batch: 0 }});
        console.log(model.run(new Float32Array(0))[0].length);
        for (const batch of [9, 1, 5]) model.resize({{ batch }});
        console.log(JSON.stringify(model.outputShapes), x.length);
        tell(() => model.run(new Float32Array(3)));
        console.log(JSON.stringify(Array.from(model.run(x)[0])));
    """).splitlines()  # fmt: skip
    assert said[0] == "TypeError: [m] expected a whole number as size batch; got undefined"
    assert said[1] == "RangeError: [m] expected batch to be 0 to 9; it is not; got batch = 10"
    for k, got in enumerate(["undefined", "null", "number"]):
        assert said[2 + k] == f"TypeError: [m] expected an object of the sizes batch; got {got}"
    assert "a whole number as size batch; got 18446744073709552000" in said[5]
    assert (
        said[6] == "TypeError: [m] expected an object of the sizes batch; got n" and said[7] == "0"
    )
    assert said[8] == "[[5,5]] 640" and "of 640 elements" in said[9]
    close(np.array(json.loads(said[10])).reshape(5, 5), f(x).detach().numpy())


# -- what code makes of a size holds for every size that is taken ---------------------------------
CHOICES = [
    (lambda x: x.squeeze(0), {1}),
    (lambda x: x.squeeze(), {1}),
    (lambda x: x * 2 if x.shape[0] == 1 else x * 3, {1}),
    (lambda x: x * 2 if x.shape[0] != 1 else x * 3, {1}),
    (lambda x: x * 2 if x.shape[0] > 1 else x * 3, {0, 1}),
    (lambda x: x * 2 if x.shape[0] else x * 3, {0}),
    (lambda x: x * 2 if x.numel() == 0 else x * 3, {0}),
    (lambda x: x * 2 if x.shape[0] - 1 < 0 else x * 3, {0}),
    (lambda x: x * (1 // x.shape[0]), {0, 1}),
    (lambda x: x * (1 % x.shape[0]), {0, 1}),
    (lambda x: x * max(x.shape[0], 1), {0}),
    (lambda x: x[0], {0}),
    (lambda x: x[-1], {0}),
    (lambda x: x.reshape(x.shape[0], -1), {0}),
    (lambda x: F.group_norm(x, 2), {1}),
    (lambda x: F.normalize(x, 3.0, 0), set()),
    (lambda x: jg.einsum("ij,ik->jk", x, x), set()),
    (lambda x: jg.einsum("bij,bjk->bik", x[..., None], x[:, None]), set()),
    (lambda x: x * jg.linspace(0, 1, x.shape[0])[:, None], set()),
    (lambda x: x + jg.ones(1, 2) - x[:, :1].expand(-1, 2), set()),
    (lambda x: jg.cat([x, x.expand_as(x)]).softmax(0).sum(0), set()),
    (lambda x: x[:, None] + jg.ones(1, 1, 2).expand(x.shape[0], -1, -1), set()),
    (lambda x: x + jg.ones(1, 2).repeat(x.shape[0], 1) + jg.zeros(x.shape[0], 2), set()),
    (lambda x: x.view(x.shape[0], 1, 2).reshape(x.shape[0] * 2), set()),
    (lambda x: jg.arange(x.shape[0])[:, None] + x, set()),
    (lambda x: x @ x.T, set()),
]


@pytest.mark.parametrize(("function", "outside"), CHOICES)
def test_what_code_chooses_by_a_size_is_a_condition(tmp_path, function, outside):
    """Sizes that the recording does not speak for are refused; all others give eager's result: by
    Exported, in the file and in the library."""
    n = jg.Dim("n", max=5)
    exported = jg.export(function, jg.rand(4, 2), names=["x"], dynamic_shapes=[{0: n}])
    exported.save(tmp_path / "m.jgx")
    exported.native(tmp_path / "libchoice.so")
    library = load(tmp_path / "libchoice.so")
    again = jg.load_exported(tmp_path / "m.jgx")
    low, high = library.sizes["n"]
    assert high == 5 and not outside & set(range(low, 6))
    for size in range(6):
        x = jg.rand(size, 2)
        in_library = lambda x: jg.from_numpy(library(x.numpy()))  # noqa: E731
        for call in (exported, again, in_library):
            if size >= low if call is in_library else size not in outside:
                jg.testing.assert_close(call(x), function(x), equal_nan=True)
            else:
                with pytest.raises(ValueError, match="expected sizes with|expected n to be"):
                    call(x)


def test_a_least_size_that_is_declared_is_a_condition():
    for least in (1, 2, 3):
        dims = {0: jg.Dim("n", min=least)}
        exported = jg.export(lambda x: x * 2, jg.rand(4), names=["x"], dynamic_shapes=[dims])
        exported(jg.rand(least))
        with pytest.raises(ValueError, match=f"expected sizes with {least} <= n"):
            exported(jg.rand(least - 1))


def test_a_choice_that_a_declared_size_decides_is_no_condition():
    dims = {0: jg.Dim("n", min=2)}
    exported = jg.export(lambda x: x.squeeze(0), jg.rand(4, 2), dynamic_shapes=[dims])
    assert [str(g) for g in exported.graph.env.guards] == ["2 <= n"]


def test_a_size_of_zero_that_is_declared_is_taken_or_refused(tmp_path):
    """Never narrowed in silence; what is refused is what Exported refuses."""
    p = {0: jg.Dim("p", min=0, max=8)}
    exported = jg.export(lambda x: x.amax(0), jg.rand(3, 2), names=["x"], dynamic_shapes=[p])
    with pytest.raises(CompileError, match=r"to take p = 0.* is 1: \[amax\].*\(at "):
        exported.native(tmp_path / "libgreatest.so")
    exported = jg.export(lambda x: x[0], jg.rand(3, 2), names=["x"], dynamic_shapes=[p])
    with pytest.raises(CompileError, match=r"to take p = 0.*holds where 0 < p \(select, at "):
        exported.native(tmp_path / "libfirst.so")
    exported = jg.export(lambda x: x * 2, jg.rand(3, 2), names=["x"], dynamic_shapes=[p])
    exported.native(tmp_path / "libtwice.so")
    assert load(tmp_path / "libtwice.so").sizes == {"p": (0, 8)}
    undeclared = {0: jg.Dim("p", max=8)}
    exported = jg.export(lambda k, q: jg.cat([k, q]), jg.rand(3, 2), jg.rand(1, 2),
                         dynamic_shapes={"k": undeclared})  # fmt: skip
    exported.native(tmp_path / "libcache.so")
    with pytest.raises(ValueError, match=r"p to be 1 to 8; got 0; .*Dim\('p', min=0, max=8\)"):
        load(tmp_path / "libcache.so")(np.ones((0, 2), np.float32), np.ones((1, 2), np.float32))


def later(k, v, q):
    """A step of attention that starts from an empty cache."""
    k, v = jg.cat([k, q * 2], 1), jg.cat([v, q + 1], 1)
    return F.scaled_dot_product_attention(q, k, v), k, v


def of_none(x, w):
    """What reads, sums and multiplies along a dim that may have no elements."""
    return {
        "sum": x.sum(0), "mean": x.mean(0), "all": x.sum(), "var": x.var(0), "product": w @ x.T @ x,
        "rows": x @ w.T, "total": x.cumsum(0).sum(0), "padded": F.pad(x, (1, 1, 2, 3)),
        "joined": jg.cat([x[:, 1:], w[:, :-1], x[:, 1:]]), "turned": jg.cat([x.flip(0), w]),
        "sorted": jg.cat([w, x.sort(0)[0]]), "best": (w[:, None] - x).square().sum((1, 2)),
        "softmax": (w @ x.T).softmax(1) @ x, "written": w.T.clone().index_add(1, jg.arange(
            x.shape[0]) % 3, x.T), "conv": F.conv1d(F.pad(x.T[None], (3, 3)), w[None]),
    }  # fmt: skip


n0 = jg.Dim("n", min=0, max=7)
FROM_NONE = {  # function, examples' shapes, dims
    "cache": (later, [(2, 3, 4), (2, 3, 4), (2, 1, 4)], [{1: n0}, {1: n0}, None]),
    "of none": (of_none, [(5, 6), (6, 6)], [{0: n0}, None]),
    "columns": (
        lambda x, y: (jg.cat([x, y, x], 1), (x @ x.T) + y.sum(), F.pad(x, (2, 1))),
        [(3, 5), (3, 2)], [{1: n0}, None],
    ),
    "two": (
        lambda x, y: (jg.cat([x, y]), x.sum(0) + y.sum(0), (x @ y.T).sum()),
        [(3, 4), (4, 4)], [{0: n0}, {0: jg.Dim("m", min=0, max=4)}],
    ),
    "differences": (
        lambda x, y: (jg.cat([x[:-1], y]), x.diff(dim=0).sum(0)), [(4, 3), (2, 3)],
        [{0: jg.Dim("n", min=1, max=7)}, None],
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=FROM_NONE)
def from_none(request, tmp_path_factory):
    """A function, a library of it, and inputs of every size, one of them at least."""
    f, shapes, dims = FROM_NONE[request.param]
    folder = tmp_path_factory.mktemp("none")
    exported = jg.export(
        f, *[jg.rand(*s) for s in shapes], names=["x", "y", "z"][: len(shapes)], dynamic_shapes=dims
    )
    exported.native(folder / "libnet.so")
    ranges = {d.__name__: d for spec in dims for d in (spec or {}).values()}
    inputs = []
    for sizes in itertools.product(*(range(d.min, d.max + 1) for d in ranges.values())):
        known = dict(zip(ranges, sizes, strict=True))
        given = []
        for shape, spec in zip(shapes, dims, strict=True):
            names = {k: d.__name__ for k, d in (spec or {}).items()}
            given.append(jg.rand(*[known[names[k]] if k in names else s
                                   for k, s in enumerate(shape)]))  # fmt: skip
        inputs.append(given)
    return f, folder, inputs, {name: (d.min, d.max) for name, d in ranges.items()}


def test_sizes_of_zero_where_something_is_computed(from_none):
    f, folder, inputs, ranges = from_none
    library = load(folder / "libnet.so", threads=2)
    assert library.sizes == ranges
    for xs in inputs:
        got = library(*[x.numpy() for x in xs])
        for y, want in zip(got, leaves_of(f(*xs)), strict=True):
            jg.testing.assert_close(jg.from_numpy(y), want, equal_nan=True, rtol=2e-5, atol=1e-5)


def test_sizes_of_zero_in_the_python_module_beside_it(from_none):
    f, folder, inputs, _ = from_none
    for k in (0, len(inputs) - 1):
        results = [y.numpy() for y in leaves_of(f(*inputs[k]))]
        np.savez(folder / f"{k}.npz", len(inputs[k]), *[x.numpy() for x in inputs[k]], *results)
    bare(
        folder,
        f"""
        model = libnet.load()
        for k in (0, {len(inputs) - 1}):
            count, *arrays = np.load(f"{{k}}.npz").values()
            for y, want in zip(model(*arrays[:count]), arrays[count:]):
                assert y.shape == want.shape and np.allclose(y, want, atol=1e-5, equal_nan=True)
    """,
    )


EMPTY_CACHE = r"""
#include <stdio.h>
#include <string.h>
#include "libnet.h"
int main(void) {
    static float k[2 * 8 * 4], v[2 * 8 * 4], k2[2 * 8 * 4], v2[2 * 8 * 4], y[2 * 4], q[2 * 4];
    jg_net *model = jg_net_create(2);
    if (!model) { puts(jg_net_status()); return 1; }
    for (int n = 0; n < 5; n++) {
        for (int i = 0; i < 8; i++) q[i] = (float)((i * 7 + n * 3) % 5) / 5;
        if (jg_net_resize(model, n)) { puts(jg_net_last_error(model)); return 2; }
        int bad = jg_net_call(model, n ? k : NULL, n ? v : NULL, q, y, k2, v2);
        if (bad) { puts(jg_net_last_error(model)); return 3; }
        memcpy(k, k2, sizeof k), memcpy(v, v2, sizeof v);
        for (int i = 0; i < 8; i++) printf("%.9g ", y[i]);
    }
    jg_net_destroy(model);
    return 0;
}
"""


@needs_cc
@pytest.mark.parametrize("valgrind", [False, True], ids=["alone", "valgrind"])
def test_from_c_with_an_empty_cache(valgrind, tmp_path):
    f, shapes, dims = FROM_NONE["cache"]
    exported = jg.export(f, *[jg.rand(*s) for s in shapes], dynamic_shapes=dims)
    exported.native(tmp_path / "libnet.a", target=IN_VALGRIND if valgrind else TARGET)
    (tmp_path / "main.c").write_text(EMPTY_CACHE)
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-pedantic", "main.c", "libnet.a", "-pthread",
               "-o", "main"]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True)
    said = np.array(run(["./main"], tmp_path, valgrind).split(), np.float32)
    k = v = jg.zeros(2, 0, 4)
    want = []
    for n in range(5):
        q = jg.tensor([(i * 7 + n * 3) % 5 / 5 for i in range(8)]).reshape(2, 1, 4)
        y, k, v = f(k, v, q)
        want.append(y.numpy().ravel())
    close(said, np.concatenate(want))


@needs_zig
@needs_node
def test_wasm_with_an_empty_cache(tmp_path):
    f, shapes, dims = FROM_NONE["cache"]
    exported = jg.export(f, *[jg.rand(*s) for s in shapes], dynamic_shapes=dims)
    exported.native(tmp_path / "m.wasm")
    q = jg.rand(2, 1, 4)
    said = node(tmp_path, f"""
        const q = new Float32Array({json.dumps(q.numpy().ravel().tolist())});
        const none = new Float32Array(0);
        try {{ model.run(none, none, q); }} catch (error) {{ console.log(error.message); }}
        model.resize({{ n: 0 }});
        const first = model.run(none, none, q).map((x) => x.slice());
        console.log(JSON.stringify(Array.from(first[0])));
    """).splitlines()  # fmt: skip
    assert said[0] == "[m] expected the sizes n to be set; call resize before run"
    want = f(jg.zeros(2, 0, 4), jg.zeros(2, 0, 4), q)[0]
    close(np.array(json.loads(said[1])), want.numpy().ravel())


def of_windows(x):
    """Attention-like sums within windows of 4 by 4, of an image padded to whole ones."""
    b, h, w, c = x.shape
    x = F.pad(x, (0, 0, 0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
    rows, columns = x.shape[1] // 4, x.shape[2] // 4
    x = x.view(b, rows, 4, columns, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
    return (x @ x.transpose(1, 2)).softmax(-1) @ x


n6, h7, w7 = jg.Dim("n", max=6), jg.Dim("h", max=7), jg.Dim("w", max=7)
DERIVED = {  # function, example's shape, dims, the least size that a library takes
    "all but the last": (lambda x: x[:-1] * 2, (4, 2), {0: n6}, 1),
    "all but the first": (lambda x: x[1:] + x[:-1].sum(0), (4, 2), {0: n6}, 1),
    "roll": (lambda x: x.roll(1, 0) + x, (4, 2), {0: n6}, 1),
    "diff": (lambda x: x.diff(dim=0), (4, 2), {0: n6}, 1),
    "unfold": (lambda x: x.unfold(0, 2, 1).sum(-1), (4, 2), {0: n6}, 2),
    "pool": (lambda x: F.max_pool2d(x, 2), (2, 2, 6, 6), {2: h7, 3: w7}, 2),
    "conv": (lambda x: F.conv1d(x, jg.ones(3, 2, 3)), (2, 2, 6), {2: h7}, 3),
    "product": (lambda x: x[1:] @ x.T, (4, 2), {0: n6}, 1),
    "softmax": (lambda x: x[1:].softmax(0).sum(0) + jg.ones(1, 2), (4, 2), {0: n6}, 1),
    "join": (lambda x: jg.cat([x[2:], x[:1]]), (5, 2), {0: n6}, 3),
    "greatest": (lambda x: x[2:].amax(0), (5, 2), {0: n6}, 3),
    "variance": (lambda x: x[1:].var(0), (5, 2), {0: n6}, 1),
    "pairs": (lambda x: x[1:, None] * x[None, 1:], (4, 2), {0: n6}, 1),
    "half": (lambda x: x[: x.shape[0] // 2].sum(0), (4, 2), {0: n6}, 1),
    "windows": (of_windows, (1, 8, 8, 2), {1: jg.Dim("h", max=9), 2: jg.Dim("w", max=9)}, 1),
}


@pytest.mark.parametrize("name", DERIVED)
def test_sizes_that_follow_from_others_may_be_1(name, tmp_path):
    f, shape, dims, least = DERIVED[name]
    exported = jg.export(f, jg.rand(*shape), names=["x"], dynamic_shapes=[dims])
    exported.native(tmp_path / "libnet.so")
    library = load(tmp_path / "libnet.so")
    assert library.sizes == {d.__name__: (least, d.max) for d in dims.values()}
    for size in range(least, max(d.max for d in dims.values()) + 1):
        x = jg.rand(*[size if k in dims else s for k, s in enumerate(shape)])
        want = f(x)
        for y in (exported(x), jg.from_numpy(library(x.numpy()))):
            assert y.shape == want.shape
            jg.testing.assert_close(y, want, equal_nan=True)


def test_a_choice_by_a_size_that_follows_is_a_condition():
    exported = jg.export(lambda x: x[1:].squeeze(0), jg.rand(4, 2), names=["x"],
                         dynamic_shapes=[{0: "n"}])  # fmt: skip
    assert exported(jg.rand(3, 2)).shape == (2, 2)
    with pytest.raises(ValueError, match=r"expected sizes with \(n - 1\) != 1; got n = 2"):
        exported(jg.rand(2, 2))
