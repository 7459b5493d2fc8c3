"""torch.nn.modules: the modules by which public code imports layers, as in
`from jitgrad.nn.modules.batchnorm import _BatchNorm`, `from jitgrad.nn.modules.utils import _pair`.

Owns the table of PyTorch's modules and the names in them; the code is in this package's other
modules. Each becomes an entry of sys.modules, which is where `import` looks first.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from jitgrad.missing import missing, names_module
from jitgrad.nn import (
    activations,
    adaptive_softmax,
    attention,
    batchnorm,
    containers,
    convolution,
    distance,
    dropout,
    embedding,
    global_hooks,
    layers,
    lazy,
    linear_cross_entropy_options,
    losses,
    margin_losses,
    module,
    normalization,
    padding,
    parameter_containers,
    pooling,
    recurrent,
    recurrent_cells,
    resampling,
    state_dict,
    transformer,
    tuples,
)

_SOURCES = (
    activations, adaptive_softmax, attention, batchnorm, containers, convolution, distance,
    dropout, embedding, global_hooks, layers, lazy, linear_cross_entropy_options, losses,
    margin_losses, module,
    normalization, padding, parameter_containers, pooling, recurrent, recurrent_cells,
    resampling, state_dict, transformer, tuples,
)  # fmt: skip

_TABLE = {
    "activation": "CELU ELU GELU GLU SELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU "
    "LogSigmoid LogSoftmax Mish MultiheadAttention PReLU RReLU ReLU ReLU6 SiLU Sigmoid Softmax "
    "Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink Threshold",
    "batchnorm": "_NormBase _BatchNorm BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm "
    "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d",
    "channelshuffle": "ChannelShuffle",
    "container": "ModuleDict ModuleList ParameterDict ParameterList Sequential",
    "conv": "_ConvNd _ConvTransposeNd Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d "
    "ConvTranspose3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d "
    "LazyConvTranspose3d",
    "distance": "CosineSimilarity PairwiseDistance",
    "dropout": "_DropoutNd AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout",
    "flatten": "Flatten Unflatten",
    "fold": "Fold Unfold",
    "instancenorm": "_InstanceNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d "
    "LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d",
    "lazy": "LazyModuleMixin",
    "linear": "Bilinear Identity LazyLinear Linear NonDynamicallyQuantizableLinear",
    "linear_cross_entropy_options": "LinearCrossEntropyOptions",
    "loss": "_Loss _WeightedLoss BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss "
    "CrossEntropyLoss GaussianNLLLoss HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss "
    "LinearCrossEntropyLoss MSELoss MarginRankingLoss MultiLabelMarginLoss "
    "MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d PoissonNLLLoss "
    "SmoothL1Loss SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss",
    "adaptive": "AdaptiveLogSoftmaxWithLoss",
    "module": "_IncompatibleKeys Module register_module_backward_hook "
    "register_module_buffer_registration_hook register_module_forward_hook "
    "register_module_forward_pre_hook register_module_full_backward_hook "
    "register_module_full_backward_pre_hook register_module_module_registration_hook "
    "register_module_parameter_registration_hook",
    "normalization": "CrossMapLRN2d GroupNorm LayerNorm LocalResponseNorm RMSNorm",
    "padding": "_CircularPadNd _ConstantPadNd _ReflectionPadNd _ReplicationPadNd CircularPad1d "
    "CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d "
    "ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d ZeroPad1d "
    "ZeroPad2d ZeroPad3d",
    "pixelshuffle": "PixelShuffle PixelUnshuffle",
    "pooling": "_AdaptiveAvgPoolNd _AdaptiveMaxPoolNd _AvgPoolNd _LPPoolNd _MaxPoolNd _MaxUnpoolNd "
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d "
    "AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d FractionalMaxPool3d "
    "LPPool1d LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d",
    "rnn": "GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase",
    "sparse": "Embedding EmbeddingBag",
    "transformer": "Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder "
    "TransformerEncoderLayer",
    "upsampling": "Upsample UpsamplingBilinear2d UpsamplingNearest2d",
    "utils": "_list_with_default _ntuple _pair _quadruple _reverse_repeat_tuple _single _triple "
    "consume_prefix_in_state_dict_if_present",
}
_RENAMED = {"_Loss": losses.Loss, "_WeightedLoss": losses.WeightedLoss}


def _find(name: str) -> Any:
    if name in _RENAMED:
        return _RENAMED[name]
    return next(vars(source)[name] for source in _SOURCES if name in vars(source))


def _make(short: str, names: list[str]) -> ModuleType:
    found = {name: _find(name) for name in names}
    return names_module(f"{__name__}.{short}", found, f"Names of torch.nn.modules.{short}.")


__all__ = []
for _short, _names in _TABLE.items():
    _made = _make(_short, _names.split())
    globals()[_short] = _made
    _here = [n for n in _made.__all__ if not n.startswith("register_module")]
    globals().update((n, getattr(_made, n)) for n in _here)
    __all__ += _here


__getattr__ = missing(__name__)
