"""The public names of jitgrad: what `jitgrad.name` is.

Owns which there are, and where from. nn, optim, utils and other subpackages are imported when they
are first named. `jitgrad/__init__.py` shows all that is here as its own.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import TYPE_CHECKING, Any

from jitgrad import _collector, autograd, compiler, einops_backend, methods, public, random
from jitgrad.autograd import (
    enable_grad,
    inference_mode,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_anomaly_enabled,
    set_grad_enabled,
)
from jitgrad.creation import (
    arange,
    as_tensor,
    asarray,
    bernoulli,
    empty,
    empty_like,
    empty_strided,
    eye,
    from_dlpack,
    from_numpy,
    frombuffer,
    full,
    full_like,
    linspace,
    logspace,
    multinomial,
    normal,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    range,
    tensor,
    zeros,
    zeros_like,
)
from jitgrad.device import device
from jitgrad.functions.linalg import chain_matmul, einsum
from jitgrad.functions.shape import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    broadcast_tensors,
    cat,
    column_stack,
    dstack,
    hstack,
    meshgrid,
    stack,
    vstack,
)
from jitgrad.functions.shape import broadcast_shapes_of as _broadcast_shapes_of
from jitgrad.info import finfo, iinfo
from jitgrad.missing import no_such
from jitgrad.printing import set_printoptions
from jitgrad.promotion import can_cast, promote_types
from jitgrad.random import (
    Generator,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)
from jitgrad.runtime.dtypes import (
    DType,
    bfloat16,
    complex32,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    qint8,
    qint32,
    quint8,
    uint8,
    uint16,
    uint32,
    uint64,
)
from jitgrad.runtime.dtypes import bool_ as bool
from jitgrad.runtime.formats import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    jagged,
    layout,
    memory_format,
    per_channel_affine,
    per_channel_affine_float_qparams,
    per_channel_symmetric,
    per_tensor_affine,
    per_tensor_symmetric,
    preserve_format,
    qscheme,
    sparse_bsc,
    sparse_bsr,
    sparse_coo,
    sparse_csc,
    sparse_csr,
    strided,
)
from jitgrad.state import get_default_dtype, set_default_dtype
from jitgrad.tensor import Size, Tensor
from jitgrad.version import __version__ as __version__

if TYPE_CHECKING:
    from jitgrad import amp as amp
    from jitgrad import cpu as cpu
    from jitgrad import cuda as cuda
    from jitgrad import fft as fft
    from jitgrad import func as func
    from jitgrad import linalg as linalg
    from jitgrad import multiprocessing as multiprocessing
    from jitgrad import nn as nn
    from jitgrad import onnx as onnx
    from jitgrad import optim as optim
    from jitgrad import utils as utils
    from jitgrad.amp.autocast_mode import autocast as autocast
    from jitgrad.amp.autocast_mode import get_autocast_dtype as get_autocast_dtype
    from jitgrad.amp.autocast_mode import is_autocast_enabled as is_autocast_enabled
    from jitgrad.func import vmap as vmap
    from jitgrad.jit import compile as compile
    from jitgrad.jit import disable_jit as disable_jit
    from jitgrad.jit import jit as jit
    from jitgrad.lowered import TensorSpec as TensorSpec
    from jitgrad.recompiles import no_recompile as no_recompile
    from jitgrad.serialization import load as load
    from jitgrad.serialization import load_safetensors as load_safetensors
    from jitgrad.serialization import save as save
    from jitgrad.serialization import save_safetensors as save_safetensors

_PUBLIC = public.collect()
globals().update(_PUBLIC)

dtype = DType
broadcast_shapes = _broadcast_shapes_of
half, double, short, long = float16, float64, int16, int64
cfloat, cdouble = complex64, complex128
float = float32
int = int32
pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
newaxis = None


def is_tensor(obj: Any) -> Any:
    """Whether obj is a Tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> Any:
    """Whether the dtype is floating."""
    return input.is_floating_point()


def is_complex(input: Tensor) -> Any:
    """Whether the dtype is complex."""
    return input.is_complex()


def _shape_as_tensor(self: Tensor) -> Tensor:
    """The sizes, as a vector of int64."""
    return tensor(self.shape, dtype=int64)


def numel(input: Tensor) -> Any:
    """The number of elements."""
    return input.numel()


# Imported at their first use. jit and export can be called.
_SUBMODULES = (
    "_C",
    "_dynamo",
    "_higher_order_ops",
    "_inductor",
    "_subclasses",
    "accelerator",
    "amp",
    "ao",
    "backends",
    "compiling",
    "cpu",
    "cuda",
    "distributed",
    "distributions",
    "export",
    "fft",
    "func",
    "fx",
    "hub",
    "jit",
    "library",
    "linalg",
    "mps",
    "multiprocessing",
    "nn",
    "onnx",
    "ops",
    "optim",
    "overrides",
    "profiler",
    "serialization",
    "signal",
    "special",
    "testing",
    "types",
    "utils",
    "version",
    "xpu",
)
_SETTINGS = (
    "AcceleratorError", "OutOfMemoryError", "_assert", "are_deterministic_algorithms_enabled",
    "compiled_with_cxx11_abi", "get_default_device", "get_deterministic_debug_mode",
    "get_float32_matmul_precision", "get_num_interop_threads", "get_num_threads",
    "is_deterministic_algorithms_warn_only_enabled", "is_warn_always_enabled",
    "set_default_device", "set_deterministic_debug_mode", "set_float32_matmul_precision",
    "set_flush_denormal", "set_num_interop_threads", "set_num_threads", "set_warn_always",
    "typename", "use_deterministic_algorithms",
)  # fmt: skip
_CHECKS = (
    "_assert_async", "_check", "_check_index", "_check_is_size", "_check_not_implemented",
    "_check_tensor_all", "_check_type", "_check_value", "_check_with", "sym_int",
)  # fmt: skip
_FROM_FUNCTIONAL = (
    "adaptive_avg_pool1d", "avg_pool1d", "bilinear", "celu", "celu_", "channel_shuffle", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "hardshrink",
    "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool3d", "pixel_shuffle",
    "pixel_unshuffle", "prelu", "rms_norm", "rrelu", "rrelu_", "selu", "selu_", "threshold",
    "threshold_",
)  # fmt: skip
_NATIVE = (
    "alpha_dropout", "alpha_dropout_", "batch_norm", "conv_tbc", "convolution", "dropout",
    "dropout_", "embedding", "embedding_bag", "embedding_renorm_", "feature_alpha_dropout",
    "feature_alpha_dropout_", "feature_dropout", "feature_dropout_", "group_norm", "instance_norm",
    "layer_norm", "native_batch_norm", "native_dropout", "native_group_norm", "native_layer_norm",
    "native_norm", "norm_except_dim",
)  # fmt: skip
_NATIVE_LOSSES = (
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "ctc_loss",
    "hinge_embedding_loss", "kl_div", "margin_ranking_loss", "poisson_nll_loss",
    "triplet_margin_loss",
)  # fmt: skip
_NATIVE_RECURRENT = (
    "gru", "gru_cell", "lstm", "lstm_cell", "rnn_relu", "rnn_relu_cell", "rnn_tanh",
    "rnn_tanh_cell",
)  # fmt: skip
_LAZY = {  # name -> (module, name in it)
    **{name: ("nn.functional", name) for name in _FROM_FUNCTIONAL},
    **{name: ("nn.functional.native", name) for name in _NATIVE},
    **{name: ("nn.functional.native_losses", name) for name in _NATIVE_LOSSES},
    **{name: ("nn.functional.native_recurrent", name) for name in _NATIVE_RECURRENT},
    **{name: ("settings", name) for name in _SETTINGS},
    **{name: ("asserting", name) for name in _CHECKS},
    "Dim": ("dims", "Dim"),
    "SymBool": ("hostscalar", "Truth"),
    "SymFloat": ("hostscalar", "HostScalar"),
    "SymInt": ("sizes", "SymInt"),
    "mark_dynamic": ("dims", "mark_dynamic"),
    "adaptive_max_pool1d": ("nn.functional", "adaptive_max_pool1d_with_indices"),
    "affine_grid_generator": ("nn.functional", "affine_grid"),
    "grid_sampler": ("nn.functional.sampling", "grid_sampler"),
    "grid_sampler_2d": ("nn.functional.sampling", "grid_sampler"),
    "grid_sampler_3d": ("nn.functional.sampling", "grid_sampler"),
    **{
        f"fake_quantize_per_{name}_affine": (
            "functions.fake_quantize", f"fake_quantize_per_{name}_affine"
        )
        for name in ("channel", "tensor")
    },
    **{
        f"{name}_window": ("functions.windows", f"{name}_window")
        for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")
    },
    **{name: ("old_linalg", name) for name in methods.LATER},
    **{
        name: ("old_linalg", name)
        for name in ("frobenius_norm", "lu_unpack", "nuclear_norm")
    },
    "native_channel_shuffle": ("nn.functional", "native_channel_shuffle"),
    "binomial": ("draws", "binomial"),
    **{
        name: ("functions.low_rank", name)
        for name in ("lobpcg", "pca_lowrank", "svd_lowrank")
    },
    **{name: ("control_flow", name) for name in ("cond", "scan", "while_loop")},
    "GradScaler": ("amp", "GradScaler"),
    "get_device_module": ("accelerator", "get_device_module"),
    "UntypedStorage": ("storage", "Storage"),
    "poisson": ("draws", "poisson"),
    "_sample_dirichlet": ("draws", "sample_dirichlet"),
    "compile": ("jit", "compile"),
    "disable_jit": ("jit", "disable_jit"),
    "TensorSpec": ("lowered", "TensorSpec"),
    "no_recompile": ("recompiles", "no_recompile"),
    "RecompileError": ("recompiles", "RecompileError"),
    "doctor": ("doctoring", "doctor"),
    "load": ("serialization", "load"),
    "ScriptModule": ("jit", "ScriptModule"),
    "PyTorchFileReader": ("serialization.reader", "PyTorchFileReader"),
    "to_dlpack": ("utils.dlpack", "to_dlpack"),
    "load_exported": ("exported", "load_exported"),
    "load_safetensors": ("serialization", "load_safetensors"),
    "save": ("serialization", "save"),
    "save_safetensors": ("serialization", "save_safetensors"),
    "vmap": ("func", "vmap"),
    **{
        name: ("amp.autocast_mode", name)
        for name in (
            "autocast", "clear_autocast_cache", "get_autocast_cpu_dtype", "get_autocast_dtype",
            "get_autocast_gpu_dtype", "is_autocast_cache_enabled", "is_autocast_cpu_enabled",
            "is_autocast_enabled", "set_autocast_cache_enabled", "set_autocast_dtype",
            "set_autocast_enabled",
        )
    },
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports what not every program needs at its first use."""
    if name in _LAZY:
        module, inner = _LAZY[name]
        return getattr(importlib.import_module(f"jitgrad.{module}"), inner)
    if name in _SUBMODULES:
        return importlib.import_module(f"jitgrad.{name}")
    if name.startswith("_foreach_"):
        return importlib.import_module("jitgrad.foreach").function_of(name)
    if name == "torch":  # PyTorch's own module is among its names
        return sys.modules["jitgrad"]
    raise no_such("jitgrad", name)


einops_backend.register()
compiler.public = lambda name: getattr(__getattr__("compiling"), name)
_collector.resume()


__all__ = [
    "DType", "Generator", "Size", "Tensor", "arange", "as_tensor", "asarray", "atleast_1d",
    "atleast_2d", "atleast_3d", "autograd", "bernoulli", "bfloat16", "bool", "broadcast_shapes",
    "broadcast_tensors", "can_cast", "cat", "channels_last", "channels_last_3d",
    "contiguous_format", "jagged", "layout", "memory_format", "per_channel_affine",
    "per_channel_affine_float_qparams", "per_channel_symmetric", "per_tensor_affine",
    "per_tensor_symmetric", "preserve_format", "qscheme", "sparse_bsc", "sparse_bsr",
    "sparse_coo", "sparse_csc", "sparse_csr", "strided", "chain_matmul", "column_stack",
    "complex128", "complex32",
    "complex64", "default_generator", "device", "double", "dstack", "dtype", "e", "einsum",
    "empty", "empty_like", "empty_strided", "enable_grad", "eye", "finfo", "float",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float16", "float32", "float64", "from_dlpack", "from_numpy", "frombuffer", "full", "full_like",
    "get_default_dtype", "get_rng_state", "half", "hstack", "iinfo", "inf", "inference_mode",
    "initial_seed", "int", "int16", "int32", "int64", "int8", "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled", "is_complex", "is_floating_point",
    "is_grad_enabled", "is_inference_mode_enabled", "is_tensor", "linspace", "logspace", "long",
    "manual_seed", "meshgrid", "methods", "multinomial", "nan", "no_grad", "normal", "numel",
    "ones", "ones_like", "pi", "promote_types", "qint32", "qint8", "quint8",
    "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "random", "randperm", "range", "seed",
    "set_anomaly_enabled", "set_default_dtype", "set_grad_enabled", "set_printoptions",
    "set_rng_state", "short", "stack",
    "tensor", "uint16", "uint32", "uint64", "uint8", "vstack", "zeros", "zeros_like",
    *sorted(_PUBLIC),
]  # fmt: skip
