"""What a library has ready of its weights: packed panels, made when it is exported.

Before: stages whose weights are constants, so that rows of `n_once` pack them (launch_rows.py), and
the machine that they are for is this one. After: what those rows made, to be stored in the place of
the weights. Owns running them, and which weights are worth it.
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

_MOST = 1.3  # how much larger what is kept may be: it is read at each call, and from the file


def too_large(stages: Stages) -> set[int]:
    """The numbers of the inputs of which something much larger would be kept (filters of
    convolutions by transforms)."""
    numbers = {a: k for k, a in enumerate(stages.program.inputs)}
    found: set[int] = set()
    for code in stages.generated.values():
        for one in code.launches:
            if not one.once:
                continue
            arrays = [x for x in one.operands if isinstance(x, Array)]
            read = [x for x in arrays if x not in code.kept]
            made = sum(nbytes(x) for x in arrays if x in code.kept)
            if made > _MOST * sum(map(nbytes, read)) + 2**16:
                found |= {numbers[x] for x in read}
    return found


def unread(stages: Stages) -> set[int]:
    """The numbers of the inputs that only the rows of `n_once` read."""
    if stages.nested:
        return set()
    once: set[Array] = set()
    others = set(stages.program.roots)
    for code in stages.generated.values():
        for one in code.launches:
            arrays = {x for x in one.operands if isinstance(x, Array)}
            (once if one.once else others).update(arrays)
    return {k for k, a in enumerate(stages.program.inputs) if a in once and a not in others}


def make(
    stages: Stages, image: Image, state: Mapping[int, np.ndarray[Any, Any]], target: Target
) -> dict[int, np.ndarray[Any, Any]]:
    """What the rows of `n_once` make, by slot, of the state by slot. Runs code for `target`, which
    is this machine's."""
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
    nothing = np.zeros(1, np.int64)
    arrays = [state.get(k, nothing) for k in range(first)]
    program.prepare(arrays)
    return {slot: np.array(program.kept[slot]).view(np.uint8) for slot in image.kept}
