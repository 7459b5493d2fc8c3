"""Graph in, machine code out."""
