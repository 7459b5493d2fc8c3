"""A graph as a native library: one object file, a C header, and the shared library linked of them.

Owns the way from a Graph and its state to files. Code is the pipeline's, the C interface is
`codegen/capi.py`'s, the header `header.py`'s, linking `link.py`'s, the seal `artifact_format.py`'s.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jitgrad.compiler.archive import archive
from jitgrad.compiler.codegen import capi, features, levels, pool
from jitgrad.compiler.codegen.cross import compile_for
from jitgrad.compiler.codegen.interface import Size
from jitgrad.compiler.codegen.target import Target, llvm_binding, targets_of
from jitgrad.compiler.header import c_header
from jitgrad.compiler.interpret import unknown_fault
from jitgrad.compiler.ir import Graph, Node, all_nodes
from jitgrad.compiler.launch_rows import assemble
from jitgrad.compiler.link import link_shared
from jitgrad.compiler.lower import is_complex
from jitgrad.compiler.pipeline import Options, stages_of
from jitgrad.compiler.python_loader import python_loader
from jitgrad.compiler.size_limits import conditions, planned_at_most, with_limits
from jitgrad.compiler.wasm_loader import wasm_loader
from jitgrad.runtime import artifact_format as fmt
from jitgrad.runtime.errors import CompileError, InternalError

_WEIGHTS_LIMIT = 2**31 - 2**24  # position-independent code reaches 2 GiB
_ALIGN = 128
_TEXT_LIMIT = 2**26  # weights that go through LLVM as text
_APPLE_PROVIDES = frozenset({"bzero", "__bzero", "memset_pattern16"})
_WASM_PROVIDES = frozenset({"__heap_base", "__stack_pointer", "__indirect_function_table",
                       "__linear_memory", "__memory_base", "__table_base"})  # fmt: skip


_SUFFIXES = (".so", ".dylib", ".o", ".a", ".wasm")


@dataclass(frozen=True)
class NativeFiles:
    """What `write_native` wrote. `library` is None when an object file or an archive (`object`) was
    asked for; `header` is the JavaScript loader for WebAssembly."""

    object: Path | None
    header: Path
    library: Path | None


def write_native(
    graph: Graph,
    state: Mapping[str, np.ndarray[Any, Any]],
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    output_names: Sequence[str] = (),
    target: Target | str | None = None,
    creator: str = "jitgrad",
) -> NativeFiles:
    """Writes `path` and what goes with it.

    By its suffix: .so or .dylib, a shared library, with a Python module that loads it; .o, an
    object file; .a, a static archive; each with a C header beside it. .wasm, a WebAssembly module,
    with a JavaScript loader (.js).
    target: for another machine than this; see `codegen/target.py`, target_of.

    graph: pure; its inputs of kind "state" take their values from `state`, by name. Symbolic dims
    have a largest size (a guard of its env), which memory is made for. name: the C functions are
    jg_<name>_...; None takes the file's name without lib and suffix. Raises ValueError for a path
    or name that will not do, CompileError for what cannot be compiled or linked, OSError when a
    file cannot be written.
    """
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise ValueError(
            f"[native] expected a path that ends in .so or .dylib (shared library), .o (object "
            f"file), .a (static archive) or .wasm (WebAssembly); got {str(path)!r}"
        )
    if target is None and path.suffix == ".wasm":
        target = "wasm32"
    targets = targets_of(target)
    made = targets[0]
    if made.is_wasm != (path.suffix == ".wasm") and path.suffix != ".o":
        raise ValueError(f"[native] {path.suffix} files are not for {made.triple}")
    if ("apple" in made.triple) != (path.suffix == ".dylib") and path.suffix in (".so", ".dylib"):
        raise ValueError(f"[native] {path.suffix} files are not for {made.triple}")
    if path.is_dir():
        raise IsADirectoryError(f"[native] expected the path of a file; {str(path)!r} is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"[native] expected an existing folder; {str(path.parent)!r} is none; make it first"
        )
    stem = path.name.removesuffix(path.suffix).removeprefix("lib") or path.stem
    symbol = _identifier(stem) if name is None else name
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", symbol):
        raise ValueError(f"[native] expected name to be a C identifier; got {name!r}")
    header_path = path.with_suffix(".h")
    code, model = build_object(graph, state, symbol, output_names, targets, creator)

    def write_header(built: Path) -> None:
        if made.is_wasm:  # one that is linked by hand has no digest
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if built == path else ""
            _replace(path.with_suffix(".js"), wasm_loader(model, digest).encode())
        else:
            _replace(header_path, c_header(model, header_path.name, built.name).encode())

    if path.suffix in (".o", ".a"):
        symbols = _symbols(model, made)
        _replace(path, code if path.suffix == ".o" else archive(f"{symbol}.o", code, symbols))
        write_header(path)
        return NativeFiles(path, header_path, None)
    with tempfile.TemporaryDirectory(prefix="jitgrad-") as folder:
        linked = Path(folder) / path.name
        unlinked = Path(folder) / f"{path.stem}.o"
        unlinked.write_bytes(code)
        try:
            link_shared(unlinked, linked, path.name, made)
        except CompileError as error:
            kept = path.with_suffix(".o")
            _replace(kept, code)
            write_header(kept)
            message = str(error).replace(str(unlinked), str(kept))
            raise CompileError(message) from None
        content = linked.read_bytes()
        _replace(path, fmt.sealed(content) if made.is_elf else content, 0o777)
    module = _identifier(path.stem)
    if not made.is_wasm:
        text = python_loader(model, module, path.name)
        _replace(path.with_name(f"{module}.py"), text.encode())
    write_header(path)
    return NativeFiles(None, path.with_suffix(".js") if made.is_wasm else header_path, path)


def build_object(
    graph: Graph,
    state: Mapping[str, np.ndarray[Any, Any]],
    name: str,
    output_names: Sequence[str],
    target: Target | Sequence[Target],
    creator: str,
) -> tuple[bytes, capi.Model]:
    """The object file, and what its header tells of. Several targets are levels of one processor
    family, the lowest first: the object holds code for each, and chooses when it runs."""
    _check_graph(graph)
    if graph.env.hints:
        graph = with_limits(graph)
    targets = [target] if isinstance(target, Target) else list(target)
    lowest = targets[0]
    runtime = pool.emit_runtime(lowest.triple, threads=not lowest.is_wasm)
    modules = [capi.private_names(str(runtime))]
    if len(targets) == 1:
        model, weights, texts = _part(graph, state, name, output_names, lowest, creator)
        modules = [capi.emit_text(model, lowest), *modules, *texts]
    else:
        for number, t in enumerate(targets):
            label = levels.part_name(name, number)
            part, weights, texts = _part(graph, state, label, output_names, t, creator)
            texts = [levels.marked(x, t) for x in (capi.emit_text(part, t, number), *texts)]
            # Levels may share kernels' names: they become internal here.
            shown = {*_symbols(part, lowest), "jg.weights"}
            modules.append(_joined(texts, shown))
            model = part if number == 0 else model
        model = replace(model, name=name)
        cpus = ", ".join(t.cpu for t in targets)
        model.version = model.version.replace(lowest.cpu, cpus)
        model.metadata = json.dumps({**json.loads(model.metadata), "name": name, "cpu": cpus})
        modules.insert(0, str(levels.emit_choice(model, len(targets), lowest)))
    keep = {*_symbols(model, lowest), fmt.DESCRIPTOR}
    code = compile_for(_joined(modules, keep), lowest, _provided(lowest))
    if weights and lowest.is_elf:
        code = _fill_section(code, capi.WEIGHTS_SECTION, weights)
    return code, model


def _part(
    graph: Graph,
    state: Mapping[str, np.ndarray[Any, Any]],
    name: str,
    output_names: Sequence[str],
    target: Target,
    creator: str,
) -> tuple[capi.Model, bytes, list[str]]:
    """A model for one target: its description, its weights, the texts of its kernels' modules."""
    needed = features.required_features(target)
    with graph.env.deciding_by_form():
        simple, stages = stages_of(graph, Options(target=target))
        if graph.env.hints:
            stages = planned_at_most(stages)
        image, syms = assemble(stages)
    offsets, weights = _pack_state(simple, state, _WEIGHTS_LIMIT if target.is_elf else _TEXT_LIMIT)
    ports = [
        capi.Port(i.name, i.value.type.dtype.name, tuple(i.value.type.shape),
                  i.value.type.dtype.itemsize)
        for i in simple.inputs
    ]  # fmt: skip
    inputs = [(k, p) for k, p in enumerate(ports) if simple.inputs[k].kind != "state"]
    outputs = []
    for k, v in enumerate(simple.outputs):
        default = "output" if len(simple.outputs) == 1 else f"output{k}"
        label = output_names[k] if k < len(output_names) else default
        port = capi.Port(label, v.type.dtype.name, tuple(v.type.shape), v.type.dtype.itemsize)
        outputs.append((image.n_inputs + k, port))
    model = capi.Model(
        name, image, inputs, outputs, offsets, len(weights),
        faults=[_fault_text(site.node) for site in stages.program.sites],
        features=[(f, _missing_text(f)) for f in needed],
        version=f"{creator}, format {fmt.FORMAT_VERSION}, for {target.triple} ({target.cpu})",
    )  # fmt: skip
    if graph.env.hints:
        env = simple.env
        model.sizes = [Size(n, env.low[n], env.high[n]) for n in env.hints]
        model.conditions, model.syms = conditions(env), syms
    if simple.writes:
        model.own = [ports[slot] for slot in offsets]
    moved = sum(p.numel * p.itemsize for _, p in (*inputs, *outputs))
    moved += len(weights) + image.arena_bytes
    model.metadata = _metadata(model, needed, target, creator, moved)
    if not target.is_elf:
        model.weights = weights
    kernels = {g.key: g.module_text for g in stages.all_generated() if g.module_text}
    return model, weights, list(kernels.values())


def _provided(target: Target) -> frozenset[str]:
    """What an object may leave to its linker and its system."""
    if target.is_wasm:
        return _WASM_PROVIDES
    return pool.ALLOWED_SYMBOLS | (_APPLE_PROVIDES if "apple" in target.triple else frozenset())


def _check_graph(graph: Graph) -> None:
    for node in all_nodes(graph):
        if node.op.host or is_complex(node) and not node.op.bodies:
            where = f" (at {node.line})" if node.line else ""
            raise CompileError(
                f"[native] {node.op.name}{' of complex numbers' if is_complex(node) else ''} runs "
                "as a call into Python and cannot leave it; export "
                f"the parts before and after it{where}"
            )
    if graph.rebinds or any(graph.inputs[w.input].kind != "state" for w in graph.writes):
        raise CompileError(
            f"[native] expected a graph that writes to its state only; {graph.name} writes "
            f"{len(graph.writes)} storages and rebinds {len(graph.rebinds)} slots"
        )
    values = [*(i.value for i in graph.inputs), *graph.outputs]
    for v in values:
        if v.type.dtype.name not in fmt.DTYPE_CODES:
            raise CompileError(f"[native] {v.type.dtype} has no C form; convert it first")


def _symbols(model: capi.Model, target: Target) -> list[str]:
    return capi.public_symbols(
        model.name, target.is_wasm, stateful=bool(model.own), sized=bool(model.sizes)
    )


def _ints(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(d) for d in shape)


def _identifier(text: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return cleaned if cleaned and not cleaned[0].isdigit() else f"m{cleaned}"


def _pack_state(
    graph: Graph, state: Mapping[str, np.ndarray[Any, Any]], limit: int
) -> tuple[dict[int, int], bytes]:
    """{slot: offset} of the state that the graph reads, and the bytes."""
    used = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs)
    used |= {graph.inputs[w.input].value for w in graph.writes}
    offsets: dict[int, int] = {}
    parts: list[bytes] = []
    size = 0
    for slot, item in enumerate(graph.inputs):
        if item.kind != "state" or item.value not in used:
            continue
        array = np.ascontiguousarray(state[item.name]).reshape(_ints(item.value.type.shape))
        if array.dtype != item.value.type.dtype.np:
            raise InternalError(f"state {item.name}: {array.dtype}, not {item.value.type}")
        offsets[slot] = size
        data = array.tobytes()
        padding = -len(data) % _ALIGN if data else _ALIGN  # something to point at
        parts += [data, bytes(padding)]
        size += len(data) + padding
    if size > limit:
        raise CompileError(
            f"[native] expected at most {limit} bytes of weights in a library; got {size}"
        )
    return offsets, b"".join(parts)


def _fault_text(node: Node) -> str:
    """What a faulty index or the like says; of the source line the file's name only."""
    file, _, line = node.line.rpartition(":")
    where = f"{os.path.basename(file)}:{line}" if file else node.line
    operands = ", ".join(str(v.type) for v in node.inputs)
    return f"{unknown_fault(node)}; operands {operands}".replace(node.line or "\0", where)


def _missing_text(feature: str) -> str:
    return (
        f"this library was compiled for processors with {feature}, which this processor or its "
        "operating system does not offer; export it for an older one (JITGRAD_CPU=x86-64-v2)"
    )


def _metadata(
    model: capi.Model, needed: list[str], target: Target, creator: str, moved: int
) -> str:
    def describe(ports: list[tuple[int, capi.Port]]) -> list[dict[str, Any]]:
        return [{"name": p.name, "dtype": p.dtype, "shape": p.labels} for _, p in ports]

    image = model.image
    return json.dumps(
        {
            "name": model.name,
            "creator": creator,
            "triple": target.triple,
            "cpu": target.cpu,
            "features": needed,
            "inputs": describe(model.inputs),
            "states": describe([(0, p) for p in model.own]),
            "outputs": describe(model.outputs),
            "sizes": [s._asdict() for s in model.sizes],
            "weights_bytes": model.weights_bytes,
            "arena_bytes": image.arena_bytes,
            "bytes_moved": moved,
            "kernels": len(image.kernels),
            "threads": model.useful_threads,
        }
    )


def _joined(modules: list[str], keep: set[str]) -> str:
    """One module of many. What is defined and not in `keep` becomes internal, so that two models
    can be linked into one program."""
    binding = llvm_binding()
    # For the CPUID instruction, which LLVM has as assembly only. Without a parser LLVM aborts.
    binding.initialize_native_asmparser()
    whole = binding.parse_assembly(modules[0])
    for text in modules[1:]:
        whole.link_in(binding.parse_assembly(text))
    for value in (*whole.functions, *whole.global_variables):
        if not value.is_declaration and value.name not in keep:
            value.linkage = "internal"
    return str(whole)


def _fill_section(data: bytes, name: str, content: bytes) -> bytes:
    """An ELF64 object with the (equally long) content of one section replaced."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise CompileError("[native] weights go into ELF objects only; this target makes no ELF")
    start = struct.unpack_from("<Q", data, 40)[0]
    size, count, strings = struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQ", data, start + k * size) for k in range(count)]
    names = sections[strings][4]
    for entry in sections:
        at = names + entry[0]
        if data[at : data.index(b"\0", at)] == name.encode():
            offset, length = entry[4], entry[5]
            if length != len(content):
                raise InternalError(f"section {name} has {length} bytes, not {len(content)}")
            return b"".join([data[:offset], content, data[offset + length :]])
    raise InternalError(f"the object has no section {name}")


def _replace(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file in one step: a reader, or a program that has it mapped, sees old or new."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise type(error)(
            error.errno,
            f"[native] expected a folder that can be written; {str(path)!r} cannot be: "
            f"{error.strerror}; choose another folder",
        ) from None
