"""Learning-rate schedules, by torch.optim.lr_scheduler's names."""

from jitgrad.missing import missing
from jitgrad.optim.lr_scheduler.base import LRScheduler, _LRScheduler
from jitgrad.optim.lr_scheduler.composed import ChainedScheduler, ReduceLROnPlateau, SequentialLR
from jitgrad.optim.lr_scheduler.cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from jitgrad.optim.lr_scheduler.formulas import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

__getattr__ = missing(__name__)

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR",
    "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
    "_LRScheduler",
]  # fmt: skip
