"""Errors of the tensor layer: their kind, their words, and the user's line."""

import re

import pytest

import jitgrad as t


def test_errors_of_infer_name_types_and_line():
    a, b = t.zeros(2, 3), t.zeros(4, 5)
    for f in (lambda: a + b, lambda: a @ b, lambda: t.cat([a, b]), lambda: a.expand(7, 7)):
        with pytest.raises(RuntimeError) as caught:
            f()
        text = str(caught.value)
        assert re.search(r"\(at .*test_errors_tensor\.py:\d+\)", text), text
        assert re.match(r"\[\w+\] ", text), text
        assert "float32[2, 3]" in text, text


def test_errors_of_references_have_the_line():
    with pytest.raises(IndexError, match=r"out of .*test_errors_tensor\.py:\d+"):
        t.zeros(3)[t.tensor([5])]
    with pytest.raises(RuntimeError, match="out of"):
        t.zeros(3).gather(0, t.tensor([3]))


CASES = [
    (lambda: t.zeros(2).sum(3), IndexError, r"Dimension out of range \(expected to be in range of"),
    (lambda: t.zeros(2, 3).sum((0, 0)), RuntimeError, "dim appears multiple times"),
    (lambda: t.tensor([1]).mean(), RuntimeError, "could not infer output dtype"),
    (lambda: t.tensor([1]).softmax(0), RuntimeError, "not implemented for jitgrad.int64"),
    (lambda: t.zeros(2, 3).mm(t.zeros(3)), RuntimeError, r"\[mm\] expected a 2-d and a 2-d"),
    (lambda: t.zeros(2) @ t.zeros(2, dtype=t.float64), RuntimeError, "same dtype"),
    (lambda: t.zeros(()) @ t.zeros(2), RuntimeError, "at least 1D"),
    (lambda: t.stack([t.zeros(2), t.zeros(3)]), RuntimeError, "equal size"),
    (lambda: t.cat([]), ValueError, r"\[cat\] expected a non-empty"),
    (lambda: t.tensor([[1], [2, 3]]), ValueError, "equal lengths"),
    (lambda: t.tensor("abc"), TypeError, "expected numbers"),
    (lambda: t.tensor([2**70]), ValueError, "Overflow"),
    (lambda: t.tensor([300], dtype=t.uint8), RuntimeError, "without overflow"),
    (lambda: t.zeros(-1), RuntimeError, "negative dimension"),
    (lambda: t.zeros(2, dtype="float32"), TypeError, "must be a jitgrad dtype"),
    (lambda: t.zeros(2).permute(0, 1), RuntimeError, "number of dimensions"),
    (lambda: t.zeros(2, 2).permute(0, 0), RuntimeError, "duplicate dims"),
    (lambda: t.zeros(3).topk(5), RuntimeError, "out of range"),
    (lambda: t.zeros(3).narrow(0, 2, 2), RuntimeError, "exceeds dimension size"),
    (lambda: t.where(t.zeros(2), 1, 2), RuntimeError, "boolean tensor"),
    (lambda: t.zeros(2).masked_fill(t.zeros(2), 1), RuntimeError, "boolean masks"),
    (lambda: t.zeros(2) & 1, NotImplementedError, "integer or bool"),
    (lambda: t.exp(2.0), TypeError, "must be Tensor"),
    (lambda: t.zeros(2).clamp(), RuntimeError, "At least one of"),
    (lambda: t.einsum("ij,jk->ik", t.zeros(2, 3)), RuntimeError, "operands"),
    (lambda: t.einsum("ij"), ValueError, "at least one operand"),
    (lambda: t.einsum(t.zeros(2), [52]), ValueError, "from 0 to 51; got 52"),
    (lambda: t.einsum("ij->i", t.zeros(2)), RuntimeError, "number of subscripts"),
    (lambda: t.arange(0, 5, 0), RuntimeError, "nonzero"),
    (lambda: t.arange(0, 2.0, 1e-310), RuntimeError, r"\[arange\] invalid size"),
    (lambda: t.arange(0, 2.0, 1e-18), RuntimeError, "fewer than 2.60 steps"),
    (lambda: t.arange(5, 0), RuntimeError, "inconsistent with step sign"),
    (lambda: t.randint(5, 5, (2,)), RuntimeError, "less than"),
    (lambda: t.set_default_dtype(t.int64), TypeError, "floating dtype"),
    (lambda: t.nothing_like_this, AttributeError, "not there yet"),
    (lambda: t.zeros(2).view(3), RuntimeError, "invalid for input of size 2"),
    (lambda: t.zeros(2).unflatten(0, (3, 1)), RuntimeError, "multiply up to"),
    (lambda: t.zeros(2, 3).t().view(6), RuntimeError, "Use .reshape"),
    (lambda: t.ones(2).index_select(0, t.zeros(1)), RuntimeError, "int32/int64"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[c[2][:28] for c in CASES])
def test_errors(case):
    act, kind, text = case
    with pytest.raises(kind, match=text):
        act()


def test_failed_in_place_op_leaves_the_tensor_alone():
    x = t.zeros(3)
    for act in (lambda: x.add_(t.zeros(2)), lambda: x.add_(t.zeros(2, 3)), lambda: x.exp_(3)):
        with pytest.raises((RuntimeError, TypeError)):
            act()
    assert x._version == 0 and x.tolist() == [0.0, 0.0, 0.0]
