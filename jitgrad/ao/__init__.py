"""torch.ao: where PyTorch has quantization, which is not there yet (docs/limits.md)."""

from jitgrad.ao import quantization as quantization
from jitgrad.missing import missing

__getattr__ = missing(__name__)
