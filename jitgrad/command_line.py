"""`jitgrad` and `python -m jitgrad`: what one does with models from a shell.

Owns arguments and printing. Exit status: 0, or 2 with one line on stderr for the user's mistakes.
Files: `.jgx` (Exported.save), native libraries and objects (Exported.native), `.onnx`.
"""

from __future__ import annotations

import argparse
import importlib.util
import pkgutil
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jitgrad
from jitgrad.compiler.codegen.target import host
from jitgrad.compiler.description import described
from jitgrad.compiler.pipeline import compile_graph
from jitgrad.dims import Dim
from jitgrad.doctoring import doctor
from jitgrad.export import keywords, named_parameters, parameter_names
from jitgrad.runtime import dtypes
from jitgrad.serve import serve
from jitgrad.serve.models import load_model
from jitgrad.version import jitgrad as own_version

_ROUND_S = 0.05  # bench: seconds of a round, at least


class _Mistake(Exception):
    """The user's: printed as one line."""


_ERRORS = (_Mistake, RuntimeError, OSError, ValueError, TypeError, ImportError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    try:
        given.run(given)
    except _ERRORS as e:
        print(f"jitgrad {given.command}: {e}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("jitgrad", description="Models as files: look, run, serve.")
    parser.add_argument("--version", action="version", version=f"jitgrad {own_version}")
    commands = parser.add_subparsers(dest="command")

    def command(name: str, run: Callable[[Any], None], help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help)
        made.set_defaults(run=run)
        return made

    command("info", _info, "Versions and the machine, as jitgrad sees it.")

    command("doctor", _doctor, "What works on this machine, and the way out of what does not.")

    p = command("export", _export, "Export a function or Module of a Python file.")
    p.add_argument("source", help="file.py:name or package.module:name; a function, a Module, or a "
                                  "class that makes one without arguments; an .onnx "
                                  "or .jgx file")  # fmt: skip
    p.add_argument("-o", "--output", required=True, help="m.jgx, libnet.so, m.o, ... or m.onnx")
    p.add_argument("--input", action="append", default=[], metavar="[NAME=]SHAPE[:DTYPE]",
                   help="an example input: 8x64, or ids=nx128:int64 (a size by name is free in "
                        "each call); for the parameter of that name, else called so")  # fmt: skip
    p.add_argument("--max", action="append", default=[], metavar="NAME=SIZE",
                   help="the largest size of that name: a library has memory for it")  # fmt: skip
    p.add_argument("--min", action="append", default=[], metavar="NAME=SIZE",
                   help="the least size of that name, which may be 0")  # fmt: skip
    p.add_argument("--target", help="the processor or system that native code is for")
    p.add_argument("--weights", metavar="FILE", help="a file of their own for a library's weights")

    p = command("weights", _weights, "Write the weights of a file alone, for a library of the same "
                                     "model.")  # fmt: skip
    p.add_argument("file", help="m.jgx")
    p.add_argument("output", help="net.weights")
    p.add_argument("--target", help="what the library was exported for")

    p = command("inspect", _inspect, "Inputs, outputs, sizes, graph and memory plan of a file.")
    p.add_argument("file")
    p.add_argument("--no-graph", action="store_true", help="without the graph's text")

    p = command("run", _run, "Run a file on .npy inputs.")
    p.add_argument("file")
    p.add_argument("--input", action="append", default=[], metavar="[NAME=]FILE.npy",
                   help="by name, or in order")  # fmt: skip
    p.add_argument("--output", metavar="FILE.npz", help="write all results there, by name")
    p.add_argument("--threads", type=int)

    p = command("bench", _bench, "Time the calls of a file.")
    p.add_argument("file")
    p.add_argument("--size", type=int, default=1, help="of the axes whose sizes are free")
    p.add_argument("--rounds", type=int, default=11)
    p.add_argument("--threads", type=int)

    p = command("serve", _serve, "Serve a file over HTTP (Open Inference Protocol v2).")
    p.add_argument("file")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--name", help="in paths; default: the file's stem")
    p.add_argument("--workers", type=int, default=1, help="processes that run the model")
    p.add_argument("--threads", type=int, help="of each worker")
    p.add_argument("--max-batch", type=int, default=1, help="rows that are joined to one call")
    p.add_argument("--max-delay-ms", type=float, default=2.0, help="how long to wait for others")
    p.add_argument("--max-queue", type=int, default=1024, help="requests that may wait")
    p.add_argument("--max-body", type=int, default=64 << 20, help="bytes of a request")
    p.add_argument("--body-timeout-s", type=float, default=30.0,
                   help="for a request's headers to arrive, and then for its body")  # fmt: skip
    p.add_argument("--call-timeout-s", type=float)
    p.add_argument("--grace-s", type=float, default=30.0, help="for what was accepted, at the end")
    p.add_argument("--log-level", default="info")
    return parser


# -- info, doctor --------------------------------------------------------------------------------
def _doctor(given: Any) -> None:
    found = doctor()
    print(found)
    if not found.ok:
        raise _Mistake("what is marked with !! does not work")


def _info(given: Any) -> None:
    target = host()
    rows = [
        ("jitgrad", jitgrad.version.jitgrad), ("Python", platform.python_version()),
        ("NumPy", np.__version__), ("platform", platform.platform()), ("processor", target.cpu),
        ("vectors", f"{target.vector_bytes} bytes"), ("threads", jitgrad.get_num_threads()),
    ]  # fmt: skip
    for name in ("llvmlite", "safetensors", "onnx", "onnxruntime", "uvicorn", "ziglang"):
        found = importlib.util.find_spec(name) is not None
        rows.append((name, _version(name) if found else "not installed"))
    for label, value in rows:
        print(f"{label:12} {value}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "installed"


# -- export --------------------------------------------------------------------------------------
def _export(given: Any) -> None:
    if given.source.endswith(".jgx"):
        if given.input or given.max or given.min:
            raise _Mistake(f"--input, --max and --min are for what is recorded; {given.source} is")
        _write(jitgrad.load_exported(given.source), given)
        return
    target = _find(given.source)
    largest, least = dict(map(_size, given.max)), dict(map(_size, given.min))
    examples = [_example(text, largest) for text in given.input]
    parameters = named_parameters(target)
    ordered = [e for e in examples if e.name not in parameters]
    by_name = {e.name: e for e in examples if e.name in parameters}
    if len(ordered) + len(by_name) < len(examples):
        raise _Mistake(f"an input is given twice: {' '.join(given.input)}")
    inputs = [jitgrad.from_numpy(e.array) for e in ordered]
    arrays = {name: jitgrad.from_numpy(e.array) for name, e in by_name.items()}
    kwargs = keywords(target, inputs, arrays)
    labels = parameter_names(target, len(inputs))
    names = [e.name or label for e, label in zip(ordered, labels, strict=True)]
    dynamic = [
        {k: Dim(n, min=least.get(n), max=largest.get(n)) for k, n in e.sizes.items()}
        for e in (*ordered, *(by_name[name] for name in kwargs))
    ]
    options: dict[str, Any] = {"kwargs": kwargs, "names": [*names, *kwargs]}
    if any(dynamic):
        options["dynamic_shapes"] = dynamic
    output = Path(given.output)
    named = list(dict.fromkeys(d.__name__ for k in dynamic for d in k.values()))
    unknown = [n for n in {**largest, **least} if n not in named]
    if unknown:
        raise _Mistake(f"no size of the inputs is called {', '.join(unknown)}")
    unlimited = [n for n in named if n not in largest]
    if unlimited and output.suffix not in (".jgx", ".onnx"):
        hint = " ".join(f"--max {n}=64" for n in unlimited)
        raise _Mistake(f"a library has memory for the largest sizes, which it is told: {hint}")
    _write(jitgrad.export(target, *inputs, **options), given)


def _write(exported: Any, given: Any) -> None:
    """As the suffix of the output says."""
    output = Path(given.output)
    if output.suffix in (".jgx", ".onnx") and (given.target or given.weights):
        raise _Mistake(f"--target and --weights are for native code; {output} is none")
    if output.suffix == ".jgx":
        exported.save(output)
    elif output.suffix == ".onnx":
        exported.onnx(output)
    else:
        exported.native(output, target=given.target, weights=given.weights)
    print(f"{exported!r}\nwritten to {output}: {output.stat().st_size:,} bytes")


def _weights(given: Any) -> None:
    exported = jitgrad.load_exported(given.file)
    exported.weights(given.output, target=given.target)
    print(f"written to {given.output}: {Path(given.output).stat().st_size:,} bytes")


def _size(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not name.isidentifier() or not size.isdigit():
        raise _Mistake(f"expected NAME=SIZE, as batch=64; got {text!r}")
    return name, int(size)


def _find(source: str) -> Any:
    if source.endswith(".onnx"):
        return jitgrad.onnx.load(source).eval()
    where, _, name = source.rpartition(":")
    if not where or not name:
        raise _Mistake(f"expected file.py:name or package.module:name; got {source!r}")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        if spec is None or spec.loader is None or not Path(where).is_file():
            raise _Mistake(f"expected a Python file; {where!r} is none")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found = getattr(module, name, None)
    else:
        sys.path.insert(0, "")
        try:
            found = pkgutil.resolve_name(source)
        except AttributeError:
            found = None
    if found is None:
        raise _Mistake(f"{where} has no {name!r}")
    if isinstance(found, type):
        found = found()
    if hasattr(found, "eval") and hasattr(found, "state_dict"):
        found.eval()
    return found


_EXAMPLE = re.compile(r"(?:(?P<name>[\w.]+)=)?(?P<shape>(?:\w+(?:x\w+)*)?)(?::(?P<dtype>\w+))?")


class _Example(NamedTuple):
    """An input of the command line: its name or "", an example array, its dynamic dims."""

    name: str
    array: np.ndarray[Any, Any]
    sizes: dict[int, str]


def _example(text: str, largest: dict[str, int]) -> _Example:
    found = _EXAMPLE.fullmatch(text)
    if found is None:
        raise _Mistake(f"expected [NAME=]SHAPE[:DTYPE], as x=8x64:float32; got {text!r}")
    dtype = dtypes.BY_NAME.get(found["dtype"] or "float32")
    if dtype is None:
        raise _Mistake(f"no dtype is called {found['dtype']!r}")
    sizes = found["shape"].split("x") if found["shape"] else []
    if "" in sizes:
        raise _Mistake(f"expected sizes between the x; got {text!r}")
    dims = {k: s for k, s in enumerate(sizes) if not s.isdigit()}
    shape = [min(2, largest.get(s, 2)) if k in dims else int(s) for k, s in enumerate(sizes)]
    return _Example(found["name"] or "", np.zeros(shape, dtype.np), dims)


# -- inspect -------------------------------------------------------------------------------------
def _inspect(given: Any) -> None:
    suffix = Path(given.file).suffix
    if suffix == ".onnx":
        _inspect_onnx(given.file)
        return
    if suffix != ".jgx":
        _inspect_native(given.file)
        return
    exported = jitgrad.load_exported(given.file)
    graph = exported.graph
    print(f"{given.file}: {Path(given.file).stat().st_size:,} bytes")
    for item in graph.inputs:
        if item.kind == "arg":
            print(f"  input   {item.name}: {item.value.type}")
    for name, value in zip(exported.output_names, graph.outputs, strict=True):
        print(f"  output  {name}: {value.type}")
    _print_state(exported.state)
    counts: dict[str, int] = {}
    for node in graph.nodes:
        counts[node.op.name] = counts.get(node.op.name, 0) + 1
    _print_nodes(counts)
    report = compile_graph(graph).report
    print(
        f"  plan    {report.kernels} kernels; temporaries: peak {report.peak:,} bytes (at least "
        f"{report.lower_bound:,} are alive at once)"
    )
    if not given.no_graph:
        print(exported)


def _print_state(state: dict[str, np.ndarray[Any, Any]]) -> None:
    total = sum(a.nbytes for a in state.values())
    print(f"  state   {len(state)} tensors, {total:,} bytes")
    for name, array in sorted(state.items(), key=lambda kv: -kv[1].nbytes)[:10]:
        print(f"          {name}: {array.dtype}{list(array.shape)}, {array.nbytes:,} bytes")


def _print_nodes(counts: dict[str, int]) -> None:
    ops = ", ".join(f"{n} {k}" for k, n in sorted(counts.items(), key=lambda kv: -kv[1]))
    print(f"  nodes   {sum(counts.values())}: {ops}")


def _inspect_onnx(file: str) -> None:
    """What the file declares; graph and plan are an export's, for the sizes that it is given."""
    model = jitgrad.onnx.load(file)
    print(f"{file}: {Path(file).stat().st_size:,} bytes, opset {model.opset}, {model.producer}")
    inputs, outputs = model.ports()
    for kind, ports in (("input", inputs), ("output", outputs)):
        for name, dtype, shape in ports:
            print(f"  {kind:7} {name}: {dtype}[{', '.join(map(str, shape))}]")
    _print_state({k: v.detach().numpy() for k, v in model.state_dict().items()})
    _print_nodes(model.ops())
    shapes = [f"{n}={'x'.join(map(str, s))}:{d}" for n, d, s in inputs]
    given = " ".join(f"--input {s}" for s in shapes)
    print(f"  graph and memory plan: jitgrad export {file} -o m.jgx {given}; jitgrad inspect m.jgx")


def _inspect_native(file: str) -> None:
    """A library, object, archive or WebAssembly module, of any machine: none is opened as code."""
    data = Path(file).read_bytes()
    print(f"{file}: {len(data):,} bytes")
    for part in described(data, file):
        checksum = "no checksum"
        if part.digest is not None:
            checksum = f"checksum {part.digest.hex()[:16]}... is right"
        print(f"  {part.name}: {part.nbytes:,} bytes, {checksum}")
        if part.info is None:
            print("  (it describes no model)")
        else:
            _print_description(part.info)


def _print_description(info: dict[str, Any]) -> None:
    for kind, key in (("input", "inputs"), ("output", "outputs"), ("state", "states")):
        for port in info.get(key, ()):
            sizes = ", ".join(map(str, port["shape"]))
            print(f"  {kind:7} {port['name']}: {port['dtype']}[{sizes}]")
    for size in info["sizes"]:
        print(f"  size    {size['name']}: {size['low']} to {size['high']}")
    for key in (
        "creator", "triple", "cpu", "features", "kernels", "threads", "weights_bytes",
        "weights_file", "arena_bytes",
    ):  # fmt: skip
        if key in info:
            print(f"  {key:13} {info[key]}")


# -- run, bench ----------------------------------------------------------------------------------
def _load(file: str, threads: int | None) -> Any:
    return load_model(file, threads)


def _run(given: Any) -> None:
    model = _load(given.file, given.threads)
    ports = {p.name: p for p in model.inputs}
    found: dict[str, Any] = {}
    order = iter([n for n in ports if n not in {t.partition("=")[0] for t in given.input}])
    for text in given.input:
        name, equals, file = text.partition("=")
        if not equals:
            name, file = next(order, ""), text
            if not name:
                raise _Mistake(f"expected {len(ports)} inputs ({', '.join(ports)}); got one more, "
                               f"{file!r}")  # fmt: skip
        if name not in ports:
            raise _Mistake(f"no input is called {name!r}; expected {', '.join(ports) or 'none'}")
        if name in found:
            raise _Mistake(f"input {name!r} is given twice")
        found[name] = _read_array(file)
    missing = [f"{p.name}: {p.dtype}{list(p.shape)}" for n, p in ports.items() if n not in found]
    if missing:
        raise _Mistake(f"missing inputs: {', '.join(missing)}")
    results = model.run([found[n] for n in ports])
    for port, y in zip(model.outputs, results, strict=True):
        print(f"{port.name}: {y.dtype}{list(y.shape)}")
        print(np.array2string(y, threshold=20))
    if given.output:
        named = {p.name: y for p, y in zip(model.outputs, results, strict=True)}
        np.savez(given.output, **named)


def _read_array(file: str) -> np.ndarray[Any, Any]:
    try:
        found = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _Mistake(f"expected a .npy file of numbers; {file!r} is none: {error}") from None
    if not isinstance(found, np.ndarray):
        names = ", ".join(found)
        raise _Mistake(f"expected a .npy file; {file!r} holds several arrays, by name: {names}")
    if found.dtype not in [d.np for d in dtypes.BY_NAME.values()]:
        raise _Mistake(f"expected a .npy file of numbers; {file!r} has dtype {found.dtype}")
    return found


def _bench(given: Any) -> None:
    if given.rounds < 1:
        raise _Mistake(f"expected at least 1 round; got {given.rounds}")
    model = _load(given.file, given.threads)
    rng = np.random.default_rng(0)
    inputs = []
    for port in model.inputs:
        shape = [given.size if n < 0 else n for n in port.shape]
        dtype = dtypes.BY_NAME[port.dtype]
        values = rng.standard_normal(shape) if dtype.is_floating_point else np.zeros(shape)
        inputs.append(values.astype(dtype.np))
    model.run(inputs)
    count, spent = 1, 0.0
    while spent < _ROUND_S:
        count = count * 2 if spent else 1
        began = time.perf_counter()
        for _ in range(count):
            model.run(inputs)
        spent = time.perf_counter() - began
    rounds = []
    for _ in range(given.rounds):
        began = time.perf_counter()
        for _ in range(count):
            model.run(inputs)
        rounds.append((time.perf_counter() - began) / count)
    shapes = ", ".join(
        f"{p.name} {list(a.shape)}" for p, a in zip(model.inputs, inputs, strict=True)
    )
    print(f"{shapes or 'no inputs'}: median {statistics.median(rounds) * 1e6:,.1f} us a call, best "
          f"{min(rounds) * 1e6:,.1f} us ({given.rounds} rounds of {count})")  # fmt: skip


# -- serve ---------------------------------------------------------------------------------------
def _serve(given: Any) -> None:
    options = {k: v for k, v in vars(given).items() if k not in ("command", "run", "file")}
    serve(given.file, **options)
