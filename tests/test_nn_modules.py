"""nn.modules, nn.parallel, nn.common_types: the paths by which public code imports layers."""

import importlib

import numpy as np
import pytest

import jitgrad as t
from jitgrad import nn
from jitgrad.nn.common_types import _size_2_t
from jitgrad.nn.modules import Linear, Module
from jitgrad.nn.modules.batchnorm import _BatchNorm
from jitgrad.nn.modules.loss import _Loss, _WeightedLoss
from jitgrad.nn.modules.utils import _ntuple, _pair, consume_prefix_in_state_dict_if_present
from jitgrad.nn.parallel import DataParallel, DistributedDataParallel
from jitgrad.nn.parameter import Parameter


def test_the_same_objects():
    assert Linear is nn.Linear and Module is nn.Module and Parameter is nn.Parameter
    assert nn.modules.conv.Conv2d is nn.Conv2d and nn.modules.rnn.LSTM is nn.LSTM
    assert isinstance(nn.BatchNorm2d(3), _BatchNorm) and issubclass(nn.NLLLoss, _WeightedLoss)
    assert issubclass(nn.MSELoss, _Loss) and _size_2_t is not None
    assert _pair(3) == (3, 3) and _pair([1, 2]) == (1, 2) and _ntuple(3)("ab") == ("a", "b")


def test_what_is_missing_is_named():
    with pytest.raises(AttributeError, match="docs/limits.md"):
        assert nn.modules.module.not_there
    with pytest.raises(ImportError):
        importlib.import_module("jitgrad.nn.modules.not_there")


def test_every_layer_of_the_package_is_in_a_module():
    found = set(nn.modules.__all__)
    layers = {n for n in nn.__all__ if isinstance(getattr(nn, n), type)}
    outside = {"Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer",
               "DataParallel"}  # fmt: skip
    assert layers - outside <= found


def test_data_parallel_calls_its_module():
    net = nn.Linear(2, 3)
    wrapped = DataParallel(net)
    x = t.ones(1, 2)
    assert (wrapped(x) == net(x)).all() and wrapped.module is net
    state = wrapped.state_dict()
    assert list(state) == ["module.weight", "module.bias"]
    consume_prefix_in_state_dict_if_present(state, "module.")
    assert list(state) == ["weight", "bias"] and list(state._metadata) == [""]
    net.load_state_dict(state)
    np.testing.assert_array_equal(t.jit(wrapped)(x).detach().numpy(), net(x).detach().numpy())
    with pytest.raises(RuntimeError, match="docs/limits.md"):
        DistributedDataParallel(net)
