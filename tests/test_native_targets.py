"""Libraries for other machines: run under qemu-user and in Node, compared with this process.

Programs for qemu are freestanding: the few functions of libc that a model needs are in the
harness, so that no C library is built. Without qemu, Node or the ziglang wheel those are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.compiler import link
from jitgrad.compiler.archive import archive
from jitgrad.compiler.codegen.target import target_of, targets_of
from jitgrad.runtime import load
from jitgrad.runtime.errors import CompileError

has_zig = importlib.util.find_spec("ziglang") is not None
needs_zig = pytest.mark.skipif(not has_zig, reason="no ziglang (jitgrad[export])")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no Node")
ZIG = [sys.executable, "-m", "ziglang"]

HARNESS = r"""
#include "NAME.h"
typedef unsigned long size_t;
static long sys(long n, long a, long b, long c) {
#if defined(__aarch64__)
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
        x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#else
    register long a7 __asm__("a7") = n, a0 __asm__("a0") = a, a1 __asm__("a1") = b,
        a2 __asm__("a2") = c;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2) : "memory");
    return a0;
#endif
}
static char heap[1 << 24] __attribute__((aligned(128)));
static size_t at;
void *malloc(size_t n) { void *p = heap + at; at += (n + 127) & ~127ul; return p; }
void free(void *p) { (void)p; }
void *memcpy(void *d, const void *s, size_t n) {
    for (size_t i = 0; i < n; i++) ((volatile char *)d)[i] = ((const char *)s)[i];
    return d;
}
void *memmove(void *d, const void *s, size_t n) {
    if (d < s) return memcpy(d, s, n);
    while (n--) ((volatile char *)d)[n] = ((const char *)s)[n];
    return d;
}
void *memset(void *d, int v, size_t n) {
    for (size_t i = 0; i < n; i++) ((volatile char *)d)[i] = v;
    return d;
}
#define STUB(f) int f(void) { return 1; }
STUB(pthread_create) STUB(pthread_join) STUB(pthread_mutex_init) STUB(pthread_mutex_destroy)
STUB(pthread_mutex_lock) STUB(pthread_mutex_unlock) STUB(pthread_cond_init)
STUB(pthread_cond_destroy) STUB(pthread_cond_wait) STUB(pthread_cond_signal)
STUB(pthread_cond_broadcast) STUB(sched_yield)
static char input[IN_BYTES] __attribute__((aligned(16)));
static char output[OUT_BYTES] __attribute__((aligned(16)));
void _start(void) {
    size_t got = 0;
    for (long n = 1; got < IN_BYTES && n > 0; got += n > 0 ? n : 0)
        n = sys(63, 0, (long)input + got, IN_BYTES - got);
    const void *in[1] = {input};
    void *out[1] = {output};
    jg_NAME *model = jg_NAME_create(1);
    int status = model ? jg_NAME_run(model, in, out) : 99;
    if (status == JG_FAULT) {
        const char *e = jg_NAME_last_error(model);
        size_t n = 0;
        while (e[n]) n++;
        sys(64, 2, (long)e, n);
    }
    jg_NAME_destroy(model);
    sys(64, 1, (long)output, OUT_BYTES);
    sys(93, status, 0, 0);
    for (;;) {}
}
"""


def network():
    jg.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10), nn.LogSoftmax(1),
    ).eval()  # fmt: skip


CASES = {
    "network": (network, lambda: jg.rand(2, 1, 8, 8)),
    "lstm": (lambda: _Lstm().eval(), lambda: jg.rand(2, 5, 4)),
    "mixed": (lambda: lambda x: (x.double().exp() * x.long()).float() + 1, lambda: jg.rand(7)),
    "sorts": (lambda: lambda x: x.sort(1)[0] + x.argmax(1, keepdim=True), lambda: jg.rand(3, 9)),
    "half": (lambda: lambda x: (x.half() * 3).float() + x.bfloat16().float(), lambda: jg.rand(9)),
    "gather": (lambda: lambda x: jg.arange(10.0)[x.long()], lambda: jg.tensor([1.0, 9.0, 3.0])),
    "pool": (lambda: lambda x: F.avg_pool1d(x, 2) @ jg.ones(4, 3), lambda: jg.rand(2, 5, 8)),
}  # fmt: skip


class _Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        jg.manual_seed(1)
        self.lstm = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


# -- under qemu ----------------------------------------------------------------------------------
@needs_zig
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("target", "qemu"), [
    ("aarch64-linux-gnu", "qemu-aarch64"), ("riscv64-linux-gnu", "qemu-riscv64"),
])  # fmt: skip
def test_other_processors(name, target, qemu, tmp_path):
    if shutil.which(qemu) is None:
        pytest.skip(f"no {qemu}")
    made, example = CASES[name]
    f, x = made(), example()
    want = f(x).detach().numpy()
    jg.export(f, x).native(tmp_path / f"{name}.a", target=target)
    program = build(tmp_path, name, target.split("-")[0], x.numpy().nbytes, want.nbytes)
    done = subprocess.run([qemu, program], input=x.numpy().tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr
    close(np.frombuffer(done.stdout, want.dtype).reshape(want.shape), want)
    if name == "gather":
        bad = np.array([1, 10, 3], np.float32).tobytes()
        done = subprocess.run([qemu, program], input=bad, capture_output=True)
        assert done.returncode == 1 and b"index" in done.stderr


def build(folder, name, arch, in_bytes, out_bytes, harness=HARNESS):
    (folder / "main.c").write_text(harness.replace("NAME", name))
    program = folder / "program"
    command = [
        *ZIG, "cc", "-target", f"{arch}-freestanding", "-nostdlib", "-static", "-ffreestanding",
        "-O1", "-Wall", "-Wextra", "-Wno-incompatible-library-redeclaration",
        f"-DIN_BYTES={in_bytes}", f"-DOUT_BYTES={out_bytes}", str(folder / "main.c"),
        str(folder / f"{name}.a"), "-o", str(program),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@needs_zig
@pytest.mark.parametrize(("suffix", "target", "machine"), [
    (".so", "aarch64-linux-gnu", 183), (".so", "riscv64-linux-gnu", 243),
    (".o", "aarch64-linux-gnu:cortex-a72", 183), (".o", "x86_64-linux-gnu", 62),
])  # fmt: skip
def test_headers_of_files(suffix, target, machine, tmp_path):
    path = tmp_path / f"libm{suffix}"
    jg.export(lambda x: x + 1, jg.rand(3)).native(path, target=target)
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01"
    kind, found = struct.unpack_from("<HH", data, 16)
    assert (kind, found) == (3 if suffix == ".so" else 1, machine)


@needs_zig
def test_macos_libraries(tmp_path):
    jg.export(network(), jg.rand(2, 1, 8, 8)).native(
        tmp_path / "libm.dylib", target="aarch64-macos"
    )
    magic, processor, _, kind = struct.unpack_from("<IIII", (tmp_path / "libm.dylib").read_bytes())
    assert (magic, processor, kind) == (0xFEEDFACF, 0x0100000C, 6)  # 64-bit, ARM64, dylib


# -- WebAssembly ---------------------------------------------------------------------------------
@needs_zig
@needs_node
@pytest.mark.parametrize("name", CASES)
def test_wasm(name, tmp_path):
    made, example = CASES[name]
    f, x = made(), example()
    want = f(x).detach().numpy()
    jg.export(f, x).native(tmp_path / "m.wasm")
    found = node(tmp_path, f"""
        const x = new Float32Array({json.dumps(x.numpy().ravel().tolist())});
        const again = await load(readFileSync("m.wasm"));  // two instances, one after the other
        again.run(x);
        again.destroy();
        const result = model.run(x)[0];
        console.log(JSON.stringify(Array.from(result, Number)));
    """)  # fmt: skip
    close(np.array(json.loads(found)).reshape(want.shape), want)


def node(folder, body):
    (folder / "m.js").rename(folder / "m.mjs")
    (folder / "t.mjs").write_text(
        'import { readFileSync } from "node:fs";\nimport { load } from "./m.mjs";\n'
        f'const model = await load(readFileSync("m.wasm"));\n{body}'
    )
    done = subprocess.run(["node", "t.mjs"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_zig
@needs_node
def test_wasm_errors_and_memory(tmp_path):
    table = jg.arange(10.0)
    jg.export(lambda i: table[i], jg.tensor([1, 2])).native(tmp_path / "m.wasm")
    said = node(tmp_path, """
        const tell = (f) => { try { console.log(f()); } catch (e) { console.log(`${e}`); } };
        tell(() => model.run(new BigInt64Array([1n, 9n])));
        tell(() => model.run(new BigInt64Array([1n, 10n])));
        tell(() => model.run(new Float32Array([1, 2])));
        tell(() => model.run());
        const size = model.exports.memory.buffer.byteLength;
        for (let k = 0; k < 2000; k++) {  // destroyed instances give their memory back
            const one = new model.constructor(model.exports);
            one.run(new BigInt64Array([0n, 3n]));
            one.destroy();
        }
        console.log(model.exports.memory.buffer.byteLength - size <= 65536);
        console.log(JSON.stringify(model.inputs));
    """).splitlines()  # fmt: skip
    assert said[0] == "[ Float32Array(2) [ 1, 9 ] ]"
    assert said[1].startswith("RangeError") and "index" in said[1]
    assert said[2].endswith("to be a BigInt64Array of 2 elements; got Float32Array of 2")
    assert said[2].startswith("TypeError: [m] expected input ") and ": int64[2]" in said[2]
    assert said[3].startswith("TypeError: [m] expected 1 inputs (") and said[3].endswith("got 0")
    assert said[4] == "true"
    assert json.loads(said[5])[0]["dtype"] == "int64"


@needs_zig
@needs_node
def test_wasm_instances_that_were_destroyed(tmp_path):
    """What was freed is freed once, and used no more."""
    n = jg.Dim("n", max=4)
    graph = jg.export(lambda x: x * 2, jg.rand(3), dynamic_shapes={"x": {0: n}})
    graph.native(tmp_path / "m.wasm")
    said = node(tmp_path, """
        const tell = (f) => { try { console.log(f()); } catch (e) { console.log(`${e}`); } };
        for (let k = 0; k < 3; k++) model.destroy();
        tell(() => model.run(new Float32Array([1, 2, 3])));
        tell(() => model.resize({ n: 2 }));
        const others = [1, 2, 3].map(() => new model.constructor(model.exports));
        others.forEach((m, k) => m.resize({ n: k + 1 }));
        console.log(others.map((m, k) => m.run(new Float32Array(k + 1).fill(k))[0].join()).join());
    """).splitlines()  # fmt: skip
    refused = "Error: [m] this instance was destroyed; make another"
    assert said == [refused, refused, "0,2,2,4,4,4"]


@needs_zig
@needs_node
def test_wasm_memory_over_2_gib(tmp_path):
    """Of which only what is used is ever touched."""
    n = jg.Dim("n", max=300_000_000)
    graph = jg.export(lambda x: (x * 2, x + 1), jg.rand(3), dynamic_shapes={"x": {0: n}})
    graph.native(tmp_path / "m.wasm")
    said = node(tmp_path, """
        const size = model.exports.memory.buffer.byteLength;
        console.log(size > 2 ** 31, Math.max(...model.places) > 2 ** 31);
        for (const n of [3, 2]) {
          model.resize({ n });
          console.log(model.run(new Float32Array(n).fill(n)).map((y) => y.join()).join(" "));
        }
        try { model.resize({ n: 300_000_001 }); } catch (e) { console.log(`${e}`); }
        for (const size of [2 ** 32 + 64, 2 ** 32 - 64, 2 ** 31]) {
          try { model.allocate(size); } catch (e) { console.log(`${e}`); }
        }
    """).splitlines()  # fmt: skip
    assert said[:3] == ["true true", "6,6,6 4,4,4", "4,4 3,3"]
    assert said[3].startswith("RangeError: [m] expected n to be 0 to 300000000")
    assert [line.split(" bytes")[0] for line in said[4:]] == [
        f"Error: [m] no memory for {size}" for size in (2**32 + 64, 2**32 - 64, 2**31)
    ]


@needs_zig
@needs_node
def test_wasm_that_was_altered(tmp_path):
    jg.export(lambda x: x * 2, jg.rand(3)).native(tmp_path / "m.wasm")
    said = node(tmp_path, """
        const bytes = readFileSync("m.wasm");
        const tell = async (b) => { try { await load(b); } catch (e) { console.log(`${e}`); } };
        await tell(bytes.subarray(0, bytes.length - 9));
        bytes[bytes.length >> 1] ^= 4;
        await tell(bytes);
        if (globalThis.Response) await tell(new Response("no", {status: 404}));
        else console.log("status 404");
        for (const nothing of [undefined, null, "m.wasm"]) await tell(nothing);
    """).splitlines()  # fmt: skip
    assert "truncated, altered" in said[0] and "truncated, altered" in said[1]
    assert "status 404" in said[2]
    assert said[3:] == [
        f"TypeError: [m] expected m.wasm: its bytes, or a Response; got {got}"
        for got in ("undefined", "null", "m.wasm")
    ]


# -- archives ------------------------------------------------------------------------------------
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("name", ["net", "a_name_that_is_longer_than_15_characters"])
def test_archives_link(name, tmp_path):
    """Two models in one program, from archives."""
    jg.export(lambda x: x * 2, jg.rand(3)).native(tmp_path / f"lib{name}.a")
    jg.export(lambda x: x + 5, jg.rand(3)).native(tmp_path / "libpool.a")
    (tmp_path / "main.c").write_text(f"""
        #include <stdio.h>
        #include "lib{name}.h"
        #include "libpool.h"
        int main(void) {{
            float x[3] = {{1, 2, 3}}, y[3], z[3];
            jg_{name} *a = jg_{name}_create(1);
            jg_pool *b = jg_pool_create(1);
            if (!a || !b || jg_{name}_call(a, x, y) || jg_pool_call(b, y, z)) return 1;
            printf("%g %g %g\\n", z[0], z[1], z[2]);
            jg_{name}_destroy(a);
            jg_pool_destroy(b);
            return 0;
        }}
    """)
    libraries = [f"-L{tmp_path}", f"-l{name}", "-lpool", "-pthread"]
    command = ["cc", "-Wall", "-Wextra", "-Werror", "main.c", *libraries, "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True)
    assert done.stdout == "7 9 11\n"


def test_the_format_of_archives():
    data = archive([("m.o", b"abc", ["f", "gg"])])
    assert data.startswith(b"!<arch>\n/ ")
    index = data[8 + 60 :]
    count, first, second = struct.unpack_from(">III", index)
    assert count == 2 and first == second and index[12:17] == b"f\0gg\0"
    assert data[first : first + 4] == b"m.o/" and data[first + 60 : first + 63] == b"abc"
    assert len(data) % 2 == 0


# -- several levels of processors ----------------------------------------------------------------
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 levels")


@needs_x86
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("processor", ["", "Nehalem", "Haswell", "qemu64"])
def test_a_portable_library_runs_on_every_level(processor, tmp_path):
    qemu = shutil.which("qemu-x86_64")
    if processor and qemu is None:
        pytest.skip("no qemu-x86_64")
    model, x = network(), jg.rand(2, 1, 8, 8)
    jg.export(model, x).native(tmp_path / "libnet.a", target="portable")
    numbers = ", ".join(map(repr, x.numpy().ravel().tolist()))
    (tmp_path / "main.c").write_text(f"""
        #include <stdio.h>
        #include "libnet.h"
        int main(void) {{
            static const float x[] = {{{numbers}}};
            static float y[JG_NET_OUTPUT0_SIZE];
            jg_net *model = jg_net_create(2);
            if (!model) {{ puts(jg_net_status()); return 3; }}
            if (jg_net_call(model, x, y) != JG_OK) return 4;
            for (int i = 0; i < JG_NET_OUTPUT0_SIZE; i++) printf("%.9g\\n", y[i]);
            printf("%d %s\\n", jg_net_input_rank(0), jg_net_last_error(NULL));
            jg_net_destroy(model);
            jg_net_destroy(NULL);
            return jg_net_run(NULL, NULL, NULL) != JG_BAD_ARGUMENT;
        }}
    """)
    flags = ["-Wall", "-Wextra", "-Werror", "main.c", "libnet.a", "-pthread", "-o", "main"]
    subprocess.run(["cc", *flags], cwd=tmp_path, check=True)
    command = [qemu, "-cpu", processor, "./main"] if processor else ["./main"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if processor == "qemu64":  # no SSSE3: below every level
        assert done.returncode == 3 and "ssse3" in done.stdout
        return
    assert done.returncode == 0, done.stderr
    *values, last = done.stdout.splitlines()
    assert last == "4 there is no instance: create returned NULL"
    want = model(x).detach().numpy()
    close(np.array(values, float).reshape(want.shape), want)


@needs_x86
def test_portable_libraries_from_python_with_state(tmp_path):
    total = jg.zeros(3)
    exported = jg.export(lambda x: total.add_(x.exp()) * 1, jg.rand(3))
    exported.native(tmp_path / "libsum.so", target="portable")
    library = load(tmp_path / "libsum.so", threads=2)
    x = np.ones(3, np.float32)
    library(x), library(x)
    np.testing.assert_allclose(library.get_state()["total"], np.exp(x) * 2, rtol=1e-6)
    assert library.info["cpu"] == "x86-64-v2, x86-64-v3, x86-64-v4"


# -- what users get wrong ------------------------------------------------------------------------
def test_targets_by_name():
    assert target_of("x86-64-v3").cpu == "x86-64-v3"
    assert target_of("riscv64-linux-gnu").arch == "riscv64"
    with pytest.raises(
        ValueError, match=r"expected a target of host, portable, .*riscv64-linux-gnu, wasm32"
    ):
        target_of("sparc")
    with pytest.raises(ValueError, match="LLVM knows no CPU 'z80' for aarch64-linux-gnu"):
        target_of("aarch64-linux-gnu:z80")
    with pytest.raises(TypeError, match="expected the name of one target; got list; .portable. is"):
        targets_of(["x86-64-v2", "x86-64-v3"])


@pytest.mark.parametrize(("path", "target", "message"), [
    ("m.so", "wasm32", "files are not for wasm32"), ("m.wasm", "host", "files are not for"),
    ("m.dylib", "aarch64-linux-gnu", "files are not for"),
    ("m.dylib", None, 'give target="aarch64-macos" or target="x86_64-macos"'),
    ("m.exe", None, "path that ends in"),
])  # fmt: skip
def test_suffixes_and_targets(path, target, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        jg.export(lambda x: x + 1, jg.rand(3)).native(tmp_path / path, target=target)


def test_without_a_linker_the_object_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(link, "find_linker", lambda target=None: None)
    with pytest.raises(CompileError, match=r"expected a linker for aarch64.*jitgrad\[export\]"):
        jg.export(lambda x: x + 1, jg.rand(3)).native(
            tmp_path / "libm.so", target="aarch64-linux-gnu"
        )
    assert (tmp_path / "libm.o").read_bytes()[:4] == b"\x7fELF"
