"""The Open Inference Protocol, version 2, over HTTP: requests and answers as bytes.

Owns datatypes, parsing and checking of a request against a model's ports, and writing answers, in
JSON and in the binary tensor extension (tensors lie behind the JSON, whose length a header says).
It knows no server. Source: the protocol's specification (open-inference-protocol, "inference_rest"
and KServe's "binary_data" extension).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitgrad.runtime import dtypes

HEADER = "Inference-Header-Content-Length"
EXTENSIONS = ["binary_tensor_data"]

_DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32",
    "int64": "INT64", "float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip

_INFINITIES = {True: "Infinity", False: "-Infinity"}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Array = np.ndarray[Any, Any]


class BadRequest(ValueError):
    """The client's mistake: `status` (4xx) and a reason."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Port:
    """An input or output of a model. In dims, a size that may differ from request to request is a
    name, in shape -1; sizes of one name are equal."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple([-1 if isinstance(d, str) else d for d in self.dims])

    @property
    def datatype(self) -> str:
        return _DATATYPES[self.dtype]

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass
class Request:
    """An inference request, checked. outputs: name -> whether as binary data, in order."""

    id: str | None
    inputs: list[Array]
    outputs: dict[str, bool] = field(default_factory=dict)


def can_serve(dtype: str) -> bool:
    """Whether the protocol has a datatype for it."""
    return dtype in _DATATYPES


# -- requests ------------------------------------------------------------------------------------
def parse_request(
    body: bytes, header_length: str | None, inputs: Sequence[Port], outputs: Sequence[Port]
) -> Request:
    """A request for a model of these ports. Raises BadRequest, which says what is wrong."""
    text, binary = body, b""
    if header_length is not None:
        size = int(header_length) if header_length.isascii() and header_length.isdigit() else -1
        if not 0 <= size <= len(body):
            raise BadRequest(f"{HEADER} is {header_length[:20]!r}; the body has {len(body)} bytes")
        text, binary = body[:size], body[size:]
    try:
        data = json.loads(text, parse_constant=str)  # NaN and the like, bare, are as their strings
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRequest(f"expected a JSON object; got {_kind(data)}")
    given = data.get("inputs")
    if not isinstance(given, list) or not all(isinstance(x, dict) for x in given):
        raise BadRequest("expected 'inputs', a list of objects")
    name = data.get("id")
    if name is not None and not isinstance(name, str):
        raise BadRequest(f"expected 'id' to be a string; got {_kind(name)}")
    arrays = _inputs(given, inputs, binary)
    return Request(name, arrays, _outputs(data, outputs))


def _kind(x: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return names.get(type(x), "null" if x is None else f"the number {str(x)[:40]}")


def _told(x: Any) -> str:
    """What was given, for an error: a string as it is, of anything else the kind."""
    return repr(x[:60]) if isinstance(x, str) else _kind(x)


def _inputs(given: list[dict[str, Any]], ports: Sequence[Port], binary: bytes) -> list[Array]:
    expected = {p.name: p for p in ports}
    found: dict[str, Array] = {}
    at = 0
    for x in given:
        port = _called(x, expected)
        if port is None:
            known = ", ".join(expected)
            raise BadRequest(f"no input is called {_told(x.get('name'))}; expected {known}")
        if port.name in found:
            raise BadRequest(f"input {port.name!r} is given twice")
        if x.get("datatype") != port.datatype:
            got = _told(x.get("datatype"))
            raise BadRequest(f"input {port.name!r}: expected datatype {port.datatype}; got {got}")
        shape = _shape(x.get("shape"), port)
        size = _parameters(x, port.name).get("binary_data_size")
        if size is None:
            found[port.name] = _from_json(x, port, shape)
            continue
        nbytes = math.prod(shape) * dtypes.BY_NAME[port.dtype].itemsize
        if type(size) is not int or size != nbytes or at + nbytes > len(binary):
            raise BadRequest(
                f"input {port.name!r}: expected {nbytes} bytes of binary data; binary_data_size "
                f"is {_told(size)}, and {len(binary) - at} bytes are left"
            )
        flat = np.frombuffer(binary, dtypes.BY_NAME[port.dtype].np, math.prod(shape), at)
        at += nbytes
        _check_bools(flat, port)
        found[port.name] = _shaped(flat, shape, port)
    if at != len(binary):
        raise BadRequest(f"{len(binary) - at} bytes of binary data belong to no input")
    missing = [n for n in expected if n not in found]
    if missing:
        raise BadRequest(f"missing inputs: {', '.join(missing)}")
    _check_common_sizes(found, ports)
    return [found[n] for n in expected]


def _called(x: Mapping[str, Any], ports: Mapping[str, Port]) -> Port | None:
    """The port that an object names; None where it names none."""
    name = x.get("name")
    return ports.get(name) if isinstance(name, str) else None


def _shaped(flat: Array, shape: tuple[int, ...], port: Port) -> Array:
    try:
        return flat.reshape(shape)
    except (OverflowError, ValueError):  # no elements, and sizes that no array can have
        raise BadRequest(f"input {port.name!r}: no array has shape {list(shape)}") from None


def _flag(parameters: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    """A parameter that is true or false."""
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise BadRequest(f"{where}: expected {key!r} to be a boolean; got {_kind(value)}")
    return value


def _parameters(x: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = x.get("parameters", {})
    if not isinstance(parameters, dict):
        got = _kind(parameters)
        raise BadRequest(f"{where!r}: expected 'parameters' to be an object; got {got}")
    return parameters


def _shape(given: Any, port: Port) -> tuple[int, ...]:
    good = isinstance(given, list) and all(type(n) is int and n >= 0 for n in given)
    wanted = ["any" if n < 0 else n for n in port.shape]
    if (
        not good
        or len(given) != len(port.shape)
        or any(n not in (-1, g) for n, g in zip(port.shape, given, strict=True))
    ):
        flat = isinstance(given, list) and all(type(n) is int for n in given)
        got = json.dumps(given)[:80] if flat else _told(given)
        raise BadRequest(f"input {port.name!r}: expected shape {wanted}; got {got}")
    return tuple(given)


def _from_json(x: Mapping[str, Any], port: Port, shape: tuple[int, ...]) -> Array:
    data = x.get("data")
    if not isinstance(data, list):
        raise BadRequest(f"input {port.name!r}: expected 'data', an array of numbers")
    dtype = dtypes.BY_NAME[port.dtype]
    flat = _flattened(data, port)
    if len(flat) != math.prod(shape):
        raise BadRequest(
            f"input {port.name!r}: expected {math.prod(shape)} elements for shape {list(shape)}; "
            f"got {len(flat)}"
        )
    kinds: tuple[type, ...] = (bool,) if port.dtype == "bool" else (int,)
    if dtype.is_floating_point:
        kinds = (int, float)
        given, flat = flat, [_NOT_FINITE.get(v, v) if type(v) is str else v for v in flat]
    elif port.dtype != "bool":
        flat = [int(v) if type(v) is float and _is_whole(v) else v for v in flat]
    wrong = next((v for v in flat if type(v) not in kinds), None)
    if wrong is not None or any(v is None for v in flat):
        raise BadRequest(
            f"input {port.name!r}: expected elements of {port.datatype}; got {_kind(wrong)}"
        )
    try:
        if dtype.is_floating_point:
            wide = np.array(flat, np.float64)
            with np.errstate(over="ignore"):
                array = wide.astype(dtype.np)
            infinite = np.flatnonzero(~np.isfinite(array.astype(np.float64)))
            if any(type(given[k]) is not str for k in infinite):
                raise OverflowError
        else:
            array = np.array(flat, dtype.np)
    except (OverflowError, ValueError):
        raise BadRequest(
            f"input {port.name!r}: an element does not fit into {port.datatype}"
        ) from None
    return _shaped(array, shape, port)


def _is_whole(v: float) -> bool:
    """Whether it is a whole number, and surely the one that was written: 1.0 is 1 in JSON."""
    return v.is_integer() and abs(v) < 2**53


def _flattened(data: list[Any], port: Port) -> list[Any]:
    """Rows may be nested as the shape is, or lie flat."""
    for _ in range(len(port.shape) + 1):
        if not data or not isinstance(data[0], list):
            break
        if not all(isinstance(row, list) for row in data):
            raise BadRequest(f"input {port.name!r}: rows and numbers are mixed in 'data'")
        lengths = {len(row) for row in data}
        if len(lengths) > 1:
            raise BadRequest(
                f"input {port.name!r}: expected rows of one length in 'data'; got rows of "
                f"{min(lengths)} and of {max(lengths)}"
            )
        data = [v for row in data for v in row]
    return data


def _check_bools(flat: Array, port: Port) -> None:
    if port.dtype == "bool" and flat.size and flat.view(np.uint8).max() > 1:
        raise BadRequest(f"input {port.name!r}: expected bytes of 0 and 1")


def _check_common_sizes(found: Mapping[str, Array], ports: Sequence[Port]) -> None:
    """Sizes of one name are equal."""
    first: dict[str, tuple[int, str]] = {}
    for port in ports:
        for axis, (dim, size) in enumerate(zip(port.dims, found[port.name].shape, strict=True)):
            if not isinstance(dim, str):
                continue
            where = f"axis {axis} of {port.name!r}"
            known, place = first.setdefault(dim, (size, where))
            if size != known:
                raise BadRequest(
                    f"expected one size {dim}; got {known} ({place}) and {size} ({where})"
                )


def _outputs(data: Mapping[str, Any], ports: Sequence[Port]) -> dict[str, bool]:
    parameters = _parameters(data, "the request")
    default = _flag(parameters, "binary_data_output", False, "the request")
    wanted = data.get("outputs")
    if wanted is None or wanted == []:
        return {p.name: default for p in ports}
    if not isinstance(wanted, list) or not all(isinstance(x, dict) for x in wanted):
        raise BadRequest("expected 'outputs' to be a list of objects")
    known = {p.name: p for p in ports}
    found: dict[str, bool] = {}
    for x in wanted:
        port = _called(x, known)
        if port is None:
            raise BadRequest(f"no output is called {_told(x.get('name'))}; there are {[*known]}")
        where = f"output {port.name!r}"
        found[port.name] = _flag(_parameters(x, port.name), "binary_data", default, where)
    return found


# -- answers -------------------------------------------------------------------------------------
def write_answer(
    model: str, request: Request, results: Mapping[str, Array], ports: Sequence[Port]
) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON where binary data follows (else None).

    JSON has no NaN and no infinities: they are the strings "NaN", "Infinity" and "-Infinity", as in
    protobuf's JSON, and requests may say so, too.
    """
    rows, parts = [], []
    for name, as_binary in request.outputs.items():
        port = next(p for p in ports if p.name == name)
        array = results[name]
        row: dict[str, Any] = {
            "name": name, "datatype": port.datatype, "shape": list(array.shape),
        }  # fmt: skip
        if as_binary:
            part = np.ascontiguousarray(array).tobytes()
            row["parameters"] = {"binary_data_size": len(part)}
            parts.append(part)
        else:
            row["data"] = _numbers(array)
        rows.append(row)
    answer: dict[str, Any] = {"model_name": model, "outputs": rows}
    if request.id is not None:
        answer["id"] = request.id
    text = json.dumps(answer, allow_nan=False).encode()
    if not parts:
        return text, None
    return b"".join([text, *parts]), len(text)


def _numbers(array: Array) -> list[Any]:
    """The elements as JSON has them."""
    if array.dtype.kind in "biu":
        found: list[Any] = array.ravel().tolist()
        return found
    wide = array.astype(np.float64).ravel()
    found = list(wide.tolist())
    for k in np.flatnonzero(~np.isfinite(wide)):
        found[k] = "NaN" if np.isnan(wide[k]) else _INFINITIES[bool(wide[k] > 0)]
    return found
