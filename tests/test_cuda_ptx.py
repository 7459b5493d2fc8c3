"""GPU code without a GPU: source, PTX and what ptxas says of it. Needs the CUDA wheels, else skips
all but the source and the arithmetic of occupancy."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_graphs import graph_of

import jitgrad as jg
from jitgrad.compiler.codegen.cuda import resources
from jitgrad.compiler.codegen.cuda.generate import Shape
from jitgrad.compiler.codegen.cuda.load import for_old_drivers, to_ptx
from jitgrad.compiler.codegen.cuda.target import gpu_target, target_of_device
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.options import Options
from jitgrad.compiler.pipeline import cuda_stages
from jitgrad.runtime.errors import CompileError
from jitgrad.runtime.knobs import knob


def _has_nvvm() -> bool:
    if importlib.util.find_spec("numba_cuda") is None:
        return False
    return resources.find_ptxas() is not None and importlib.util.find_spec("nvidia") is not None


wheels = pytest.mark.skipif(not _has_nvvm(), reason="needs numba-cuda, NVVM and ptxas")


@jg.jit(fallback="error")
def layer(x: jg.Tensor, w: jg.Tensor) -> jg.Tensor:
    return jg.softmax(jg.relu(x @ w), -1).sum(0)


SPECS = [jg.TensorSpec((64, 48)), jg.TensorSpec((48, 300))]


def test_the_source_is_python_with_a_kernel_for_each_function() -> None:
    text = layer.lower(*SPECS).cuda()
    compile(text, "kernels.py", "exec")
    assert text.count("@cuda.jit\ndef ") == text.count("def ") >= 3
    assert "libdevice.fmaf(" in text and "warps_max(" in text


@pytest.mark.parametrize(
    "f",
    [lambda x: x * x, lambda x: x.flip(0), lambda x: x.sort()[0], lambda x: x.cumsum(0),
     lambda x: jg.stack([x, x]), lambda x: jg.maximum(x, x[:1]), lambda x: x.abs().sum()],
)  # fmt: skip
def test_kernels_are_told_apart_by_the_dtypes_of_their_arrays(f: Any) -> None:
    """A kernel's name is that of its machine code: in the disk cache, on a device, in a graph."""
    names = []
    for dtype in (jg.int8, jg.uint8, jg.int16, jg.int32, jg.int64, jg.float32, jg.float64):
        source = jg.jit(f).lower(jg.TensorSpec((5,), dtype)).cuda("sm_90")
        names += re.findall(r"@cuda.jit\ndef (\w+)\(", source)
    assert len(names) == len(set(names)) >= 7


@wheels
def test_ptx_is_of_the_dtypes_asked_for() -> None:
    for dtype, load in ((jg.float32, "f32"), (jg.float64, "f64"), (jg.int8, "s8|u8")):
        ptx = jg.jit(lambda a: a * a).lower(jg.TensorSpec((5,), dtype)).ptx("sm_90")
        loads = set(re.findall(r"ld\.global\.(\w+)", ptx))
        assert loads and loads <= set(load.split("|"))


def test_backward_kernels_are_there_too() -> None:
    x, w = (jg.TensorSpec(s.shape, requires_grad=True) for s in SPECS)
    assert layer.lower(x, w).cuda().count("def ") > layer.lower(*SPECS).cuda().count("def ")


@pytest.mark.parametrize("arch", ["sm_9", "sm_60", "gfx90a", "90", 90, "sm_999", "sm_90a", None])
@pytest.mark.parametrize("ask", ["ptx", "cuda", "resources"])
def test_an_unknown_architecture_is_an_error(arch: Any, ask: str) -> None:
    with pytest.raises(ValueError, match=r"makes code for \(sm_75, sm_80.*sm_121\); got"):
        getattr(layer.lower(*SPECS), ask)(arch)


def test_a_device_newer_than_all_that_is_known_gets_code_of_the_newest() -> None:
    assert target_of_device("sm_130") == gpu_target("sm_121")
    assert target_of_device("sm_101") == gpu_target("sm_100")
    assert target_of_device("sm_90") == gpu_target("sm_90")
    with pytest.raises(ValueError, match="got 'sm_90a'; kernels use none of its own.*'sm_90'"):
        gpu_target("sm_90a")
    with pytest.raises(CompileError, match="expected a GPU from sm_75 on"):
        target_of_device("sm_61")


def test_an_op_that_only_the_cpu_runs_is_an_error_that_names_it() -> None:
    f = jg.jit(lambda x: jg.linalg.inv(x) + 1)
    with pytest.raises(CompileError, match=r"(?s)runs on the CPU only \(at .*test_cuda_ptx.py"):
        f.lower(jg.TensorSpec((3, 3))).ptx()


def _updates(shapes: Sequence[tuple[int, ...]]) -> tuple[Any, list[Any]]:
    parameters = [jg.nn.Parameter(jg.zeros(s)) for s in shapes]
    optimizer = jg.optim.AdamW(parameters, fused=True)

    def step(*gradients: jg.Tensor) -> None:
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g
        optimizer.step()

    return step, [jg.TensorSpec(s) for s in shapes]


def _loss(x: jg.Tensor, y: jg.Tensor) -> Any:
    loss = jg.nn.functional.cross_entropy(x, y)
    return loss, jg.autograd.grad(loss, x)


def _norm(x: jg.Tensor, w: jg.Tensor, b: jg.Tensor) -> Any:
    y = jg.nn.functional.layer_norm(x, (512,), w, b)
    return jg.autograd.grad((y * y).sum(), (x, w, b))


@pytest.mark.parametrize(
    ("f", "specs", "most"),
    [
        (_loss, [((256, 1000), jg.float32), ((256,), jg.int64)], 3),  # rows; the mean; rows
        (_norm, [((256, 512), jg.float32)] + [((512,), jg.float32)] * 2, 2),  # rows; columns
        (*_updates([(64, 64)] * 6), 4),  # equal parameters are updated by one kernel
    ],
    ids=["cross-entropy", "layer norm", "AdamW"],
)
def test_rows_and_updates_are_few_kernels(f: Any, specs: list[Any], most: int) -> None:
    """Forward and backward together."""
    if isinstance(specs[0], tuple):
        specs = [
            jg.TensorSpec(s, d, requires_grad=d is jg.float32) for s, d in specs
        ]  # fmt: skip
    lowered = jg.jit(f).lower(*specs)
    stages = cuda_stages(lowered.graph, lowered.options, gpu_target("sm_80"))
    assert len(stages.kernels) <= most


@pytest.mark.parametrize(
    ("f", "loads"),
    [
        (lambda a, b: a @ b, "2 of 2"), (lambda a, b: a.T @ b.T, "2 of 2"),
        (lambda a, b: a[:, ::2] @ b[:, ::2].T, "0 of 2"),  # every other element
    ],
)  # fmt: skip
def test_loads_of_contractions_are_told_whether_they_are_coalesced(f: Any, loads: str) -> None:
    lowered = jg.jit(f).lower(*[jg.TensorSpec((64, 64))] * 2)
    stages = cuda_stages(lowered.graph, lowered.options, gpu_target("sm_80"))
    (shape,) = [s for code in stages.all_generated() for s in code.shapes.values()]
    assert resources.coalesced(shape) == loads


def _resources_of(graph: Any, arch: str) -> list[resources.Resources]:
    """What ptxas says of each kernel of a graph."""
    target, found = gpu_target(arch), []
    for code in cuda_stages(graph, Options(), target).all_generated():
        for symbol, shape in code.shapes.items():
            text, entry = to_ptx(code.module_text, symbol, shape, target)
            found.append(resources.assemble(text, entry, shape, arch))
    return found


def _conv(dims: int) -> Any:
    def f(x: jg.Tensor, w: jg.Tensor) -> jg.Tensor:
        convolution = getattr(jg.nn.functional, f"conv{dims}d")
        return jg.relu(convolution(x, w, padding=1) + 1)

    return f, [jg.ones(2, 3, *[6] * dims), jg.ones(4, 3, *[3] * dims)]


def _of_any_size(f: Any, args: list[Any]) -> Any:
    """The graph of a function whose arguments' sizes are all symbolic."""
    g = jg.jit(f, dynamic=True, fallback="error")
    g(*args)
    return g.specialisations[0].trace.graph


@wheels
@pytest.mark.parametrize(
    ("f", "args"),
    [
        *(pytest.param(*_conv(n), marks=[] if n == 3 else pytest.mark.long) for n in (1, 2, 3)),
        (lambda x, y: jg.softmax(x @ y, -1), [jg.ones(2, 3, 9, 5), jg.ones(2, 3, 5, 8)]),
    ],
    ids=["conv1d", "conv2d", "conv3d", "matmul"],
)
def test_kernels_of_symbolic_sizes_keep_their_sums_in_registers(f: Any, args: list[Any]) -> None:
    """Loops over a thread's elements are unrolled, long as the arithmetic of places is."""
    rows = _resources_of(_of_any_size(f, args), "sm_90")
    assert rows and [r for r in rows if r.spills or r.stack] == []


@wheels
def test_reductions_of_a_kernel_share_their_shared_memory() -> None:
    """However many there are, it is within what a block may have."""
    f = jg.jit(lambda x: tuple((x * k).sum(-1) for k in range(30)))
    rows = f.lower(jg.TensorSpec((64, 4096), jg.float64)).resources("sm_90")
    assert max(r.shared for r in rows) == 8 * 8  # a number for each warp


@wheels
@pytest.mark.long
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("step", ["digits", "GPT", "ResNet"])
def test_training_steps_have_no_spills(step: str, arch: str) -> None:
    """Every kernel of benchmarks/ptx.py's steps."""
    path = Path(__file__).parents[1] / "benchmarks" / "ptx.py"
    spec = importlib.util.spec_from_file_location("ptx", path)
    assert spec is not None and spec.loader is not None
    ptx = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ptx)
    rows = ptx.lowered(step).resources(arch)
    assert len(rows) >= 20
    assert [r for r in rows if r.spills or r.stack or not r.occupancy] == []


@pytest.mark.parametrize(
    ("arch", "given", "want"),
    [
        ("sm_75", "9.2", "8.0"), ("sm_90", "9.0", "8.0"), ("sm_90", "7.8", "7.8"),
        ("sm_100", "9.2", "8.6"), ("sm_103", "9.2", "8.8"), ("sm_120", "9.2", "8.7"),
        ("sm_121", "9.2", "8.8"), ("sm_110", "9.2", "9.2"),
    ],
)  # fmt: skip
def test_ptx_loads_in_drivers_older_than_the_wheels(arch: str, given: str, want: str) -> None:
    text = f"//\n.version {given}\n.target {arch}\n"
    assert for_old_drivers(text, gpu_target(arch)) == f"//\n.version {want}\n.target {arch}\n"


@wheels
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_ptx_and_its_resources(arch: str) -> None:
    with knob(cache=False):
        lowered = layer.lower(*SPECS)
        text = lowered.ptx(arch)
    assert f".target {arch}" in text and text.count(".visible .entry") >= 3
    assert text.count("\n.version 8.0\n") == text.count(".version") >= 3  # ptxas takes it below
    rows = lowered.resources(arch)
    assert len(rows) == text.count(".visible .entry")
    for r in rows:
        assert r.spills == r.stack == 0 and 0 < r.registers <= 255 and 0 < r.occupancy <= 1
    assert "coalesced" in lowered.explain(arch) and "100%" in lowered.explain(arch)


@wheels
def test_sums_and_products_are_not_contracted() -> None:
    """fma would make the bits depend on what is fused; only contractions ask for it."""
    f = jg.jit(lambda x, y: (x * y + x) * y + y)
    text = f.lower(*[jg.TensorSpec((1000,))] * 2).ptx()
    assert "fma.rn" not in text
    assert text.count("mul.rn.f32") == text.count("add.rn.f32") >= 2


@wheels
@pytest.mark.parametrize(
    ("f", "dtype", "loads", "stores"),
    [
        (lambda x, y: x * y + x, jg.float32, 2, 1),
        (lambda x, y: (x * y, x > y), jg.float16, 2, 1),  # 8 of them; the bools are 64 bits
        (lambda x, y: x * y, jg.float64, 0, 0),  # two of them: v2
        (lambda x, y: jg.softmax(x, -1), jg.float32, 1, 1),
        (lambda x, y: x * y[:, 1:2], jg.float32, 1, 1),
    ],
)
def test_neighbours_are_loaded_128_bits_at_once(
    f: Any, dtype: Any, loads: int, stores: int
) -> None:
    """At least so many in the code of aligned arrays, each of which may be unrolled."""
    lowered = jg.jit(f).lower(*[jg.TensorSpec((256, 256), dtype)] * 2)
    text = lowered.ptx("sm_90")
    assert (text.count("ld.global.v4") >= loads) and (text.count("st.global.v4") >= stores)
    assert bool(loads) == ("ld.global.v4" in text) and (loads or "ld.global.v2.f64" in text)
    assert sum(r.spills for r in lowered.resources("sm_90")) == 0


@wheels
def test_rows_that_are_not_aligned_are_loaded_one_by_one() -> None:
    text = jg.jit(lambda x: jg.softmax(x, -1)).lower(jg.TensorSpec((256, 255))).ptx()
    assert ".v4" not in text and "ld.global.f32" in text


@wheels
@pytest.mark.parametrize("dtype", [jg.float16, jg.bfloat16])
def test_halves_are_multiplied_on_tensor_cores(dtype: Any) -> None:
    lowered = jg.jit(lambda a, b: jg.relu(a @ b)).lower(*[jg.TensorSpec((256, 256), dtype)] * 2)
    name = "bf16.bf16" if dtype is jg.bfloat16 else "f16.f16"
    text = lowered.ptx("sm_90")
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.f32" in text and "fma.rn" not in text
    assert sum(r.spills + r.stack for r in lowered.resources("sm_90")) == 0
    assert "mma.sync" not in lowered.ptx("sm_75")  # whose tensor cores have no bfloat16


@wheels
def test_float32_is_multiplied_as_tf32_where_that_will_do() -> None:
    before = jg.get_float32_matmul_precision()
    jg.set_float32_matmul_precision("high")
    try:
        lowered = jg.jit(lambda a, b: a @ b).lower(*[jg.TensorSpec((256, 256))] * 2)
    finally:
        jg.set_float32_matmul_precision(before)
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in lowered.ptx("sm_80")
    assert sum(r.spills + r.stack for r in lowered.resources("sm_80")) == 0
    assert "mma.sync" not in lowered.ptx("sm_75")


@wheels
def test_slices_are_double_buffered_and_read_128_bits_at_once() -> None:
    for size in (128, 2048):  # tiles of 64 and of 128
        lowered = jg.jit(lambda a, b: a @ b).lower(*[jg.TensorSpec((size, size))] * 2)
        text = lowered.ptx("sm_90")
        assert "ld.shared.v4.f32" in text and "ld.shared.f32" not in text
        assert text.count("bar.sync") == 2  # before the loop, and once in it
        assert text.count("cp.async.wait_all") == 2 and "cp.async.ca.shared.global" in text
        assert sum(r.spills + r.stack for r in lowered.resources("sm_90")) == 0
    assert "cp.async" not in lowered.ptx("sm_75")  # which has none


@wheels
@pytest.mark.parametrize(("dtype", "width"), [(jg.float32, 128), (jg.bfloat16, 64)])
def test_streamed_attention_has_no_spills(dtype: Any, width: int) -> None:
    """Sums over columns of what two contractions make, with a head's width of 128."""

    def f(q: jg.Tensor, k: jg.Tensor, v: jg.Tensor) -> jg.Tensor:
        return jg.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    lowered = jg.jit(f).lower(*[jg.TensorSpec((2, 4, 512, width), dtype)] * 3)
    rows = lowered.resources("sm_80")
    assert len(rows) == 3 and sum(r.spills + r.stack for r in rows) == 0
    assert max(r.shared for r in rows) <= 48 << 10
    assert ("mma.sync" in lowered.ptx("sm_80")) == (dtype is jg.bfloat16)


@wheels
def test_sorts_by_digits_and_scatters() -> None:
    def f(x: jg.Tensor, i: jg.Tensor, n: jg.Tensor) -> tuple[jg.Tensor, ...]:
        small = jg.zeros(64, 8)
        return (
            *x.sort(0), small.index_add(0, i, x),
            jg.zeros(64, dtype=jg.int64).index_add(0, i, n),
        )  # fmt: skip

    specs = [jg.TensorSpec((4096, 8)), *[jg.TensorSpec((4096,), jg.int64)] * 2]
    lowered = jg.jit(f).lower(*specs)
    assert sum(r.spills for r in lowered.resources("sm_90")) == 0
    text = lowered.ptx("sm_90")
    assert "atom.global.add.u64" in text or "red.global.add.u64" in text
    assert "atom" not in text.replace("atom.global.add.u64", "") and "move_" in text


_MORE = [jg.float16, jg.float64, jg.int16, jg.int32]


@wheels
@pytest.mark.parametrize(
    "dtype",
    [jg.bfloat16, jg.uint8, jg.int64, *(pytest.param(d, marks=pytest.mark.long) for d in _MORE)],
)
def test_every_dtype_compiles(dtype: Any) -> None:
    def f(x: jg.Tensor) -> tuple[jg.Tensor, ...]:
        return x.amax(-1), x.argmax(-1), x.sum(-1), x.cumsum(-1), x.sort(-1)[1], (x != 0).any(-1)

    rows = jg.jit(f).lower(jg.TensorSpec((4, 700), dtype)).resources("sm_90")
    assert rows and not sum(r.spills for r in rows)


@wheels
@pytest.mark.long
@pytest.mark.parametrize("name", sorted(OPS))
def test_every_record_compiles(name: str) -> None:
    """The simulator takes Python that Numba's compiler cannot type: a sample of each dtype."""
    op, target, seen = OPS[name], gpu_target("sm_90"), set()
    for sample in op.samples():
        args = [np.asarray(a) for a in sample.args]
        kind = tuple(a.dtype.name for a in args)
        if kind in seen or any("complex" in k for k in kind):
            continue
        seen.add(kind)
        try:
            stages = cuda_stages(graph_of(op, args, sample.attrs, False), Options(), target)
        except CompileError as error:
            assert "runs on the CPU only" in str(error), error
            return
        for code in stages.all_generated():
            for symbol, shape in code.shapes.items():
                text, entry = to_ptx(code.module_text, symbol, shape, target)
                taken = text[text.index(".entry") :].split(")")[0].count(".param")
                assert taken == len(shape.kinds) + shape.sites  # what a launch gives it
                assert not resources.assemble(text, entry, shape, "sm_90").spills


REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem, 16 bytes cmem[0]
"""


def test_the_report_of_ptxas_is_read() -> None:
    shape = Shape(("*float32",), False, 256, 65535, 2048)
    r = resources.read_report(REPORT, "k", shape, "sm_90")
    assert (r.registers, r.shared, r.spills, r.stack) == (40, 2048, 20, 16)
    assert r.occupancy == 6 * 256 / 2048  # 65536 registers hold 51 warps of 40


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "want"),
    [(256, 32, 0, 1.0), (256, 64, 0, 0.5), (32, 16, 0, 0.5), (1024, 32, 200 << 10, 0.5)],
)
def test_occupancy(threads: int, registers: int, shared: int, want: float) -> None:
    np.testing.assert_allclose(resources.occupancy("sm_90", threads, registers, shared), want)
