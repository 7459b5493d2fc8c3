"""Tensors and other libraries: NumPy's protocols, DLPack, einops, scikit-learn, matplotlib, tqdm,
safetensors, TensorBoard; testing and benchmark helpers."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

import jitgrad as torch
from jitgrad.runtime import dtypes
from jitgrad.testing import assert_close, make_tensor
from jitgrad.utils import benchmark, dlpack

ARRAY = np.arange(3.0)


# -- NumPy -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        (lambda x: ARRAY + x, torch.float64),
        (lambda x: x + ARRAY, torch.float64),
        (lambda x: ARRAY * x, torch.float64),
        (lambda x: np.float64(2) * x, torch.float32),
        (lambda x: np.int64(2) + x, torch.float32),
        (lambda x: x / np.int32(2), torch.float32),
        (lambda x: np.add(ARRAY, x), torch.float64),
        (lambda x: np.sin(x), torch.float32),
        (lambda x: np.abs(-x), torch.float32),
        (lambda x: np.isnan(x), torch.bool),
        (lambda x: np.argmax(x), torch.int64),
        (lambda x: np.exp(x[0]), torch.float32),
        (lambda x: x.double() @ ARRAY, torch.float64),
    ],
)
def test_numpy_s_functions_and_operators_give_tensors(code, dtype) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    found = code(x)
    assert type(found) is torch.Tensor and found.dtype is dtype
    expected = code(x.numpy()) if dtype is not torch.float64 else code(x.double().numpy().view(Arr))
    np.testing.assert_allclose(found.numpy(), np.asarray(expected), rtol=1e-6)


class Arr(np.ndarray):
    """An array with the one method that an expression above asks of tensors."""

    def double(self):
        return self


def test_arrays_indexed_by_tensors() -> None:
    assert ARRAY[torch.tensor([0, 2])].tolist() == [0.0, 2.0]
    assert ARRAY[torch.tensor([True, False, True])].tolist() == [0.0, 2.0]
    assert ARRAY[torch.tensor(1)] == 1.0 and [1, 2, 3][torch.tensor(1)] == 2
    x = torch.tensor([1.0, 2.0, 3.0])
    assert x[np.array([0, 2])].tolist() == [1.0, 3.0] and x[np.int64(1)].item() == 2.0
    assert list(range(torch.tensor(3))) == [0, 1, 2] and f"{x[0]:.1f}" == "1.0"
    assert math.sqrt(torch.tensor(4.0)) == 2.0


def test_arrays_of_tensors() -> None:
    x = torch.tensor([1.0, 2.0])
    assert np.asarray(x) is not None and np.shares_memory(np.asarray(x), x.numpy())
    assert np.array(x, dtype=np.float64).dtype == np.float64
    assert np.stack([x, x]).shape == (2, 2) and np.array([x, x]).shape == (2, 2)
    with pytest.raises(RuntimeError, match="detach"):
        np.asarray(x.requires_grad_())


def test_numpy_s_function_ends_a_trace() -> None:
    @torch.jit(fallback="silent")
    def f(x):
        return np.sin(x)

    for value in (1.0, 2.0):
        assert abs(f(torch.tensor([value])).item() - math.sin(value)) < 1e-6


def test_dlpack() -> None:
    x = torch.tensor([1.0, 2.0])
    back = dlpack.from_dlpack(torch.to_dlpack(x))
    back[0] = 5.0
    assert x.tolist() == [5.0, 2.0]
    assert np.shares_memory(np.from_dlpack(x), x.numpy())
    assert torch.from_dlpack(ARRAY).tolist() == ARRAY.tolist()
    with pytest.raises(BufferError):
        torch.to_dlpack(x.requires_grad_())


def test_dlpack_with_pytorch() -> None:
    pytorch = pytest.importorskip("torch")
    ours = torch.tensor([1.0, 2.0])
    theirs = pytorch.from_dlpack(ours)
    theirs += 1
    assert ours.tolist() == [2.0, 3.0]
    assert torch.from_dlpack(theirs).data_ptr() == ours.data_ptr()


@pytest.mark.parametrize("dtype", [dtype.name for dtype in dtypes.ALL])
def test_dlpack_with_pytorch_of_each_dtype(dtype: str) -> None:
    pytorch = pytest.importorskip("torch")
    ours = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(getattr(torch, dtype)).T[1:]
    theirs = pytorch.from_dlpack(ours)
    assert str(theirs.dtype) == f"torch.{dtype}" and theirs.tolist() == ours.tolist()
    assert theirs.data_ptr() == ours.data_ptr() and theirs.stride() == ours.stride() == (1, 3)
    for given in (theirs, theirs.__dlpack__(), theirs.__dlpack__(max_version=(1, 0))):
        back = torch.from_dlpack(given)
        assert back.dtype is ours.dtype and back.tolist() == ours.tolist()
        assert back.data_ptr() == ours.data_ptr() and back.stride() == (1, 3)


def test_dlpack_of_arrays_that_may_not_be_written() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    x = torch.from_dlpack(array)
    with pytest.raises(RuntimeError, match="may be written"):
        x.add_(1)
    assert torch.from_dlpack(array, copy=True).add_(1).tolist() == [1, 2, 3]
    assert not np.from_dlpack(x).flags.writeable
    with pytest.raises(BufferError):
        x.__dlpack__()


def test_capsules_of_the_cpu_that_are_refused() -> None:
    capsule = torch.ones(2).__dlpack__()
    torch.from_dlpack(capsule)
    for wrong in (capsule, 5):
        with pytest.raises(RuntimeError, match="invalid capsule"):
            torch.from_dlpack(wrong)
    for options in ({"max_version": "x"}, {"stream": "a"}, {"stream": True}):
        with pytest.raises(TypeError):
            torch.ones(2).__dlpack__(**options)
    assert torch.from_dlpack(torch.ones(2).__dlpack__(stream=-1)).tolist() == [1, 1]


# -- einops ----------------------------------------------------------------------------------------
EINOPS = {
    "rearrange": lambda e, x: e.rearrange(x, "a (b c) d -> b (a d) c", c=2),
    "split": lambda e, x: e.rearrange(list(x), "a b d -> b a d"),
    "mean": lambda e, x: e.reduce(x, "a b d -> b", "mean"),
    "max": lambda e, x: e.reduce(x, "a (b two) d -> a b d", "max", two=2),
    "min": lambda e, x: e.reduce(x, "a b d -> () b ()", "min"),
    "sum": lambda e, x: e.reduce(x, "a b d -> ", "sum"),
    "prod": lambda e, x: e.reduce(x, "a b d -> b", "prod"),
    "repeat": lambda e, x: e.repeat(x, "a b d -> a (b r) d e", r=2, e=3),
    "einsum": lambda e, x: e.einsum(x, x, "a b d, c b d -> a c"),
    "pack": lambda e, x: e.pack([x, x[:, 0]], "a * d")[0],
}


@pytest.mark.parametrize("name", EINOPS)
def test_einops(name) -> None:
    einops = pytest.importorskip("einops")
    array = np.random.default_rng(0).standard_normal((2, 4, 3))
    expected = EINOPS[name](einops, array)
    x = torch.tensor(array)
    np.testing.assert_allclose(EINOPS[name](einops, x), expected, rtol=1e-12)
    compiled = torch.jit(lambda x: EINOPS[name](einops, x), fallback="error")
    for _ in range(2):
        np.testing.assert_allclose(compiled(x), expected, rtol=1e-12)
    assert compiled.stats.hits == 1


@pytest.mark.parametrize("order", ["einops, jitgrad", "jitgrad, einops"])
def test_einops_imported_before_and_after(order) -> None:
    pytest.importorskip("einops")
    code = f"import {order}; print(einops.rearrange(jitgrad.ones(2, 3), 'a b -> b a').shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "jitgrad.Size([3, 2])"


# -- libraries that take arrays --------------------------------------------------------------------
def test_scikit_learn_takes_tensors() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = torch.arange(10.0).unsqueeze(1), torch.arange(10.0) * 2 + 1
    model = linear.LinearRegression().fit(x, y)
    np.testing.assert_allclose(model.predict(x), y, rtol=1e-5)


def test_matplotlib_takes_tensors() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    x = torch.linspace(0, 1, 5)
    (line,) = axes.plot(x, x * 2)
    axes.hist(x), axes.scatter(x, x), axes.imshow(torch.rand(3, 3))
    figure.canvas.draw()
    np.testing.assert_allclose(line.get_ydata(), x.numpy() * 2)
    pyplot.close(figure)


def test_tqdm_over_a_tensor() -> None:
    tqdm = pytest.importorskip("tqdm")
    assert [float(x) for x in tqdm.tqdm(torch.arange(3), disable=True)] == [0.0, 1.0, 2.0]


def test_safetensors_of_arrays(tmp_path) -> None:
    from safetensors.numpy import load_file, save_file

    path = str(tmp_path / "w.safetensors")
    save_file({"w": torch.ones(2, 3).numpy()}, path)
    assert torch.from_numpy(load_file(path)["w"]).equal(torch.ones(2, 3))
    assert torch.load_safetensors(path)["w"].equal(torch.ones(2, 3))


# -- TensorBoard -----------------------------------------------------------------------------------
def test_summary_writer(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from jitgrad.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "log") as writer:
        for step in range(3):
            writer.add_scalar("loss", torch.tensor(1.0 / (step + 1)), step)
        writer.add_histogram("weights", torch.arange(100.0), 0)
        writer.add_image("picture", torch.rand(3, 4, 5), 0)
        writer.add_image("gray", torch.zeros(4, 5, dtype=torch.uint8), 0, dataformats="HW")
        writer.add_text("note", "hello", 0)
        writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 1)
        with pytest.raises(ValueError, match="CHW, HWC or HW"):
            writer.add_image("bad", torch.rand(1, 3, 4, 5), 0, dataformats="NCHW")
    events = EventAccumulator(str(tmp_path / "log"))
    events.Reload()
    found = [(e.step, e.value) for e in events.Scalars("loss")]
    assert found == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    histogram = events.Histograms("weights")[0].histogram_value
    assert histogram.num == 100 and sum(histogram.bucket) == 100 and histogram.max == 99
    image = events.Images("picture")[0]
    assert (image.height, image.width) == (4, 5)
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert {p.name for p in (tmp_path / "log").iterdir() if p.is_dir()} == {"both_a", "both_b"}


def test_images_are_png(tmp_path) -> None:
    image = pytest.importorskip("matplotlib.image")
    from jitgrad.utils.tensorboard import _png

    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.uint8)
    (tmp_path / "a.png").write_bytes(_png(pixels))
    read = image.imread(tmp_path / "a.png")
    np.testing.assert_array_equal((read * 255).round().astype(np.uint8), pixels)


def test_summary_writer_without_tensorboard() -> None:
    code = """
import sys
sys.modules["tensorboard"] = None
from jitgrad.utils.tensorboard import SummaryWriter
try:
    SummaryWriter("x")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install tensorboard" in done.stdout


# -- testing ---------------------------------------------------------------------------------------
CLOSE = [
    (torch.ones(3), torch.ones(3) + 1e-7, {}),
    (torch.tensor([1, 2]), torch.tensor([1, 2]), {}),
    (1.0, 1.0 + 1e-9, {}),
    ([torch.ones(2), 3], [torch.ones(2), 3], {}),
    ({"a": torch.ones(2)}, {"a": torch.ones(2)}, {}),
    (np.ones(2), np.ones(2), {}),
    (torch.tensor(math.nan), torch.tensor(math.nan), {"equal_nan": True}),
    (torch.tensor(math.inf), torch.tensor(math.inf), {}),
    (torch.ones(2), torch.ones(2) * 1.01, {"rtol": 0.1, "atol": 0.0}),
    (torch.ones(2), torch.ones(2).double(), {"check_dtype": False}),
    (torch.ones(0), torch.ones(0), {}),
    (torch.tensor([True]), torch.tensor([True]), {}),
    (None, None, {}),
]
FAR = [
    (torch.ones(3), torch.ones(3) + 1e-4, {}, "not close.*3 / 3.*at index"),
    (torch.tensor([1, 2]), torch.tensor([1, 3]), {}, "not equal.*1 / 2"),
    (torch.ones(2), torch.ones(3), {}, "'shape' do not match"),
    (torch.ones(2), torch.ones(2).double(), {}, "'dtype' do not match"),
    (torch.ones(2, 3), torch.ones(3, 2).t(), {"check_stride": True}, "stride"),
    (torch.tensor(math.nan), torch.tensor(math.nan), {}, "not close"),
    (torch.tensor(math.inf), torch.tensor(-math.inf), {}, "not close"),
    (torch.tensor(1.0), torch.tensor(math.inf), {}, "not close"),
    (1.0, 2.0, {}, "Scalars are not close"),
    ([torch.ones(2)], [torch.zeros(2)], {}, r"item \[0\]"),
    ({"a": 1}, {"b": 1}, {}, "keys"),
    ([1], [1, 2], {}, "length"),
    (torch.ones(2), torch.zeros(2), {"msg": "mine"}, "^mine$"),
    (torch.ones(2), torch.zeros(2), {"msg": lambda m: "my " + m}, "^my Tensor"),
]


@pytest.mark.parametrize(("a", "b", "options"), CLOSE)
def test_assert_close_passes(a, b, options) -> None:
    assert_close(a, b, **options)


@pytest.mark.parametrize(("a", "b", "options", "text"), FAR)
def test_assert_close_raises(a, b, options, text) -> None:
    with pytest.raises(AssertionError, match=f"(?s){text}"):
        assert_close(a, b, **options)


def test_assert_close_refuses() -> None:
    with pytest.raises(TypeError):
        assert_close(torch.ones(1), [1.0])
    with pytest.raises(TypeError):
        assert_close("a", "a")
    with pytest.raises(ValueError, match="must be either"):
        assert_close(1.0, 1.0, rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_make_tensor(dtype) -> None:
    x = make_tensor(20, 30, dtype=dtype, low=0, high=3, exclude_zero=True)
    assert tuple(x.shape) == (20, 30) and x.dtype is dtype and not (x == 0).any()
    assert (x < 3).all() or dtype is torch.bfloat16
    assert not make_tensor((4, 4), dtype=dtype, noncontiguous=True).is_contiguous()
    with pytest.raises(ValueError, match="must be less than"):
        make_tensor(2, dtype=dtype, low=3, high=1)


def test_timer() -> None:
    calls = []
    timer = benchmark.Timer("f()", globals={"f": lambda: calls.append(1)}, label="calls")
    found = timer.timeit(200)
    assert len(calls) == 202 and found.number_per_run == 200 and len(found.times) == 1
    found = timer.blocked_autorange(min_run_time=0.01)
    assert found.median > 0 and found.iqr >= 0 and "calls" in repr(found)
