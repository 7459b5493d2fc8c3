"""Lazy layers: parameters get their shapes from the first input, as in torch.nn.modules.lazy.

Before the first call a lazy layer's parameters are uninitialized (nn/parameter.py); at it, the
layer becomes one of the class `cls_to_become`. Parameters stay the same objects, so an optimizer
may have been given them before.
"""

from __future__ import annotations

from typing import Any

from jitgrad.making import tensor
from jitgrad.nn.batchnorm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from jitgrad.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from jitgrad.nn.functional.args import IntOrInts
from jitgrad.nn.layers import Linear
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from jitgrad.runtime import dtypes
from jitgrad.state import bump_epoch, state
from jitgrad.tensor import Tensor


class LazyModuleMixin:
    """Goes before a Module class: class LazyX(LazyModuleMixin, X).

    A subclass makes parameters UninitializedParameters, and defines initialize_parameters(*args),
    which materializes them when forward is first called with these arguments. It may set
    cls_to_become, the class that the module has from then on.
    """

    cls_to_become: Any = None
    _lazy_hooks: tuple[int, int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        module: Any = self
        load = module._register_load_state_dict_pre_hook(self._lazy_load_hook)
        first = module.register_forward_pre_hook(self._infer_parameters, with_kwargs=True)
        self._lazy_hooks = (load.id, first.id)

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Gives every uninitialized parameter its shape."""
        raise NotImplementedError(
            f"initialize_parameters is not implemented for {type(self).__name__}"
        )

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer of this very module has no shape yet."""
        module: Any = self
        return any(map(is_lazy, (*module._parameters.values(), *module._buffers.values())))

    def _lazy_load_hook(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Takes shapes from a state dict that is about to be loaded."""
        module: Any = self
        for name, x in (*module._parameters.items(), *module._buffers.items()):
            source = state_dict.get(prefix + name)
            if is_lazy(x) and source is not None and not is_lazy(source):
                x.materialize(source.shape)

    def _infer_parameters(self, module: Any, args: Any, kwargs: Any) -> None:
        if state.recorder is not None:  # of a first call there is nothing to replay
            state.recorder.postpone()
        module.initialize_parameters(*args, **kwargs)
        if module.has_uninitialized_params():
            raise RuntimeError(f"module {type(self).__name__} has not been fully initialized")
        load, first = module._lazy_hooks
        module._load_state_dict_pre_hooks.pop(load, None)
        module._forward_pre_hooks.pop(first, None)
        del module._lazy_hooks
        if module.cls_to_become is not None:
            module.__class__ = module.cls_to_become
        bump_epoch()


def _materialize(module: Module, **shapes: tuple[int, ...]) -> None:
    """Gives those of these parameters and buffers a shape that have none."""
    for name, shape in shapes.items():
        x = getattr(module, name)
        if is_lazy(x):
            x.materialize(shape)


class LazyLinear(LazyModuleMixin, Linear):
    """Linear whose in_features is the last size of the first input."""

    cls_to_become = Linear

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(0, 0, False)
        self.out_features = out_features
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        if not self.has_uninitialized_params() and self.in_features:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        new = self.has_uninitialized_params()
        self.in_features = int(input.shape[-1])
        shape = (self.out_features, self.in_features)
        _materialize(self, weight=shape, bias=shape[:1])
        if tuple(self.weight.shape) != shape:
            raise AssertionError(
                f"[LazyLinear] expected input (..., {self.weight.shape[1]}), as the loaded weight "
                f"{tuple(self.weight.shape)} says; got {tuple(input.shape)}"
            )
        if new:
            self.reset_parameters()


# -- convolutions ----------------------------------------------------------------------------------
class _LazyConv(LazyModuleMixin):
    """A convolution whose in_channels is that of the first input."""

    def _make_lazy(self, out_channels: int, bias: bool, device: Any, dtype: Any) -> None:
        layer: Any = self
        layer.out_channels = out_channels
        layer.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            layer.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        layer: Any = self
        if not self.has_uninitialized_params() and layer.in_channels:
            super().reset_parameters()  # type: ignore[misc]

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        layer: Any = self
        if not self.has_uninitialized_params():
            if not layer.in_channels:  # shapes came from a state dict
                weight = layer.weight.shape
                layer.in_channels = int(weight[0] if layer.transposed else weight[1] * layer.groups)
            return
        rank = layer.spatial + 1
        if input.dim() not in (rank, rank + 1):
            raise RuntimeError(
                f"Expected {rank}D (unbatched) or {rank + 1}D (batched) input to "
                f"{type(self).__name__}, but got input of size: {tuple(input.shape)}"
            )
        layer.in_channels = int(input.shape[-rank])
        if layer.in_channels % layer.groups:
            raise ValueError(
                f"[{type(self).__name__}] in_channels must be divisible by groups; got "
                f"{layer.in_channels} and {layer.groups}"
            )
        ends = (layer.out_channels, layer.in_channels)
        ends = ends[::-1] if layer.transposed else ends
        shape = (ends[0], ends[1] // layer.groups, *layer.kernel_size)
        _materialize(layer, weight=shape, bias=(layer.out_channels,))
        self.reset_parameters()


class _LazyConvNd(_LazyConv):
    def __init__(
        self, out_channels: int, kernel_size: IntOrInts, stride: IntOrInts = 1,
        padding: IntOrInts | str = 0, dilation: IntOrInts = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(0, 0, kernel_size, stride, padding, dilation, groups, False, padding_mode)
        self._make_lazy(out_channels, bias, device, dtype)


class _LazyConvTransposeNd(_LazyConv):
    def __init__(
        self, out_channels: int, kernel_size: IntOrInts, stride: IntOrInts = 1,
        padding: IntOrInts = 0, output_padding: IntOrInts = 0, groups: int = 1, bias: bool = True,
        dilation: IntOrInts = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            0, 0, kernel_size, stride, padding, output_padding, groups, False, dilation,
            padding_mode,
        )  # fmt: skip
        self._make_lazy(out_channels, bias, device, dtype)


class LazyConv1d(_LazyConvNd, Conv1d):
    """Conv1d with in_channels from the first input."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyConvNd, Conv2d):
    """Conv2d with in_channels from the first input."""

    cls_to_become = Conv2d


class LazyConv3d(_LazyConvNd, Conv3d):
    """Conv3d with in_channels from the first input."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyConvTransposeNd, ConvTranspose1d):
    """ConvTranspose1d with in_channels from the first input."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTransposeNd, ConvTranspose2d):
    """ConvTranspose2d with in_channels from the first input."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTransposeNd, ConvTranspose3d):
    """ConvTranspose3d with in_channels from the first input."""

    cls_to_become = ConvTranspose3d


# -- normalisation ---------------------------------------------------------------------------------
class _LazyNorm(LazyModuleMixin):
    """A normalisation whose num_features is dim 1 of the first input."""

    def __init__(
        self, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(0, eps, momentum, False, False)
        layer: Any = self
        layer.affine, layer.track_running_stats = affine, track_running_stats
        kind = {"device": device, "dtype": dtype}
        if affine:
            layer.weight = UninitializedParameter(**kind)
            if bias:
                layer.bias = UninitializedParameter(**kind)
        if track_running_stats:
            layer.running_mean = UninitializedBuffer(**kind)
            layer.running_var = UninitializedBuffer(**kind)
            layer.num_batches_tracked = tensor(0, dtype=dtypes.int64)

    def reset_parameters(self) -> None:
        layer: Any = self
        if not self.has_uninitialized_params() and layer.num_features:
            super().reset_parameters()  # type: ignore[misc]

    def initialize_parameters(self, input: Tensor) -> None:
        layer: Any = self
        new = self.has_uninitialized_params()
        layer.num_features = int(input.shape[1])
        names = ("weight", "bias", "running_mean", "running_var")
        _materialize(layer, **dict.fromkeys(names, (layer.num_features,)))
        if new:
            self.reset_parameters()


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """BatchNorm1d with num_features from the first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """BatchNorm2d with num_features from the first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """BatchNorm3d with num_features from the first input."""

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """InstanceNorm1d with num_features from the first input."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """InstanceNorm2d with num_features from the first input."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """InstanceNorm3d with num_features from the first input."""

    cls_to_become = InstanceNorm3d
