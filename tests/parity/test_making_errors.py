"""What tensors cannot be made of: error types are PyTorch's, and so is what is made of the rest."""

from typing import Any

import numpy as np
import pytest
from parity.compare import torch

import jitgrad

A = np.arange(4.0)
NAN, INF = float("nan"), float("inf")
CASES = {
    "negative strides": lambda f: f.from_numpy(A[::-1]),
    "negative strides, as_tensor": lambda f: f.as_tensor(A[::-1]),
    "other byte order": lambda f: f.from_numpy(A.astype(">f4")),
    "words": lambda f: f.from_numpy(np.array(["a"])),
    "objects": lambda f: f.from_numpy(np.array([None])),
    "no array": lambda f: f.from_numpy([1]),
    "empty buffer": lambda f: f.frombuffer(b"", dtype=f.float32),
    "short buffer": lambda f: f.frombuffer(b"abc", dtype=f.float32),
    "no count": lambda f: f.frombuffer(bytearray(4), dtype=f.float32, count=0),
    "large count": lambda f: f.frombuffer(bytearray(4), dtype=f.float32, count=2),
    "offset at the end": lambda f: f.frombuffer(bytearray(4), dtype=f.float32, offset=4),
    "negative offset": lambda f: f.frombuffer(bytearray(4), dtype=f.float32, offset=-1),
    "buffer": lambda f: f.frombuffer(bytearray(8), dtype=f.float32, offset=4),
    "no buffer": lambda f: f.frombuffer(3, dtype=f.float32),
    **{f"tensor({v})": lambda f, v=v: f.tensor(v) for v in (2**63, 2**64, 10**30, -(2**63) - 1)},
    **{f"tensor([{v}])": lambda f, v=v: f.tensor([v]) for v in (2**63, 2**64, 10**30)},
    **{f"{v} in float32": lambda f, v=v: f.tensor(v, dtype=f.float32) for v in (2**63, 10**30)},
    **{f"int64 of {v}": lambda f, v=v: f.tensor(v, dtype=f.int64) for v in (NAN, INF, -INF, 2.5)},
    "complex in float32": lambda f: f.tensor(1j, dtype=f.float32),
    "300 in uint8": lambda f: f.tensor(300, dtype=f.uint8),
    "None": lambda f: f.tensor(None),
    "None in a list": lambda f: f.tensor([None]),
    "a set": lambda f: f.tensor({1}),
    "a word": lambda f: f.tensor("a"),
    "ragged": lambda f: f.tensor([[1], [1, 2]]),
    "arange, step below 1 in int64": lambda f: f.arange(0.1, 1, 0.3, dtype=f.int64),
    "arange, steps in int64": lambda f: f.arange(0, 5, 1.5, dtype=f.int64),
    "arange, ends in int64": lambda f: f.arange(0.9, 5.9, 1, dtype=f.int64),
    "arange, step 0": lambda f: f.arange(0, 5, 0),
    "arange, backwards": lambda f: f.arange(5, 0, 1),
    "arange of NaN": lambda f: f.arange(0, NAN),
    "arange of bools": lambda f: f.arange(0, 2, dtype=f.bool),
    "arange of complex numbers": lambda f: f.arange(0, 2, dtype=f.complex64),
}


def outcome(framework: Any, name: str) -> Any:
    try:
        return CASES[name](framework).tolist()
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_outcome_is_pytorch_s(name):
    assert outcome(jitgrad, name) == outcome(torch, name)


@pytest.mark.skipif(jitgrad.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_assertion_error():
    for make in (
        lambda: jitgrad.ones(1, device="cuda"), lambda: jitgrad.ones(1).cuda(),
        lambda: jitgrad.nn.Linear(1, 1).to("cuda:0"), lambda: jitgrad.cuda.current_device(),
    ):  # fmt: skip
        for kind in (AssertionError, RuntimeError):
            with pytest.raises(kind, match="CUDA"):
                make()
