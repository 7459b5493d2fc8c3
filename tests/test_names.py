"""Names that public code touches in passing: devices that are not there, flags, settings, versions,
torch.jit's and torch.compiler's names. What they promise is that nothing breaks and nothing lies.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import warnings

import packaging.version
import pytest

import jitgrad
import jitgrad as torch
from jitgrad import nn
from jitgrad.runtime import threads
from jitgrad.runtime.errors import CompileError

SUBMODULES = [
    "library", "nn.attention", "nn.attention.flex_attention",
    "_C", "_higher_order_ops", "_inductor", "_subclasses", "ao", "ao.quantization", "nn.quantized",
    "_dynamo", "_dynamo.config", "accelerator", "amp", "autograd", "backends", "backends.cpu",
    "backends.cuda", "backends.cudnn", "backends.mkl", "backends.mkldnn", "backends.mps",
    "backends.openmp", "backends.opt_einsum", "compiler", "cpu", "cuda", "distributed", "func",
    "fx", "hub", "jit", "mps", "nn", "nn.functional", "nn.init", "nn.utils", "optim",
    "optim.lr_scheduler", "overrides", "special", "testing", "types", "utils", "utils.data",
    "utils.model_zoo", "xpu",
]  # fmt: skip


@pytest.fixture
def settings():
    """What was set is set back."""
    before = torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode()
    count, own = torch.get_num_threads(), threads._nthreads
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.set_deterministic_debug_mode(before[1])
    torch.set_num_threads(count)
    threads._nthreads = own


# -- missing names -------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in SUBMODULES if n != "_dynamo.config"])
def test_a_missing_name_says_that_it_is_not_there(name) -> None:
    module = importlib.import_module(f"jitgrad.{name}")
    with pytest.raises(
        AttributeError, match=f"'jitgrad.{name}' has no attribute 'nothing_like_it'; "
    ):
        module.nothing_like_it  # noqa: B018
    assert not hasattr(module, "__nothing_like_it__")


def test_missing_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match="not there yet is listed in docs/limits.md"):
        torch.nothing_like_it  # noqa: B018
    with pytest.raises(AttributeError, match="no extension module"):
        torch._C._get_cudart_version  # noqa: B018


def test_submodules_are_found_from_the_package() -> None:
    names = ", ".join(f"torch.{name}.__name__" for name in SUBMODULES if name != "utils.model_zoo")
    code = f"import jitgrad as torch; print(*[{names}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"jitgrad.{n}" for n in SUBMODULES if n != "utils.model_zoo"]


# -- devices that are not there --------------------------------------------------------------------
@pytest.mark.parametrize("name", ["cuda", "mps", "xpu", "accelerator"])
def test_absent_devices(name) -> None:
    module = getattr(torch, name)
    assert module.is_available() is False and module.device_count() == 0
    before = torch.get_rng_state()
    module.empty_cache()
    if hasattr(module, "manual_seed"):
        module.manual_seed(3)
    assert torch.get_rng_state().equal(before)


def test_the_usual_choice_of_a_device() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.accelerator.current_accelerator() or device
    assert device.type == "cpu"
    torch.cuda.manual_seed_all(1)
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 0
    with torch.cuda.device(None), torch.cuda.stream(None):
        pass


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.ones(2).cuda(),
        lambda: torch.ones(2).to("cuda"),
        lambda: torch.ones(2, device="cuda:0"),
        lambda: nn.Linear(2, 2).cuda(),
        lambda: torch.cuda.current_device(),
        lambda: torch.cuda.synchronize(),
        lambda: torch.accelerator.synchronize(),
        lambda: torch.device(0),
        lambda: torch.cuda.set_device(0),
        lambda: torch.cuda.Event(enable_timing=True),
        lambda: torch.cuda.Stream(),
        lambda: torch.cuda.FloatTensor(2),
        lambda: torch.cuda.get_device_name(0),
        lambda: torch.accelerator.set_device_index(0),
    ],
)
def test_what_needs_a_device_raises(use) -> None:
    with pytest.raises(RuntimeError, match=r"(?i)cuda"):
        use()


def test_no_tensor_is_a_cuda_tensor() -> None:
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)
    assert not torch.ones(2).is_cuda


def test_one_process() -> None:
    import jitgrad.distributed as dist

    assert not dist.is_available() and not dist.is_initialized()
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    assert rank == 0


# -- flags -----------------------------------------------------------------------------------------
def test_flags_are_kept() -> None:
    import jitgrad.backends.cudnn as cudnn

    with cudnn.flags(enabled=False, benchmark=True):
        assert cudnn.benchmark and not torch.backends.cudnn.enabled
    assert cudnn.enabled and not cudnn.benchmark
    for module in (torch.backends.mps, torch.backends.mkldnn, torch.backends.cudnn):
        assert module.is_available() is False


def test_tf32_is_the_precision_in_other_words(settings) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")
    assert torch.backends.cuda.matmul.allow_tf32 is False
    with pytest.raises(RuntimeError, match="expected one of highest, high, medium; got 'low'"):
        torch.set_float32_matmul_precision("low")


def test_determinism_is_kept(settings) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.get_deterministic_debug_mode() == 1
    torch.set_deterministic_debug_mode("error")
    assert torch.get_deterministic_debug_mode() == 2
    with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
        torch.set_deterministic_debug_mode(7)


def test_threads_are_the_pool_s(settings) -> None:
    torch.set_num_threads(3)
    assert threads.get_num_threads() == torch.get_num_threads() == 3
    for bad, error in ((0, RuntimeError), (-1, RuntimeError), (2.0, RuntimeError)):
        with pytest.raises(error):
            torch.set_num_threads(bad)
        with pytest.raises(error):
            torch.set_num_interop_threads(bad)
    assert torch.get_num_interop_threads() >= 1


def test_settings_are_guarded(settings) -> None:
    @torch.jit(fallback="error")
    def f(x):
        return x * (2 if torch.get_float32_matmul_precision() == "high" else 3)

    x = torch.ones(2)
    assert f(x).tolist() == f(x).tolist() == [3.0, 3.0]
    torch.set_float32_matmul_precision("high")
    assert f(x).tolist() == f(x).tolist() == [2.0, 2.0]
    assert f.stats.traces == 2 and f.stats.hits == 2


def test_flags_of_backends_are_guarded() -> None:
    @torch.jit(fallback="error")
    def f(x):
        return x * (2 if torch.backends.cudnn.benchmark else 3)

    x = torch.ones(2)
    assert f(x).tolist() == f(x).tolist() == [3.0, 3.0]
    with torch.backends.cudnn.flags(benchmark=True):
        assert f(x).tolist() == [2.0, 2.0]


def test_threads_are_no_part_of_a_compiled_function(settings) -> None:
    @torch.jit(fallback="error")
    def f(x):
        return x * torch.get_num_threads()

    for count in (3, 3, 2):
        torch.set_num_threads(count)
        assert f(torch.ones(2)).tolist() == [count, count]
    assert f.stats.hits == 0  # Python asks at each call


# -- versions --------------------------------------------------------------------------------------
def test_versions() -> None:
    """The ways in which public code asks for a version of PyTorch (or of any package)."""
    text = torch.__version__
    assert text == torch.version.__version__ == "2.13.0+jitgrad0.1.0"
    parse = packaging.version.parse
    assert parse(text) >= parse("2.0") and parse(text) > parse("1.13.1") and parse(text).major == 2
    assert parse(text.split("+")[0]) == parse("2.13") and parse(text).local == "jitgrad0.1.0"
    assert text >= (2, 0) and text > "1.9" and text >= "2.0.0" and text < (3,) and text != (2, 0)
    assert text > "2.9" and not text < "2.2"  # by numbers, not as text
    assert tuple(int(n) for n in text.split(".")[:2]) == (2, 13)
    assert int(text.split(".")[1]) >= 8 and text.startswith("2.")
    assert re.match(r"^(\d+)\.(\d+)\.(\d+)([^\+]*)(\+\S*)?$", text)[4] == ""
    assert (
        torch.version.torch == (2, 13)
        and torch.version.jitgrad == "0.1.0"
        and torch.version.jitgrad == (0, 1)
    )
    assert torch.version.cuda is None and torch.version.hip is None


# -- torch.jit, torch.compile, torch.compiler ------------------------------------------------------
def test_names_of_torch_jit_inside_and_outside_of_jit() -> None:
    class Net(nn.Module):
        scale: torch.jit.Final[int]

        def __init__(self):
            super().__init__()
            self.scale = 2

        @torch.jit.unused
        def extra(self, x):
            return x + 1

        @torch.jit.ignore(drop=True)
        def more(self, x):
            return x + 2

        @torch.jit.export
        def forward(self, x):
            if not torch.jit.is_scripting() and not torch.jit.is_tracing():
                x = self.more(self.extra(x))
            return torch.jit.annotate(torch.Tensor, x * self.scale)

    net, x = Net(), torch.ones(2)
    for compiled in (torch.jit.script(net), torch.jit.trace(net, (x,)), torch.compile(net)):
        assert compiled(x).tolist() == compiled(x).tolist() == [8.0, 8.0]
        assert isinstance(compiled, Net) and compiled.stats.hits == 1
        assert not isinstance(compiled, torch.jit.ScriptModule)
    assert torch.jit.isinstance([1], list) and torch.jit.isinstance([1], list[int])


@torch.jit.script
def scripted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y + 1


def test_scripted_functions_are_part_of_others() -> None:
    @torch.compile(fullgraph=True)
    def f(x):
        return scripted(x, x).sum()

    x = torch.full((3,), 2.0)
    assert f(x).item() == f(x).item() == 15.0 and f.stats.hits == 1


def test_files_of_torch_jit(tmp_path) -> None:
    net, x = nn.Linear(3, 2), torch.ones(4, 3)
    path = tmp_path / "net.jgx"
    torch.jit.save(torch.export(net, x), path)
    torch.testing.assert_close(torch.jit.load(path)(x), net(x))
    with pytest.raises(RuntimeError, match=r"expected what jitgrad\.export.* gives; got Linear"):
        torch.jit.save(net, path)
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(RuntimeError, match="no TorchScript to run"):
        torch.jit.load(tmp_path / "weights.pt")
    with pytest.raises(FileNotFoundError):
        torch.jit.load(tmp_path / "nothing.pt")


def test_arguments_of_compile() -> None:
    def f(x):
        return x.numpy().tolist()

    with pytest.raises(CompileError):
        torch.compile(f, fullgraph=True, mode="max-autotune", dynamic=False)(torch.ones(()))
    for same in (
        torch.compile(f, backend="eager"),
        torch.compile(f, disable=True),
        torch.compile(disable=True)(f),
    ):
        assert same is f
    torch.compile(f, dynamic=True)
    for bad in ({"backend": "onnxrt"}, {"mode": "fast"}, {"options": {"a": 1}},
                {"mode": "default", "options": {}}):  # fmt: skip
        with pytest.raises(RuntimeError):
            torch.compile(f, **bad)


def test_module_compile_takes_compile_s_arguments() -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    expected = net(x)
    net.compile(fullgraph=True, mode="reduce-overhead")
    for _ in range(2):
        torch.testing.assert_close(net(x), expected)


def test_disable_keeps_functions_out() -> None:
    inside = []

    @torch.compiler.disable(reason="it prints")
    def logged(x):
        inside.append(torch.compiler.is_compiling())
        return x + 1

    @torch.jit(fallback="error")
    def f(x):
        return logged(x) * 2

    x = torch.ones(2)
    assert f(x).tolist() == f(x).tolist() == [4.0, 4.0] and len(inside) == 2
    assert f.stats.hits == 0  # Python calls it


def test_disable_inside_vmap_is_seen() -> None:
    @torch.compiler.disable
    def g(x):
        return x + 1

    @torch.jit(fallback="error")
    def f(x):
        return torch.vmap(g)(x)

    assert f(torch.ones(2)).tolist() == f(torch.ones(2)).tolist() == [2.0, 2.0]
    assert f.stats.hits == 0


def test_is_compiling_while_recording() -> None:
    @torch.jit(fallback="error")
    def f(x):
        if not torch.compiler.is_compiling():
            print("eager")
        return x * 2

    assert not torch.compiler.is_compiling() and not torch._dynamo.is_compiling()
    for _ in range(2):
        assert f(torch.ones(1)).item() == 2.0
    assert f.stats.hits == 1
    torch.compiler.reset()
    assert f.specialisations == []


# -- small things ----------------------------------------------------------------------------------
def test_assert_and_wrap() -> None:
    torch._assert(True, "fine")
    torch._assert(torch.tensor(True), "fine")
    with pytest.raises(AssertionError, match="wrong size"):
        torch._assert(1 == 2, "wrong size")
    assert torch.fx.wrap("len") == "len"

    @torch.fx.wrap
    def helper(x):
        return x

    assert helper(3) == 3 and not isinstance(torch.ones(1), torch.fx.Proxy)
    assert torch.typename(torch.ones(1)) == "torch.FloatTensor"


def test_what_public_code_asks_of_private_modules() -> None:
    assert torch._C._get_tracing_state() is None and torch.torch is torch
    assert not torch._C._are_functorch_transforms_active()
    inside = torch.vmap(lambda x: x * torch._C._are_functorch_transforms_active())
    assert inside(torch.ones(2)).tolist() == [1, 1]
    with torch._C.DisableTorchFunctionSubclass():
        assert not torch._subclasses.fake_tensor.is_fake(torch.ones(1))
    assert torch.fx.experimental.proxy_tensor.get_proxy_mode() is None
    assert importlib.import_module("jitgrad.jit.annotations").BroadcastingList2[int] == list[int]
    assert torch.jit._script_if_tracing(len) is torch.jit._overload_method(len) is len
    from jitgrad._dynamo.eval_frame import OptimizedModule

    net = torch.nn.Linear(1, 1)
    assert isinstance(torch.compile(net), OptimizedModule) and not isinstance(net, OptimizedModule)
    assert torch.compile(net)._orig_mod is net
    assert torch.hub._get_torch_home() + "/hub" == torch.hub.get_dir()
    assert torch.hub.HASH_REGEX.search("net-12ab.pth")[1] == "12ab"
    x = torch.utils._pytree._dict_flatten({"a": 1})
    assert torch.utils._pytree._dict_unflatten(*x) == {"a": 1}


def test_what_autocast_says_of_devices_that_are_not_there() -> None:
    assert not any(torch.is_autocast_enabled(kind) for kind in ("mps", "xpu", "hpu"))
    assert torch.get_autocast_dtype("mps") is torch.float16
    assert torch.get_autocast_dtype("xla") is torch.bfloat16
    with pytest.raises(RuntimeError, match="unsupported autocast device_type"):
        torch.is_autocast_enabled("nothing")


def test_flags_of_attention_within_a_context() -> None:
    flags = torch.backends.cuda
    with flags.sdp_kernel(enable_flash=False, enable_math=True, enable_mem_efficient=False):
        assert not flags.flash_sdp_enabled() and flags.math_sdp_enabled()
    assert flags.flash_sdp_enabled()


def test_numbers_that_are_recorded_are_symbolic_by_class() -> None:
    seen = []

    @torch.jit(pure=True)
    def f(x, a):
        seen.append(
            (isinstance(a, torch.SymFloat), isinstance(a, float), isinstance(a, torch.SymInt))
        )
        return x * a

    assert f(torch.ones(2), 0.5).tolist() == [0.5, 0.5] and seen == [(True, True, False)]
    assert not isinstance(0.5, torch.SymFloat) and not isinstance(True, torch.SymBool)


def test_what_is_named_but_not_there() -> None:
    from jitgrad.distributed.device_mesh import DeviceMesh

    with pytest.raises(TypeError, match="no tensors of jitgrad.complex32"):
        torch.zeros(2, dtype=torch.complex32)
    with pytest.raises(RuntimeError, match="several processes are not there"):
        DeviceMesh("cpu", [0])


def test_marks_of_quantization() -> None:
    x = torch.randn(2, 3)
    stubs = torch.nn.Sequential(
        torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
    )
    assert stubs(x) is x and not stubs.state_dict()
    f = torch.nn.quantized.FloatFunctional()
    for found, wanted in (
        (f.add(x, x), x + x), (f.mul(x, x), x * x), (f.cat([x, x], 1), torch.cat([x, x], 1)),
        (f.add_relu(x, x), (x + x).relu()), (f.matmul(x, x.T), x @ x.T), (f.add_scalar(x, 2),
        x + 2),
        (f.mul_scalar(x, 2), x * 2),
    ):  # fmt: skip
        assert torch.equal(found, wanted)
    with pytest.raises(RuntimeError, match="expected a call of one of its methods"):
        f(x)


@pytest.mark.parametrize(
    ("check", "error"),
    [("_check", RuntimeError), ("_check_index", IndexError), ("_check_value", ValueError),
     ("_check_type", TypeError), ("_check_not_implemented", NotImplementedError)],
)  # fmt: skip
def test_checks(check, error) -> None:
    ask = getattr(torch, check)
    ask(True, lambda: 1 / 0)
    with pytest.raises(error, match="a text"):
        ask(False, lambda: "a text")
    with pytest.raises(TypeError, match="cond must be a bool"):
        ask(1)


def test_checks_of_sizes_and_tensors() -> None:
    torch._check_is_size(3, max=3)
    for bad in (lambda: torch._check_is_size(-1), lambda: torch._check_is_size(3, max=2),
                lambda: torch._check_tensor_all(torch.tensor([True, False])),
                lambda: torch._assert_async(torch.zeros(2))):  # fmt: skip
        with pytest.raises(RuntimeError):
            bad()

    @torch.jit(fallback="error")
    def f(x, y):
        torch._check(x.shape[0] > 1, lambda: "too short")
        torch._assert_async((y > 0).all(), "not positive")
        return x * torch._shape_as_tensor(x)[0]

    for n in (2, 3, 4):
        assert f(torch.ones(n), torch.ones(2)).tolist() == [n] * n
        with pytest.raises(RuntimeError, match="not positive"):
            f(torch.ones(n), torch.zeros(2))
    with pytest.raises(RuntimeError, match="too short"):
        f(torch.ones(1), torch.ones(2))


def test_hub_loads_what_is_there(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    url = "https://example.org/models/net-1234.pt"
    with pytest.raises(RuntimeError, match="jitgrad downloads nothing; fetch https://example.org"):
        torch.hub.load_state_dict_from_url(url, progress=True)
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save({"w": torch.arange(3)}, folder / "net-1234.pt")
    from jitgrad.utils import model_zoo

    for load in (torch.hub.load_state_dict_from_url, model_zoo.load_url):
        assert load(url)["w"].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="downloads nothing"):
        torch.hub.load("pytorch/vision", "resnet18")


def test_subclasses_of_tensor() -> None:
    class Named(torch.Tensor):
        label = "none"

    x = torch.ones(2).as_subclass(Named)
    assert isinstance(x, Named) and isinstance(x, torch.Tensor) and x.label == "none"
    assert torch.overrides.is_tensor_like(x) and not torch.overrides.has_torch_function((x,))

    class Loud(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    for make in (lambda: x.as_subclass(Loud), lambda: Loud([1.0])):
        with pytest.raises(TypeError, match=r"Loud defines it.*docs/limits\.md"):
            make()


def test_annotations_in_public_code() -> None:
    from jitgrad import Tensor, device, dtype
    from jitgrad.types import Device, Number, _size

    def f(x: Tensor, where: Device = None, kind: dtype = torch.float32, n: Number = 1) -> Tensor:
        return x

    assert isinstance(torch.float32, dtype) and isinstance(torch.device("cpu"), device)
    assert f(torch.ones(1)).item() == 1.0 and _size is not None
    assert isinstance(torch.contiguous_format, torch.memory_format)
    assert isinstance(torch.strided, torch.layout)


def test_import_as_torch_leaves_torch_alone() -> None:
    code = "import sys, jitgrad as torch, jitgrad.nn as nn; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_warning_from_what_asks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not jitgrad.cuda.is_bf16_supported() and not jitgrad.cuda.is_initialized()
