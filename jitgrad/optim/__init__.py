"""Optimizers, by torch.optim's names."""

from jitgrad.missing import missing
from jitgrad.optim import lr_scheduler, swa_utils
from jitgrad.optim._adafactor import Adafactor
from jitgrad.optim._muon import Muon
from jitgrad.optim.adadelta import Adadelta
from jitgrad.optim.adagrad import Adagrad
from jitgrad.optim.adam import Adam
from jitgrad.optim.adamax import Adamax
from jitgrad.optim.adamw import AdamW
from jitgrad.optim.asgd import ASGD
from jitgrad.optim.lbfgs import LBFGS
from jitgrad.optim.nadam import NAdam
from jitgrad.optim.optimizer import Optimizer
from jitgrad.optim.radam import RAdam
from jitgrad.optim.rmsprop import RMSprop
from jitgrad.optim.rprop import Rprop
from jitgrad.optim.sgd import SGD
from jitgrad.optim.sparse_adam import SparseAdam

__getattr__ = missing(__name__)

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "SparseAdam",
    "lr_scheduler", "swa_utils",
]  # fmt: skip
