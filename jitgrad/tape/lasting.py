"""Functions composed of ops whose derivatives hold nothing that backward() releases.

Owns `lasting`, which marks their nodes.
"""

from __future__ import annotations

import functools
from typing import Any

from jitgrad.tape.node import Node, next_seq


def lasting(function: Any) -> Any:
    """A decorator of functions of tensors that are composed of ops and save, for their derivatives,
    nothing but what they made themselves (counts, masks, tables): backward() releases none of it,
    as PyTorch saves none, and may run again."""

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        first = next_seq()
        made = function(*args, **kwargs)
        stack = [y._node for y in (made if isinstance(made, (tuple, list)) else (made,))]
        while stack:
            node = stack.pop()
            if isinstance(node, Node) and node.seq >= first:
                node.lasting = True
                stack.extend(node.edges)
        return made

    return marked
