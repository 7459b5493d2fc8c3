"""The C interface of an exported library: create, describe, run, destroy, and constant tables.

Owns the LLVM module that stands between a C caller and `jg_run` (`pool.py`): argument checks, the
instance and its one allocation, the launch table as constant data, texts of errors. What the words
mean that it shares with the Python loader is in `runtime/artifact_format.py`; the header that goes
with it is `compiler/header.py`.

An instance is one block from malloc, in i64 words: what malloc gave, the last error's text, whether
it is in use, the pool, the level (levels.py), whether sizes are set, the file of weights (two
words, mapping.py), Ctx, the error cell, the sizes and the results' shapes (sizes.py), the pointer
table; then, 128-byte aligned, the arena and the scratch of each thread.
"""

from __future__ import annotations

import struct

import llvmlite.ir as ir

from jitgrad.compiler.codegen.features import baseline, emit_check
from jitgrad.compiler.codegen.interface import Interface, reference
from jitgrad.compiler.codegen.interface import Model as Model
from jitgrad.compiler.codegen.interface import Port as Port
from jitgrad.compiler.codegen.mapping import MAPPED, RELEASE
from jitgrad.compiler.codegen.sizes import emit_sizes
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.wasm_memory import emit_allocator
from jitgrad.compiler.codegen.words import (
    I32,
    I64,
    PTR,
    VOID,
    add_to,
    atomic,
    const,
    define,
    function_at,
    get,
    get_pointer,
    put,
    variable,
    while_loop,
    word,
)
from jitgrad.compiler.symbolic import Sym
from jitgrad.runtime import abi
from jitgrad.runtime import artifact_format as fmt

_RAW, _ERROR, _BUSY, _POOL, _SIZED, _CTX = 0, 1, 2, 3, 5, 8
_CELL = _CTX + abi.CTX_WORDS
_LINE = 128
_LARGE_PAGE, _MADV_HUGEPAGE = 1 << 21, 14  # Linux's, on all processors that code is made for
_WEIGHTS_ALIGN = 16  # what malloc gives

MAY_LACK = frozenset({"madvise"})
"""What a library calls if it is there (a weak symbol)."""

WEIGHTS_SECTION = ".jg_weights"
_KERNEL = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])


def public_symbols(model: Model, wasm: bool = False) -> list[str]:
    """The functions that a library exports; `header.py` declares the same."""
    name = model.name
    ports = [f"{k}_{w}" for k in ("input", "output") for w in ("name", "dtype", "rank", "dims")]
    functions = [
        "create_with" if model.side else "create",
        "destroy",
        "run",
        "last_error",
        "status",
        "version",
    ]
    functions += ["alloc", "free"] if wasm else []
    if model.sizes:
        functions += ["set_sizes", "set_shapes", "output_shape", "n_sizes"]
        ports += ["size_name", "size_min", "size_max"]
    if model.own:
        functions += ["n_states", "get_state", "set_state"]
        ports += [f"state_{w}" for w in ("name", "dtype", "rank", "dims")]
    return [f"jg_{name}_{f}" for f in [*functions, "n_inputs", "n_outputs", *ports]]


def private_names(runtime: str) -> str:
    """The text of the runtime's module, with the pool's functions under names that are no model's:
    a model called "pool" has a jg_pool_create, too."""
    return runtime.replace('@"jg_pool_', '@"jg.pool_')


def emit_text(model: Model, target: Target, part: int | None = None) -> str:
    """The text of the module, which declares the kernels, jg_run, jg.pool_create and
    jg.pool_destroy (see `private_names`). Its weights are marked as known to the linker only.

    part: of a library of several levels of processors (levels.py), the level's number: the module
    describes itself to no loader, and the parts share the weights of part 0.
    """
    text = str(Emitter(model, target, part).emit())
    for linkage in ("internal ", ""):
        weights = f'@"jg.weights" = {linkage}'
        text = text.replace(f"{weights}constant", f"{weights}externally_initialized constant")
    return text


class Emitter(Interface):
    """Attributes: words of an instance: ERROR, BUSY, SIZED (1, or EMPTY where the sizes leave
    nothing to compute), and where those begin whose number depends on the model: `sizes_at`,
    `shapes_at` (of the results), `instead` (for each port: the address of memory that is read in
    its place, where it has no elements; 0 where it has some), `bufs`. arena_at: the arena's first
    byte."""

    ERROR, BUSY, SIZED, EMPTY = _ERROR, _BUSY, _SIZED, 2

    def __init__(self, model: Model, target: Target, part: int | None = None) -> None:
        super().__init__(model, target)
        self.part = part
        self.sizes_at = _CELL + 1
        self.shapes_at = self.sizes_at + max(1, len(model.syms))
        ranks = sum(len(p.shape) for _, p in model.outputs) if model.sizes else 0
        self.instead = self.shapes_at + ranks
        self.bufs = self.instead + (len(model.ports) if model.spare else 0)
        own = _round_up(model.weights_bytes) if model.own else 0
        self.header = _round_up((self.bufs + model.image.n_buffers) * 8)
        self.arena_at = self.header + own
        declare = self._declare
        self.run_table = declare("jg_run", I32, [PTR, PTR, PTR, I64])
        self.pool_create = declare("jg.pool_create", PTR, [I64])
        self.pool_destroy = declare("jg.pool_destroy", VOID, [PTR])
        if target.is_wasm:  # there is no libc
            self.malloc, self.free = emit_allocator(self.module)
        else:
            self.malloc, self.free = declare("malloc", PTR, [I64]), declare("free", VOID, [PTR])
        self.weights: ir.GlobalVariable | None = None
        if model.weights_bytes and not model.side:
            # Zeros here, filled in an ELF object: as text they would take four times the bytes.
            # Nothing may be folded from them: see emit_text.
            data = None if target.is_elf else bytearray(model.weights)
            self.weights = self._constant(
                ir.Constant(ir.ArrayType(ir.IntType(8), model.weights_bytes), data), "weights"
            )
            if target.is_elf:
                self.weights.section = WEIGHTS_SECTION
            self.weights.align = _LINE
            if part is not None:
                self.weights.linkage = ""
            if part:
                self.weights.initializer = None
                self.weights.section = ""
        self.table = self._launch_table()

    def emit(self) -> ir.Module:
        made = {
            "status": self._emit_status(),
            **self._emit_creates(),
            "destroy": self._emit_destroy(),
            "run": self._emit_run(),
            "last_error": self._emit_last_error(),
        }
        if self.model.sizes:
            made |= emit_sizes(self)
        if self.target.is_wasm:
            self._emit_memory()
        elif self.part is None:
            self._emit_descriptor(**made, py_call=self._emit_py_call())
        if self.model.own:
            self._emit_states()
        self._emit_ports("input", [p for _, p in self.model.inputs])
        self._emit_ports("output", [p for _, p in self.model.outputs])
        self._return_text("version", self.model.version)
        return self.module

    def _launch_table(self) -> ir.GlobalVariable:
        image = self.model.image
        kernels = [self._declare(s, _KERNEL.return_type, list(_KERNEL.args))
                   for _, s in image.kernels]  # fmt: skip
        null = ir.Constant(PTR, None)
        rows: list[list[ir.Value]] = []
        for kernel, args, total, grain, last in image.launches:
            if kernel < 0:
                rows.append([null, null, const(0), const(1), const(1), const(0)])
            else:
                code, given = kernels[kernel], self.words(args, "args")
                rows.append([code, given, const(total), const(grain), const(int(last)), const(0)])
        assert not rows or len(rows[0]) == abi.ROW_WORDS
        return self.struct_array(rows or [[null, null, *[const(0)] * 4]], "table")

    # -- functions -----------------------------------------------------------------------------
    def _emit_status(self) -> ir.Function:
        texts = [(f, reference(self.text(t))) for f, t in self.model.features]
        emit_check(self.module, self.target, texts)
        function, b = self.public("status", PTR, [])
        baseline(function, self.target)
        missing = b.call(self.module.get_global("jg.missing"), [])
        there = b.icmp_unsigned("==", b.ptrtoint(missing, I64), const(0))
        b.ret(b.select(there, reference(self.text("ready")), missing))
        return function

    def _emit_creates(self) -> dict[str, ir.Function]:
        if self.model.side:
            return {"create_with": self._emit_create_with()}
        return {"create": self._emit_create()}

    def _refuse_processor(self, b: ir.IRBuilder, why: ir.Value | None = None) -> None:
        """Returns null where the processor lacks what the code needs."""
        missing = b.call(self.module.get_global("jg.missing"), [])
        with b.if_then(b.icmp_unsigned("!=", b.ptrtoint(missing, I64), const(0)), likely=False):
            if why is not None:
                _tell(b, why, missing)
            b.ret(ir.Constant(PTR, None))

    def _emit_create(self) -> ir.Function:
        """Features first, in code for any processor; then an instance with the own weights."""
        make = self._emit_make()
        function, b = self.public("create", PTR, [I32])
        baseline(function, self.target)
        self._refuse_processor(b)
        own = ir.Constant(PTR, None) if self.weights is None else reference(self.weights)
        b.ret(b.call(make, [function.args[0], own]))
        return function

    def _emit_create_with(self) -> ir.Function:
        """ptr create_with(threads, weights, bytes, why): weights that the caller has in memory."""
        model = self.model
        make = self._emit_make()
        function, b = self.public("create_with", PTR, [I32, PTR, I64, PTR])
        baseline(function, self.target)
        threads, weights, nbytes, why = function.args
        _tell(b, why, reference(self.text("")))
        self._refuse_processor(b, why)

        def refuse_if(condition: ir.Value, text: str) -> None:
            with b.if_then(condition, likely=False):
                _tell(b, why, reference(self.text(text)))
                b.ret(ir.Constant(PTR, None))

        address = b.ptrtoint(weights, I64)
        refuse_if(b.icmp_unsigned("==", address, const(0)), "expected the weights; got NULL")
        off = b.and_(address, const(_WEIGHTS_ALIGN - 1))
        aligned = f"expected the weights to be aligned to {_WEIGHTS_ALIGN} bytes; they are not"
        refuse_if(b.icmp_unsigned("!=", off, const(0)), aligned)
        want = fmt.WEIGHTS_HEAD + model.weights_bytes
        refuse_if(
            b.icmp_unsigned("!=", nbytes, const(want)),
            f"expected {want} bytes of weights; got another number: the file is truncated, or "
            "another model's",
        )
        digest = fmt.WEIGHTS_DIGEST  # of the values, which may be any
        nothing = bytes(digest.stop - digest.start)
        head = fmt.weights_head(model.weights_bytes, model.side, nothing)
        differs: ir.Value = const(0)
        for n, wanted in enumerate(struct.unpack("<16q", head)):
            if not digest.start <= 8 * n < digest.stop:
                differs = b.or_(differs, b.xor(get(b, weights, n), const(wanted)))
        refuse_if(
            b.icmp_unsigned("!=", differs, const(0)),
            "expected the weights that this library was made with, or others of the same names, "
            "shapes and dtypes, written for the same target; got others",
        )
        content = b.gep(weights, [const(fmt.WEIGHTS_HEAD)], source_etype=ir.IntType(8))
        made = b.call(make, [threads, content])
        no_memory = b.icmp_unsigned("==", b.ptrtoint(made, I64), const(0))
        refuse_if(no_memory, "there is no memory for an instance")
        b.ret(made)
        return function

    def _emit_make(self) -> ir.Function:
        """ptr make(threads, weights): memory, its words, threads."""
        model, image = self.model, self.model.image
        function, b = define(self.module, "jg.make", PTR, [I32, PTR])
        baseline(function, self.target)
        weights = function.args[1]
        null = ir.Constant(PTR, None)
        asked = b.sext(function.args[0], I64)
        few = b.icmp_signed("<", asked, const(1))
        limit = const(model.useful_threads)
        many = b.icmp_signed(">", asked, limit)
        threads = b.select(few, const(1), b.select(many, limit, asked))

        header = self.header
        arena = _round_up(max(image.arena_bytes, model.spare))
        each = sum(_round_up(n) for n in image.scratch.values())
        nbytes = b.add(const(self.arena_at + arena + _LINE), b.mul(threads, const(each)))
        raw = b.call(self.malloc, [nbytes])
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(raw, I64), const(0)), likely=False):
            b.ret(null)
        if "linux" in self.target.triple:
            most = self.arena_at + arena + _LINE + model.useful_threads * each
            self._ask_for_large_pages(b, b.ptrtoint(raw, I64), nbytes, most)
        start = b.and_(b.add(b.ptrtoint(raw, I64), const(_LINE - 1)), const(-_LINE))
        me = b.inttoptr(start, PTR)
        i = variable(b, 0)
        with while_loop(b, lambda: b.icmp_signed("<", b.load(i, typ=I64), const(header // 8))):
            put(b, me, b.load(i, typ=I64), const(0))
            add_to(b, i, 1)
        put(b, me, _RAW, raw)
        put(b, me, _ERROR, reference(self.text("")))
        pool = null if model.useful_threads < 2 else b.call(self.pool_create, [threads])
        put(b, me, _POOL, pool)
        put(b, me, _CTX + abi.CTX_POOL, pool)
        put(b, me, _CTX + abi.CTX_ERROR, word(b, me, _CELL))
        put(b, me, _CTX + abi.CTX_SIZES, word(b, me, self.sizes_at))
        put(b, me, _CTX + abi.CTX_THREADS, threads)
        put(b, me, _CTX + abi.CTX_TABLE, reference(self.table))
        put(b, me, _CELL, const(abi.NO_ERROR))
        if model.state:
            address = b.ptrtoint(weights, I64)
            if model.own:
                address = b.add(start, const(header))
                to = b.inttoptr(address, PTR)
                b.call(self._memcpy(), [to, weights, const(model.weights_bytes)])
            for slot, offset in model.state.items():
                put(b, me, self.bufs + slot, b.add(address, const(offset)))
        for slot, offset in image.arena.items():
            put(b, me, self.bufs + slot, b.add(start, const(self.arena_at + offset)))
        at: ir.Value = b.add(start, const(self.arena_at + arena))
        for slot, size in image.scratch.items():
            put(b, me, self.bufs + slot, at)
            at = b.add(at, b.mul(threads, const(_round_up(size))))
        b.ret(me)
        return function

    def _ask_for_large_pages(
        self, b: ir.IRBuilder, raw: ir.Value, nbytes: ir.Value, most: int
    ) -> None:
        """Tells Linux, if it is there, that memory may lie in pages of 2 MiB: the first call waits
        for each page, and all calls find fewer of them faster. Of most bytes at the most."""
        if most < 2 * _LARGE_PAGE:
            return
        advise = self._declare("madvise", I32, [PTR, I64, I32])
        advise.linkage = "extern_weak"
        first = b.and_(b.add(raw, const(_LARGE_PAGE - 1)), const(-_LARGE_PAGE))
        length = b.sub(b.and_(b.add(raw, nbytes), const(-_LARGE_PAGE)), first)
        linked = b.icmp_unsigned("!=", b.ptrtoint(advise, I64), const(0))
        with b.if_then(b.and_(linked, b.icmp_signed(">", length, const(0)))):
            advice = ir.Constant(I32, _MADV_HUGEPAGE)
            b.call(advise, [b.inttoptr(first, PTR), length, advice])

    def _emit_destroy(self) -> ir.Function:
        function, b = self.public("destroy", VOID, [PTR])
        baseline(function, self.target)
        (me,) = function.args
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(me, I64), const(0))):
            b.ret_void()
        if self.model.useful_threads > 1:
            b.call(self.pool_destroy, [get_pointer(b, me, _POOL)])
        if self.model.side:
            release = get(b, me, RELEASE)
            with b.if_then(b.icmp_unsigned("!=", release, const(0))):
                nbytes = const(fmt.WEIGHTS_HEAD + self.model.weights_bytes)
                kind = ir.FunctionType(VOID, [PTR, I64])
                b.call(function_at(b, release, kind), [get_pointer(b, me, MAPPED), nbytes])
        b.call(self.free, [get_pointer(b, me, _RAW)])
        b.ret_void()
        return function

    def _memcpy(self) -> ir.Function:
        known = self.module.globals.get("memcpy")
        return known or self._declare("memcpy", PTR, [PTR, PTR, I64])

    def _emit_states(self) -> None:
        """Descriptions of the state, and int get_state(instance, i, to), set_state(.., from)."""
        ports = self.model.own
        self._emit_ports("state", ports)
        rows = [[const(self.bufs + slot), const(p.numel * p.itemsize)]
                for slot, p in zip(self.model.state, ports, strict=True)]  # fmt: skip
        table = self.struct_array(rows, "states")
        refused, busy = ir.Constant(I32, fmt.BAD_ARGUMENT), ir.Constant(I32, fmt.BUSY)
        wrong = self.text(
            f"expected the number of a state, 0 to {len(ports) - 1} (state_name says which it is), "
            "and a pointer to its elements"
        )
        for name in ("get_state", "set_state"):
            function, b = self.public(name, I32, [PTR, I32, PTR])
            me, index, other = function.args
            inside = b.icmp_unsigned("<", index, ir.Constant(I32, len(ports)))
            for pointer in (me, other):
                there = b.icmp_unsigned("!=", b.ptrtoint(pointer, I64), const(0))
                inside = b.and_(inside, there)
            with b.if_then(b.not_(inside), likely=False):
                with b.if_then(b.icmp_unsigned("!=", b.ptrtoint(me, I64), const(0))):
                    put(b, me, _ERROR, reference(wrong))
                b.ret(refused)
            taken = b.cmpxchg(word(b, me, _BUSY), const(0), const(1), "acquire", "monotonic")
            with b.if_then(b.not_(b.extract_value(taken, 1)), likely=False):
                b.ret(busy)
            row = word(b, reference(table), b.mul(b.zext(index, I64), const(2)))
            mine = b.inttoptr(get(b, me, get(b, row, 0)), PTR)
            pair = [other, mine] if name == "get_state" else [mine, other]
            b.call(self._memcpy(), [*pair, get(b, row, 1)])
            atomic(b, "xchg", me, _BUSY, 0, "release")
            b.ret(ir.Constant(I32, fmt.OK))

    def _emit_last_error(self) -> ir.Function:
        function, b = self.public("last_error", PTR, [PTR])
        baseline(function, self.target)
        (me,) = function.args
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(me, I64), const(0))):
            b.ret(reference(self.text("there is no instance: create returned NULL")))
        b.ret(get_pointer(b, me, _ERROR))
        return function

    def _emit_run(self) -> ir.Function:
        """i32 run(instance, inputs, outputs)."""
        model = self.model
        function, b = self.public("run", I32, [PTR, PTR, PTR])
        me, inputs, outputs = function.args
        with b.if_then(b.icmp_unsigned("==", b.ptrtoint(me, I64), const(0)), likely=False):
            b.ret(ir.Constant(I32, fmt.BAD_ARGUMENT))
        taken = b.cmpxchg(word(b, me, _BUSY), const(0), const(1), "acquire", "monotonic")
        with b.if_then(b.not_(b.extract_value(taken, 1)), likely=False):
            b.ret(ir.Constant(I32, fmt.BUSY))

        refuse = b.append_basic_block("refuse")
        message = variable(b, 0)
        if model.sizes:
            names = ", ".join(s.name for s in model.sizes)
            text = f"expected the sizes ({names}) to be set before the first run; they are not"
            unset = reference(self.text(text))
            with b.if_then(b.icmp_signed("==", get(b, me, _SIZED), const(0)), likely=False):
                b.store(b.ptrtoint(unset, I64), message)
                b.branch(refuse)
            nothing = b.icmp_signed("==", get(b, me, _SIZED), const(self.EMPTY))
            with b.if_then(nothing, likely=False):
                put(b, me, _ERROR, reference(self.text("")))
                atomic(b, "xchg", me, _BUSY, 0, "release")
                b.ret(ir.Constant(I32, fmt.OK))
        self._bind(b, me, inputs, model.inputs, "inputs", message, refuse)
        self._bind(b, me, outputs, model.outputs, "outputs", message, refuse)
        put(b, me, _CELL, const(abi.NO_ERROR))
        put(b, me, _ERROR, reference(self.text("")))
        # What rows of n_once make is among the weights (kept_weights.py).
        first = word(b, reference(self.table), abi.ROW_WORDS * model.image.n_once)
        rows = const(model.image.n_main - model.image.n_once)
        flagged = b.call(self.run_table, [word(b, me, _CTX), word(b, me, self.bufs), first, rows])
        if model.faults:
            texts = self.struct_array([[self.text(t)] for t in model.faults], "faults")
            with b.if_then(b.icmp_signed("!=", flagged, ir.Constant(I32, 0)), likely=False):
                site = get(b, me, _CELL)
                put(b, me, _ERROR, get(b, reference(texts), site))
        atomic(b, "xchg", me, _BUSY, 0, "release")
        b.ret(flagged)

        b.position_at_end(refuse)
        put(b, me, _ERROR, b.load(message, typ=I64))
        atomic(b, "xchg", me, _BUSY, 0, "release")
        b.ret(ir.Constant(I32, fmt.BAD_ARGUMENT))
        return function

    def _emit_memory(self) -> None:
        """ptr alloc(i32 nbytes) and void free(ptr), for a caller that has no memory in here."""
        function, b = self.public("alloc", PTR, [I32])
        b.ret(b.call(self.malloc, [b.zext(function.args[0], I64)]))
        function, b = self.public("free", VOID, [PTR])
        b.call(self.free, [function.args[0]])
        b.ret_void()

    def _bind(
        self,
        b: ir.IRBuilder,
        me: ir.Value,
        given: ir.Value,
        ports: list[tuple[int, Port]],
        what: str,
        message: ir.Value,
        refuse: ir.Block,
    ) -> None:
        """Stores the caller's pointers in their slots; null and misaligned ones are refused, but of
        arrays without elements."""
        if not ports:
            return

        def refuse_if(condition: ir.Value, text: ir.Value) -> None:
            with b.if_then(condition, likely=False):
                b.store(b.ptrtoint(text, I64) if text.type == PTR else text, message)
                b.branch(refuse)

        absent = f"expected an array of {len(ports)} pointers as {what}; got NULL"
        zero = const(0)
        refuse_if(b.icmp_unsigned("==", b.ptrtoint(given, I64), zero), reference(self.text(absent)))
        rows = []
        for n, (slot, p) in enumerate(ports):
            label = f"{what}[{n}] ({p.name}, {p})"
            null_text = f"expected {label} to point to its elements; got NULL"
            align_text = f"expected {label} to be aligned to {p.itemsize} bytes; it is not"
            # An empty array may be NULL.
            mask = p.itemsize - 1 if p.numel else -1
            rows.append([const(slot), const(mask), self.text(null_text), self.text(align_text)])
        table = reference(self.struct_array(rows, what))
        first = self.instead + (len(self.model.inputs) if what == "outputs" else 0)
        i = variable(b, 0)
        with while_loop(b, lambda: b.icmp_signed("<", b.load(i, typ=I64), const(len(rows)))):
            n = b.load(i, typ=I64)
            row = word(b, table, b.mul(n, const(4)))
            slot_word, mask_word = get(b, row, 0), get(b, row, 1)
            pointer = b.load(b.gep(given, [n], source_etype=PTR), typ=PTR)
            address = b.ptrtoint(pointer, I64)
            must = b.icmp_signed(">=", mask_word, zero)
            if self.model.spare:
                instead = get(b, me, b.add(n, const(first)))
                some = b.icmp_signed("==", instead, zero)
                address, must = b.select(some, address, instead), b.and_(must, some)
            with b.if_then(must, likely=True):
                refuse_if(b.icmp_unsigned("==", address, zero), get(b, row, 2))
                off = b.and_(address, mask_word)
                refuse_if(b.icmp_unsigned("!=", off, zero), get(b, row, 3))
            put(b, me, b.add(slot_word, const(self.bufs)), address)
            add_to(b, i, 1)

    def _emit_ports(self, kind: str, ports: list[Port]) -> None:
        """Names, dtypes, ranks and dims by number; an impossible number gives NULL or -1."""
        count, b = self.public(f"n_{kind}s", I32, [])
        baseline(count, self.target)
        b.ret(ir.Constant(I32, len(ports)))
        i32 = [ir.Constant(I32, fmt.DTYPE_CODES[p.dtype]) for p in ports]
        ranks = [ir.Constant(I32, len(p.shape)) for p in ports]
        names = [reference(self.text(p.name)) for p in ports]
        fixed = [[-1 if isinstance(d, Sym) else d for d in p.shape] for p in ports]
        dims = [reference(self.words(shape, "dims")) for shape in fixed]
        minus, null = ir.Constant(I32, -1), ir.Constant(PTR, None)
        columns: list[tuple[str, ir.Type, list[ir.Value], ir.Constant]] = [
            ("name", PTR, names, null),
            ("dtype", I32, i32, minus),
            ("rank", I32, ranks, minus),
            ("dims", PTR, dims, null),
        ]
        for column, element, values, otherwise in columns:
            function, b = self.public(f"{kind}_{column}", element, [I32])
            baseline(function, self.target)
            index = function.args[0]
            table = reference(self.array(element, values, column))
            inside = b.icmp_unsigned("<", index, ir.Constant(I32, len(ports)))
            with b.if_then(b.not_(inside)):
                b.ret(otherwise)
            where = b.gep(table, [b.zext(index, I64)], source_etype=element)
            b.ret(b.load(where, typ=element))


def _tell(b: ir.IRBuilder, why: ir.Value, text: ir.Value) -> None:
    """*why = text, where why is not null."""
    with b.if_then(b.icmp_unsigned("!=", b.ptrtoint(why, I64), const(0))):
        b.store(text, why)


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE
