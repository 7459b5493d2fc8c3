"""From loop kernels to code: LLVM for the CPU, Numba CUDA for the GPU."""
