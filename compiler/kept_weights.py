"""What a library has ready of its weights: packed panels, made when it is exported.

Before: stages whose weights are constants, so that rows of `n_once` pack them (launch_rows.py), and
the machine that they are for is this one. After: what those rows made, to be stored in the place of
the weights. Owns running them, the form of what they make, and which weights are worth it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jitgrad.compiler.codegen import host_runtime
from jitgrad.compiler.codegen.objects import Library
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.image import Image
from jitgrad.compiler.loops import Array
from jitgrad.compiler.stages import Stages
from jitgrad.runtime import launch

_MOST = 1.3  # how much larger what is kept may be than what it stands for: both are read


def too_large(stages: Stages) -> set[int]:
    """The numbers of the inputs of which much more would be kept than need not be stored then:
    filters of convolutions by transforms, and weights that something reads as they are, too (a
    table that is the last layer's matrix)."""
    numbers = {a: k for k, a in enumerate(stages.program.inputs)}
    alone = unread(stages)
    made: dict[int, dict[tuple[object, ...], int]] = {}
    for code in stages.generated.values():
        for one in code.launches:
            if not one.once:
                continue
            arrays = [x for x in one.operands if isinstance(x, Array)]
            read = [numbers[x] for x in arrays if x not in code.kept]
            size = sum(nbytes(x) for x in arrays if x in code.kept)
            for k in read:
                made.setdefault(k, {})[(one.once, *read)] = size
    return {
        k
        for k, sizes in made.items()
        if sum(sizes.values()) > _MOST * nbytes(stages.program.inputs[k]) * (k in alone) + 2**16
    }


def unread(stages: Stages) -> set[int]:
    """The numbers of the inputs that only the rows of `n_once` read."""
    once: set[Array] = set()
    others = {*stages.program.roots, *(a for n in stages.nested.values() for a in n.operands)}
    for code in stages.generated.values():
        for one in code.launches:
            arrays = {x for x in one.operands if isinstance(x, Array)}
            (once if one.once else others).update(arrays)
    return {k for k, a in enumerate(stages.program.inputs) if a in once and a not in others}


def make(
    stages: Stages, image: Image, state: Mapping[int, np.ndarray[Any, Any]], target: Target
) -> dict[int, tuple[list[Any], np.ndarray[Any, Any]]]:
    """What the rows of `n_once` make, by slot, of the state by slot, each with its form. Runs code
    for `target`, which is this machine's."""
    rows = image.launches[: image.n_once]
    if not rows:
        return {}
    host_runtime.install(target)
    needed = dict.fromkeys(image.kernels[row[0]] for row in rows)
    keys = {key for key, _ in needed}
    codes = [c for g in stages.generated.values() if g.key in keys for c in g.with_routines()]
    library = Library.build(codes, target)
    numbers = {kernel: k for k, kernel in enumerate(needed)}
    first = image.n_inputs + image.n_results
    used = {a for _, args, *_ in rows for a in args}
    scratch = {slot: n for slot, n in image.scratch.items() if slot in used}
    program = launch.Executable(
        [library.address(*kernel) for kernel in needed],
        [launch.Launch(numbers[image.kernels[k]], tuple(args), total, grain, last)
         for k, args, total, grain, last in rows],
        n_buffers=first + len(scratch) + len(image.kept),
        n_varying=first,
        scratch=scratch,
        n_once=len(rows),
        kept=image.kept,
        owners=(library,),
    )  # fmt: skip
    for memory in program.kept.values():
        memory.fill(0)  # what lies behind the last panel is stored, too
    nothing = np.zeros(1, np.int64)
    arrays = [state.get(k, nothing) for k in range(first)]
    program.prepare(arrays)
    forms = _forms(stages, image)
    return {s: (forms[s], np.array(program.kept[s]).view(np.uint8)) for s in image.kept}


def _forms(stages: Stages, image: Image) -> dict[int, list[Any]]:
    """How what is kept in each slot follows from the inputs: the digest of the code that makes it,
    and the names and numbers that the code is given. Equal forms make equal bytes of equal inputs,
    whatever else the programs do."""
    launches = {(g.key, one.symbol): one for g in stages.generated.values() for one in g.launches}
    forms: dict[int, list[Any]] = {}
    for kernel, args, *_ in image.launches[: image.n_once]:
        launch = launches[image.kernels[kernel]]
        form: list[Any] = [launch.once]
        for operand, word in zip(launch.operands, args, strict=False):  # scratch comes last
            if not isinstance(operand, Array):
                form.append(word)
            elif word in image.kept:
                forms[word] = form
            else:
                form.append(stages.graph.inputs[word].name)
    return forms
