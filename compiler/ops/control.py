"""Control flow: scan, while_loop, cond, call: ops whose attributes hold graphs (compiler/body.py).

Owns their records; how a scan is reversed is in scan_derivative.py, how loops become launch rows in
compiler/nested.py. Results are always a tuple. Operands that a body reads whole at each step
("consts": what the user's function captured) come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jitgrad.compiler.body import Body
from jitgrad.compiler.derive import (
    Tensors,
    add_input,
    batch,
    copy_nodes,
    forward,
    is_real,
    needed_nodes,
    reverse,
    start,
)
from jitgrad.compiler.graph_tensor import GraphTensor
from jitgrad.compiler.ir import Graph, Node, Value, inner_nodes
from jitgrad.compiler.ops.record import MANY, OnnxContext, Op, Sample, op, zeros_like
from jitgrad.compiler.ops.scan_derivative import Flags, reversed_scan, saving, total
from jitgrad.compiler.symbolic import Dim, Sym, hint, plain
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import InternalError


class Control(Op):
    """Base: what the three have in common."""

    nout = MANY
    saves = ("operands", "out")
    chooses = True
    sparse = True
    public = False

    def expect_operands(self, body: Body, types: Sequence[TensorType]) -> None:
        """Checks operand types against a body's inputs."""
        if len(types) != len(body.inputs):
            raise InternalError(f"[{self.name}] {len(types)} operands for {len(body.inputs)}")
        for given, wanted in zip(types, body.inputs, strict=True):
            self.expect(
                given.dtype is wanted.dtype and given.shape == wanted.shape,
                f"expected an operand of type {wanted}; got {given}",
            )  # fmt: skip

    def expect_carries(self, body: Body, carries: int, xs: int = 0) -> None:
        """Checks that a body gives the carries that it takes (a graph's text may lie)."""
        self.expect(
            0 <= carries <= len(body.outputs) and 0 <= xs <= len(body.inputs) - carries
            and body.outputs[:carries] == body.inputs[:carries],
            f"expected a body that gives its first {carries} inputs anew, with {xs} slices after "
            f"them; got {body.inputs} to {body.outputs}",
        )  # fmt: skip

    def lower(self, b: Any, *operands: Any, **attrs: Any) -> Any:
        raise InternalError(f"[{self.name}] is lowered as a call (compiler/nested.py)")

    def steps(self, attrs: dict[str, Any]) -> int:
        """How often the bodies run (1 where that is known only when they do)."""
        return 1

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        total = 0
        for node in attrs[self.bodies[-1]].graph.nodes:
            if node.op.host:
                return 0
            given, made = [v.type for v in node.inputs], [v.type for v in node.outputs]
            total += _CALL + node.op.work(given, made, node.attr)
        return self.steps(attrs) * total

    def slim(
        self, attrs: dict[str, Any], used: Sequence[bool]
    ) -> tuple[dict[str, Any], list[int], list[int]] | None:
        """Without results that nothing reads, carries that only they need, and operands that no
        body reads."""
        if not any(used):
            return None
        n = attrs.get("carries", 0)
        first = 0 if "carries" in attrs else 1  # the operand that the bodies' first input is
        bodies = {name: attrs[name].graph for name in self.bodies}
        results = {k for k, is_used in enumerate(used) if is_used}
        while True:  # a carry that is read is a result that is needed
            reads: set[int] = set()
            for name, graph in bodies.items():
                whole = name == "cond"  # the test of a loop: its answer is not among the results
                ends = graph.outputs if whole else [graph.outputs[k] for k in sorted(results)]
                reads |= _inputs_read(graph, ends)
            more = results | {k for k in reads if k < n}
            if more == results:
                break
            results = more
        reads |= {k for k in results if k < n}
        count = len(next(iter(bodies.values())).inputs)
        if len(results) == len(used) and len(reads) == count:
            return None
        kept, ends = sorted(reads), sorted(results)
        new = dict(attrs)
        for name, graph in bodies.items():
            outputs = graph.outputs if name == "cond" else [graph.outputs[k] for k in ends]
            inputs = [graph.inputs[k] for k in kept]
            new[name] = Body(Graph(inputs, _needed(graph, outputs), outputs, name="body"))
        if "carries" in attrs:
            new["carries"] = sum(k < n for k in ends)
        if "xs" in attrs:
            new["xs"] = sum(n <= k < n + attrs["xs"] for k in kept)
        return new, [*range(first), *(k + first for k in kept)], ends


class Scan(Control):
    """scan(*carries, *xs, *consts; body, carries, xs, length, reverse): a loop over leading axes.

    body: (carries, one slice of each x, consts) -> (new carries, results of this step). Results:
    the last carries, then the results of all steps, stacked. carries, xs: how many there are.
    reverse: the steps go from the last slice to the first; results lie at their slices' places.
    """

    name = "scan"
    bodies = ("body",)

    def steps(self, attrs: dict[str, Any]) -> int:
        return hint(attrs["length"])

    def infer(self, *types: Any, **attrs: Any) -> tuple[TensorType, ...]:
        body, n, m, length = _of_scan(attrs)
        self.expect_carries(body, n, m)
        self.expect(attrs["reverse"] in (False, True), "expected a bool as reverse", TypeError)
        sliced = []
        for t in types[n : n + m]:
            self.expect(
                t.ndim > 0 and t.shape[0] == length,
                f"expected xs with a leading axis of {length}; got {t}",
            )
            sliced.append(t.with_shape(t.shape[1:]))
        self.expect_operands(body, (*types[:n], *sliced, *types[n + m :]))
        ys = [t.with_shape((length, *t.shape)) for t in body.outputs[n:]]
        return (*body.outputs[:n], *ys)

    def reference(self, *arrays: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        body, n, m, length = _of_scan(attrs)
        state, xs, consts = list(arrays[:n]), arrays[n : n + m], arrays[n + m :]
        ys = [np.empty((length, *t.shape), t.dtype.np) for t in body.outputs[n:]]
        order = range(length)
        for t in reversed(order) if attrs["reverse"] else order:
            found = body.run([*state, *(x[t, ...] for x in xs), *consts])
            state = found[:n]
            for y, value in zip(ys, found[n:], strict=True):
                y[t] = value
        return (*(np.array(s) for s in state), *ys)

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        """A scan in the other direction; the forward runs again where it kept too little."""
        needs = attrs.pop("needs", None) or [True] * len(operands)
        body, n, m, _ = _of_scan(attrs)
        seeds = tuple(g[n:])
        plan = reversed_scan(body, n, m, tuple(s is not None for s in seeds), tuple(needs))
        if plan.missing:
            body = saving(body, plan.missing)
            out = self(*operands, **{**attrs, "body": body})
            seeds += (None,) * len(plan.missing)
            plan = reversed_scan(body, n, m, tuple(s is not None for s in seeds), tuple(needs))
        xs, consts, ys = operands[n : n + m], operands[n + m :], out[n:]
        given = [zeros_like(operands[i]) if g[i] is None else g[i] for i in plan.carries]
        given += [zeros_like(consts[i]) for i in plan.sums]
        count = len(given)
        given += [seeds[j] for j in plan.seeds]
        given += [xs[i] for i in plan.xs] + [ys[j] for j in plan.ys]
        slices = len(given) - count
        given += [consts[i] for i in plan.consts]
        if not given:
            return (None,) * len(operands)
        found = self(
            *given, body=plan.body, carries=count, xs=slices, length=attrs["length"],
            reverse=not attrs["reverse"],
        )  # fmt: skip
        cotangents: list[Any] = [None] * len(operands)
        for k, i in enumerate(plan.carries):
            cotangents[i] = found[k]
        for k, i in enumerate(plan.sums):
            cotangents[n + m + i] = found[len(plan.carries) + k]
        stacked = found[count:]
        for i, place in enumerate(plan.grads):
            cotangents[n + i] = None if place is None else stacked[place]
        for i, recipe in plan.totals:
            cotangents[n + m + i] = total(recipe, {"x": xs, "out": ys, "y": stacked})
        return tuple(cotangents)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        body, n, m, _ = _of_scan(attrs)
        flags = tuple(t is not None for t in tangents)
        real = [i for i in range(n) if is_real(body.inputs[i])]
        along = _along(body, n, flags[n:])
        given = [*operands[:n]]
        given += [zeros_like(operands[i]) if tangents[i] is None else tangents[i] for i in real]
        moved = [t for t in tangents[n : n + m] if t is not None]
        given += [*operands[n : n + m], *moved, *operands[n + m :]]
        given += [t for t in tangents[n + m :] if t is not None]
        inner = _arranged(along, len(body.inputs), n, len(real), m, len(moved))
        found = self(*given, **{**attrs, "body": inner, "carries": n + len(real),
                                "xs": m + len(moved)})  # fmt: skip
        result: list[Any] = [None] * len(body.outputs)
        places = [*real, *(j for j in range(n, len(body.outputs)) if is_real(body.outputs[j]))]
        for place, t in zip(places, found[n:], strict=True):
            result[place] = t
        return tuple(result)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        body, n, m, length = _of_scan(attrs)
        size = next(x.shape[0] for x, b in zip(operands, batched, strict=True) if b)
        flags = list(batched)
        while True:  # a carry that becomes batched may make others so
            mapped, outs = batched_body(body, tuple(flags), Size(size), n)
            if all(a or not b for a, b in zip(flags[:n], outs[:n], strict=True)):
                break
            flags[:n] = [a or b for a, b in zip(flags[:n], outs[:n], strict=True)]
        given = []
        for k, (x, is_b) in enumerate(zip(operands, batched, strict=True)):
            if k < n and flags[k] and not is_b:
                x = op.expand(x, shape=(size, *x.shape))
            elif is_b and n <= k < n + m:
                x = op.permute(x, axes=(1, 0, *range(2, x.ndim)))
            given.append(x)
        found = self(*given, **{**attrs, "body": mapped})
        result = []
        for k, (y, is_b) in enumerate(zip(found, outs, strict=True)):
            if not is_b:
                y = op.expand(y, shape=(size, *y.shape))
            elif k >= n:
                y = op.permute(y, axes=(1, 0, *range(2, y.ndim)))
            result.append(y)
        return tuple(result)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        body, n, m, length = _of_scan(attrs)
        carries, xs, consts = inputs[:n], inputs[n : n + m], inputs[n + m :]
        count = len(body.outputs)
        if not length:
            ys = [ctx.constant(np.empty((0, *t.shape), t.dtype.np)) for t in body.outputs[n:]]
            return (*(ctx.node("Identity", [c]) for c in carries), *ys)
        if m:
            graph = ctx.subgraph(
                body.inputs[: n + m], body.outputs,
                lambda c, names: c.inline(body.graph, [*names, *consts]),
            )  # fmt: skip
            way = int(attrs["reverse"])
            ways = {"scan_input_directions": [way] * m}
            if count > n:
                ways["scan_output_directions"] = [way] * (count - n)
            found = ctx.node("Scan", [*carries, *xs], count, body=graph, num_scan_inputs=m, **ways)
            return found if count > 1 else (found,)
        made = _onnx_loop(ctx, length, carries, body, consts)
        if not attrs["reverse"]:
            return made
        back = [ctx.shape((v,)) for v in (-1, -length - 1, 0, -1)]
        return (*made[:n], *(ctx.node("Slice", [y, *back]) for y in made[n:]))

    def samples(self) -> Iterable[Sample]:
        rng = np.random.default_rng(3)

        def f(*shape: int) -> np.ndarray:
            return rng.uniform(-1, 1, shape)

        attrs = {"body": _recurrence(2, 3, np.float64), "carries": 1, "xs": 1, "reverse": False}
        args = (f(2, 3), f(4, 2, 3), f(3, 3))
        yield Sample(args, {**attrs, "length": 4})
        yield Sample(args, {**attrs, "length": 4, "reverse": True}, "reverse")
        yield Sample((f(2, 3), f(1, 2, 3), f(3, 3)), {**attrs, "length": 1}, "one step")
        yield Sample((f(2, 3), f(0, 2, 3), f(3, 3)), {**attrs, "length": 0}, "no step")
        attrs["body"] = _recurrence(2, 3, np.float32)
        narrow = tuple(a.astype(np.float32) for a in args)
        yield Sample(narrow, {**attrs, "length": 4}, "float32", grad=False)
        yield Sample(
            (f(3), np.arange(5)),
            {"body": _counting(3), "carries": 1, "xs": 1, "length": 5, "reverse": False},
            "an integer x, a carry that goes on as it is",
        )


class WhileLoop(Control):
    """while_loop(*carries, *consts; cond, body, carries, limit): carries as long as cond says.

    cond: (carries, consts) -> a bool of one element; body: the same -> new carries. limit: at most
    that many steps, or None. Backward goes over all `limit` steps.
    """

    name = "while_loop"
    bodies = ("cond", "body")

    def infer(self, *types: Any, **attrs: Any) -> tuple[TensorType, ...]:
        for name in self.bodies:
            self.expect_operands(attrs[name], types)
        cond, body, n, limit = (attrs[k] for k in ("cond", "body", "carries", "limit"))
        self.expect_carries(body, n)
        test = len(cond.outputs) == 1 and cond.outputs[0].dtype is dtypes.bool_
        self.expect(
            test and cond.outputs[0].numel == 1 and len(body.outputs) == n,
            f"expected a test of one bool and {n} results; got {cond.outputs} and {body.outputs}",
        )
        self.expect(limit is None or limit >= 0, f"expected a limit of steps; got {limit!r}")
        return tuple(body.outputs)

    def reference(self, *arrays: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        n, limit = attrs["carries"], attrs["limit"]
        state, consts, count = list(arrays[:n]), arrays[n:], 0
        while limit is None or count < limit:
            (go,) = attrs["cond"].run([*state, *consts])
            if not go.reshape(()):
                break
            state = attrs["body"].run([*state, *consts])
            count += 1
        return tuple(np.array(s) for s in state)

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        self.expect(
            attrs["limit"] is not None,
            "expected a maximum number of steps, to be differentiated backwards: how many steps "
            "there are is known only when it runs; pass max_steps, use scan, or use jvp",
        )
        body, limit = _guarded(attrs["cond"], attrs["body"], attrs["carries"]), attrs["limit"]
        needs = attrs.get("needs")
        if limit == 0:
            return (*g, *[None] * (len(operands) - len(g)))
        return op.scan.vjp(
            g, None, *operands, needs=needs, body=body, carries=attrs["carries"], xs=0,
            length=limit, reverse=False,
        )  # fmt: skip

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        n = attrs["carries"]
        body: Body = attrs["body"]
        real = [i for i in range(n) if is_real(body.inputs[i])]
        flags = tuple(t is not None for t in tangents)
        along = _along(body, n, flags[n:])
        inner = _arranged(along, len(body.inputs), n, len(real), 0, 0)
        test = _with_more_inputs(attrs["cond"], n, inner)
        given = [*operands[:n]]
        given += [zeros_like(operands[i]) if tangents[i] is None else tangents[i] for i in real]
        given += [*operands[n:], *(t for t in tangents[n:] if t is not None)]
        found = self(*given, cond=test, body=inner, carries=n + len(real), limit=attrs["limit"])
        result: list[Any] = [None] * n
        for i, t in zip(real, found[n:], strict=True):
            result[i] = t
        return tuple(result)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        """All carries are mapped; the loop goes on while one example does, the others keep theirs.
        With a limit, it is that of each example."""
        n = attrs["carries"]
        size = next(x.shape[0] for x, b in zip(operands, batched, strict=True) if b)
        flags = (*[True] * n, *batched[n:])
        given = [
            op.expand(x, shape=(size, *x.shape)) if k < n and not b else x
            for k, (x, b) in enumerate(zip(operands, batched, strict=True))
        ]
        test, body = _batched_loop(attrs["cond"], attrs["body"], flags, Size(size), n)
        return self(*given, cond=test, body=body, carries=n, limit=attrs["limit"])

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        n = attrs["carries"]
        carries, consts = inputs[:n], inputs[n:]
        return _onnx_loop(
            ctx, attrs["limit"], carries, attrs["body"], consts, attrs["cond"]
        )  # fmt: skip

    def samples(self) -> Iterable[Sample]:
        x = np.array([0.3, 0.2])
        test, body = _doubling()
        attrs = {"cond": test, "body": body, "carries": 2}
        yield Sample((np.zeros((), np.int64), x, x * 2), {**attrs, "limit": 6})
        yield Sample((np.zeros((), np.int64), x, x * 2), {**attrs, "limit": None}, grad=False)
        yield Sample((np.zeros((), np.int64), x, x), {**attrs, "limit": 2}, "limit")
        yield Sample((np.full((), 9), x, x * 2), {**attrs, "limit": 3}, "no step")


class Cond(Control):
    """cond(pred, *operands; on_true, on_false): what one of two bodies makes of the operands.

    pred: a bool of one element. Only the body that is chosen runs.
    """

    name = "cond"
    bodies = ("on_true", "on_false")

    def infer(self, *types: Any, **attrs: Any) -> tuple[TensorType, ...]:
        pred, *operands = types
        self.expect(
            pred.dtype is dtypes.bool_ and pred.numel == 1,
            f"expected a bool of one element as pred; got {pred}",
        )
        left, right = (attrs[name] for name in self.bodies)
        for body in (left, right):
            self.expect_operands(body, operands)
        self.expect(
            left.outputs == right.outputs,
            f"expected branches with results of equal types; got {left.outputs} and "
            f"{right.outputs}",
        )
        return tuple(left.outputs)

    def reference(self, *arrays: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        pred, *operands = arrays
        body = attrs["on_true"] if pred.reshape(()) else attrs["on_false"]
        return tuple(np.array(y) for y in body.run(operands))

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        needs = attrs.get("needs") or [True] * len(operands)
        pred, *rest = operands
        seeded = tuple(x is not None for x in g)
        wanted = tuple(
            n and is_real(t) for n, t in zip(needs[1:], attrs["on_true"].inputs, strict=True)
        )
        bodies = [_pulled(attrs[name], seeded, wanted) for name in self.bodies]
        given = [x for x in g if x is not None]
        if not given or not any(wanted):
            return (None,) * len(operands)
        found = iter(self(pred, *given, *rest, on_true=bodies[0], on_false=bodies[1]))
        return (None, *(next(found) if w else None for w in wanted))

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        pred, *rest = operands
        flags = tuple(t is not None for t in tangents[1:])
        if not any(flags):
            return (None,) * len(attrs["on_true"].outputs)
        bodies = [Body(_along(attrs[name], 0, flags)) for name in self.bodies]
        moved = [t for t in tangents[1:] if t is not None]
        found = iter(self(pred, *rest, *moved, on_true=bodies[0], on_false=bodies[1]))
        return tuple(next(found) if is_real(t) else None for t in attrs["on_true"].outputs)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        """With a pred for each example both branches run, and `where` chooses."""
        pred, *rest = operands
        size = next(x.shape[0] for x, b in zip(operands, batched, strict=True) if b)
        flags = tuple(batched[1:])
        bodies = [_all_batched(attrs[name], flags, Size(size)) for name in self.bodies]
        if not batched[0]:
            return self(pred, *rest, on_true=bodies[0], on_false=bodies[1])
        yes = op.reshape(pred, shape=(size,))
        left, right = (_play(body, rest, pred) for body in bodies)
        return tuple(
            op.where(op.reshape(yes, shape=(size, *[1] * (a.ndim - 1))), a, b)
            for a, b in zip(left, right, strict=True)
        )

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        pred, *rest = inputs
        graphs = [
            ctx.subgraph(
                [], attrs[name].outputs, lambda c, _, name=name: c.inline(attrs[name].graph, rest)
            )
            for name in self.bodies
        ]
        found = ctx.node(
            "If", [_onnx_scalar(ctx, pred)], len(attrs["on_true"].outputs), then_branch=graphs[0],
            else_branch=graphs[1],
        )  # fmt: skip
        return found if isinstance(found, tuple) else (found,)

    def samples(self) -> Iterable[Sample]:
        x, w = np.array([0.5, -1.5, 2.0]), np.array([1.0, 2.0, -0.5])
        left, right = _branches()
        for yes in (True, False):
            attrs = {"on_true": left, "on_false": right}
            yield Sample((np.array(yes), x, w), attrs, str(yes))
        yield Sample((np.array([True]), x, w), attrs, "pred of shape (1,)")


class Call(Control):
    """call(*operands; body, name, arguments): what a body makes of the operands, under a name for
    which a symbolic function can say how it is written to ONNX ("my::twice", a user's operator).

    arguments: of the user's call, in order: (keyword or "", whether it is the next operand, its
    value otherwise). Further operands are what the function captured. It has no derivative: with
    gradients on a user's operator is recorded as the ops in it.
    """

    name = "call"
    bodies = ("body",)
    inlined = True
    differentiable = False

    def infer(self, *types: Any, **attrs: Any) -> tuple[TensorType, ...]:
        self.expect_operands(attrs["body"], types)
        return tuple(attrs["body"].outputs)

    def reference(self, *arrays: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        return tuple(np.array(y) for y in attrs["body"].run(arrays))

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        size = next(x.shape[0] for x, b in zip(operands, batched, strict=True) if b)
        mapped = _all_batched(attrs["body"], tuple(batched), Size(size))
        return self(*operands, **{**attrs, "body": mapped})

    def slim(
        self, attrs: dict[str, Any], used: Sequence[bool]
    ) -> tuple[dict[str, Any], list[int], list[int]] | None:
        return None

    def symbolic_name(self, attrs: dict[str, Any]) -> str:
        return str(attrs["name"])

    def symbolic_arguments(
        self, inputs: Sequence[str], attrs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        operands = iter(inputs)
        given = [
            (k, next(operands) if is_operand else x) for k, is_operand, x in attrs["arguments"]
        ]
        return [x for k, x in given if not k], {k: x for k, x in given if k}

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return tuple(ctx.inline(attrs["body"].graph, inputs))

    def samples(self) -> Iterable[Sample]:
        x, w = np.array([0.5, -1.5, 2.0]), np.array([1.0, 2.0, -0.5])
        arguments = (("", True, None), ("", False, 2.0), ("w", True, None))
        attrs = {"body": _branches()[0], "name": "my::op", "arguments": arguments}
        yield Sample((x, w), attrs, grad=False)


def _onnx_scalar(ctx: OnnxContext, x: str) -> str:
    """An array of one element, 0-d."""
    return str(ctx.node("Reshape", [x, ctx.shape(())], allowzero=1))


def _onnx_loop(
    ctx: OnnxContext,
    limit: Dim | None,
    carries: Sequence[str],
    body: Body,
    consts: Sequence[str],
    test: Body | None = None,
) -> tuple[str, ...]:
    """ONNX's Loop: the last carries, then what the body gives besides, stacked. test: whether it
    goes on, of the carries; at first asked before the loop."""

    def asked(c: OnnxContext, names: Sequence[str]) -> str:
        if test is None:
            return c.constant(np.array(True))
        return _onnx_scalar(c, c.inline(test.graph, [*names, *consts])[0])

    def step(c: OnnxContext, names: Sequence[str]) -> Sequence[str]:
        _, go, *state = names
        made = c.inline(body.graph, [*state, *consts])
        after = c.node("Identity", [go]) if test is None else asked(c, made[: len(state)])
        return [after, *made]

    n = len(carries)
    number, truth = TensorType((), dtypes.int64), TensorType((), dtypes.bool_)
    graph = ctx.subgraph([number, truth, *body.inputs[:n]], [truth, *body.outputs], step)
    most = "" if limit is None else _onnx_scalar(ctx, ctx.shape((limit,)))
    count = len(body.outputs)
    found = ctx.node("Loop", [most, asked(ctx, carries), *carries], count, body=graph)
    return found if count > 1 else (found,)


def _play(body: Body, operands: Sequence[Any], like: Any) -> list[Any]:
    """What a body makes of tensors, op by op. like: a tensor of their kind."""
    values: dict[Value, Any] = {
        i.value: x for i, x in zip(body.graph.inputs, operands, strict=True)
    }
    for node in body.graph.nodes:
        found = like._bind(node.op, tuple(values[v] for v in node.inputs), node.attr)
        values.update(zip(node.outputs, found if node.op.nout > 1 else (found,), strict=True))
    return [values[v] for v in body.graph.outputs]


_CALL = 4000
"""What a call of NumPy costs besides its work (`Op.work`): some 2 us."""


def _needed(graph: Graph, ends: Sequence[Value]) -> list[Node]:
    """The nodes that values are computed by, and those that may raise an error."""
    ends = [*ends, *(v for n in graph.nodes if may_raise(n) for v in n.outputs)]
    needed = needed_nodes(graph.nodes, ends, set())
    return [n for n in graph.nodes if n in needed]


def may_raise(node: Node) -> bool:
    """Whether running a node may raise an error of the user's."""
    return node.op.checked or any(may_raise(n) for n in inner_nodes(node))


def _inputs_read(graph: Graph, ends: Sequence[Value]) -> set[int]:
    """The numbers of the inputs that these values depend on."""
    read = {v for n in _needed(graph, ends) for v in n.inputs} | set(ends)
    return {k for k, item in enumerate(graph.inputs) if item.value in read}


def _of_scan(attrs: dict[str, Any]) -> tuple[Body, int, int, Any]:
    return attrs["body"], attrs["carries"], attrs["xs"], attrs["length"]


# -- bodies made of bodies -------------------------------------------------------------------------
class Size:
    """A size as a key of what is made of bodies: equal sizes of one env are equal, and comparing
    two asks nothing of them."""

    def __init__(self, dim: Dim) -> None:
        self.dim = plain(dim)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Size):
            return NotImplemented
        a, b = self.dim, other.dim
        if isinstance(a, Sym) and isinstance(b, Sym):
            return a.env is b.env and a.key == b.key
        return not isinstance(a, Sym) and not isinstance(b, Sym) and a == b

    def __hash__(self) -> int:
        return hash(self.dim)


@lru_cache(256)
def _along(body: Body, carries: int, flags: Flags) -> Graph:
    """A graph of the body and its tangents.

    Inputs: the body's, tangents of the real carries, those of the other operands by flags. Outputs:
    the body's first `carries`, then the tangents of all real outputs.
    """
    out, graph = Graph(name="body"), body.graph
    values = [i.value for i in graph.inputs]
    have = start(out, values, "in")
    tangents: Tensors = {}
    for k, v in enumerate(values):
        if is_real(v.type) and (k < carries or flags[k - carries]):
            tangents[v] = add_input(out, v.type, f"t{k}")
    copy_nodes(graph.nodes, out, have)
    forward(graph.nodes, have, tangents)
    out.outputs = [have[v].value for v in graph.outputs[:carries]]
    for v in graph.outputs:
        if is_real(v.type):
            out.outputs.append(tangents[v].value if v in tangents else _zeros(out, v))
    return out


def _zeros(graph: Graph, v: Value) -> Value:
    t = v.type
    return graph.add(op.full, shape=t.shape, value=0, dtype=t.dtype, device=str(t.device))


def _arranged(along: Graph, own: int, n: int, real: int, m: int, moved: int) -> Body:
    """The graph with inputs in a scan's order: carries and their tangents, xs and theirs, consts
    and theirs. own: inputs that are no tangents; m: xs; moved: those with a tangent."""
    mine, extra = along.inputs[:own], along.inputs[own:]
    inputs = [*mine[:n], *extra[:real], *mine[n : n + m], *extra[real : real + moved]]
    inputs += [*mine[n + m :], *extra[real + moved :]]
    return Body(Graph(inputs, along.nodes, list(along.outputs), name="body"))


def _with_more_inputs(test: Body, n: int, body: Body) -> Body:
    """The test of a loop, for the carries and consts of a body with tangents among them."""
    out = Graph(name="body")
    values = [add_input(out, t, f"in{k}") for k, t in enumerate(body.inputs)]
    more = len(body.graph.outputs)
    old = [i.value for i in test.graph.inputs]
    have = dict(zip(old[:n], values[:n], strict=True))
    have.update(zip(old[n:], values[more:], strict=False))
    copy_nodes(test.graph.nodes, out, have)
    out.outputs = [have[v].value for v in test.graph.outputs]
    return Body(out)


@lru_cache(256)
def _pulled(body: Body, seeded: Flags, wanted: Flags) -> Body:
    """(cotangents of the outputs that have one, operands) -> cotangents of the wanted operands."""
    out, graph = Graph(name="body"), body.graph
    cotangents: Tensors = {}
    for k, (v, has) in enumerate(zip(graph.outputs, seeded, strict=True)):
        if has:
            g = add_input(out, v.type, f"g{k}")
            cotangents[v] = op.add(cotangents[v], g) if v in cotangents else g
    values = [i.value for i in graph.inputs]
    have = start(out, values, "in")
    copy_nodes(graph.nodes, out, have)
    targets = [v for v, w in zip(values, wanted, strict=True) if w]
    found = reverse(graph.nodes, have, cotangents, targets)
    out.outputs = [
        _zeros(out, v) if g is None else g.value for v, g in zip(targets, found, strict=True)
    ]
    return Body(out)


@lru_cache(256)
def batched_body(body: Body, flags: Flags, size: Size, carries: int) -> tuple[Body, Flags]:
    """The body mapped over a new leading axis of the inputs that `flags` says, and which outputs
    have it. The first `carries` outputs have it where the inputs of their numbers do."""
    out, graph = Graph(name="body"), body.graph
    have: Tensors = {}
    for k, item in enumerate(graph.inputs):
        t = item.value.type
        wide = t.with_shape((size.dim, *t.shape)) if flags[k] else t
        have[item.value] = add_input(out, wide, f"in{k}")
    mapped = {i.value for i, f in zip(graph.inputs, flags, strict=True) if f}
    batch(graph.nodes, out, have, mapped)
    ends, outs = [], []
    for k, v in enumerate(graph.outputs):
        y, is_b = have[v], v in mapped
        if k < carries and flags[k] and not is_b:
            y, is_b = op.expand(y, shape=(size.dim, *y.shape)), True
        ends.append(y.value)
        outs.append(is_b)
    out.outputs = ends
    return Body(out), tuple(outs)


def _all_batched(body: Body, flags: Flags, size: Size) -> Body:
    """The body mapped, all outputs with the new axis."""
    mapped, outs = batched_body(body, flags, size, 0)
    graph = mapped.graph
    nodes = list(graph.nodes)
    wide = Graph(list(graph.inputs), nodes, [], name="body")
    for v, is_b in zip(graph.outputs, outs, strict=True):
        y = GraphTensor(wide, v, "")
        wide.outputs.append((y if is_b else op.expand(y, shape=(size.dim, *y.shape))).value)
    return Body(wide)


@lru_cache(256)
def _batched_loop(
    test: Body, body: Body, flags: Flags, size: Size, carries: int
) -> tuple[Body, Body]:
    """A mapped loop: its test (does an example go on?) and its body (the others keep theirs)."""
    mapped = _all_batched(test, flags, size)
    once = Graph(list(mapped.graph.inputs), list(mapped.graph.nodes), [], name="body")
    go = GraphTensor(once, mapped.graph.outputs[0], "")
    once.outputs = [op.any(go, axes=tuple(range(go.ndim)), keepdim=False).value]
    step = _all_batched(body, flags, size)
    out = Graph(name="body")
    have = start(out, [i.value for i in step.graph.inputs], "in")
    copy_nodes(step.graph.nodes, out, have)
    mine = [have[i.value] for i in step.graph.inputs]
    tested: Tensors = dict(zip([i.value for i in mapped.graph.inputs], mine, strict=True))
    copy_nodes(mapped.graph.nodes, out, tested)
    go = op.reshape(tested[mapped.graph.outputs[0]], shape=(size.dim,))
    for k, v in enumerate(step.graph.outputs):
        new = have[v]
        chosen = op.reshape(go, shape=(size.dim, *[1] * (new.ndim - 1)))
        out.outputs.append(op.where(chosen, new, mine[k]).value)
    return Body(once), Body(out)


@lru_cache(256)
def _guarded(test: Body, body: Body, carries: int) -> Body:
    """A step that does nothing once the test fails, for a loop of a fixed number of steps."""
    out = Graph(name="body")
    have = start(out, [i.value for i in test.graph.inputs], "in")
    values = [t.value for t in have.values()]
    copy_nodes(test.graph.nodes, out, have)
    same = Graph(name="body")
    kept = start(same, [i.value for i in body.graph.inputs], "in")
    same.outputs = [t.value for t in list(kept.values())[:carries]]
    attrs = {"on_true": body, "on_false": Body(same)}
    found = out.add_node(op.cond, [have[test.graph.outputs[0]].value, *values], attrs)
    out.outputs = list(found)
    return Body(out)


# -- bodies of the samples -------------------------------------------------------------------------
def _typed(dtype: Any, *shape: int) -> TensorType:
    return TensorType(shape, dtypes.from_numpy(np.dtype(dtype)))


def _recurrence(rows: int, width: int, dtype: Any) -> Body:
    """h' = tanh(x + h w); the result is h' * x."""
    g = Graph(name="body")
    h, x = (add_input(g, _typed(dtype, rows, width), name) for name in ("h", "x"))
    w = add_input(g, _typed(dtype, width, width), "w")
    new = op.tanh(op.add(x, op.matmul(h, w)))
    g.outputs = [new.value, op.mul(new, x).value]
    return Body(g)


def _counting(width: int) -> Body:
    """h' = h; the results are sin(h) and x + 1."""
    g = Graph(name="body")
    h, x = add_input(g, _typed(np.float64, width), "h"), add_input(g, _typed(np.int64), "x")
    g.outputs = [h.value, op.sin(h).value, op.add(x, 1).value]
    return Body(g)


def _doubling() -> tuple[Body, Body]:
    """While i < 4: i + 1, x * w + x."""
    types = _typed(np.int64), _typed(np.float64, 2), _typed(np.float64, 2)
    tests, steps = Graph(name="body"), Graph(name="body")
    i, _, _ = (add_input(tests, t, f"in{k}") for k, t in enumerate(types))
    tests.outputs = [op.lt(i, 4).value]
    i, x, w = (add_input(steps, t, f"in{k}") for k, t in enumerate(types))
    steps.outputs = [op.add(i, 1).value, op.add(op.mul(x, w), x).value]
    return Body(tests), Body(steps)


def _branches() -> tuple[Body, Body]:
    """x * sin(w), and x with nothing of w."""
    made = []
    for use in (True, False):
        g = Graph(name="body")
        x, w = (add_input(g, _typed(np.float64, 3), name) for name in ("x", "w"))
        g.outputs = [(op.mul(x, op.sin(w)) if use else op.mul(x, x)).value]
        made.append(Body(g))
    return made[0], made[1]


scan, while_loop, cond, call = Scan(), WhileLoop(), Cond(), Call()
