"""Optimizers, by torch.optim's names."""

from jitgrad.optim.adam import Adam, AdamW
from jitgrad.optim.optimizer import Optimizer
from jitgrad.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
