"""The names of jitgrad.tape.node that makers of other kinds of node use (a compiled backward)."""

from jitgrad.tape.node import (
    Gradients,
    Node,
    edge_of,
    edges_of,
    next_seq,
    save_tensor,
    version_error,
    zeros_of,
)

__all__ = [
    "Gradients", "Node", "edge_of", "edges_of", "next_seq", "save_tensor", "version_error",
    "zeros_of",
]  # fmt: skip
