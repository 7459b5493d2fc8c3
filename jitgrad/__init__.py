"""jitgrad: PyTorch's programming model, with a compiler of its own."""

__version__ = "0.1.0"
