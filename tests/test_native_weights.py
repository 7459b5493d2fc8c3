"""Libraries whose weights lie in a file beside them, mapped by loader, library or caller."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest
from test_export_programs import TARGET, run
from test_native_targets import HARNESS, build, close, needs_node, needs_x86, needs_zig
from test_python_loader import bare

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler import link, native
from jitgrad.compiler.graph_tensor import OPS
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import artifact_format, buffers, dtypes, load
from jitgrad.runtime.errors import ArtifactError, CompileError

pytestmark = pytest.mark.skipif(link.find_linker() is None, reason="no linker on this machine")
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def network():
    jg.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).eval()


class Only(nn.Module):
    """The first of a module's results."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


@pytest.fixture(scope="module")
def x():
    return jg.rand(3, 6)


@pytest.fixture(scope="module")
def want(x):
    return network()(x).detach().numpy()


def write(folder, x, file="libnet.so", **options):
    return jg.export(network(), x).native(folder / file, weights=folder / "m.weights", **options)


# -- from Python ---------------------------------------------------------------------------------
def test_results(tmp_path, x, want):
    files = write(tmp_path, x)
    assert files.weights == tmp_path / "m.weights"
    model = load(tmp_path / "libnet.so", threads=2)
    close(model(x.numpy()), want)
    content = (tmp_path / "m.weights").read_bytes()
    for p in network().parameters():
        if p.ndim == 1:  # matrices may be packed
            assert p.detach().numpy().tobytes() in content
        assert p.detach().numpy().tobytes() not in (tmp_path / "libnet.so").read_bytes()


def test_the_file_is_found_beside_the_library_or_where_it_is_said(tmp_path, x, want, monkeypatch):
    write(tmp_path, x)
    (tmp_path / "other").mkdir()
    (tmp_path / "m.weights").rename(tmp_path / "other" / "w.bin")
    with pytest.raises(FileNotFoundError, match="file of weights that can be read"):
        load(tmp_path / "libnet.so")
    model = load(tmp_path / "libnet.so", weights=tmp_path / "other" / "w.bin")
    close(model(x.numpy()), want)
    jg.export(network(), x).native(tmp_path / "libown.so")
    with pytest.raises(ArtifactError, match="holds its own"):
        load(tmp_path / "libown.so", weights=tmp_path / "other" / "w.bin")


def test_damaged_weights(tmp_path, x, want):
    write(tmp_path, x)
    good = (tmp_path / "m.weights").read_bytes()

    def refused(data, match, **options):
        (tmp_path / "m.weights").write_bytes(data)
        with pytest.raises(ArtifactError, match=match):
            load(tmp_path / "libnet.so", **options)

    for options in ({}, {"verify": False}):
        refused(good[:-1], "truncated or extended", **options)
        refused(good + b"\0", "truncated or extended", **options)
        refused(good[:64], "is none", **options)
        refused(b"", "is none", **options)
        refused(b"X" + good[1:], "is none", **options)
        refused(good[:8] + b"\1" + good[9:], "has version 1, not 3", **options)
        refused(good[:30] + bytes([good[30] ^ 1]) + good[31:], "another library", **options)
        refused(good[:120] + b"\1" + good[121:], "another library", **options)
    altered = good[:200] + bytes([good[200] ^ 1]) + good[201:]
    refused(altered, "does not match its checksum")
    load(tmp_path / "libnet.so", verify=False)
    (tmp_path / "m.weights").write_bytes(good)
    close(load(tmp_path / "libnet.so")(x.numpy()), want)


def test_the_checksum_is_another_after_any_change_that_happens(monkeypatch):
    piece, page = artifact_format.PIECE, 2**12
    good = np.random.default_rng(0).bytes(3 * piece + 5)
    checksum = artifact_format.checksum(good)
    signs = (-np.frombuffer(good, np.float32, 3 * piece // 4)).tobytes()
    changed = [good[:-1], good + b"\0", good[page:], signs + good[-5:]]
    for at in (0, piece - 1, piece, 3 * piece, len(good) - 1):
        changed += [good[:at] + bytes([good[at] ^ 2**bit]) + good[at + 1 :] for bit in (0, 7)]
    for start in (0, piece):  # pages change places, are zeros, are there twice
        one, two = good[start : start + page], good[start + page : start + 2 * page]
        rest = good[start + 2 * page :]
        changed += [good[:start] + x + rest for x in (two + one, bytes(page) + two, one + one)]
    assert checksum not in {artifact_format.checksum(c) for c in changed}
    monkeypatch.setattr(artifact_format, "WORKERS", 1)  # does not depend on threads
    assert artifact_format.checksum(bytearray(good)) == checksum


def test_state_of_a_training_step(tmp_path):
    total = jg.zeros(3)
    exported = jg.export(lambda x: total.add_(x) * 1, jg.rand(3))
    exported.native(tmp_path / "libnet.so", weights=tmp_path / "m.weights")
    model = load(tmp_path / "libnet.so")
    one = np.ones(3, np.float32)
    model(one)
    assert (model(one) == 2).all() and (load(tmp_path / "libnet.so")(one) == 1).all()


def test_a_model_without_weights(tmp_path):
    jg.export(lambda x: x + 1, jg.rand(3)).native(
        tmp_path / "libnet.so", weights=tmp_path / "w.bin"
    )
    assert (load(tmp_path / "libnet.so")(np.ones(3, np.float32)) == 2).all()
    assert (tmp_path / "w.bin").stat().st_size == 128


@needs_x86
def test_portable(tmp_path, x, want):
    write(tmp_path, x, target="portable")
    close(load(tmp_path / "libnet.so")(x.numpy()), want)


def test_limits_and_names(tmp_path, x, monkeypatch):
    monkeypatch.setattr(native, "_WEIGHTS_LIMIT", 100)
    with pytest.raises(CompileError, match=r"a file of their own \(weights=...\)"):
        jg.export(network(), x).native(tmp_path / "libnet.so")
    write(tmp_path, x)
    with pytest.raises(ValueError, match="weights to be the path of a file"):
        jg.export(network(), x).native(tmp_path / "libn.so", weights=tmp_path / "libn.so")
    with pytest.raises(OSError, match=r"folder that can be written; .*none/w.bin"):
        jg.export(network(), x).native(tmp_path / "libn.so", weights=tmp_path / "none" / "w.bin")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "libnet.h", "libnet.py", "libnet.so", "m.weights",
    ]  # fmt: skip


@pytest.mark.long
def test_more_than_two_gigabytes(tmp_path):
    g = Graph(name="large")
    table = g.add_input(TensorType((2**29 + 2**25, 1), dtypes.float32), "state", "table")
    index = g.add_input(TensorType((2,), dtypes.int64), "arg", "index")
    g.outputs = [g.add(OPS["index"], table, index, dims=(0,))]
    state = np.zeros((2**29 + 2**25, 1), np.float32)
    state[-1] = 7
    native.write_native(g, {"table": state}, tmp_path / "libnet.so", weights=tmp_path / "m.weights")
    model = load(tmp_path / "libnet.so", verify=False)
    assert model(np.array([0, len(state) - 1])).ravel().tolist() == [0, 7]


def test_the_python_module_beside_it(tmp_path, x, want):
    write(tmp_path, x)
    np.savez(tmp_path / "d.npz", x.numpy(), want)
    said = bare(tmp_path, """
        x, want = np.load("d.npz").values()
        model = libnet.load(threads=2)
        assert np.allclose(model(x), want, atol=1e-6)
        data = open("m.weights", "rb").read()
        open("short", "wb").write(data[:-1])
        open("other", "wb").write(data[:24] + bytes(32) + data[56:])
        open("altered", "wb").write(data[:-200] + bytes([data[-200] ^ 1]) + data[-199:])
        for bad in ("short", "other", "none", "altered"):
            try:
                libnet.load(weights=bad)
            except (RuntimeError, OSError) as error:
                print(type(error).__name__, error)
    """).splitlines()  # fmt: skip
    assert said[0].startswith("RuntimeError expected") and "truncated" in said[0]
    assert said[1].startswith("RuntimeError expected the weights that this library was made with")
    assert said[2].startswith("FileNotFoundError")
    assert said[3] == "RuntimeError altered was altered; copy or export it again"


# -- of a model that was trained further -----------------------------------------------------------
class Tied(nn.Module):
    """A table that is the last layer's matrix, and a step of control flow."""

    def __init__(self, loop=False):
        super().__init__()
        self.table, self.head = nn.Embedding(500, 64), nn.Linear(64, 500, bias=False)
        self.head.weight, self.loop = self.table.weight, loop

    def forward(self, index):
        x = self.table(index)
        if self.loop:
            x = jg.scan(lambda c, _: (c * 2, c), x, jg.zeros(2))[0]
        return self.head(x)


def trained(model):
    with jg.no_grad():
        for p in model.parameters():
            p.mul_(-1.5).add_(0.1)
    return model


def retrained(model, x, folder, **options):
    """A library of a model, then the file of weights of the model with others; what it gives."""
    jg.export(model, x).native(folder / "libnet.so", weights=folder / "m.weights", **options)
    jg.export(trained(model), x).weights(folder / "new.weights", **options)
    return model(x).detach().numpy()


@pytest.mark.parametrize(
    "target", [None, "x86-64-v2", "portable"] if TARGET.startswith("x86") else [None]
)
def test_weights_are_swapped(tmp_path, target):
    x, model = jg.rand(32, 150), nn.Sequential(nn.Linear(150, 90), nn.ReLU(), nn.Linear(90, 7))
    old = model(x).detach().numpy()
    want = retrained(model, x, tmp_path, target=target)
    assert (tmp_path / "new.weights").stat().st_size == (tmp_path / "m.weights").stat().st_size
    for verify in (True, False):
        library = load(tmp_path / "libnet.so", weights=tmp_path / "new.weights", verify=verify)
        close(library(x.numpy()), want)
    close(load(tmp_path / "libnet.so")(x.numpy()), old)
    good = (tmp_path / "new.weights").read_bytes()
    (tmp_path / "new.weights").write_bytes(good[:-200] + bytes([good[-200] ^ 1]) + good[-199:])
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        load(tmp_path / "libnet.so", weights=tmp_path / "new.weights")


def test_swapped_weights_from_the_python_module(tmp_path, x):
    want = retrained(network(), x, tmp_path)
    np.savez(tmp_path / "d.npz", x.numpy(), want)
    said = bare(tmp_path, """
        x, want = np.load("d.npz").values()
        print(np.allclose(libnet.load(weights="new.weights")(x), want, atol=1e-6))
    """)  # fmt: skip
    assert said.strip() == "True"


@needs_zig
@needs_node
def test_swapped_weights_in_wasm(tmp_path, x):
    model = network()
    jg.export(model, x).native(tmp_path / "m.wasm", weights=tmp_path / "m.weights")
    jg.export(trained(model), x).weights(tmp_path / "new.weights", target="wasm32")
    (tmp_path / "m.js").rename(tmp_path / "m.mjs")
    (tmp_path / "t.mjs").write_text(f"""
        import {{ readFileSync }} from "node:fs";
        import {{ load }} from "./m.mjs";
        const model = await load(readFileSync("m.wasm"), readFileSync("new.weights"));
        const x = new Float32Array({json.dumps(x.numpy().ravel().tolist())});
        console.log(JSON.stringify(Array.from(model.run(x)[0])));
    """)
    command = ["node", "t.mjs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    close(np.array(json.loads(done.stdout)).reshape(3, 4), model(x).detach().numpy())


def test_a_training_step_begins_with_swapped_state(tmp_path):
    total, one = jg.zeros(3), np.ones(3, np.float32)
    retrained_state = tmp_path / "new.weights"
    step = lambda x: total.add_(x) * 1  # noqa: E731
    jg.export(step, jg.rand(3)).native(tmp_path / "libnet.so", weights=tmp_path / "m.weights")
    total.fill_(5)
    jg.export(step, jg.rand(3)).weights(retrained_state)
    assert (load(tmp_path / "libnet.so", weights=retrained_state)(one) == 6).all()


def test_weights_of_another_layout(tmp_path, x):
    """Names, shapes, dtypes and how they are stored; never the values."""
    write(tmp_path, x)

    def other(model, **options):
        jg.export(model, x.to(next(model.parameters()).dtype)).weights(tmp_path / "o", **options)
        for verify in (True, False):
            with pytest.raises(ArtifactError, match="belongs to another library: names, shapes"):
                load(tmp_path / "libnet.so", weights=tmp_path / "o", verify=verify)

    other(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 9)))
    other(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Identity(), nn.Linear(9, 4)))
    other(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4, bias=False)))
    other(network().to(jg.float64))
    with pytest.raises(ValueError, match="weights to be the path of a file"):
        jg.export(network(), x).weights(tmp_path / "libn.so")
    with pytest.raises(OSError, match=r"folder that can be written; .*none/w.bin"):
        jg.export(network(), x).weights(tmp_path / "none" / "w.bin")


@needs_x86
def test_packed_weights_are_for_their_target(tmp_path):
    x, model = jg.rand(32, 150), nn.Linear(150, 90)
    jg.export(model, x).native(tmp_path / "libnet.so", weights=tmp_path / "m.weights")
    jg.export(model, x).weights(tmp_path / "o", target="x86-64-v2")
    with pytest.raises(ArtifactError, match="written for another processor"):
        load(tmp_path / "libnet.so", weights=tmp_path / "o")


# -- from C --------------------------------------------------------------------------------------
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "libnet.h"
static jg_net *from_memory(const char *path, int shift, int64_t less) {
    static char memory[2 * JG_NET_WEIGHTS_SIZE + 64];
    const char *why = NULL;
    char *start = memory + (16 - (int64_t)memory % 16) % 16 + shift;
    FILE *file = fopen(path, "rb");
    if (!file || fread(start, 1, JG_NET_WEIGHTS_SIZE, file) < 128) exit(9);
    fclose(file);
    jg_net *model = jg_net_create_with(1, start, JG_NET_WEIGHTS_SIZE - less, &why);
    puts(why);
    return model;
}
int main(int argc, char **argv) {
    static const float x[] = {NUMBERS};
    static float y[JG_NET_OUTPUT0_SIZE], z[JG_NET_OUTPUT0_SIZE];
    const char *why = "?";
    if (argc < 4) return 8;
    jg_net *model = jg_net_create_from(2, argv[1], &why);
    if (!model) { puts(why); return 1; }
    puts(why);
    jg_net *second = jg_net_create_from(1, argv[1], NULL);
    jg_net *third = from_memory(argv[1], 0, 0);
    if (jg_net_call(model, x, y) || !second || jg_net_call(third, x, z)) return 2;
    for (int i = 0; i < JG_NET_OUTPUT0_SIZE; i++) if (y[i] != z[i]) return 3;
    jg_net_destroy(model);
    if (jg_net_call(second, x, y)) return 4;
    for (int i = 0; i < JG_NET_OUTPUT0_SIZE; i++) printf("%.9g ", y[i]);
    jg_net_destroy(second);
    jg_net_destroy(third);
    puts("");
    for (int i = 2; i < argc; i++) {
        if (jg_net_create_from(1, argv[i], &why)) return 5;
        puts(why);
    }
    if (jg_net_create_from(1, NULL, &why) || jg_net_create_from(1, "none", NULL)) return 6;
    puts(why);
    if (from_memory(argv[1], 8, 0) || from_memory(argv[1], 0, 1)) return 7;
    if (jg_net_create_with(1, NULL, 0, &why)) return 10;
    puts(why);
    return 0;
}
"""


SWAPPED = r"""
#include <stdio.h>
#include "libnet.h"
int main(void) {
    static const float x[] = {NUMBERS};
    static float y[JG_NET_OUTPUT0_SIZE];
    const char *why = "?";
    jg_net *model = jg_net_create_from(1, "new.weights", &why);
    if (!model) { puts(why); return 1; }
    if (jg_net_call(model, x, y)) return 2;
    for (int i = 0; i < JG_NET_OUTPUT0_SIZE; i++) printf("%.9g ", y[i]);
    jg_net_destroy(model);
    return 0;
}
"""


@needs_cc
def test_swapped_weights_from_c(tmp_path, x):
    want = retrained(network(), x, tmp_path)
    numbers = ", ".join(map(repr, x.numpy().ravel().tolist()))
    (tmp_path / "main.c").write_text(SWAPPED.replace("NUMBERS", numbers))
    command = ["cc", "-Wall", "-Wextra", "-Werror", "main.c", "libnet.so", "-Wl,-rpath,$ORIGIN",
               "-o", "main"]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True)
    close(np.array(run(["./main"], tmp_path, False).split(), float).reshape(want.shape), want)


@needs_cc
@pytest.mark.parametrize("valgrind", [False, True], ids=["alone", "valgrind"])
@pytest.mark.parametrize("file", ["libnet.so", "libnet.a"])
def test_from_c(file, valgrind, tmp_path, x, want):
    write(tmp_path, x, file, target=TARGET)
    numbers = ", ".join(map(repr, x.numpy().ravel().tolist()))
    (tmp_path / "main.c").write_text(PROGRAM.replace("NUMBERS", numbers))
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-pedantic", "main.c", file, "-pthread",
               "-Wl,-rpath,$ORIGIN", "-o", "main"]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True)
    data = (tmp_path / "m.weights").read_bytes()
    (tmp_path / "short").write_bytes(data[:-3])
    (tmp_path / "other").write_bytes(data[:24] + bytes(32) + data[56:])
    (tmp_path / "empty").write_bytes(b"")
    command = ["./main", "m.weights", "none", "short", "other", "empty", "."]
    said = run(command, tmp_path, valgrind).splitlines()
    assert said[:2] == ["", ""]
    close(np.array(said[2].split(), float).reshape(want.shape), want)
    for line, text in zip(said[3:], [
        "can be opened", "truncated", "the weights that this library", "is empty", "", "got NULL",
        "aligned to 16 bytes", "another number", "expected the weights; got NULL",
    ], strict=True):  # fmt: skip
        assert text in line


def test_an_object_file_asks_for_no_files(tmp_path, x):
    """A board has no mmap: objects take a pointer only."""
    write(tmp_path, x, "m.o")
    text = (tmp_path / "m.h").read_text()
    assert "create_with(" in text and "create_from" not in text
    assert b"mmap" not in (tmp_path / "m.o").read_bytes()
    write(tmp_path, x, "libnet.a")
    assert "create_from(" in (tmp_path / "libnet.h").read_text()


@needs_zig
@pytest.mark.parametrize(("target", "qemu"), [
    ("aarch64-linux-gnu", "qemu-aarch64"), ("riscv64-linux-gnu", "qemu-riscv64"),
])  # fmt: skip
def test_other_processors(target, qemu, tmp_path, x, want):
    """The weights stand in the program, the model comes from an archive; nothing maps a file."""
    if shutil.which(qemu) is None:
        pytest.skip(f"no {qemu}")
    write(tmp_path, x, "m.a", target=target)
    content = ", ".join(map(str, (tmp_path / "m.weights").read_bytes()))
    given = HARNESS.replace(
        "jg_NAME_create(1)", "jg_NAME_create_with(1, weights, sizeof weights, 0)"
    )
    given = given.replace(
        "static char heap",
        "static const unsigned char weights[] __attribute__((aligned(16))) = {"
        f"{content}}};\nstatic char heap",
    )
    program = build(tmp_path, "m", target.split("-")[0], x.numpy().nbytes, want.nbytes, given)
    done = subprocess.run([qemu, program], input=x.numpy().tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr
    close(np.frombuffer(done.stdout, np.float32).reshape(want.shape), want)


@needs_zig
@needs_node
def test_wasm(tmp_path, x, want):
    write(tmp_path, x, "m.wasm")
    (tmp_path / "m.js").rename(tmp_path / "m.mjs")
    (tmp_path / "t.mjs").write_text(f"""
        import {{ readFileSync }} from "node:fs";
        import {{ load }} from "./m.mjs";
        const weights = readFileSync("m.weights"), code = readFileSync("m.wasm");
        const model = await load(code, weights);
        const x = new Float32Array({json.dumps(x.numpy().ravel().tolist())});
        console.log(JSON.stringify(Array.from(model.run(x)[0])));
        model.destroy();
        const tell = async (w) => {{
            try {{ await load(code, w); }} catch (e) {{ console.log(`${{e}}`); }}
        }};
        await tell(undefined);
        await tell(weights.subarray(0, weights.length - 1));
        weights[300] ^= 1;
        await tell(weights);
        weights[300] ^= 1;
        weights[1] ^= 1;
        await tell(weights);
    """)
    command = ["node", "t.mjs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    close(np.array(json.loads(said[0])).reshape(want.shape), want)
    assert said[1].endswith("expected m.weights: its bytes, or a Response; got undefined")
    assert len(said) == 5 and all("expected the weights" in line for line in said[2:])


@needs_x86
def test_weights_are_stored_as_the_code_reads_them(tmp_path):
    """Packed when the library is made, for this machine; never twice."""
    jg.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 70)).eval()
    x = jg.rand(32, 300)
    want = model(x).detach().numpy()
    sizes = {}
    for label, target in (("here", None), ("level", "x86-64-v2")):
        path = tmp_path / f"lib{label}.so"
        jg.export(model, x).native(path, target=target)
        library = load(path)
        np.testing.assert_allclose(library(x.numpy()), want, rtol=2e-5, atol=1e-5)
        there = [p.detach().numpy().tobytes() in path.read_bytes() for p in model.parameters()]
        assert there == ([False, True] * 2 if label == "here" else [True] * 4)
        sizes[label] = library.info["weights_bytes"]
    assert sizes["here"] < 1.2 * sizes["level"]


@needs_x86
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(300, 10), (64, 300)),
        (nn.Linear(37, 517), (9, 37)),
        (nn.Linear(300, 211), (1, 300)),
        (nn.Conv2d(19, 45, 3, padding=1), (1, 19, 14, 14)),
        (nn.Conv2d(24, 37, 1), (2, 24, 9, 7)),
        (nn.LSTM(21, 27), (5, 3, 21)),
    ],
)
@pytest.mark.parametrize("dtype", [jg.float32, jg.bfloat16, jg.float64])
def test_what_memory_held_is_not_stored(tmp_path, monkeypatch, module, shape, dtype):
    """Where panels are wider than a weight, or begin at multiples of some bytes."""
    model, x = module.eval().to(dtype), jg.rand(*shape).to(dtype)
    model = model if not isinstance(model, nn.LSTM) else Only(model)
    stored, empty = [], buffers.empty

    for held in (0, 1, 255):

        def used_before(nbytes, held=held):
            memory = empty(nbytes)
            memory.fill(held)
            return memory

        monkeypatch.setattr(buffers, "empty", used_before)
        jg.export(model, x).native(tmp_path / "libnet.so")
        stored.append((tmp_path / "libnet.so").read_bytes())
    assert stored[0] == stored[1] == stored[2]


@pytest.mark.parametrize("loop", [False, True])
def test_shared_weights_are_stored_once(tmp_path, loop):
    """What something reads as it is is not packed beside that."""
    model, index = Tied(loop).eval(), jg.arange(32)
    want = retrained(model, index, tmp_path)
    library = load(tmp_path / "libnet.so", weights=tmp_path / "new.weights")
    np.testing.assert_allclose(library(index.numpy()), want, rtol=1e-5, atol=1e-5)
    assert library.info["weights_bytes"] < 1.1 * model.table.weight.numel() * 4


def test_control_flow_does_not_keep_weights_twice(tmp_path):
    head = nn.Linear(300, 200).eval()
    x = jg.rand(32, 300)
    loop = lambda x: jg.scan(lambda c, _: (c * 2, c), head(x), jg.zeros(2))[0]  # noqa: E731
    jg.export(loop, x).native(tmp_path / "libnet.so")
    library = load(tmp_path / "libnet.so")
    np.testing.assert_allclose(library(x.numpy()), loop(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    assert library.info["weights_bytes"] < 1.2 * 300 * 200 * 4


def test_filters_that_a_transform_makes_larger_are_stored_as_they_are(tmp_path):
    model = nn.Conv2d(32, 32, 3, padding=1).eval()
    x = jg.rand(1, 32, 16, 16)
    jg.export(model, x).native(tmp_path / "libnet.so")
    library = load(tmp_path / "libnet.so")
    close(library(x.numpy()), model(x).detach().numpy())
    assert library.info["weights_bytes"] < 1.2 * sum(4 * p.numel() for p in model.parameters())


def test_state_that_a_step_may_replace_is_not_packed(tmp_path):
    weight, count = jg.rand(64, 64), jg.zeros(())
    jg.export(lambda x: (x @ weight, count.add_(1) * 1), jg.rand(16, 64)).native(
        tmp_path / "libnet.so"
    )
    model = load(tmp_path / "libnet.so")
    x = np.ones((16, 64), np.float32)
    model.set_state({"weight": np.zeros((64, 64), np.float32)})
    assert (model(x)[0] == 0).all()
