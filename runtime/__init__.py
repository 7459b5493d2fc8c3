"""Runs compiled code: buffers, launch, threads, cache, exported libraries.

NumPy and the standard library only. Public here: `load(path)`, for libraries made by export.
"""

from jitgrad.runtime.artifact import load as load
