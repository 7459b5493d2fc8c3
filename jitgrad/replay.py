"""Replay: one recorded specialisation, its guards, and the generated function that runs it.

Owns `Specialisation`: compiling at the first need, and refreshing what the generated code (see
replay_code.py) refers to when Python state may have changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.argument_guards import ArgumentGuard, Modes
from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.symbolic import MAX_KNOWN
from jitgrad.facts import leaf_facts, place_facts
from jitgrad.guards import admits, short
from jitgrad.hostscalar import COMPARE, SIGNS, HostScalar
from jitgrad.looks import leaves_of
from jitgrad.pytree import Structure
from jitgrad.recorder import Trace
from jitgrad.replay_code import Writer
from jitgrad.replay_support import clash, span
from jitgrad.reuse import lender
from jitgrad.sizes import type_at
from jitgrad.sources import (
    Arg,
    Captured,
)
from jitgrad.state import epoch
from jitgrad.tensor import Tensor
from jitgrad.watch import Watch


class Specialisation:
    """One trace with its guards, compiled.

    Attributes: `call(args, kwargs)`, `source` (its Python), `hits` (a one-element list), `trace`,
    `watch`, `compiled` (None until it is first needed).
    """

    def __init__(
        self,
        name: str,
        trace: Trace,
        watch: Watch,
        guard: ArgumentGuard,
        modes: Modes,
        compile_now: Callable[[Trace], tuple[Any, Callable[[Any], Any]]],
        names: Sequence[str],
    ) -> None:
        self.name, self.trace, self.watch = name, trace, watch
        self.guard, self.modes, self.names = guard, modes, names
        self.compiled: Any = None
        self.failure = ""
        self.hits = [0]
        self.last_miss = ""
        self.symbols = guard.symbols
        self._compile = compile_now
        self._lock = threading.RLock()
        self.stamp = [-1]
        self._written = {i.input for i in trace.graph.writes}
        results = [*trace.graph.outputs, *(r.value for r in trace.graph.rebinds)]
        self.result_types = [v.type for v in results if v is not None]
        writer = Writer(self)
        self.source = writer.source()
        self.namespace = writer.namespace
        self.replaced = writer.replaced
        exec(compile(self.source, f"<replay of {name}>", "exec"), self.namespace)
        self.call: Callable[[Any, Any], Any] = self.namespace["call"]
        if trace.leaf is not None:
            trace.leaf.call, trace.leaf.missed = self.call, self.missed
            trace.leaf.relearn = self.namespace["known"].clear
        for entry in trace.entries:
            entry.release()
        watch.release()

    def compile(self) -> None:
        """Compiles the graph unless that was done. Raises what the compiler raises."""
        with self._lock:
            if self.compiled is None:
                self.compiled, run = self._compile(self.trace)
                self.namespace["run"] = run
                if self.replaced:
                    self.namespace["lend"] = lender(
                        self.compiled, run, self.replaced, self.result_types
                    )

    def first_run(self, *given: Any) -> Any:
        self.compile()
        return self.namespace["run"](*given)

    def result_bytes(self) -> int:
        """The bytes that a call allocates for results: all but the gradients that take the memory
        of those which they replace."""
        reused = set(self.replaced) & set(self.compiled.late)
        types = enumerate(self.result_types)
        return sum(nbytes(t) for i, t in types if i not in reused)

    def missed(self, reason: str) -> None:
        """Notes why a call that its guards admitted was no hit."""
        self.last_miss = reason

    def learn(self, dims: tuple[int, ...]) -> Any:
        """The types of the run's results for these sizes, kept for later calls; None where a guard
        on sizes fails."""
        assert self.symbols is not None
        values = dict(zip(self.symbols.places, dims, strict=True))
        if self.symbols.broken_by(values):
            return None
        self.compile()  # which adds guards, too
        with self._lock:
            known = self.namespace["known"]
            leaf = self.trace.leaf
            if self.symbols.broken_by(values) or not (leaf is None or leaf.holds(values)):
                return None
            types = [type_at(t, values) for t in self.result_types]
            if len(known) >= MAX_KNOWN:
                known.clear()
            known[dims] = types
            return types

    def text(self) -> str:
        """The source of `call`, and the guards on sizes."""
        if not self.symbols:
            return self.source
        guards = "".join(f"#   {text}\n" for text in self.symbols.texts())
        return f"{self.source}# guards on sizes, checked by learn() when they are new:\n{guards}"

    def refresh(self) -> bool:
        """The full check of Python state; True when it holds, and then what it found is used."""
        with self._lock:
            now = epoch[0]
            self.last_miss = self.watch.mismatch()
            if self.last_miss:
                return False
            self.watch.settle()
            for item in self.watch.items:
                self.namespace[f"i{item.number}"] = item.now
            for i, entry in enumerate(self.trace.entries):
                if isinstance(entry.source, Captured):
                    x = entry.source.item.now
                    self.namespace[f"s{i}"] = x._data if isinstance(x, Tensor) else x
            held = {
                i: self.namespace[f"s{i}"]
                for i, e in enumerate(self.trace.entries)
                if isinstance(e.source, Captured)
            }
            read = [item.now for item in self.watch.by_contents()]  # arguments: the call's code
            written = [held[i] for i in self._written if i in held]
            read += [a for i, a in held.items() if i not in self._written]
            if clash(written, read):
                self.last_miss = "captured tensors that are written overlap in memory"
                return False
            spans = sorted(span(held[i]) for i in self._written if i in held and held[i].size)
            self.namespace["spans"] = ([a for a, _ in spans], [b for _, b in spans])
            self.stamp[0] = now
            return True

    def explain(self, structure: Structure, leaves: Sequence[Any], names: Sequence[str]) -> str:
        """Why a call with these arguments is no hit, as text."""
        reason = self.guard.mismatch(structure, leaves, names) or self.modes.mismatch()
        if reason:
            return reason
        with self._lock:
            reason = self.watch.mismatch_of(leaves, names) or self.watch.mismatch()
        if reason:
            return reason
        for name, wanted in self.trace.special.items():
            item = None if name[0] == "arg" else self.watch.number_item(name)
            if item is not None and not admits(wanted, item.fresh):
                return f"{item.name}: {wanted!r} -> {item.fresh!r}"
        for found in self.trace.comparisons:
            now = [self._value_now(x, leaves) for x in (found.a, found.b)]
            if bool(COMPARE[found.name](*now)) is not found.outcome:
                a, b = (
                    self._text_of(x, v, names) for x, v in zip((found.a, found.b), now, strict=True)
                )
                return f"{a} {SIGNS[found.name]} {b}: {found.outcome} -> {not found.outcome}"
        if reason := self.changed_slot(leaves):
            return reason
        for owner, facts in self.trace.places:
            x = leaves[owner.index] if isinstance(owner, Arg) else owner.item.now
            if place_facts(x) != facts:
                return f"where {self.watch.name(owner)} lies in memory, or what it is a view of"
        return self.last_miss or (
            "an argument has hooks or is read-only, or memory that is written overlaps other memory"
        )

    def changed_slot(self, leaves: Sequence[Any] | None = None) -> str:
        """Which slot (.grad) holds what the trace is not for, as text; "" where none does. Without
        `leaves`, those of captured tensors alone."""
        for owner, key, grad in self.trace.slots:
            if not isinstance(owner, Arg):
                now = owner.item.now._grad
            elif leaves is not None:
                now = leaves[owner.index]._grad
            else:
                continue
            if (now is None) != (grad is None) or (grad is not None and grad != leaf_facts(now)):
                return f"{self.watch.name(owner)}.{key}: {short(grad and grad[1])} -> {short(now)}"
        return ""

    def _value_now(self, x: Any, leaves: Sequence[Any]) -> Any:
        """The value of a lifted number, or of a number, in a call with these arguments."""
        if not isinstance(x, HostScalar):
            return x
        values = {}
        for leaf in leaves_of(x):
            if leaf.name[0] == "arg":
                values[leaf.name] = leaves[leaf.name[1]]
            else:
                item = self.watch.number_item(leaf.name)
                values[leaf.name] = leaf.value if item is None else item.fresh
        return x.evaluate(values)

    def _text_of(self, x: Any, value: Any, names: Sequence[str]) -> str:
        """How people know a lifted number."""
        if not isinstance(x, HostScalar) or x.expr is not None:
            return repr(value)
        item = self.watch.number_item(x.name)
        return names[x.name[1]] if x.name[0] == "arg" else item.name if item else repr(value)
