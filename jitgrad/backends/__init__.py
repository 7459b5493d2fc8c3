"""torch.backends: flags of the libraries that PyTorch computes with. jitgrad has none of them, so
the flags are kept and choose nothing; what asks whether a library is there says no."""

from __future__ import annotations

from jitgrad.backends import cpu as cpu
from jitgrad.backends import cuda as cuda
from jitgrad.backends import cudnn as cudnn
from jitgrad.backends import mkl as mkl
from jitgrad.backends import mkldnn as mkldnn
from jitgrad.backends import mps as mps
from jitgrad.backends import openmp as openmp
from jitgrad.backends import opt_einsum as opt_einsum
from jitgrad.missing import missing

fp32_precision = "none"

__getattr__ = missing(__name__)
