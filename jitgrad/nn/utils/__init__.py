"""Utilities for networks, as torch.nn.utils. prune and stateless are imported when
they are first named."""

import importlib
from typing import Any

from jitgrad.missing import no_such
from jitgrad.nn.utils import parametrizations as parametrizations
from jitgrad.nn.utils import parametrize as parametrize
from jitgrad.nn.utils import rnn as rnn
from jitgrad.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from jitgrad.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from jitgrad.nn.utils.fusion import (
    fuse_conv_bn_eval,
    fuse_conv_bn_weights,
    fuse_linear_bn_eval,
    fuse_linear_bn_weights,
)
from jitgrad.nn.utils.init import skip_init
from jitgrad.nn.utils.spectral_norm import remove_spectral_norm, spectral_norm
from jitgrad.nn.utils.weight_norm import remove_weight_norm, weight_norm


def __getattr__(name: str) -> Any:
    if name in ("prune", "stateless"):
        return importlib.import_module(f"jitgrad.nn.utils.{name}")
    raise no_such(__name__, name)


__all__ = [
    "clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_",
    "fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights",
    "get_total_norm", "parameters_to_vector", "parametrizations", "parametrize",
    "remove_spectral_norm", "remove_weight_norm", "rnn", "skip_init", "spectral_norm",
    "vector_to_parameters", "weight_norm",
]  # fmt: skip
