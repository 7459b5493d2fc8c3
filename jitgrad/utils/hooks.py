"""torch.utils.hooks: the handle that registering a hook gives."""

from __future__ import annotations

from jitgrad.missing import missing
from jitgrad.tape.node import RemovableHandle as RemovableHandle

__getattr__ = missing(__name__)
