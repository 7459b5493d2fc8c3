"""Code generation for GPUs: kernels of the loop language as Python source for Numba CUDA."""
