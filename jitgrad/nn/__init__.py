"""Layers, losses and containers, by torch.nn's names."""

from jitgrad.nn import functional as functional
from jitgrad.nn import init as init
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
from jitgrad.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from jitgrad.nn.layers import (
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    Conv3d,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    Linear,
    MaxPool1d,
    MaxPool2d,
)
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
from jitgrad.nn.parameter import Buffer, Parameter

__all__ = [
    "ELU", "GELU", "SELU", "AvgPool2d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d",
    "BatchNorm2d", "BatchNorm3d", "Buffer", "Conv1d", "Conv2d", "Conv3d", "CrossEntropyLoss",
    "Dropout", "Embedding", "Flatten", "Hardsigmoid", "Hardswish", "Hardtanh", "HuberLoss",
    "Identity", "KLDivLoss", "L1Loss", "LayerNorm", "LeakyReLU", "Linear", "LogSigmoid",
    "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d", "Mish", "Module", "ModuleDict",
    "ModuleList", "NLLLoss", "Parameter", "ParameterList", "ReLU", "ReLU6", "Sequential", "SiLU",
    "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Tanh", "functional", "init",
]  # fmt: skip
