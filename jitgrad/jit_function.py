"""JitFunction: the object that @jit makes of a function.

Owns the list of specialisations, what happens at a miss, and falling back to eager. The public
names are jit.py. Recording is recorder.py; Python state is found by watch.py and guarded by
guards.py; replay.py holds a specialisation, replay_code.py writes its call; reports are explain.py.
What jit promises: docs/jit.md.
"""

from __future__ import annotations

import copy
import functools
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from operator import is_not
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, NoneType
from typing import Any

import numpy as np

from jitgrad import gpu
from jitgrad.argument_guards import ArgumentGuard, Modes
from jitgrad.compile_cost import metered
from jitgrad.compiler.graph_cache import find_compiled
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.options import Options
from jitgrad.compiler.symbolic import ShapeEnv
from jitgrad.dims import History
from jitgrad.effects import Profile, is_module
from jitgrad.explain import SENTENCES, Explanation, Stats, check_run, compile_options, pair_options
from jitgrad.first_nan import watch_run
from jitgrad.forest import MAX_WAYS, Forest
from jitgrad.kept import KeptRun, constants_of
from jitgrad.lifting import Lifter, leaf_names, plain, plain_keys, replaceable
from jitgrad.lowered import Lowered
from jitgrad.pytree import Structure, flatten, nodes_of
from jitgrad.recompiles import STORM, refuse_recording, warn_of_storm
from jitgrad.recorder import Recorder, Trace
from jitgrad.replay import Specialisation
from jitgrad.replay_support import MISS, overlap
from jitgrad.runtime.buffers import free_results
from jitgrad.runtime.cuda.device import forget_asked
from jitgrad.runtime.errors import CompileError, FallbackWarning, MemoryLimitError
from jitgrad.runtime.knobs import knobs
from jitgrad.runtime.userline import warn
from jitgrad.segmented import Segmented, signature_of
from jitgrad.segments import Segments
from jitgrad.sources import Captured
from jitgrad.state import abstract_mode, state
from jitgrad.stores import Store, find_stores, objection, settle_stores, tensors_of
from jitgrad.symbols import Symbols
from jitgrad.tensor import Tensor
from jitgrad.unrolled import warn_of_loop
from jitgrad.watch import Watch

MAX_SPECIALISATIONS = 32
MAX_UNSETTLED = 8
"""Recordings of calls that changed numbers which they guard; then the function runs in segments."""
_MANY = 4  # recordings for one number's sake before a warning


@dataclass
class Eager:
    """Calls of this signature run eagerly, and why."""

    guard: ArgumentGuard
    modes: Modes
    reason: str
    line: str
    training: tuple[bool, ...]


class JitFunction:
    """A function under @jit. Call it as the function.

    Attributes:
        __wrapped__: the function itself.
        stats: traces, compiles, hits, fallbacks, segments.
        specialisations: compiled traces, the last hit first.
        forest: how they branch where Python looks at values (forest.py).
    """

    is_jit_function = True
    instances: weakref.WeakSet[JitFunction] = weakref.WeakSet()

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        fallback: str | None = None,
        pure: bool = False,
        check: bool = False,
        segments: bool | None = None,
        name: str | None = None,
        dynamic: bool | None = None,
        dynamic_shapes: Any = None,
        memory_limit: int | None = None,
        cuda_graphs: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(f"[jit] expected a function; got {type(function).__name__}")
        if fallback not in (None, "warn", "error", "silent"):
            raise ValueError(f"[jit] expected fallback warn, error or silent; got {fallback!r}")
        if isinstance(memory_limit, bool) or not isinstance(memory_limit, (Real, NoneType)):
            raise TypeError(f"[jit] expected a memory_limit in bytes; got {memory_limit!r}")
        if memory_limit is not None and not memory_limit >= 0:
            raise ValueError(f"[jit] expected a memory_limit of 0 or more; got {memory_limit}")
        functools.update_wrapper(self, function, updated=())
        self.__wrapped__ = function
        known = getattr(function, "__qualname__", type(function).__name__)
        self.name: str = name or str(known)
        self._fallback, self._pure, self._check = fallback, pure, check
        self._segments, self.memory_limit = segments, memory_limit
        self._cuda_graphs = bool(cuda_graphs)
        self._history = History(dynamic, dynamic_shapes)
        self.specialisations: list[Specialisation] = []
        self.eager: list[Eager] = []
        self.forest = Forest()
        self.segmented: Segmented | None = None
        self._counts = Stats()
        self._lock = threading.RLock()
        self._closed = False
        self._last_miss: list[str] = []
        self._refused = ""
        self._unsettled = 0  # recordings that changed what they guard
        self._lends = True  # whether numbers that change are lent as symbolic ones
        self._warned = False
        self._told_of_loop = False
        JitFunction.instances.add(self)

    def __get__(self, owner: Any, cls: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    # -- copies: as functions and methods are copied and pickled, with nothing compiled ------------
    def _options(self) -> dict[str, Any]:
        return {
            "fallback": self._fallback, "pure": self._pure, "check": self._check,
            "segments": self._segments, "name": self.name, "dynamic": self._history.dynamic,
            "dynamic_shapes": self._history.declared, "memory_limit": self.memory_limit,
            "cuda_graphs": self._cuda_graphs,
        }  # fmt: skip

    def __copy__(self) -> JitFunction:
        return type(self)(self.__wrapped__, **self._options())

    def __deepcopy__(self, memo: dict[int, Any]) -> JitFunction:
        if isinstance(self.__wrapped__, (FunctionType, BuiltinFunctionType)):
            return self  # copies share functions
        out = memo[id(self)] = object.__new__(type(self))  # first: its owner may hold it
        out.__setstate__((copy.deepcopy(self.__wrapped__, memo), self._options()))
        return out

    def __reduce__(self) -> Any:
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return str(name)
        function: Any = self.__wrapped__
        if isinstance(function, MethodType):  # not by getattr(owner, name): that may be this object
            function = (function.__self__, function.__func__.__name__)
        return _empty, (type(self),), (function, self._options())

    def __setstate__(self, held: tuple[Any, dict[str, Any]]) -> None:
        function, options = held
        if isinstance(function, tuple):
            owner, name = function
            function = MethodType(getattr(type(owner), name), owner)
        self.__init__(function, **options)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<jit {self.name}: {len(self.specialisations)} specialisations>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        modes = state.__dict__  # once: see State
        if (
            modes["recorder"] is not None
            or modes["abstract"]
            or modes["saved_hooks"]
            or not knobs.__dict__["jit"]
        ):
            return self.__wrapped__(*args, **kwargs)
        first = True
        for spec in self.specialisations:
            try:
                result = spec.call(args, kwargs)
            except CompileError as error:
                self._drop(spec, error)
                return self.__wrapped__(*args, **kwargs)
            if result is not MISS:
                if not first:
                    self._move_to_front(spec)
                return result
            first = False
        if self.segmented is not None and self.segmented.admits(args, kwargs):
            if state.anomaly:
                return self.__wrapped__(*args, **kwargs)
            return self.segmented.call(args, kwargs)
        return self._miss(args, kwargs)

    def _move_to_front(self, spec: Specialisation) -> None:
        with self._lock:
            rest = [s for s in self.specialisations if s is not spec]
            if len(rest) < len(self.specialisations):
                self.specialisations = [spec, *rest]

    # -- reports -------------------------------------------------------------------------------
    @property
    def stats(self) -> Stats:
        """Counts of traces, compiles, hits, fallbacks and segments, up to now."""
        hits = sum(s.hits[0] for s in self.specialisations) + self._counts.hits
        c = self._counts
        segments = 0 if self.segmented is None else self.segmented.segments.ran
        return Stats(c.traces, c.compiles, hits, c.fallbacks, segments, self._code_bytes())

    def _code_bytes(self) -> int:
        """Bytes of the machine code that specialisations and segments hold."""
        held: set[Any] = set()
        for spec in self.specialisations:
            pair, leaf = spec.trace.pair, spec.trace.leaf
            held.add(spec.compiled)
            if pair is not None:
                held.update(pair.compiled)
            if leaf is not None:
                parts = [leaf.part, *(branch.part for branch, _ in leaf.way)]
                held.update(part.compiled for part in parts if part is not None)
        if self.segmented is not None:
            held.update(p.compiled for p in self.segmented.segments.programs)
        return sum({id(c.loaded): c.loaded.library.nbytes for c in held if c is not None}.values())

    def explain(self) -> Explanation:
        """What was recorded, compiled and guarded, and why calls ran eagerly. Prints as text."""
        return Explanation(self)

    def guards(self) -> str:
        """The generated check of each specialisation, as Python source."""
        return "\n".join(s.text() for s in self.specialisations)

    def memory_plan(self) -> str:
        """Of each compiled specialisation, the memory plan: peak and lower bound, in bytes."""
        return self.explain().memory()

    def explain_last_miss(self) -> str:
        """Which guards failed before the last recording: old -> new, one line a specialisation."""
        return "\n".join(self._last_miss)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The function's graph, memory plan, kernels and LLVM code for arguments of these types.

        Arguments are TensorSpecs (or tensors, whose data is not read) where tensors will be, and
        other values as they are. The function's Python runs once, on tensors without data; what it
        writes, sets and draws is put back. Raises CompileError where it needs values.
        """
        return Lowered(self, args, kwargs)

    def clear(self) -> None:
        """Forgets all specialisations (and the objects that their guards hold)."""
        with self._lock:
            self.specialisations = []
            self.eager = []
            self.forest = Forest()
            self.segmented = None
            self._closed = False
            self._refused = ""
            self._unsettled = 0

    # -- misses --------------------------------------------------------------------------------
    def _miss(self, args: Any, kwargs: Any) -> Any:
        try:
            leaves, structure = flatten((args, kwargs))
        except ValueError:
            return self.__wrapped__(*args, **kwargs)
        names = leaf_names(self.__wrapped__, args, structure)
        training = tuple(x.training for x in leaves if is_module(x))
        for decision in self.eager:
            if (
                decision.training == training
                and not decision.guard.mismatch(structure, leaves, names)
                and not decision.modes.mismatch()
            ):
                self._counts.fallbacks += 1
                return self.__wrapped__(*args, **kwargs)
        if not self._lock.acquire(blocking=False):
            return self.__wrapped__(*args, **kwargs)  # another thread is recording
        try:
            misses = [
                f"{i}: {s.explain(structure, leaves, names)}"
                for i, s in enumerate(self.specialisations)
            ]
            refuse_recording(self.name, misses)
            if self.specialisations:
                self._last_miss = misses
                if "recompiles" in knobs.log:
                    print(f"[jit] {self.name} is recorded anew: " + "; ".join(self._last_miss),
                          file=sys.stderr)  # fmt: skip
                self._warn_of_numbers(structure, leaves, names)
                if len(misses) - self.forest.spared() >= STORM and not self._warned:
                    self._warned = True
                    if (self._fallback or knobs.fallback) != "silent":
                        warn_of_storm(self.name, misses)
            return self._record(args, kwargs, leaves, structure, names, training)
        finally:
            self._lock.release()

    def _warn_of_numbers(self, structure: Structure, leaves: list[Any], names: list[str]) -> None:
        """Warns once, at the fifth recording that only the value of one float asks for."""
        if len(self.specialisations) < _MANY or self._warned:
            return
        differing = [
            found[0]
            for s in self.specialisations
            if len(found := s.guard.differing_numbers(structure, leaves, names)) == 1
            and not (s.modes.mismatch() or s.watch.mismatch_of(leaves, names))
        ]
        for name in set(differing):
            if differing.count(name) >= _MANY and (self._fallback or knobs.fallback) != "silent":
                self._warned = True
                warn(
                    f"[jit] {self.name} is recorded for the fifth time, as {name} is another "
                    f"number: Python, or an op that needs it beforehand, looks at its value; after "
                    f"{MAX_SPECIALISATIONS} recordings it runs eagerly. Pass {name} as a 0-d "
                    "tensor, or use it in arithmetic on tensors only (docs/jit.md)",
                    FallbackWarning,
                )

    def _record(
        self, args: Any, kwargs: Any, leaves: list[Any], structure: Structure, names: list[str],
        training: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        signature = signature_of(args, kwargs)  # now: the call may change what its arguments show
        if len(self.specialisations) - self.forest.spared() >= MAX_SPECIALISATIONS:
            reason = f"it has {MAX_SPECIALISATIONS} specialisations already; the last misses: "
            reason += "; ".join(self._last_miss[:3])
            if self._run_in_segments(signature, reason, ""):
                return self.__wrapped__(*args, **kwargs)
            if self._closed and (self._fallback or knobs.fallback) != "error":
                self._counts.fallbacks += 1  # told before
            else:
                self._closed = True
                guard = ArgumentGuard(structure, leaves, set())
                self._run_eagerly(guard, Modes(), reason, "", training)
            return self.__wrapped__(*args, **kwargs)
        self._counts.traces += 1
        symbols = self._history.symbols(leaves, names, replaceable(args, kwargs))
        watch = Watch(
            self.__wrapped__, leaves, names, nodes_of((args, kwargs)), symbols.captured,
            None if self._pure else symbols.lend_number,
        )  # fmt: skip
        watch.unlend = symbols.fix_numbers
        recorder = Recorder(_graph_name(self.name), watch, symbols)
        symbols.begin(recorder)
        lifter = Lifter(recorder, self._lends)
        new_args = tuple([lifter.lift(x) for x in args])
        new_kwargs = {k: lifter.lift(x) for k, x in kwargs.items()}
        watch.ignore(nodes_of((new_args, new_kwargs)))
        guard = ArgumentGuard(
            structure, leaves, lifter.lifted(structure, leaves, args, kwargs), recorder.symbols
        )
        lifter.name_leaves(structure, args, kwargs)
        modes = Modes()
        forget_asked()
        recorder.symbols.lend(leaves)
        result = None
        stores: list[Store] = []
        refused = False
        try:
            start = time.perf_counter()
            result, profile = self._run_recorded(recorder, watch, new_args, new_kwargs)
            seconds = time.perf_counter() - start
            asks_for_gpu = forget_asked()
            plain_keys(result)
            for holder, key, value in watch.rebound():
                recorder.rebind(holder, key, value)
            if not self._pure:
                stores = find_stores(watch, recorder.symbols.lent())
                recorder.symbols.stored.update(s.item for s in stores)
                self._check_stores(stores, result, recorder, watch)
            trace = recorder.finish(result, lambda: _recording(recorder, profile), stores)
        except TypeError:  # maybe of C code that takes no stand-ins of numbers
            lent = bool(recorder.symbols or lifter.made or recorder.symbols.lent())
            again, after = flatten((args, kwargs))
            filled = after != structure or any(map(is_not, again, leaves))
            refused = lent and not filled and self._can_run_again(recorder, watch)
            if not refused:
                raise
        finally:
            recorder.settle(result)
            settle_stores(stores, watch)
        if refused:
            self._counts.traces -= 1
            return self._record_plain(args, kwargs, leaves, structure, names, training)
        as_floats = plain(result)
        del result
        watch.let_go()
        if trace is None:
            watch.restore_numbers()
        kept = recorder.kept_number()
        if recorder.postponed:
            return as_floats
        if trace is not None:
            trace.seconds = seconds
            given = (args, kwargs, structure, leaves, (as_floats, tensors_of(stores)))
            against = self._objection(recorder, watch, trace, guard, *given)
            if against:
                recorder.give_up(*against)
            hooked = [x for x in leaves if isinstance(x, Tensor) and (x._hooks or x._post_hooks)]
            if trace.backward_inside and hooked:
                recorder.give_up("runs backward() where an argument has hooks")
        if kept and not recorder.reason:
            recorder.to_segments("keeps a tensor's value (item) beyond the call", "")
        if watch.filled and (stores or recorder.has_effects()) and not recorder.reason:
            # A cached function may have done it, which it does not do again: the next call tells.
            self._unsettled += 1
            if self._unsettled <= MAX_UNSETTLED:
                recorder.let_go()
                return as_floats
            recorder.to_segments("fills a functools.cache, and has effects", "")
        if not recorder.reason and modes.mismatch():
            recorder.give_up(f"leaves a mode changed ({modes.mismatch()})")
        if not asks_for_gpu:
            modes.forget_gpu()
        if trace is not None and trace.cuts and not recorder.reason:
            leaf = trace.leaf = self.forest.grow(trace, recorder.symbols)
            if len(self.forest.ways(leaf.root)) > MAX_WAYS:
                self._fell(leaf.root)
                recorder.to_segments(
                    f"looks at tensors' values, which came out in more than {MAX_WAYS} ways",
                    trace.cuts[0].line,
                )
        if recorder.reason:
            kinds = {item.kind for item in watch.items}
            lent = bool(lifter.made) or not kinds.isdisjoint(("float", "lifted"))
            recorder.let_go()
            if lent:
                trace = given = new_args = new_kwargs = None  # type: ignore[assignment]
                lifter.made = []
                recorder.put_back_numbers()
            if not profile.threads and self._run_in_segments(
                signature, recorder.reason, recorder.line
            ):
                return as_floats
            self._run_eagerly(guard, modes, recorder.reason, recorder.line, training)
            return as_floats
        assert trace is not None
        guard.special = {name[1]: v for name, v in trace.special.items() if name[0] == "arg"}
        if not self._told_of_loop and (self._fallback or knobs.fallback) != "silent":
            self._told_of_loop = warn_of_loop(self.name, trace.graph)  # before it is compiled
        spec = Specialisation(self.name, trace, watch, guard, modes, self._compile, names)
        recorder.forget()
        free_results()  # the recorded call's: compiled calls have an arena
        self._add(spec)
        fixed = recorder.symbols.fixed()
        if fixed:
            raise CompileError(f"[jit] {self.name}: {fixed}")
        return as_floats

    def _can_run_again(self, recorder: Recorder, watch: Watch) -> bool:
        """Whether a call that has failed left all as it was, and can be recorded without symbolic
        sizes and lifted numbers. (NumPy's arrays may have been written.)"""
        if not self._lends_unasked():
            return False
        reached = [*watch.leaves, *(item.now for item in watch.items)]
        if watch.reasons or watch.appends or any(isinstance(x, np.ndarray) for x in reached):
            return False
        return not (recorder.has_effects() or watch.changed(set(), set()))

    def _lends_unasked(self) -> bool:
        """Whether numbers and sizes are lent as symbolic ones without the user's asking."""
        return self._lends and not (self._history.dynamic or self._history.declared)

    def _take_plain(self) -> None:
        """Numbers and sizes are taken as they are, and guarded by their values."""
        self._lends, self._history.dynamic = False, False

    def _record_plain(self, *call: Any) -> Any:
        """Records a call, and all later ones, with numbers as they are, guarded by their values.
        Where it fails all the same, that was not why."""
        before = self._history.dynamic
        self._take_plain()
        try:
            return self._record(*call)
        except TypeError:
            self._lends, self._history.dynamic = True, before
            raise

    def _check_stores(
        self, stores: list[Store], result: Any, recorder: Recorder, watch: Watch
    ) -> None:
        """Has replay leave what the function has stored, unless it cannot, or calls would be
        recorded again and again."""
        against = objection(stores, result, watch)
        for store in stores:
            if not against and recorder.symbols.is_fixed(store.item):
                against = str(store)  # whose value it needs
        changing = [s for s in stores if s.by_value]
        self._unsettled += bool(changing)
        if changing and self._unsettled > MAX_UNSETTLED:
            against = against or str(changing[0])
        if against:
            recorder.give_up(against)
        else:
            watch.replayed.update(s.item for s in stores)

    def _run_recorded(self, recorder: Recorder, watch: Watch, args: Any, kwargs: Any) -> Any:
        def impure(reason: str, line: str) -> None:
            if not self._pure:
                recorder.give_up(reason, line)

        def entered(frame: FrameType) -> bool:
            try:
                return watch.entered(frame)
            except Exception as error:  # of a user's descriptor, __eq__, ...: no guard, no trace
                what = f"{type(error).__name__}: {error}"
                recorder.give_up(f"reaches an object that cannot be watched ({what})")
                return False

        def imported(name: str, loaded: bool) -> None:
            if watch.imported_now(name) and loaded and not state.abstract:
                recorder.postpone()  # what it was followed to before was not there

        profile = Profile(
            entered, impure, recorder.give_up, imported, watch.library, watch.identities,
            watch.appended, watch.variable, watch.made, recorder.first_node,
        )  # fmt: skip
        try:
            with _recording(recorder, profile), watch.reached.following():
                return self.__wrapped__(*args, **kwargs), profile
        except BaseException:
            recorder.kept_number()
            raise

    def declared_sizes(self, leaves: Sequence[Any], names: Sequence[str]) -> Symbols:
        """The symbolic sizes of a call of tensors without data: those that are declared."""
        history = History(self._history.dynamic, self._history.declared)
        return history.symbols(leaves, names, ())

    def symbolic_trace(
        self, args: tuple[Any, ...], env: ShapeEnv, kwargs: dict[str, Any] | None = None,
        make_recorder: Callable[[str, Any], Recorder] = Recorder,
    ) -> Trace:  # fmt: skip
        """The trace of a call with tensors without data, whose sizes may be symbolic dims of `env`.

        For export, after a call with data showed that the function has no effects. Raises
        CompileError where the function cannot be recorded so.
        """
        kwargs = kwargs or {}
        leaves, structure = flatten((args, kwargs))
        names = leaf_names(self.__wrapped__, args, structure)
        watch = Watch(self.__wrapped__, leaves, names, nodes_of((args, kwargs)))
        recorder = make_recorder(_graph_name(self.name), watch)
        recorder.graph.env = env
        with abstract_mode():
            result, profile = self._run_recorded(recorder, watch, args, kwargs)
            trace = recorder.finish(result, lambda: _recording(recorder, profile))
        if trace is None:
            where = f" (at {recorder.line})" if recorder.line else ""
            raise CompileError(f"[jit] {self.name} cannot be compiled: it {recorder.reason}{where}")
        found: Trace = trace
        return found

    def _objection(
        self, recorder: Recorder, watch: Watch, trace: Trace, guard: ArgumentGuard, args: Any,
        kwargs: Any, structure: Structure, leaves: list[Any], result: Any,
    ) -> tuple[str, str] | None:  # fmt: skip
        """Why a complete recording is no substitute for running the function; None when it is."""
        allowed: set[tuple[int, Any]] = set()
        owners: set[int] = set()
        for owner, key, _ in trace.rebinds:
            held = leaves[owner.index] if not isinstance(owner, Captured) else owner.item.now
            if is_module(held):
                allowed |= {(id(x), key) for x in (vars(held), held._buffers, held._parameters)}
            else:
                allowed.add((id(held), key))
                if isinstance(held, dict):
                    owners.add(id(held))
        watch.forget_left_out(trace.items())
        if trace.later:
            objects, changes = trace.left
            watch.leave(objects, trace.items())
            allowed |= {(id(d), key) for d in changes for key in d}
        if self._pure:
            changed = watch.forget_changed(allowed, owners, trace.items())
        else:
            changed = watch.changed(allowed, owners)
        if changed:
            return changed, ""
        again, after = flatten((args, kwargs))
        if after != structure or any(a is not b for a, b in zip(again, leaves, strict=False)):
            return "changes a container that is an argument", ""
        del again
        kept = watch.container_in(result[0])
        if kept:
            return f"returns {kept}, which is no new container", ""
        escaped = recorder.escaped(result)
        if escaped is not None:
            return f"keeps a tensor ({escaped[0]}) beyond the call, made here", escaped[1]
        watch.freeze()
        guard.loosen(leaves, recorder.is_written)
        if watch.reasons:
            return watch.reasons[0], ""
        written = [trace.entries[w.input].array for w in trace.graph.writes]
        for item in watch.by_contents():
            if overlap(item.now, written):
                return f"writes to the memory of {item.name}, which it reads in Python", ""
        reason = guard.objection(written)
        return (reason, "") if reason else None

    def _add(self, spec: Specialisation) -> None:
        # Compiled where the next call may take it: a leaf may never be taken again.
        if spec.refresh() and not spec.changed_slot() and spec.trace.leaf is None:
            try:
                spec.compile()
            except CompileError as error:
                self._refuse(spec, error)
                return
        self.specialisations = [spec, *self.specialisations]
        if spec.trace.leaf is not None:
            me, leaf = weakref.ref(self), weakref.ref(spec)

            def taken() -> None:
                function, found = me(), leaf()
                if function is not None and found is not None:
                    function._move_to_front(found)

            spec.trace.leaf.taken = taken

    def _compile(self, trace: Trace) -> Any:
        start = time.perf_counter()
        try:
            if trace.leaf is None:
                options = replace(compile_options(trace), constants=constants_of(trace))
                found = self._compiled(trace.graph, options, trace.entries)
            else:
                trace.leaf.compile(self._compiled)
                found = trace.leaf.part.compiled, trace.leaf.run
            if trace.pair is not None:
                pair = trace.pair
                pair.make = lambda graph, count: self._compiled_backward(trace, graph, count)
                pair.run = pair.make(pair.backward, len(pair.cotangents))
        except MemoryLimitError:
            raise
        except Exception as error:
            text = f"the compiler cannot: {type(error).__name__}: {error}"
            raise CompileError(text) from error
        compiled, run = found
        return compiled, metered(run, self.name, time.perf_counter() - start, trace.seconds)

    def _compiled(
        self, graph: Graph, options: Options, entries: Sequence[Any] = ()
    ) -> tuple[Any, Callable[[Any], Any]]:
        """A graph's code, and what runs it (beside the references where these are asked for).
        entries: of the inputs, where some of them are constants."""
        options = replace(options, memory_limit=self.memory_limit)
        on_gpu = gpu.computes(graph)
        compiled = None if on_gpu else find_compiled(graph, options)
        if on_gpu:
            compiled = gpu.kernels.compile_for(graph, gpu.kernels.graph_device(graph), options)
            compiled.replays = self._cuda_graphs
        elif compiled is None:
            from jitgrad.compiler.pipeline import compile_graph

            compiled = compile_graph(graph, options)
        self._counts.compiles += 1
        return compiled, self._runner(graph, compiled, entries)

    def _compiled_backward(self, trace: Trace, graph: Graph, cotangents: int) -> Any:
        """What runs a backward, or a part of one that has so many cotangents."""
        assert trace.pair is not None
        compiled, run = self._compiled(graph, pair_options(trace, cotangents))
        trace.pair.compiled.append(compiled)
        return run if self._check else compiled.run

    def _runner(self, graph: Graph, compiled: Any, entries: Sequence[Any]) -> Callable[..., Any]:
        if state.anomaly:
            return lambda arrays, dims=(): watch_run(graph, compiled, arrays, dims)
        if not self._check:
            run: Callable[..., Any] = compiled.run
            kept = not gpu.computes(graph) and compiled.image.n_once
            return KeptRun(compiled, entries) if kept else run

        def checked(arrays: Any, dims: tuple[int, ...] = ()) -> Any:
            return check_run(graph, compiled, arrays, dims)

        return checked

    def _compile_segment(self, graph: Graph, options: Options) -> Any:
        try:
            return self._compiled(graph, options)
        except MemoryLimitError:
            raise
        except Exception as error:
            text = f"the compiler cannot: {type(error).__name__}: {error}"
            raise CompileError(text) from error

    def _run_in_segments(self, signature: Any, reason: str, line: str) -> bool:
        """Whether later calls of this signature run in segments, for this reason."""
        if not (knobs.segments if self._segments is None else self._segments):
            return False
        if self.segmented is None:
            segments = Segments(
                _graph_name(self.name), self._compile_segment, self._refuse_segment,
                self._history.dynamic is not False,
            )  # fmt: skip
            self.segmented = Segmented(self.__wrapped__, segments)
        self.segmented.admit(signature, reason, line)
        return True

    def _refuse_segment(self, error: CompileError) -> None:
        """A segment that could not be compiled: its ops run one by one."""
        mode = self._fallback or knobs.fallback
        if mode == "error":
            self._refused = str(error)
            message = f"[jit] a segment of {self.name} cannot be compiled: {error}"
            raise CompileError(message) from error
        self._counts.fallbacks += 1
        if mode == "warn":
            warn(f"[jit] a segment of {self.name} runs op by op: {error}", FallbackWarning)

    def _drop(self, spec: Specialisation, error: Exception) -> None:
        """A specialisation that could not be compiled at its first hit."""
        with self._lock:
            self.specialisations = [s for s in self.specialisations if s is not spec]
            if spec.trace.leaf is not None:
                self._fell(spec.trace.leaf.root)
        self._refuse(spec, error)

    def _fell(self, root: Any) -> None:
        """Drops the leaves of a tree of traces."""
        felled = self.forest.fell(root)
        self.specialisations = [s for s in self.specialisations if s.trace.leaf not in felled]

    def _refuse(self, spec: Specialisation, error: Exception) -> None:
        if spec.trace.graph.env.hints and self._lends_unasked():
            self._take_plain()  # from the next call on
            return
        training = tuple(x.training for x in spec.guard.leaves if is_module(x))
        self._run_eagerly(spec.guard, spec.modes, str(error), "", training, error)

    def _run_eagerly(
        self, guard: ArgumentGuard, modes: Modes, reason: str, line: str,
        training: tuple[bool, ...], cause: Exception | None = None,
    ) -> None:  # fmt: skip
        where = f" (at {line})" if line else ""
        if not reason.startswith(SENTENCES):
            reason = f"it {reason}"
        mode = self._fallback or knobs.fallback
        if mode == "error":
            self._refused = f"{reason}{where}"
            message = f"[jit] {self.name} cannot be compiled: {reason}{where}"
            raise CompileError(message) from cause
        message = f"[jit] {self.name} runs eagerly: {reason}{where}"
        self.eager.append(Eager(guard, modes, reason, line, training))
        self._counts.fallbacks += 1
        if mode == "warn":
            warn(message, FallbackWarning)


def _empty(cls: type) -> Any:
    """What unpickling makes a JitFunction of: it may hold an owner that holds it."""
    return object.__new__(cls)


@contextmanager
def _recording(recorder: Recorder, profile: Profile) -> Iterator[None]:
    """What runs inside is told to the recorder, and to the profile."""
    outer, before, collects = sys.getprofile(), state.recorder, gc.isenabled()
    native = outer if outer is not None and not callable(outer) else None  # cProfile's, before 3.12
    if native is not None:
        native.disable()
    gc.disable()  # finalizers of others are no part of the function
    watcher, state.watcher = state.watcher, profile.function()
    state.recorder = recorder
    sys.setprofile(state.watcher)
    try:
        yield
    finally:
        state.recorder, state.watcher = before, watcher
        if collects:
            gc.enable()
        sys.setprofile(None if native is not None else outer)
        if native is not None:
            native.enable()


def _graph_name(name: str) -> str:
    plain = "".join(c if c.isalnum() or c == "_" else "_" for c in name.replace("<locals>.", ""))
    return plain or "graph"
