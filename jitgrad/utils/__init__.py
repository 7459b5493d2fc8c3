"""Utilities, by torch.utils' names."""

from jitgrad.utils import data as data

__all__ = ["data"]
