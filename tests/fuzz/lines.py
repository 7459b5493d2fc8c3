"""The lines that generated programs are made of.

Owns one function for each kind of line: it looks at the pool of live tensors and proposes a line
(and set-up for it). What a proposal gives is found by running it; one that raises is dropped, so
proposals need not be valid, only likely to be.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from jitgrad.compiler.ops.record import OPS, Elementwise
from jitgrad.runtime.dtypes import DType

FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOATS, "int64", "int32", "bool")


class Draw(Protocol):
    """What lines draw from: generate.Maker."""

    r: random.Random

    def any(self) -> str: ...
    def floating(self) -> str: ...
    def beside(self, name: str) -> str: ...
    def like(self, name: str) -> str: ...
    def value(self, name: str) -> Any: ...
    def leaf(self) -> str: ...
    def shape(self) -> tuple[int, ...]: ...
    def setup(self, expression: str) -> str: ...


Line = Callable[[Draw], str]
"""Gives an expression (bound to a new name), or a statement with a leading "!"; in front of that a
"?" where Python looks at values."""

_RECORDS = [o for o in OPS.values() if isinstance(o, Elementwise) and o.public]
UNARY = [o.name for o in _RECORDS if o.arity == 1]
BINARY = [o.name for o in _RECORDS if o.arity == 2]
_MORE_UNARY = ("gelu", "silu", "softplus", "leaky_relu", "elu", "hardtanh", "mish")


def _dim(d: Draw, x: str) -> int:
    n = d.value(x).ndim
    return d.r.randrange(-n, n) if n else 0


def _size(d: Draw, x: str, dim: int) -> int:
    return int(d.value(x).shape[dim])


# -- values --------------------------------------------------------------------------------------
def unary(d: Draw) -> str:
    return f"{d.any()}.{d.r.choice(UNARY)}()"


def activation(d: Draw) -> str:
    return f"F.{d.r.choice(_MORE_UNARY)}({d.floating()})"


def binary(d: Draw) -> str:
    x = d.any()
    return f"jg.{d.r.choice(BINARY)}({x}, {d.beside(x)})"


def operator(d: Draw) -> str:
    x = d.any()
    y = d.beside(x)
    sign = d.r.choice(["+", "-", "*", "/", "+", "*", "//", "%", "<", ">=", "==", "&", "|", "^"])
    return f"{x} {sign} {y}" if d.r.random() < 0.7 else f"{y} {sign} {x}"


def number(d: Draw) -> str:
    x = d.any()
    n = d.r.choice(["s", "n", "s * 2 - 1", "n + 1", "2", "0.5", "-1.5", "3", "True", "1 / (s + 9)"])
    sign = d.r.choice(["+", "-", "*", "/", "*", "**", "//", "%", "<", "!="])
    left, right = d.r.choice([(x, n), (x, n), (n, x)])
    return f"({left}) {sign} ({right})"


def power(d: Draw) -> str:
    return f"{d.any()} ** {d.r.choice([2, 3, 0.5, -1, 0, 1])}"


def alpha(d: Draw) -> str:
    x = d.any()
    return f"jg.{d.r.choice(['add', 'sub'])}({x}, {d.beside(x)}, alpha={d.r.choice(['2', 's'])})"


def clamp(d: Draw) -> str:
    return f"{d.any()}.clamp({d.r.choice(['-1, 1', 'min=0', 'max=s', '-0.5, 2'])})"


def where(d: Draw) -> str:
    x = d.any()
    y = d.beside(x)
    return d.r.choice([f"jg.where({x} > {y}, {x}, {y})", f"{x}.masked_fill({x} < 0, {y})",
                       f"jg.where({x} > 0, {x}, 0)", f"jg.lerp({x}, {y}, 0.25)",
                       f"jg.addcmul({x}, {x}, {y})"])  # fmt: skip


def convert(d: Draw) -> str:
    if d.r.random() < 0.3:
        return f"{d.any()}.{d.r.choice(['float', 'double', 'half', 'long', 'int', 'bool'])}()"
    return f"{d.any()}.to(jg.{d.r.choice(DTYPES)})"


def test(d: Draw) -> str:
    return f"jg.{d.r.choice(['isnan', 'isinf', 'isfinite', 'sign', 'logical_not'])}({d.any()})"


# -- reductions ----------------------------------------------------------------------------------
def reduce(d: Draw) -> str:
    x = d.any()
    name = d.r.choice(
        [
            "sum",
            "sum",
            "mean",
            "prod",
            "amax",
            "amin",
            "any",
            "all",
            "argmax",
            "argmin",
            "var",
            "std",
            "norm",
            "count_nonzero",
        ]
    )
    if d.r.random() < 0.3:
        return f"{x}.{name}()"
    keep = ", keepdim=True" if d.r.random() < 0.4 and name != "count_nonzero" else ""
    if name == "norm":
        return f"{x}.norm(dim={_dim(d, x)}{keep})"
    return f"{x}.{name}(dim={_dim(d, x)}{keep})"


def reduce_several(d: Draw) -> str:
    x = d.any()
    name = d.r.choice(["sum", "mean", "amax", "amin", "logsumexp", "var"])
    dims = d.r.sample(range(d.value(x).ndim), min(2, d.value(x).ndim))
    keep = ", keepdim=True" if d.r.random() < 0.5 else ""
    return f"{x}.{name}({tuple(dims)}{keep})"


def select_reduce(d: Draw) -> str:
    x = d.any()
    name = d.r.choice(["max", "min", "sort", "median"])
    return f"{x}.{name}(dim={_dim(d, x)})[{d.r.randrange(2)}]"


def topk(d: Draw) -> str:
    x = d.any()
    dim = _dim(d, x)
    k = d.r.randint(0, max(_size(d, x, dim), 1)) if d.value(x).ndim else 1
    return f"{x}.topk({k}, dim={dim})[{d.r.randrange(2)}]"


def normalise(d: Draw) -> str:
    x = d.floating()
    return f"{x}.{d.r.choice(['softmax', 'log_softmax'])}({_dim(d, x)})"


def scan(d: Draw) -> str:
    x = d.any()
    return f"{x}.{d.r.choice(['cumsum', 'cumprod', 'cumsum'])}({_dim(d, x)})"


# -- movement ------------------------------------------------------------------------------------
def view(d: Draw) -> str:
    x = d.any()
    v = d.value(x)
    n = v.ndim
    kind = d.r.randrange(12)
    if kind == 0:
        axes = list(range(n))
        d.r.shuffle(axes)
        return f"{x}.permute({tuple(axes)})"
    if kind == 1:
        return f"{x}.transpose({_dim(d, x)}, {_dim(d, x)})"
    if kind == 2:
        return f"{x}.{d.r.choice(['reshape', 'view'])}({_reshape(d, v.shape)})"
    if kind == 3:
        return f"{x}.{d.r.choice(['flatten()', 'squeeze()', 'ravel()', 't()'])}"
    if kind == 4:
        return f"{x}.unsqueeze({d.r.randint(-n - 1, n)})"
    if kind == 5:
        sizes = [d.r.choice([2, 3]) if s == 1 else s for s in v.shape]
        return f"{x}.expand({tuple([d.r.randint(1, 3), *sizes] if n < 3 else sizes)})"
    if kind == 6:
        return f"{x}.diagonal({d.r.choice([0, 0, 1, -1])})"
    if kind == 7:
        dim = _dim(d, x)
        return f"{x}.unbind({dim})[{d.r.randrange(max(_size(d, x, dim), 1)) if n else 0}]"
    if kind == 8:
        dim = _dim(d, x)
        return f"{x}.unfold({dim}, {d.r.randint(1, 3)}, {d.r.randint(1, 2)})"
    if kind == 9:
        dim = _dim(d, x)
        return f"{x}.chunk(2, {dim})[{d.r.randrange(2)}]"
    return f"{x}[{_slices(d, v.shape)}]"


def _reshape(d: Draw, shape: Any) -> tuple[int, ...]:
    count = int(np.prod(shape, dtype=int))
    if count == 0:
        return d.r.choice([(0,), (0, 2), (3, 0), tuple(shape)])
    out, rest = [], count
    for p in (2, 3, 2, 5, 7):
        if rest % p == 0 and d.r.random() < 0.5:
            out.append(p)
            rest //= p
    out.append(rest)
    d.r.shuffle(out)
    if d.r.random() < 0.3:
        out[d.r.randrange(len(out))] = -1
    if d.r.random() < 0.2:
        out.insert(d.r.randint(0, len(out)), 1)
    return tuple(out)


def _slices(d: Draw, shape: Any) -> str:
    out = []
    for size in shape:
        size = int(size)
        pick = d.r.random()
        if pick < 0.25 and size:
            out.append(str(d.r.randrange(-size, size)))
        elif pick < 0.5:
            out.append(":")
        elif pick < 0.6:
            out.append(f"::{d.r.randint(1, 2)}")
        elif pick < 0.65:
            out.append("None, :")
        else:
            low = d.r.randint(0, max(size - 1, 0))
            high = d.r.randint(low, size)
            step = d.r.choice(["", "", ":2"])
            out.append(f"{low}:{high if high != size else ''}{step}")
        if d.r.random() < 0.2:
            break
    if d.r.random() < 0.1:
        return "..."
    return ", ".join(out) or "..."


def move(d: Draw) -> str:
    x = d.any()
    dim = _dim(d, x)
    kind = d.r.randrange(8)
    if kind == 0:
        return f"{x}.flip({dim})"
    if kind == 1:
        return f"{x}.roll({d.r.randint(-2, 2)}, {dim})"
    if kind == 2:
        return f"{x}.{d.r.choice(['tril', 'triu'])}({d.r.randint(-1, 1)})"
    if kind == 3:
        return f"{x}.repeat({', '.join(['2', *['1'] * max(d.value(x).ndim - 1, 0)])})"
    if kind == 4:
        low, high = d.r.randint(-1, 2), d.r.randint(-1, 2)
        return f"F.pad({x}, ({low}, {high}), value={d.r.choice(['0.0', '1.5', '0.0'])})"
    if kind == 5:
        return f"{x}.contiguous()"
    if kind == 6:
        return f"jg.diag({x})"
    return f"{x}.clone()"


def join(d: Draw) -> str:
    x = d.any()
    y = d.like(x)
    others = ", ".join([x, y, x][: d.r.randint(2, 3)])
    if d.r.random() < 0.5:
        return f"jg.cat([{others}], {_dim(d, x)})"
    return f"jg.stack([{others}], {d.r.randint(0, d.value(x).ndim)})"


# -- indexing ------------------------------------------------------------------------------------
def take(d: Draw) -> str:
    x = d.any()
    dim = _dim(d, x)
    size = _size(d, x, dim) if d.value(x).ndim else 0
    if not size:
        return f"{x}.sum()"
    kind = d.r.randrange(5)
    if kind == 0:
        i = d.setup(f"index({(d.r.randint(0, 4),)}, {size}, {d.r.randrange(9)})")
        return f"{x}.index_select({dim}, {i})"
    if kind == 1:
        i = d.setup(f"index({tuple(d.value(x).shape)}, {size}, {d.r.randrange(9)})")
        return f"{x}.gather({dim}, {i})"
    if kind == 2:
        first = int(d.value(x).shape[0])
        i = d.setup(f"index({(d.r.randint(1, 3), 2)}, {max(first, 1)}, {d.r.randrange(9)})")
        return f"{x}[{i}]"
    if kind == 3 and d.value(x).ndim > 1:
        a, b = (max(int(s), 1) for s in d.value(x).shape[:2])
        i = d.setup(f"index((3,), {a}, {d.r.randrange(9)})")
        j = d.setup(f"index((3,), {b}, {d.r.randrange(9)})")
        return f"{x}[{i}, {j}]"
    return f"{x}[..., {[d.r.randrange(int(d.value(x).shape[-1] or 1)) for _ in range(2)]}]"


def put(d: Draw) -> str:
    x = d.any()
    y = d.like(x)
    dim = _dim(d, x)
    size = _size(d, x, dim) if d.value(x).ndim else 0
    if not size:
        return f"{x} * 1"
    kind = d.r.randrange(4)
    if kind == 0:
        i = d.setup(f"index(({size},), {size}, {d.r.randrange(9)})")
        return f"{x}.index_add({dim}, {i}, {y})"
    i = d.setup(f"index({tuple(d.value(x).shape)}, {size}, {d.r.randrange(9)})")
    if kind == 1:
        return f"{x}.scatter_add({dim}, {i}, {y})"
    if kind == 2:
        return f"{x}.scatter({dim}, {i}, {d.r.choice(['2', 's'])})"
    return f"{x}.take_along_dim({i}, {dim})"


# -- networks ------------------------------------------------------------------------------------
def matmul(d: Draw) -> str:
    x = d.floating()
    v = d.value(x)
    if not v.ndim:
        return f"jg.outer({x}.reshape(1), {x}.reshape(1))"
    dtype = v.dtype.name
    shape = (int(v.shape[-1]), d.r.randint(1, 5))
    kind = d.r.randrange(4)
    if kind == 0:
        return f"{x} @ {x}.transpose(-1, -2)"
    if kind == 1 and v.ndim > 1:
        return f"jg.einsum('...ij,...kj->...ik', {x}, {x})"
    make = d.r.choice(["tensor", "parameter"])
    w = d.setup(f"{make}({dtype!r}, {shape}, {d.r.randrange(9)})")
    return f"{x} @ {w}" if kind == 2 else f"F.linear({x}, {w}.t())"


def convolve(d: Draw) -> str:
    image = d.setup(
        f"tensor('float32', {(d.r.randint(1, 2), 2, d.r.randint(3, 6), d.r.randint(3, 5))}, 1)"
    )
    kind = d.r.randrange(4)
    if kind < 2:
        shape = (d.r.randint(1, 3), 2, d.r.randint(1, 3), d.r.randint(1, 3))
        w = d.setup(f"parameter('float32', {shape}, {d.r.randrange(9)})")
        return f"F.conv2d({image}, {w}, stride={d.r.randint(1, 2)}, padding={d.r.randint(0, 1)})"
    name = ["F.max_pool2d", "F.avg_pool2d"][kind - 2]
    return f"{name}({image}.relu(), 2, stride={d.r.randint(1, 2)})"


def layer(d: Draw) -> str:
    kind = d.r.randrange(7)
    rows = d.setup(f"tensor('float32', ({d.r.randint(2, 4)}, 3), {d.r.randrange(9)})")
    if kind == 0:
        return f"M.norm({rows})"
    if kind == 1:
        return f"M.drop({rows})"
    if kind == 2:
        return f"F.linear({rows}, M.weight, M.bias) * M.scale"
    if kind == 3:
        return f"F.layer_norm({rows}, (3,))"
    target = d.setup(f"index(({int(d.value(rows).shape[0])},), 3, {d.r.randrange(9)})")
    if kind == 4:
        return f"F.cross_entropy({rows} @ M.weight, {target})"
    if kind == 5:
        return f"F.embedding({target}, M.weight)"
    return f"F.mse_loss({rows} @ M.weight, {rows})"


# -- creation, random draws, NumPy ---------------------------------------------------------------
def create(d: Draw) -> str:
    shape = d.shape()
    dtype = d.r.choice(DTYPES)
    return d.r.choice([
        f"jg.zeros({shape}, dtype=jg.{dtype})", f"jg.ones({shape})", f"jg.full({shape}, s)",
        f"jg.full({shape}, 3, dtype=jg.{dtype})", f"jg.arange({d.r.randint(0, 6)})",
        f"jg.arange(0, n, 2, dtype=jg.{dtype})", f"jg.linspace(-1, 1, {d.r.randint(1, 6)})",
        f"jg.eye({d.r.randint(1, 4)})", f"jg.zeros_like({d.any()})", "jg.tensor([1.0, s, 2.5])",
        f"jg.tensor({d.r.choice(['s', '2.5', 'True', '[1, 2, 3]'])})",
    ])  # fmt: skip


def draw(d: Draw) -> str:
    shape = d.shape()
    return d.r.choice([
        f"jg.rand({shape})", f"jg.randn({shape})", f"jg.rand_like({d.floating()})",
        f"jg.randint(0, 5, {shape})", f"F.dropout({d.floating()}, 0.3)",
        f"jg.bernoulli(jg.full({shape}, 0.4))", f"jg.randn({shape}, dtype=jg.float64)",
        f"jg.randperm({d.r.randint(0, 6)})",
    ])  # fmt: skip


def from_numpy(d: Draw) -> str:
    a = d.setup(f"array({d.r.choice(['float32', 'float64', 'int64'])!r}, {d.shape()}, 3)")
    return d.r.choice([
        f"jg.from_numpy({a})", f"jg.as_tensor({a})", f"jg.tensor({a})",
        "jg.tensor(np.arange(4) / 3)", f"jg.from_numpy(np.ones({d.shape()}, np.float32))",
    ])  # fmt: skip


# -- statements ----------------------------------------------------------------------------------
def write(d: Draw) -> str:
    x = d.any()
    v = d.value(x)
    y = d.r.choice([d.beside(x), d.beside(x), "s", "n", "2"])
    kind = d.r.randrange(8)
    if kind == 0:
        return f"!{x}[{_slices(d, v.shape)}] = {y}"
    if kind == 1:
        return f"!{x}[{_slices(d, v.shape)}] {d.r.choice(['+', '*', '-'])}= {y}"
    if kind == 2:
        return f"!{x}.{d.r.choice(['add_', 'mul_', 'sub_', 'copy_'])}({d.beside(x)})"
    if kind == 3:
        return f"!{x} {d.r.choice(['+', '*', '-', '/'])}= {y}"
    if kind == 4:
        fill = ["zero_()", "fill_(s)", "neg_()", "relu_()", "sin_()", "clamp_(-1, 1)", "abs_()"]
        return f"!{x}.{d.r.choice(fill)}"
    if kind == 5:
        return f"!{x}.masked_fill_({x} > 0, {d.r.choice(['0', 's', '-1'])})"
    if kind == 6:
        return f"!{x}.{d.r.choice(['uniform_()', 'normal_()', 'bernoulli_(0.5)'])}"
    size = max(int(v.shape[0]) if v.ndim else 1, 1)
    i = d.setup(f"index((2,), {size}, {d.r.randrange(9)})")
    return f"!{x}[{i}] = {y}"


def backward(d: Draw) -> str:
    x = d.floating()
    form = d.r.choice([".sum()", ".mean()", ".float().pow(2).sum()", ".tanh().sum()"])
    return f"!({x}){form}.backward({d.r.choice(['', 'retain_graph=True'])})"


def grad(d: Draw) -> str:
    x, w = d.floating(), d.leaf()
    return f"jg.autograd.grad({x}.sum(), {w}, retain_graph=True)[0]"


def train(d: Draw) -> str:
    w = d.leaf()
    return d.r.choice([
        f"!{w}.grad = None",
        f"!{w}.grad.zero_()",
        f"!with jg.no_grad(): {w}.sub_({w}.grad * s)",
        f"!with jg.no_grad(): {w} -= 0.125 * {w}.grad",
        f"!with jg.no_grad(): {w}.mul_(0.5).add_({w}.grad, alpha=-0.25)",
        f"!{w}.data.mul_(0.5)",
        "!M.zero_grad()",
        "!M.count += 1",
        "!M.count.copy_(M.count * 0.5 + s)",
        f"{w}.detach()",
        f"{w}.grad",
    ])  # fmt: skip


# -- values that Python looks at -------------------------------------------------------------------
def _condition(d: Draw) -> str:
    """What Python asks of a tensor. No threshold is a number that is likely to come out."""
    x = d.any()
    f = f"{x}.float()"
    return d.r.choice([
        f"({f} > 0.37).any()", f"{f}.sum() > 0.37", f"bool({f}.mean() < s + 0.013)",
        f"not ({f} < 0.613).all()", f"int(({f} > 0.37).sum()) % 2", f"{f}.mean().item() > 0.113",
        f"abs({f}.sum().item() * 0.5) < {d.floating()}.float().sum().item() + 1.017",
        f"{x}.isfinite().all() and {f}.max() > 0.913 if {x}.numel() else n > 2",
        f"({f} > 0.37).reshape(-1)[:3].tolist() == [True, False, True]",
        f"({f} > 0.37).sum().item() in (0, 2, 3)", f"jg.equal({x}, {d.like(x)})",
    ])  # fmt: skip


def choose(d: Draw) -> str:
    x = d.any()
    other = d.r.choice([f"{d.like(x)}", f"{x} * 2", f"{x} - s", f"{d.floating()}.relu()"])
    return f"?{x} + 1 if {_condition(d)} else {other}"


def choose_write(d: Draw) -> str:
    done = write(d)[1:]
    if d.r.random() < 0.7:
        return f"?!if {_condition(d)}: {done}"
    return f"?!for _ in range(int(({d.any()}.float() > 0.37).sum()) % 3): {done}"


def size_of_values(d: Draw) -> str:
    x = d.any()
    mask = f"{x}.float() > 0.37"
    return "?" + d.r.choice([
        f"{x}[{mask}]", f"{d.like(x)}.masked_select({mask})", f"({mask}).nonzero()",
        f"{x}.round().unique()", f"jg.bincount(({mask}).long().reshape(-1) * 2)",
        f"{x}.reshape(-1)[: int(({mask}).sum())]", f"{x}.flatten()[({mask}).reshape(-1)] * 2",
    ])  # fmt: skip


def number_of_values(d: Draw) -> str:
    x = d.any()
    return "?" + d.r.choice([
        f"{d.any()} * {d.floating()}.float().mean().item()",
        f"jg.full((2,), {x}.float().sum().item())",
        f"{x} + int(({x}.float() > 0.37).sum())", f"jg.tensor(({x}.float() > 0.37).tolist())",
        f"max({x}.float().sum().item(), 0.217) * {d.any()}",
    ])  # fmt: skip


BRANCHES: list[tuple[int, Line]] = [
    (4, choose), (4, choose_write), (2, size_of_values), (2, number_of_values),
]  # fmt: skip


KINDS: list[tuple[int, Line]] = [
    (10, unary), (3, activation), (10, binary), (12, operator), (8, number), (3, power),
    (2, alpha), (3, clamp), (5, where), (6, convert), (2, test), (9, reduce), (4, reduce_several),
    (4, select_reduce), (2, topk), (4, normalise), (3, scan), (18, view), (8, move), (6, join),
    (7, take), (5, put), (6, matmul), (5, convolve), (7, layer), (5, create), (6, draw),
    (4, from_numpy), (16, write), (6, backward), (2, grad), (9, train),
]  # fmt: skip


# -- records by their samples ----------------------------------------------------------------------
def attribute_text(value: Any) -> str:
    """Python source of an attribute's value, in a program's namespace."""
    return f"jg.{value.name.replace('bool', 'bool')}" if isinstance(value, DType) else repr(value)


def record(d: Draw, name: str, number: int) -> str:
    """A direct call of a record on the operands of one of its samples."""
    op = OPS[name]
    given = list(op.samples())[number]
    attrs = "".join(f", {k}={attribute_text(v)}" for k, v in given.attrs.items())
    operands = [d.setup(f"sample({name!r}, {number}, {i})") for i in range(len(given.args))]
    f = d.setup(f"OPS[{name!r}]")
    text = f"{f}({', '.join(operands)}{attrs})"
    return text if op.nout == 1 else f"{text}[{d.r.randrange(op.nout)}]"
