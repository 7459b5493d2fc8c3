"""Writes the Python that runs one way through a tree of traces (see tree.py).

Names in it: x the call's arrays, v0.. values that branches keep, p0.. what runs the parts of
branches, p that of the leaf, z symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from jitgrad import gpu


def _elements(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """All numbers of an array, which may be a GPU's."""
    host = array if type(array) is np.ndarray else gpu.kernels.host_array(array)
    return tuple(host.ravel().tolist())


OUTCOMES: dict[str, tuple[str, Callable[[np.ndarray[Any, Any]], Hashable]]] = {
    "bool": ("bool({}.item())", lambda a: bool(a.item())),
    "item": ("{}.item()", lambda a: a.item()),
    "int": ("int({}.item())", lambda a: int(a.item())),
    "tolist": ("elements({})", _elements),
}
"""What Python asks of a value, as text and as a function of its array."""


def outcome_of(how: str, array: np.ndarray[Any, Any]) -> Hashable:
    """What Python gets."""
    return OUTCOMES[how][1](array)


def write_way(
    branches: Sequence[tuple[Any, str, int, Hashable]], leaf: Any, results: Sequence[int],
    away: Callable[[list[Any], int, Hashable, tuple[Any, ...]], Any], sizes: bool,
) -> tuple[Callable[..., Any], list[list[int]]]:  # fmt: skip
    """The function of a call's arrays, and for each branch the numbers of the values so far.

    branches: for each its part (or None), what Python asks, of which number, and the outcome
    wanted. leaf, results: of a Leaf. away: called where another outcome is found, with the arrays,
    the number of the branch, the outcome and the values so far. sizes: whether some are symbolic:
    the function then takes them, too.
    """
    namespace: dict[str, Any] = {"away": away, "elements": _elements, "p": leaf.run}
    z = ", z" if sizes else ""
    lines = [f"def run(x{z}):"]
    known: list[int] = []
    so_far: list[list[int]] = []
    for k, (part, how, observed, wanted) in enumerate(branches):
        if part is not None:
            namespace[f"p{k}"] = part.run
            given = "".join(f"v{n}, " for n in part.outputs)
            lines.append(f"    {given + '= ' if given else ''}p{k}({_arrays(part)}{z})")
            known += part.outputs
        outcome = OUTCOMES[how][0].format(_name(observed))
        different = f"{outcome} is not {wanted}" if how == "bool" else f"{outcome} != {wanted!r}"
        values = "".join(f"v{n}, " for n in known)
        lines.append(f"    if {different}: return away(x, {k}, {outcome}, ({values}))")
        so_far.append([*known])
    if all(n >= 0 for n in results):
        lines.append(f"    return p({_arrays(leaf)}{z})")
    else:
        lines.append(f"    m = p({_arrays(leaf)}{z})")
        texts, used = [], set()
        for n in results:
            text = f"m[{n}]" if n >= 0 else f"v{~n}"
            texts.append(f"{text}.copy()" if n in used else text)
            used.add(n)
        lines.append(f"    return [{', '.join(texts)}]")
    exec(compile("\n".join(lines), "<way through a tree of traces>", "exec"), namespace)
    return namespace["run"], so_far


def _name(n: int) -> str:
    return f"x[{~n}]" if n < 0 else f"v{n}"


def _arrays(part: Any) -> str:
    return f"[{', '.join(_name(n) for n in part.inputs)}]"
