"""vmap and forward mode of every function, on the samples of PyTorch's op database.

Nothing here compares with PyTorch: vmap is compared with a loop over examples, forward mode with
reverse mode (u J v from both sides). One sample of each entry; `SAMPLES` is for looking further.
One entry of four runs always, all of them with `pytest -m "long or not long"`.
"""

import numpy as np
import pytest
from parity.op_database import (
    EMPTY,
    RANDOM,
    _first_dtype,
    convert,
    entries,
    label,
    ours,
    samples_of,
    torch,
)

import jitgrad
from jitgrad import func
from jitgrad.pytree import flatten, unflatten

SAMPLES = 1
EXAMPLES = 2
# What has no meaning for each of many examples: values that Python reads, results whose shape
# depends on values, running statistics shared by all, random masks.
REFUSED = {
    "argwhere", "bincount", "index_put", "linspace.tensor_overload", "logspace.tensor_overload",
    "masked_select", "narrow", "native_batch_norm", "nn.functional.batch_norm",
    "nn.functional.instance_norm",
    "nn.functional.multi_head_attention_forward", "nn.functional.one_hot",
    "nn.functional.scaled_dot_product_attention", "nonzero", "tensor_split", "unique",
    "unique_consecutive",
}  # fmt: skip
KNOWN = [e for e in entries() if ours(e.op, e.name) is not None and e.name not in RANDOM | EMPTY]


def some(chosen):
    """Parameters of a test: all but one of four are marked long."""
    return [
        pytest.param(e, id=label(e), marks=() if i % 4 == 0 else pytest.mark.long)
        for i, e in enumerate(chosen)
    ]


class Case:
    """A sample as a function of its tensors, and those tensors."""

    def __init__(self, entry, sample, only_floating=False):
        mine = ours(entry.op, entry.name)
        leaves, form = flatten(convert((sample.input, list(sample.args), sample.kwargs)))
        leaves = [x.detach() if isinstance(x, jitgrad.Tensor) else x for x in leaves]
        places = [
            i
            for i, x in enumerate(leaves)
            if isinstance(x, jitgrad.Tensor) and (x.is_floating_point() or not only_floating)
        ]
        self.tensors = [leaves[i] for i in places]

        def call(*tensors):
            now = list(leaves)
            for i, t in zip(places, tensors, strict=True):
                now[i] = t
            first, args, kwargs = unflatten(form, now)
            results = flatten(mine(first, *args, **kwargs))[0]
            found = [y for y in results if isinstance(y, jitgrad.Tensor)]
            return [y for y in found if y.is_floating_point()] if only_floating else found

        self.call = call

    def run(self):
        """The results on copies; None where the sample gives no tensors."""
        return self.call(*[t.clone() for t in self.tensors]) or None


def cases(entry, dtype, grad, only_floating=False):
    try:
        samples = samples_of(entry, dtype, grad, SAMPLES)
    except Exception:
        return
    for sample in samples:
        case = Case(entry, sample, only_floating)
        try:
            if case.tensors and case.run() is not None:
                yield case
        except Exception:  # reported by the database's own modes
            continue


def variants(x):
    """Examples: x itself, and other values where they are not indices."""
    if not x.is_floating_point() or not x.numel():
        return jitgrad.stack([x] * EXAMPLES)
    return jitgrad.stack([x, (x * 0.9).to(x.dtype)])


def check_vmap(case):
    batched = [variants(t) for t in case.tensors]
    for mapped in ({*range(len(batched))}, {0}):
        args = [b if i in mapped else t for i, (b, t) in enumerate(zip(batched, case.tensors))]
        try:
            rows = [
                case.call(*[(a[k] if i in mapped else a).clone() for i, a in enumerate(args)])
                for k in range(EXAMPLES)
            ]
        except Exception:  # values that the function refuses
            continue
        shapes = [[tuple(y.shape) for y in row] for row in rows]
        if shapes[0] != shapes[1]:
            continue
        in_dims = tuple(0 if i in mapped else None for i in range(len(args)))
        found = func.vmap(case.call, in_dims=in_dims)(*args)
        for y, *wanted in zip(found, *rows, strict=True):
            w = jitgrad.stack(wanted)
            assert tuple(y.shape) == tuple(w.shape) and y.dtype is w.dtype
            close = np.allclose(y.numpy(), w.numpy(), rtol=1e-5, atol=1e-6, equal_nan=True)
            assert close, (mapped, y, w)


@pytest.mark.parametrize("entry", some(KNOWN))
@pytest.mark.filterwarnings("ignore")
def test_vmap(entry):
    dtype = torch.float64 if torch.float64 in entry.dtypes else _first_dtype(entry)
    for case in cases(entry, dtype, False):
        try:
            check_vmap(case)
        except RuntimeError as error:
            assert label(entry) in REFUSED and str(error).startswith("vmap: "), error


SMOOTH = [e for e in KNOWN if e.supports_autograd and torch.float64 in e.dtypes]


@pytest.mark.parametrize("entry", some(SMOOTH))
@pytest.mark.filterwarnings("ignore")
def test_forward_mode(entry):
    if label(entry) in REFUSED and "attention" in label(entry):
        pytest.skip("draws a mask anew in each run")
    rng = np.random.default_rng(0)

    def like(t):
        return jitgrad.from_numpy(np.asarray(rng.standard_normal(tuple(t.shape)))).to(t.dtype)

    for case in cases(entry, torch.float64, True, only_floating=True):
        xs = tuple(t.clone() for t in case.tensors)
        tangents = tuple(map(like, xs))
        cotangents = tuple(map(like, case.run()))

        def results(*ts, case=case):
            return tuple(case.call(*ts))

        try:
            back = func.vjp(results, *xs)[1](cotangents)
        except Exception:  # reported by the mode for gradients
            continue
        along = func.jvp(results, xs, tangents)[1]
        a = sum((u.double() * d.double()).sum().item() for u, d in zip(cotangents, along))
        b = sum((g.double() * t.double()).sum().item() for g, t in zip(back, tangents))
        half = any(y.dtype in (jitgrad.float16, jitgrad.bfloat16) for y in along)
        assert np.isclose(a, b, rtol=1e-2 if half else 1e-6, atol=1e-8, equal_nan=True), (a, b)
