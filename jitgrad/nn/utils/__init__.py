"""Utilities for networks, as torch.nn.utils."""

from jitgrad.nn.utils import rnn as rnn

__all__ = ["rnn"]
