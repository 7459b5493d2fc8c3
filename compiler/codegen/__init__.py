"""From loop kernels to code: LLVM for the CPU."""
