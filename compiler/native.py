"""A graph as a native library: one object file, a C header, and the shared library linked of them.

Owns the way from a Graph and its state to files. Code is the pipeline's, the C interface is
`codegen/capi.py`'s, the header `header.py`'s, weights `weights.py`'s, linking `link.py`'s, the seal
`artifact_format.py`'s.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jitgrad.compiler import kept_weights
from jitgrad.compiler.archive import archive
from jitgrad.compiler.codegen import capi, features, levels, mapping, pool, pyinit
from jitgrad.compiler.codegen.cross import compile_for
from jitgrad.compiler.codegen.interface import Size
from jitgrad.compiler.codegen.target import Target, llvm_binding, own, targets_of
from jitgrad.compiler.description import described_module
from jitgrad.compiler.header import c_header
from jitgrad.compiler.image import Image
from jitgrad.compiler.interpret import unknown_fault
from jitgrad.compiler.ir import Graph, Node, all_nodes
from jitgrad.compiler.launch_rows import assemble
from jitgrad.compiler.link import link_shared
from jitgrad.compiler.lower import is_complex
from jitgrad.compiler.pipeline import Options, stages_of
from jitgrad.compiler.python_loader import python_loader
from jitgrad.compiler.size_limits import (
    at_most,
    conditions,
    empty_at_zero,
    with_limits,
)
from jitgrad.compiler.stages import Stages
from jitgrad.compiler.symbolic import Sym
from jitgrad.compiler.wasm_loader import wasm_loader
from jitgrad.compiler.weights import Packed, fill_section, pack, write_weights
from jitgrad.runtime import artifact_format as fmt
from jitgrad.runtime.errors import CompileError, InternalError
from jitgrad.runtime.userline import warn

_WEIGHTS_LIMIT = 2**31 - 2**24  # position-independent code reaches 2 GiB
_TEXT_LIMIT = 2**26  # weights that go through LLVM as text
_APPLE_PROVIDES = frozenset({"bzero", "__bzero", "memset_pattern16"})
_WASM_PROVIDES = frozenset({"__heap_base", "__stack_pointer", "__indirect_function_table",
                       "__linear_memory", "__memory_base", "__table_base"})  # fmt: skip


_SYSTEM = frozenset((
    "m", "c", "dl", "pthread", "rt", "util", "z", "crypt", "resolv", "nsl", "atomic", "gomp", "gcc",
    "gcc_s", "stdc++", "c++", "iconv",
))  # fmt: skip
"""Names of libraries that programs are linked with on most systems."""
_SUFFIXES = (".so", ".dylib", ".o", ".a", ".wasm")
_OURS = re.compile(rb"format \d+, for \S+ \(")  # in the head of each text that is written


@dataclass(frozen=True)
class NativeFiles:
    """What `write_native` wrote. `library` is None when an object file or an archive (`object`) was
    asked for; `header` is the JavaScript loader for WebAssembly; `weights` their file, if any."""

    object: Path | None
    header: Path
    library: Path | None
    weights: Path | None = None


@dataclass
class _Built:
    """An object, what its header tells of, and one more object: what maps the weights' file."""

    code: bytes
    model: capi.Model
    mapping: bytes = b""


def write_native(
    graph: Graph,
    state: Mapping[str, np.ndarray[Any, Any]],
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    output_names: Sequence[str] = (),
    target: Target | str | None = None,
    weights: str | os.PathLike[str] | None = None,
    creator: str = "jitgrad",
) -> NativeFiles:
    """Writes `path` and what goes with it.

    By its suffix: .so or .dylib, a shared library, with a Python module that loads it; .o, an
    object file; .a, a static archive; each with a C header beside it. .wasm, a WebAssembly module,
    with a JavaScript loader (.js).
    target: for another machine than this; see `codegen/target.py`, target_of. weights: a file that
    the weights go to, in the place of the library.

    graph: pure; its inputs of kind "state" take their values from `state`, by name. Symbolic dims
    have a largest size (a guard of its env), which memory is made for. name: the C functions are
    jg_<name>_...; None takes the file's name without lib and suffix. Warns of a file that is called
    as a library of the system (libm.so). Raises ValueError for a path
    or name that will not do, CompileError for what cannot be compiled or linked, OSError when a
    file cannot be written, FileExistsError where a .h, .py or .js of the same name is not from an
    export.
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
        hint = ""
        if path.suffix == ".dylib":
            hint = '; give target="aarch64-macos" or target="x86_64-macos"'
        raise ValueError(f"[native] {path.suffix} files are not for {made.triple}{hint}")
    if path.is_dir():
        raise IsADirectoryError(f"[native] expected the path of a file; {str(path)!r} is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"[native] expected an existing folder; {str(path.parent)!r} is none; make it first"
        )
    stem = path.name.removesuffix(path.suffix).removeprefix("lib") or path.stem
    symbol = _identifier(stem) if name is None else name
    if not isinstance(symbol, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", symbol):
        raise ValueError(f"[native] expected name to be a C identifier; got {name!r}")
    header_path = path.with_suffix(".h")
    if made.is_wasm:
        _expect_ours(path, path.with_suffix(".js"))
    else:
        _expect_ours(path, header_path)
        if path.suffix in (".so", ".dylib"):
            _expect_ours(path, _loader_path(path))
    if path.name.startswith("lib") and stem in _SYSTEM and path.suffix not in (".o", ".wasm"):
        warn(
            f"[native] {path.name} is called as a library of the system is; a program linked with "
            f"-l{stem} may get either; call it {path.name.replace(stem, stem + '_model')}, say"
        )
    if weights is None:
        built = _build(graph, state, symbol, output_names, targets, creator, path)
        return _write(path, header_path, built, made, None)
    side = _side(weights, stem)
    with _stored(side) as store:
        built = _build(graph, state, symbol, output_names, targets, creator, path, side.name, store)
    return _write(path, header_path, built, made, side)


def write_native_weights(
    graph: Graph,
    state: Mapping[str, np.ndarray[Any, Any]],
    path: str | os.PathLike[str],
    target: Target | str | None = None,
) -> None:
    """Writes the file of weights alone, as `write_native` does for this graph and target: for a
    library of the same graph. Raises ValueError for a path that will not do, OSError when the file
    cannot be written."""
    side, targets = _side(path, "net"), targets_of(target)
    _check_graph(graph)
    if graph.env.hints:
        graph = with_limits(graph)
    with _stored(side) as store, graph.env.deciding_by_form():
        store(_planned(graph, state, targets[0], _is_own(targets))[-1])


def _side(weights: str | os.PathLike[str], stem: str) -> Path:
    """The path of a file of weights."""
    side = Path(weights)
    if side.suffix in (*_SUFFIXES, ".h", ".py", ".js") or side.is_dir():
        raise ValueError(
            f'[native] expected weights to be the path of a file such as "{stem}.weights"; got '
            f"{str(side)!r}"
        )
    return side


@contextmanager
def _stored(side: Path) -> Iterator[Callable[[Packed], None]]:
    """Gives a function that writes a file of weights, which is there when the block is through."""
    temporary = _temporary(side)

    def store(packed: Packed) -> None:
        try:
            write_weights(packed, temporary)
        except OSError as error:
            raise _unwritable(side, error) from None

    try:
        yield store
        os.replace(temporary, side)
    finally:
        temporary.unlink(missing_ok=True)


def _is_own(targets: list[Target]) -> bool:
    """Whether the code is for this machine alone."""
    return targets == [own()]


def _write(
    path: Path, header_path: Path, built: _Built, made: Target, side: Path | None
) -> NativeFiles:
    """The files of an object that is compiled."""
    code, model = built.code, built.model
    symbol = model.name

    def write_header(file: Path) -> None:
        if made.is_wasm:  # one that is linked by hand has no digest
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if file == path else ""
            _replace(path.with_suffix(".js"), wasm_loader(model, digest).encode())
        else:
            _replace(header_path, c_header(model, header_path.name, file.name).encode())

    if path.suffix in (".o", ".a"):
        if made.is_wasm:
            code = described_module(code, model.metadata)
        members = [(f"{symbol}.o", _sealed(code, made), capi.public_symbols(model, made.is_wasm))]
        if built.mapping:
            more = _sealed(built.mapping, made)
            members.append((f"{symbol}_map.o", more, [mapping.symbol(model)]))
        _replace(path, members[0][1] if path.suffix == ".o" else archive(members))
        write_header(path)
        return NativeFiles(path, header_path, None, side)
    with tempfile.TemporaryDirectory(prefix="jitgrad-") as folder:
        linked = Path(folder) / path.name
        unlinked = Path(folder) / f"{path.stem}.o"
        unlinked.write_bytes(code)
        try:
            link_shared(unlinked, linked, path.name, made)
        except CompileError as error:
            kept = path.with_suffix(".o")
            _replace(kept, _sealed(code, made))
            write_header(kept)
            message = str(error).replace(str(unlinked), str(kept))
            raise CompileError(message) from None
        content = linked.read_bytes()
        if made.is_wasm:
            content = described_module(content, model.metadata)
        _replace(path, _sealed(content, made), 0o777)
    if not made.is_wasm:
        loader = _loader_path(path)
        text = python_loader(model, loader.stem, path.name, made.is_elf)
        _replace(loader, text.encode())
    write_header(path)
    return NativeFiles(None, path.with_suffix(".js") if made.is_wasm else header_path, path, side)


def _sealed(content: bytes, target: Target) -> bytes:
    """ELF files, libraries and objects, end with a seal, which linkers and loaders ignore."""
    return fmt.sealed(content) if target.is_elf else content


def build_object(
    graph: Graph,
    state: Mapping[str, np.ndarray[Any, Any]],
    name: str,
    output_names: Sequence[str],
    target: Target | Sequence[Target],
    creator: str,
) -> tuple[bytes, capi.Model]:
    """The object file, weights in it, and what its header tells of. Several targets are levels of
    one processor family, the lowest first: the object holds code for each, and chooses when it
    runs."""
    targets = [target] if isinstance(target, Target) else list(target)
    built = _build(graph, state, name, output_names, targets, creator, Path("m.o"))
    return built.code, built.model


def _build(
    graph: Graph,
    state: Mapping[str, np.ndarray[Any, Any]],
    name: str,
    output_names: Sequence[str],
    targets: list[Target],
    creator: str,
    path: Path,
    weights_file: str = "",
    store: Callable[[Packed], None] | None = None,
) -> _Built:
    """store: writes the weights to `weights_file`; None: they go into the object. path: the file
    that the object is for: what maps a file of weights, and what Python runs to import the library,
    depend on it."""
    _check_graph(graph)
    if graph.env.hints:
        graph = with_limits(graph)
    lowest = targets[0]
    runtime = pool.emit_runtime(lowest.triple, threads=not lowest.is_wasm)
    modules = [capi.private_names(str(runtime))]
    content = layout = b""
    parts: list[tuple[capi.Model, list[str]]] = []
    for number, t in enumerate(targets):
        label = name if len(targets) == 1 else levels.part_name(name, number)
        part, packed, texts = _part(graph, state, label, output_names, t, creator, _is_own(targets))
        if store is None:
            content = _content(packed, lowest)
            part.weights = b"" if lowest.is_elf else content
        else:
            if not layout:
                layout = packed.layout
                store(packed)
            elif layout != packed.layout:
                raise InternalError("the levels of a library read other weights")
            part.side, part.weights_file = layout, weights_file
            more = {"weights_file": weights_file, "weights_layout": layout.hex()}
            part.metadata = json.dumps({**json.loads(part.metadata), **more})
        parts.append((part, texts))
    if len(parts) > 1 and targets[-1].tiles and not levels.uses_tiles(parts[-1][1]):
        parts.pop()
        targets = targets[:-1]
    model = parts[0][0]
    if len(parts) == 1:
        modules = [capi.emit_text(model, lowest), *modules, *parts[0][1]]
    else:
        for number, ((part, texts), t) in enumerate(zip(parts, targets, strict=True)):
            texts = [levels.marked(x, t) for x in (capi.emit_text(part, t, number), *texts)]
            # Levels may share kernels' names: they become internal here.
            shown = {*capi.public_symbols(part, lowest.is_wasm), "jg.weights"}
            modules.append(_joined(texts, shown))
        model = replace(model, name=name)
        cpus = ", ".join(t.level for t in targets)
        model.version = model.version.replace(lowest.level, cpus)
        model.metadata = json.dumps({**json.loads(model.metadata), "name": name, "cpu": cpus})
        modules.insert(0, str(levels.emit_choice(model, len(targets), lowest)))
    keep = {*capi.public_symbols(model, lowest.is_wasm), fmt.DESCRIPTOR}
    may_call, apart = _provided(lowest), b""
    if layout and path.suffix != ".o" and not lowest.is_wasm:
        mapper, symbol = str(mapping.emit_mapping(model, lowest)), mapping.symbol(model)
        if path.suffix == ".a":
            known = mapping.SYMBOLS | {f"jg_{name}_create_with"}
            apart = compile_for(_joined([mapper], {symbol}), lowest, known)
        else:
            modules.append(mapper)
            keep, may_call = keep | {symbol}, may_call | mapping.SYMBOLS
    if path.suffix == ".so" and _identifier(path.stem) == path.stem:
        modules.append(str(pyinit.emit_pyinit(model, lowest, path.stem)))
        keep, may_call = keep | {pyinit.symbol(path.stem)}, may_call | pyinit.SYMBOLS
    code = compile_for(_joined(modules, keep), lowest, may_call)
    if content and lowest.is_elf:
        code = fill_section(code, capi.WEIGHTS_SECTION, content)
    return _Built(code, model, apart)


def _content(packed: Packed, target: Target) -> bytes:
    """The weights that go into an object."""
    limit = _WEIGHTS_LIMIT if target.is_elf else _TEXT_LIMIT
    if packed.nbytes > limit:
        raise CompileError(
            f"[native] expected at most {limit} bytes of weights in a library; got "
            f"{packed.nbytes}; give them a file of their own (weights=...)"
        )
    return packed.content()


def _part(
    graph: Graph,
    state: Mapping[str, np.ndarray[Any, Any]],
    name: str,
    output_names: Sequence[str],
    target: Target,
    creator: str,
    keep: bool,
) -> tuple[capi.Model, Packed, list[str]]:
    """A model for one target: its description, its weights, the texts of its kernels' modules.
    keep: whether weights may be stored as the code reads them, for which the code runs here."""
    needed = features.required_features(target)
    with graph.env.deciding_by_form():
        simple, stages, image, syms, packed = _planned(graph, state, target, keep)
    offsets = packed.offsets
    # Passes write dims that are equal as one of them; callers see each where it was declared.
    declared = {i.name: i.value.type for i in graph.inputs}
    types = [declared[i.name] for i in simple.inputs]
    ports = [
        capi.Port(i.name, t.dtype.name, tuple(t.shape), t.dtype.itemsize)
        for i, t in zip(simple.inputs, types, strict=True)
    ]
    inputs = [(k, p) for k, p in enumerate(ports) if simple.inputs[k].kind != "state"]
    outputs = []
    for k, v in enumerate(simple.outputs):
        default = "output" if len(simple.outputs) == 1 else f"output{k}"
        label = output_names[k] if k < len(output_names) else default
        port = capi.Port(label, v.type.dtype.name, tuple(v.type.shape), v.type.dtype.itemsize)
        outputs.append((image.n_inputs + k, port))
    model = capi.Model(
        name, image, inputs, outputs, offsets, packed.nbytes,
        faults=[_fault_text(site.node) for site in stages.program.sites],
        features=[(f, _missing_text(f, target)) for f in needed],
        version=f"{creator}, format {fmt.FORMAT_VERSION}, for {target.triple} ({target.level})",
    )  # fmt: skip
    if graph.env.hints:
        env = simple.env
        model.empty = empty_at_zero(simple)
        low = {**env.low, **dict.fromkeys(model.empty, 0)}
        model.sizes = [Size(n, low[n], env.high[n]) for n in env.hints]
        model.conditions, model.syms = conditions(env), syms
    if simple.writes:
        model.own = [ports[slot] for slot in offsets]
    moved = sum(p.numel * p.itemsize for _, p in (*inputs, *outputs))
    moved += packed.nbytes + image.arena_bytes
    model.metadata = _metadata(model, needed, target, creator, moved)
    kernels = {g.key: g.module_text for g in stages.all_generated() if g.module_text}
    return model, packed, list(kernels.values())


def _planned(
    graph: Graph, state: Mapping[str, np.ndarray[Any, Any]], target: Target, keep: bool
) -> tuple[Graph, Stages, Image, list[Sym], Packed]:
    """The simplified graph, its stages, what was made of them, and the weights. keep: as for
    `_part`."""
    simple, stages = _stages(graph, target, keep and not graph.writes)
    if graph.env.hints:
        stages = stages.planned(at_most)
    image, syms = assemble(stages)
    slots = {k: state[i.name] for k, i in enumerate(simple.inputs) if i.kind == "state"}
    kept = kept_weights.make(stages, image, slots, target)
    return simple, stages, image, syms, pack(simple, state, kept_weights.unread(stages), kept)


def _stages(graph: Graph, target: Target, keep: bool) -> tuple[Graph, Stages]:
    """The stages of a graph whose state, if it is worth it, is constant."""
    states = frozenset(k for k, i in enumerate(graph.inputs) if keep and i.kind == "state")
    simple, stages = stages_of(graph, Options(target=target, constants=states))
    larger = kept_weights.too_large(stages)
    if larger:
        simple, stages = stages_of(graph, Options(target=target, constants=states - larger))
    return simple, stages


def _provided(target: Target) -> frozenset[str]:
    """What an object may leave to its linker and its system."""
    if target.is_wasm:
        return _WASM_PROVIDES
    more = _APPLE_PROVIDES if "apple" in target.triple else capi.MAY_LACK
    return pool.ALLOWED_SYMBOLS | more


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


def _identifier(text: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return cleaned if cleaned and not cleaned[0].isdigit() else f"m{cleaned}"


def _fault_text(node: Node) -> str:
    """What a faulty index or the like says; of the source line the file's name only."""
    file, _, line = node.line.rpartition(":")
    where = f"{os.path.basename(file)}:{line}" if file else node.line
    operands = ", ".join(str(v.type) for v in node.inputs)
    return f"{unknown_fault(node)}; operands {operands}".replace(node.line or "\0", where)


def _missing_text(feature: str, target: Target) -> str:
    older = features.older_level(feature)
    if "apple" in target.triple:
        older = f"x86_64-macos:{older}"
    return (
        f"this library was compiled for processors with {feature}, which this processor or its "
        f"operating system does not offer; export it for an older one (target='{older}')"
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
            "cpu": target.level,
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


def _loader_path(path: Path) -> Path:
    """Where the Python module of a library is written."""
    return path.with_name(f"{_identifier(path.stem)}.py")


def _expect_ours(path: Path, beside: Path) -> None:
    """FileExistsError where a file that would be written beside `path` is somebody's own."""
    try:
        with open(beside, "rb") as file:
            first = file.read(1000)
    except OSError:
        return  # none there; or writing says what is wrong
    if first and not _OURS.search(first):
        raise FileExistsError(
            f"[native] {str(beside)!r} would be written beside {path.name}, and what is there was "
            f"not made by an export; choose another path than {str(path)!r}, or move that file"
        )


def _temporary(path: Path) -> Path:
    """A new name in the same folder, to be renamed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _replace(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file in one step: a reader, or a program that has it mapped, sees old or new."""
    temporary = _temporary(path)
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
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> OSError:
    return type(error)(
        error.errno,
        f"[native] expected a folder that can be written; {str(path)!r} cannot be: "
        f"{error.strerror}; choose another folder",
    )
