"""Layers, losses and containers, by torch.nn's names."""

from jitgrad.nn import functional as functional
from jitgrad.nn import init as init
from jitgrad.nn import utils as utils
from jitgrad.nn.activations import (
    ELU,
    GELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from jitgrad.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from jitgrad.nn.convolution import Conv1d, Conv2d, Conv3d
from jitgrad.nn.layers import Dropout, Embedding, Flatten, Identity, Linear
from jitgrad.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from jitgrad.nn.module import Module
from jitgrad.nn.normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d, LayerNorm
from jitgrad.nn.parameter import Buffer, Parameter
from jitgrad.nn.pooling import (
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from jitgrad.nn.recurrent import GRU, LSTM, RNN, RNNBase
from jitgrad.nn.recurrent_cells import GRUCell, LSTMCell, RNNCell, RNNCellBase

__all__ = [
    "ELU", "GELU", "GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNBase", "RNNCell", "RNNCellBase",
    "SELU", "AvgPool1d", "AvgPool2d", "AvgPool3d", "BCELoss", "BCEWithLogitsLoss",
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Buffer", "Conv1d", "Conv2d", "Conv3d",
    "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "Hardsigmoid", "Hardswish", "Hardtanh",
    "HuberLoss", "Identity", "KLDivLoss", "L1Loss", "LayerNorm", "LeakyReLU", "Linear",
    "LogSigmoid", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d", "MaxPool3d", "Mish", "Module",
    "ModuleDict", "ModuleList", "NLLLoss", "Parameter", "ParameterDict", "ParameterList", "ReLU",
    "ReLU6", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Tanh",
    "functional", "init", "utils",
]  # fmt: skip
