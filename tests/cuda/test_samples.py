"""Every op record's samples on Numba's CUDA simulator, against the references."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_graphs import check_sample

import jitgrad.compiler.ops.control  # noqa: F401 (for its records)
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.ops.record import Op, Sample
from jitgrad.runtime.errors import CompileError

_COMPLEX = ("complex64", "complex128")
_EACH = 2  # samples of one choice of dtypes and ranks in the fast tier


def _samples(op: Op, every: bool) -> list[Sample]:
    found, seen = [], {}
    for s in op.samples():
        args = [np.asarray(a) for a in s.args]
        if any(a.dtype.name in _COMPLEX for a in args):
            continue
        kind = (tuple((a.dtype.name, a.ndim) for a in args), s.note.split(" ")[0])
        seen[kind] = seen.get(kind, 0) + 1
        if every or seen[kind] <= _EACH:
            found.append(s)
    return found


def _check(op: Op, every: bool) -> None:
    for sample in _samples(op, every):
        try:
            check_sample(op, sample)
        except CompileError as error:
            # Calls of references and control flow: docs/limits.md lists them.
            assert "runs on the CPU only" in str(error) and _only_cpu(op), error
            return
        except BaseException as e:
            shapes = [np.asarray(a).shape for a in sample.args]
            e.add_note(f"sample {sample.note!r} {shapes} {sample.attrs}")
            raise


def _only_cpu(op: Op) -> bool:
    return op.host or bool(op.bodies) or op.name in ("complex", "view_as_complex")


@pytest.mark.parametrize("name", sorted(OPS))
def test_samples(name: str) -> None:
    _check(OPS[name], every=False)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(OPS))
def test_all_samples(name: str) -> None:
    _check(OPS[name], every=True)


_SYMBOLIC = ["add", "sum", "matmul", "softmax", "cumsum", "sort", "expand", "index_add", "amax"]


@pytest.mark.parametrize("name", [n for n in _SYMBOLIC if n in OPS])
def test_symbolic_dims(name: str) -> None:
    tried = 0
    for sample in _samples(OPS[name], True):
        shapes = [np.asarray(a).shape for a in sample.args]
        if not any(d > 1 for s in shapes for d in s) or "shape" in sample.attrs:
            continue
        check_sample(OPS[name], sample, symbolic=True)
        tried += 1
        if tried == 3:
            return
    assert tried or name == "expand"
