"""Merging: groups that walk over the same space, and read the same arrays, become one.

Before: Groups from fuse.py, in an order that respects dependencies. After: fewer of them, in such
an order. Fusion is greedy: two reductions over one operand land in different groups where what
would have brought them together came later. Here all members of one group are added to another by
the rules of fuse.py, or none. Only groups with reductions are looked at, with a few others each,
and a merged group takes the place of one of the two, so the cost is linear.
"""

from __future__ import annotations

from itertools import islice

from jitgrad.compiler.cost import nbytes, weight
from jitgrad.compiler.loops import Array, loads
from jitgrad.compiler.passes.fuse import MAX_READERS, Group, Member, join
from jitgrad.compiler.passes.inline import Bodies
from jitgrad.compiler.symbolic import hint, prod

_CANDIDATES = 4
_MAX_MEMBERS = 64


def merge(groups: list[Group], bodies: Bodies) -> list[Group]:
    """Joins what can be joined."""
    merger = _Merger(groups, bodies)
    for g in groups:
        merger.look(g)
    return sorted(merger.place, key=merger.place.__getitem__)


class _Merger:
    def __init__(self, groups: list[Group], bodies: Bodies) -> None:
        self.bodies = bodies
        self.place = {g: n for n, g in enumerate(groups)}
        self.users: dict[Group, set[Group]] = {g: set() for g in groups}
        self.home: dict[Array, Group] = {}
        self.readers: dict[Array, dict[Group, None]] = {}
        for g in groups:
            for p in g.after:
                self.users[p].add(g)
            for m in g.members:
                self.home[m.array] = g
            for x in self.reads(g):
                self.readers.setdefault(x, {})[g] = None

    def reads(self, g: Group) -> list[Array]:
        exprs = [e for m in g.members for e in self.bodies.exprs[m.array]]
        return list({e.attr: None for e in loads(exprs) if e.attr not in g.index})

    def look(self, g: Group) -> None:
        """Merges g with the best group that will have it, until there is none."""
        while g.kind == "loop" and len(g.members) <= _MAX_MEMBERS and g in self.place:
            shared: dict[Group, int] = {}
            for x in self.reads(g):
                near = [*([self.home[x]] if x in self.home else [])]
                near += islice(reversed(self.readers.get(x, {})), MAX_READERS)
                for other in near:
                    if other is not g and self.alike(g, other):
                        shared[other] = shared.get(other, 0) + nbytes(x)
            ranked = sorted(shared, key=lambda o: (-shared[o], -self.place[o]))
            merged = next((m for o in ranked[:_CANDIDATES] if (m := self.pair(g, o))), None)
            if merged is None:
                return
            g = merged

    def alike(self, g: Group, other: Group) -> bool:
        """A quick look: loops over as many points, one of them with a reduction."""
        if other.kind != "loop" or len(other.members) > _MAX_MEMBERS:
            return False
        if not (g.inner or other.inner):
            return False
        return hint(prod(g.dims)) == hint(prod(other.dims))

    def pair(self, g: Group, other: Group) -> Group | None:
        """One group of two, at the place of either; None where that cannot be."""
        first, second = sorted((g, other), key=self.place.__getitem__)
        here, there = self.place[first], self.place[second]
        if all(self.place[p] < here for p in second.after if p is not first):
            place = here
        elif all(self.place[u] > there for u in self.users[first] if u is not second):
            place = there
        else:
            return None
        whole = self.absorbed(first, second)
        if whole is None and first not in second.after:
            whole = self.absorbed(second, first)
        if whole is None:
            return None
        self.replace(first, second, whole, place)
        return whole

    def absorbed(self, into: Group, other: Group) -> Group | None:
        """A new group: `into` with all members of `other`."""
        trial = Group(into.kind, list(into.outer), list(into.inner), into.in_order)
        trial.members = [Member(m.array, m.kind, dict(m.axes)) for m in into.members]
        trial.index = {m.array: m for m in trial.members}
        trial.loaded = {a: list(many) for a, many in into.loaded.items()}
        trial.weight = into.weight
        for m in other.members:
            exprs = self.bodies.exprs[m.array]
            if not join(trial, m.array, exprs):
                return None
            trial.weight += weight(exprs)
        return trial

    def replace(self, first: Group, second: Group, whole: Group, place: int) -> None:
        old = {first, second}
        reads = {*self.reads(first), *self.reads(second)}
        whole.after = (first.after | second.after) - old
        self.users[whole] = (self.users[first] | self.users[second]) - old
        for u in self.users[whole]:
            u.after = (u.after - old) | {whole}
        for p in whole.after:
            self.users[p] = (self.users[p] - old) | {whole}
        for m in whole.members:
            self.home[m.array] = whole
        still = set(self.reads(whole))  # not what one of the two made for the other
        for x in reads:
            known = self.readers[x]
            for g in old:
                known.pop(g, None)
            if x in still:
                known[whole] = None
        for g in old:
            del self.place[g], self.users[g]
        self.place[whole] = place
