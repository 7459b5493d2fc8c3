"""Single ops for ops.py: the shapes of their operands, and the text that defines each.

A `Case` has a body of names that torch and jitgrad share; x, y, z are its operands, in order.
Operands are normal numbers but for those that `indices` and `masks` say: whole numbers below a
bound, and bools. With `backward` it is timed twice: the op alone, and the op with its gradients.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

Shape = tuple[int, ...]


@dataclass
class Case:
    """An op: `body` of x, y, z; `before` runs once, in front of it."""

    name: str
    shapes: list[Shape]
    body: str
    backward: bool = True
    indices: dict[int, int] = field(default_factory=dict)
    """{operand: bound}."""
    masks: tuple[int, ...] = ()
    before: str = ""


def cases(rng: random.Random | None) -> Iterator[Case]:
    """The ops; with rng, of sizes drawn between half and one and a half times the usual."""

    def size(n: int) -> int:
        return n if rng is None else rng.randint(n // 2, n + n // 2)

    image = (size(8), size(32), size(56), size(56))
    n, c, h, w = image
    columns = (size(8), 9 * size(32), size(32) ** 2)
    side = round(columns[2] ** 0.5)
    table = (size(512), size(1024))
    rows, cols = table
    line = (size(8), size(32), size(512))
    cube = (size(2), size(16), size(16), size(16), size(16))
    wide = (size(64), size(4096))

    # -- random numbers, sorting and selecting
    yield Case("randperm", [(1,)], f"torch.randperm({size(100000)})", False)
    yield Case("randn", [(1,)], f"torch.randn({size(1000000)})", False)
    yield Case("dropout", [table], "F.dropout(x, 0.3)")
    yield Case("multinomial", [(size(64), size(1000))], "torch.multinomial(y, 8)", False,
               before="y = inputs[0].abs()")  # fmt: skip
    yield Case("topk", [wide], f"torch.topk(x, {size(10)})[0]")
    yield Case("topk wide", [(size(8), size(50000))], f"torch.topk(x, {size(50)})[0]", False)
    yield Case("sort", [wide], "torch.sort(x)[0]")
    yield Case("sort of columns", [(size(4096), size(64))], "torch.sort(x, 0)[0]", False)
    yield Case("sort long", [(size(1000000),)], "torch.sort(x)[0]", False)
    yield Case("argsort of integers", [wide], "torch.argsort(x, stable=True)", False, {0: 1000})
    yield Case("median", [wide], "x.median(1)[0]")
    yield Case("unique", [(size(100000),)], "torch.unique(x)", False, {0: 1000})
    yield Case("searchsorted", [(size(100000),)], "torch.searchsorted(edges, x)", False,
               before="edges = torch.from_numpy(np.arange(-3, 3, 0.006, np.float32))")  # fmt: skip
    yield Case("bucketize", [(size(100000),)], "torch.bucketize(x, edges)", False,
               before="edges = torch.from_numpy(np.arange(-3, 3, 0.1, np.float32))")  # fmt: skip
    yield Case("bincount", [(size(100000),)], "torch.bincount(x, minlength=1000)", False,
               {0: 1000})  # fmt: skip
    yield Case("histc", [(size(100000),)], "torch.histc(x, 100, -3, 3)", False)
    yield Case("nonzero", [table], "x.nonzero()", False, masks=(0,))
    yield Case("masked_select", [table, table], "torch.masked_select(x, y)", False, masks=(1,))
    # -- scans
    yield Case("cummax", [table], "torch.cummax(x, 1)[0]")
    yield Case("cummax of columns", [table], "torch.cummax(x, 0)[0]")
    yield Case("cumsum", [table], "torch.cumsum(x, 1)")
    yield Case("cumsum of columns", [table], "torch.cumsum(x, 0)")
    yield Case("cumprod", [table], "torch.cumprod(x, 1)",
               before="inputs[0] = 1 + inputs[0] / 100")  # fmt: skip
    yield Case("logcumsumexp", [table], "torch.logcumsumexp(x, 1)")
    # -- indexing
    index = {1: rows}
    yield Case("index_select", [table, (size(1000),)], "torch.index_select(x, 0, y)", True, index)
    yield Case("index_select of columns", [table, (size(1000),)], "torch.index_select(x, 1, y)",
               True, {1: cols})  # fmt: skip
    yield Case("index by rows", [table, (size(1000),)], "x[y]", True, index)
    yield Case("gather", [table, (rows, size(512))], "x.gather(1, y)", True, {1: cols})
    yield Case("gather of columns", [table, (size(256), cols)], "x.gather(0, y)", True, index)
    yield Case("scatter_add", [table, table], "torch.zeros_like(x).scatter_add(1, y, x)", True,
               {1: cols})  # fmt: skip
    yield Case("index_add", [(size(1000), cols), (size(500), cols), (0,)],
               "x.index_add(0, places, y)", True,
               before=f"places = torch.arange(len(inputs[1])) * 7 % {rows // 2}")  # fmt: skip
    yield Case("embedding", [(size(10000), size(128)), (size(32), size(128))],
               "F.embedding(y, x)", True, {1: 5000})  # fmt: skip
    yield Case("embedding_bag", [(size(10000), size(128)), (size(256), size(16))],
               "F.embedding_bag(y, x, mode='mean')", True, {1: 5000})  # fmt: skip
    yield Case("masked_fill", [table, table], "x.masked_fill(y, -1.0)", masks=(1,))
    yield Case("where", [table, table, table], "torch.where(z, x, y)", masks=(2,))
    yield Case("one_hot", [(size(4096),)], "F.one_hot(x, 100)", False, {0: 100})
    yield Case("take_along_dim", [table, (rows, 1)], "torch.take_along_dim(x, y, 1)", True,
               {1: cols})  # fmt: skip
    yield Case("repeat_interleave", [table], "x.repeat_interleave(3, 1)")
    # -- movement
    yield Case("flip", [table], "torch.flip(x, [1])")
    yield Case("flip of both", [table], "torch.flip(x, [0, 1])")
    yield Case("roll", [table], "torch.roll(x, (5, 7), (0, 1))")
    yield Case("tril", [table], "torch.tril(x)")
    yield Case("cat", [table, table], "torch.cat([x, y], 1)")
    yield Case("cat of rows", [table, table], "torch.cat([x, y], 0)")
    yield Case("stack", [table, table, table], "torch.stack([x, y, z], 1)")
    yield Case("stack last", [table, table], "torch.stack([x, y], -1)")
    yield Case("transposed copy", [table], "x.t().contiguous()")
    yield Case("permuted copy", [image], "x.permute(0, 2, 3, 1).contiguous()")
    yield Case("pixel_shuffle", [image], "F.pixel_shuffle(x[:, :c4], 2)",
               before="c4 = inputs[0].shape[1] // 4 * 4")  # fmt: skip
    yield Case("fold", [columns], f"F.fold(x, {side}, 3, padding=1)")
    yield Case("unfold", [image], "F.unfold(x, 3, padding=1)")
    yield Case("pad with zeros", [image], "F.pad(x, (1, 1, 1, 1))")
    yield Case("pad by reflection", [image], "F.pad(x, (3, 3, 3, 3), mode='reflect')")
    yield Case("pad by replication", [image], "F.pad(x, (2, 2, 2, 2), mode='replicate')")
    yield Case("pad in a circle", [image], "F.pad(x, (1, 1, 1, 1), mode='circular')")
    yield Case("pad of lines by reflection", [line], "F.pad(x, (16, 16), mode='reflect')")
    yield Case("pad of rows", [(size(4096), size(250))], "F.pad(x, (3, 4))")
    # -- pooling and sampling
    yield Case("adaptive_avg_pool2d", [image], f"F.adaptive_avg_pool2d(x, {size(7)})")
    yield Case("adaptive_avg_pool2d unevenly", [image], f"F.adaptive_avg_pool2d(x, {size(9)})")
    yield Case("adaptive_avg_pool2d to 1", [image], "F.adaptive_avg_pool2d(x, 1)")
    yield Case("adaptive_max_pool2d", [image], f"F.adaptive_max_pool2d(x, {size(7)})")
    yield Case("adaptive_max_pool2d unevenly", [image], f"F.adaptive_max_pool2d(x, {size(9)})")
    yield Case("avg_pool2d", [image], "F.avg_pool2d(x, 3, 2, 1)")
    yield Case("avg_pool1d", [line], "F.avg_pool1d(x, 4)")
    yield Case("max_pool2d", [image], "F.max_pool2d(x, 3, 2, 1)")
    yield Case("max_pool2d, indices", [image],
               "F.max_pool2d(x, 2, return_indices=True)[1]", False)  # fmt: skip
    yield Case("max_pool3d", [cube], "F.max_pool3d(x, 2)")
    yield Case("grid_sample", [image, (n, size(56), size(56), 2)],
               "F.grid_sample(x, y, align_corners=False)")  # fmt: skip
    for mode, more in (("nearest", ""), ("bilinear", ", align_corners=False"),
                       ("bicubic", ", align_corners=False")):  # fmt: skip
        yield Case(f"interpolate, {mode}", [(2, *image[1:])],
                   f"F.interpolate(x, scale_factor=2, mode='{mode}'{more})")  # fmt: skip
        to = (h * 3 // 4 + 1, w * 5 // 4 + 1)
        yield Case(f"interpolate, {mode}, oddly", [(2, *image[1:])],
                   f"F.interpolate(x, size={to}, mode='{mode}'{more})")  # fmt: skip
    # -- rows
    yield Case("softmax of rows of 16", [(size(65536), size(16))], "F.softmax(x, -1)")
    yield Case("log_softmax of rows of 10", [(size(65536), size(10))], "F.log_softmax(x, -1)")
    yield Case("softmax of rows of 64", [(size(16384), size(64))], "F.softmax(x, -1)")
    yield Case("softmax of channels", [image], "F.softmax(x, 1)")
    yield Case("layer norm of rows of 32", [(size(32768), width := size(32))],
               f"F.layer_norm(x, ({width},))")  # fmt: skip
    yield Case("sum of rows of 16", [(size(65536), size(16))], "x.sum(-1)")
    yield Case("argmax", [table], "x.argmax(1)", False)
    yield Case("argmax of columns", [table], "x.argmax(0)", False)
    yield Case("max", [table], "x.max(1)[0]")
    yield Case("logsumexp", [table], "torch.logsumexp(x, 1)")
    yield Case("var", [table], "torch.var_mean(x, 1)[0]")
    yield Case("var of columns", [table], "torch.var_mean(x, 0)[0]")
    yield Case("norm", [table], "torch.norm(x)")
    yield Case("norm of rows", [table], "torch.linalg.vector_norm(x, dim=1)")
    yield Case("normalize", [table], "F.normalize(x, dim=1)")
    yield Case("cosine_similarity", [table, table], "F.cosine_similarity(x, y)")
    yield Case("cross_entropy", [(size(4096), size(100)), (0,)], "F.cross_entropy(x, labels)",
               before="labels = torch.arange(len(inputs[0])) * 7 % inputs[0].shape[1]")  # fmt: skip
    yield Case("cross_entropy, weights", [(size(4096), size(100)), (0,)],
               "F.cross_entropy(x, labels, weights)",
               before="labels = torch.arange(len(inputs[0])) * 7 % inputs[0].shape[1]\n"
               "weights = torch.linspace(0.5, 1.5, inputs[0].shape[1])")  # fmt: skip
    yield Case("cross_entropy of images", [(2, 20, h, w)], "F.cross_entropy(x, labels)",
               before="labels = (torch.arange(2 * inputs[0][0, 0].numel()) * 7 % 20)"
               ".reshape(2, *inputs[0].shape[2:])")  # fmt: skip
    yield Case("group_norm", [(n, 32, h, w)], "F.group_norm(x, 8)")
    yield Case("instance_norm", [image], "F.instance_norm(x)")
    yield Case("batch_norm", [image], "F.batch_norm(x, None, None, training=True)")
    yield Case("prelu", [image, (1,)], "F.prelu(x, y)")
    # -- products
    yield Case("matmul", [(a := size(64), b := size(64)), (b, d := size(64))], "x @ y")
    yield Case("linear, gelu", [(a, b), (d, b), (d,)], "F.gelu(F.linear(x, y, z))")
    yield Case("matmul of 225 x 386 x 218", [(size(225), b := size(386)), (b, size(218))], "x @ y")
    yield Case("skinny matmul", [(size(8), b := size(1024)), (b, size(1024))], "x @ y")
    batch, e = size(64), size(16)
    small = [(batch, e, e), (batch, e, e), (batch, e, e)]
    yield Case("bmm of 16", small[:2], "torch.bmm(x, y)")
    yield Case("baddbmm of 16", small, "torch.baddbmm(x, y, z)")
    yield Case("bmm of 4", [(size(4096), 4, 4), (0,)], "torch.bmm(x, x)")
    heads = [(4, size(64), 4, 32), (4, size(64), 4, 32)]
    yield Case("einsum of heads", heads, "torch.einsum('bqhd,bkhd->bhqk', x, y)")
    yield Case("einsum, outer", [(size(512),), (size(512),)], "torch.einsum('i,j->ij', x, y)")
    yield Case("einsum, bilinear", [(size(64), 32), (24, 32, 32), (0,)],
               "torch.einsum('bi,oij,bj->bo', x, y, x)")  # fmt: skip
    yield Case("einsum, diagonal", [(batch, e, e)], "torch.einsum('bii->b', x)")
    yield Case("cdist", [(size(256), 32), (size(256), 32)], "torch.cdist(x, y)")
    yield Case("cdist of order 1", [(size(256), 32), (size(256), 32)], "torch.cdist(x, y, p=1.0)")
    yield Case("conv1d", [line, (32, line[1], 5)], "F.conv1d(x, y, padding=2)")
    yield Case("conv2d", [(2, c, h, w), (32, c, 3, 3)], "F.conv2d(x, y, padding=1)")
    yield Case("conv2d, dilated", [(2, c, h, w), (32, c, 3, 3)],
               "F.conv2d(x, y, padding=2, dilation=2)")  # fmt: skip
    yield Case("conv2d, depthwise", [image, (c, 1, 3, 3)],
               f"F.conv2d(x, y, padding=1, groups={c})")  # fmt: skip
    yield Case("conv2d, grouped", [(2, 32, h, w), (32, 8, 3, 3)],
               "F.conv2d(x, y, padding=1, groups=4)")  # fmt: skip
    yield Case("conv3d", [cube, (16, cube[1], 3, 3, 3)], "F.conv3d(x, y, padding=1)")
    yield Case("conv_transpose2d", [(2, c, h // 2, w // 2), (c, 16, 4, 4)],
               "F.conv_transpose2d(x, y, stride=2, padding=1)")  # fmt: skip
    yield Case("conv_transpose1d", [line, (line[1], 16, 4)],
               "F.conv_transpose1d(x, y, stride=2, padding=1)")  # fmt: skip


_BACKWARD = """
weight = (torch.arange(op(*inputs).numel()) % 17 / 8 - 1).reshape(op(*inputs).shape)
def f(*operands):
    with torch.enable_grad():
        given = [t.detach() for t in operands]
        wanted = [t for t in given if t.is_floating_point() and t.numel() > 0]
        for t in wanted:
            t.requires_grad_(True)
        return torch.autograd.grad(op(*given), wanted, weight)
"""


def programs(rng: random.Random | None) -> dict[str, tuple[list[Shape], str]]:
    """{name: (shapes of the operands, text that defines f of them and may change `inputs`)}."""
    out: dict[str, tuple[list[Shape], str]] = {}
    for case in cases(rng):
        text = ""
        for k, bound in case.indices.items():
            text += f"inputs[{k}] = (inputs[{k}].abs() * 1e6).long() % {bound}\n"
        for k in case.masks:
            text += f"inputs[{k}] = inputs[{k}] > 0\n"
        names = ", ".join("xyz"[: len(case.shapes)])
        text += f"{case.before}\nop = lambda {names}: {case.body}\n"
        out[case.name] = case.shapes, text + "f = op\n"
        if case.backward:
            out[f"{case.name}: gradients"] = case.shapes, text + _BACKWARD
    return out
