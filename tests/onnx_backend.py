"""The ONNX project's own node tests, run through `jitgrad.onnx.load`.

    python tests/onnx_backend.py            the table of docs/onnx.md
    python tests/onnx_backend.py --list     writes tests/onnx_backend_list.txt
    python tests/onnx_backend.py --jit      the same under @jit(fallback="error")
    python tests/onnx_backend.py -v WORD    each test whose name has the word, with its error

Owns the list (by dtype alone: every node test all of whose inputs and outputs are tensors of float,
double, integer or bool elements) and how one test is run and compared (onnx's own tolerances).
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import jitgrad
from jitgrad.onnx.errors import OnnxUnsupportedError
from jitgrad.runtime.errors import CompileError
from jitgrad.tensor import Tensor

LIST = Path(__file__).parent / "onnx_backend_list.txt"
_T = onnx.TensorProto
TYPES = {
    _T.FLOAT, _T.DOUBLE, _T.BOOL, _T.INT8, _T.INT16, _T.INT32, _T.INT64, _T.UINT8, _T.UINT16,
    _T.UINT32, _T.UINT64,
}  # fmt: skip

# Where the wanted numbers are farther from the true ones (zeros) than the test's own 1e-7: NumPy's
# transform of complex64, made in float32.
ATOL = {"test_dft_inverse": 1e-6, "test_dft_inverse_opset19": 1e-6}


def all_tests() -> dict[str, Any]:
    """Every node test of the installed onnx, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {t.name: t for t in load_model_tests(kind="node")}


def by_dtype(tests: dict[str, Any]) -> list[str]:
    """The tests whose inputs and outputs are all tensors of TYPES."""
    found = []
    for name, test in tests.items():
        ports = [*test.model.graph.input, *test.model.graph.output]
        kinds = {
            p.type.tensor_type.elem_type if p.type.WhichOneof("value") == "tensor_type" else None
            for p in ports
        }
        if kinds <= TYPES:
            found.append(name)
    return sorted(found)


def run(test: Any, jit: bool = False) -> tuple[str, str]:
    """("passed" | "not supported" | "failed", why).

    jit: the second call is compiled, with all inputs but the first as initializers, as models have
    them (a shape that is computed from the caller's data cannot be compiled).
    """
    try:
        for inputs, outputs in test.data_sets:
            given = [_tensor(x) for x in inputs]
            proto = test.model
            if jit:
                proto = _with_initializers(proto, inputs)
                given = given[: len(given) - len(proto.graph.initializer)]
            model = jitgrad.onnx.load(proto.SerializeToString())
            if jit:
                model = jitgrad.jit(model, fallback="error")
            with jitgrad.no_grad():
                made = model(*given)
                if jit:
                    made = model(*given)
            found = [_array(x) for x in (made if isinstance(made, tuple) else (made,))]
            wanted = [np.asarray(_plain(o)) for o in outputs]
            if is_random(test):
                assert [(f.shape, f.dtype) for f in found] == [(w.shape, w.dtype) for w in wanted]
                return "not supported", "random numbers of ONNX's generator (ours are drawn)"
            atol = ATOL.get(test.name, test.atol)
            Runner.assert_similar_outputs(wanted, found, test.rtol, atol)
    except OnnxUnsupportedError as error:
        return "not supported", str(error)
    except CompileError as error:
        reads = "reads a tensor's value in Python" in str(error)
        return "not supported" if reads else "failed", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def _with_initializers(proto: Any, inputs: Any) -> Any:
    """A copy of the model whose inputs after the first are initializers, where they are tensors."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    rest = [_plain(x) for x in inputs[1:]]
    if proto.graph.initializer or not all(isinstance(x, np.ndarray) for x in rest):
        return out
    names = [i.name for i in proto.graph.input][1 : len(inputs)]
    out.graph.initializer.extend(map(numpy_helper.from_array, rest, names))
    return out


def is_random(test: Any) -> bool:
    """Whether the wanted numbers are random draws, which no two runtimes share."""
    ops = {n.op_type for n in test.model.graph.node}
    return bool(ops & {"Bernoulli", "RandomUniformLike"}) or (
        test.name.startswith("test_training_dropout") and "zero_ratio" not in test.name
    )


def _tensor(x: Any) -> Any:
    if isinstance(x, list):
        return [_tensor(y) for y in x]
    try:
        return jitgrad.from_numpy(np.array(_plain(x), order="C"))
    except TypeError as error:
        raise OnnxUnsupportedError(str(error)) from None


def _plain(x: Any) -> Any:
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    return np.asarray(x) if isinstance(x, np.generic) else x


def _array(x: Any) -> Any:
    return x.detach().numpy() if isinstance(x, Tensor) else x


def main(arguments: list[str]) -> None:
    tests = all_tests()
    if "--list" in arguments:
        LIST.parent.mkdir(exist_ok=True)
        LIST.write_text("\n".join(by_dtype(tests)) + "\n", encoding="utf-8")
        return
    words = [a for a in arguments if not a.startswith("-")]
    jit = "--jit" in arguments
    counts: Counter[str] = Counter()
    for name in LIST.read_text(encoding="utf-8").split():
        if words and not any(w in name for w in words):
            continue
        outcome, why = run(tests[name], jit)
        counts[outcome] += 1
        if why and "-v" in arguments:
            print(f"{outcome}: {name}: {why[:300]}")
    total = sum(counts.values())
    print(f"onnx {onnx.__version__}: {total} tests")
    for outcome in ("passed", "not supported", "failed"):
        print(f"| {outcome} | {counts[outcome]} | {100 * counts[outcome] / max(total, 1):.1f} % |")


if __name__ == "__main__":
    main(sys.argv[1:])
