"""PyTorch's own op database: every entry passes in every mode, but for what is listed here.

The lists are exact: an entry that is listed and passes fails here too, so that they stay true.
"""

import pytest
from parity.op_database import MODES, entries, examine, label

READS_VALUES = "the shape of the result depends on values, or is a number in Python"
TIES = "which of equal elements comes first is not defined"
WIDE = "a sum of bools or uint8 keeps the dtype where nothing is summed, or in einsum"
DIMS = "NumPy has at most 64 dims, and says so itself"
NOT_THERE = "not there yet: docs/limits.md"
DIGITS = "PyTorch's float64 has 7 to 10 digits, ours 15"
NDTR = "PyTorch's float32 is 0 below -5.6, ours has all digits there"
MEMORY = "memory that NumPy owns and that has gaps is not seen through as_strided"
SIGNS = "eigenvectors are free up to a factor of magnitude 1"
ALL = ("value", "dtypes", "strided", "gradient", "jit", "batch")

ONE_STATISTIC = "running statistics are one tensor, which examples of their own cannot write"

# Of each example, these differ. Compiled code goes on by values.
VALUES = """
    allclose argwhere bincount equal item linspace.tensor_overload logspace.tensor_overload
    masked_select nn.functional.one_hot nonzero tensor_split unique unique_consecutive
    index_put narrow
"""
STATISTICS = "native_batch_norm nn.functional.batch_norm nn.functional.instance_norm"

# entry -> mode -> why it differs
KNOWN = {
    **{name: {"batch": READS_VALUES} for name in VALUES.split()},
    **{name: {"batch": ONE_STATISTIC} for name in STATISTICS.split()},
    **{name: {"dtypes": TIES} for name in ("argsort", "kthvalue", "sort", "topk")},
    "einsum": {"dtypes": WIDE},
    **{
        f"special.{name}": {"dtypes": DIGITS}
        for name in ("airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")
    },
    **{name: {"errors": DIMS} for name in ("amax", "amin", "aminmax")},
    "as_strided": {"strided": MEMORY},
    "as_strided_copy": {"strided": MEMORY},
    "as_strided_scatter": {"gradient": "PyTorch's is not zero for what is overwritten"},
    "complex": {"dtypes": "there is no complex32"},
    "linalg.eig": dict.fromkeys(("value", "dtypes", "strided"), SIGNS),
    "linalg.eigh": {"dtypes": SIGNS},
    "matrix_exp": {"dtypes": "PyTorch's overflows in float16"},
    "narrow_copy": {"errors": "a dim out of range is an IndexError, as for narrow"},
    "nn.functional.ctc_loss": {"gradient": "PyTorch's is that of log_softmax before it as well"},
    "nn.functional.hardsigmoid": {"gradient": "PyTorch's has 1/6 rounded to float32"},
    "special.ndtr": {"value": NDTR},
    "view_as_complex": {
        "dtypes": "there is no complex32",
        "strided": "the last dim must be dense, in PyTorch as well",
    },
    "chalf": dict.fromkeys((*ALL, "method"), NOT_THERE),
}

# Samples tried of each entry, and of those whose differences come later.
SAMPLES = 2
MORE = dict.fromkeys(["as_strided", "as_strided_copy", "index_put", "narrow", "special.ndtr"], 4)

# Not there yet, or no function of dense tensors: docs/limits.md.
OTHERS = """
    hash_tensor linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve
    native_dropout_backward
    slice
"""
# What has an ONNX form, and with which numbers, is what tests/test_op_onnx.py tests.
TESTED = tuple(mode for mode in MODES if mode != "onnx")
MISSING = frozenset(OTHERS.split())


@pytest.mark.parametrize("entry", entries(), ids=label)
def test_entry(entry):
    found = examine(entry, limit=MORE.get(label(entry), SAMPLES), modes=TESTED)
    assert found.missing == (found.name in MISSING)
    known = KNOWN.get(found.name, {})
    failed = found.failed()
    assert {m: t for m, t in failed.items() if m not in known} == {}
    assert sorted(set(known) - set(failed)) == []


def test_the_lists_name_entries():
    names = {label(e) for e in entries()}
    assert names >= {*KNOWN, *MISSING}
