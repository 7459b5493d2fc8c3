"""Pictures of a compilation, as SVG text: the graph, the fused kernels, the memory plan.

Pure functions: Graph or Stages in, text out. Details (a kernel's loops, a block's arrays, source
lines) are in tooltips, so that the pictures stay readable. Owns what is shown and its colours;
layout.py places boxes, svg.py writes elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.ir import Graph, Node, Value
from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
    kernel_exprs,
    kernel_reads,
    kernel_writes,
)
from jitgrad.compiler.layout import layered
from jitgrad.compiler.loops import (
    INDEX,
    LEAVES,
    Array,
    postorder,
)
from jitgrad.compiler.ops.record import Elementwise
from jitgrad.compiler.printer import kernel_text
from jitgrad.compiler.svg import Svg, shorten, text_width
from jitgrad.compiler.text import attribute

if TYPE_CHECKING:
    from jitgrad.compiler.stages import Stages

INK, FAINT, EDGE = "#24292f", "#57606a", "#afb8c1"
# What a thing is -> (fill, outline). The same colour means the same in all three pictures.
COLOURS = {
    "argument": ("#ddf4ff", "#54aeff"),
    "state": ("#dafbe1", "#4ac26b"),
    "temporary": ("#f6f8fa", "#afb8c1"),
    "result": ("#fff1e5", "#fb8f44"),
    "elementwise": ("#ffffff", "#8c959f"),
    "view": ("#f6f8fa", "#d0d7de"),
    "random": ("#fbefff", "#c297ff"),
    "loops": ("#ffffff", "#6e7781"),
    "contraction": ("#fff8c5", "#d4a72c"),
    "other": ("#ffeff7", "#ff80c8"),
}
BLOCKS = ["#b6e3ff", "#aceebb", "#ffd8b5", "#ecd8ff", "#ffd3eb", "#fae17d", "#d0d7de", "#a5f3fc"]


def readable_bytes(n: float) -> str:
    """12 B, 3.4 KB, 5.6 MB (of 1024)."""
    for unit in ("B", "KB", "MB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GB"


# -- the graph -------------------------------------------------------------------------------------
def graph_svg(graph: Graph) -> str:
    """The nodes of a graph from inputs (top) to results, with what flows between them.

    Numbers have no boxes: they stand in the boxes of the nodes that read them.

    Boxes are coloured by what they are; inputs bear their names; orange boxes are results:
    outputs, writes to state, rebinds.
    """
    boxes, edges = _graph_boxes(graph)
    widths = [max(text_width(b.label, 11), text_width(b.detail, 8), 40.0) + 14 for b in boxes]
    layer, x = layered(widths, edges, gap=10)
    row, box = 52, 30
    width = max((c + w / 2 for c, w in zip(x, widths)), default=0) + 40
    svg = Svg(max(width, 560), (max(layer, default=0) + 1) * row + 90, f"graph {graph.name}")
    _heading(
        svg,
        f"{graph.name}: {len(graph.nodes)} nodes",
        f"{len(graph.inputs)} inputs, {len(graph.outputs)} outputs, {len(graph.writes)} writes to "
        f"state, {len(graph.rebinds)} slots",
        ["argument", "state", "elementwise", "view", "random", "other", "result"],
    )
    top = 76

    def centre(i: int) -> tuple[float, float]:
        return x[i] + 20, top + layer[i] * row

    for a, b in edges:
        (x0, y0), (x1, y1) = centre(a), centre(b)
        svg.curve(x0, y0 + box, x1, y1 - 1, EDGE)
    for i, node in enumerate(boxes):
        cx, y = centre(i)
        fill, outline = COLOURS[node.kind]
        with svg.group(node.tooltip):
            svg.rect(cx - widths[i] / 2, y, widths[i], box, fill, outline, radius=5)
            bold = "bold" if node.kind == "other" else ""
            svg.text(cx, y + 13, node.label, 11, INK, "middle", bold)
            svg.text(cx, y + 25, node.detail, 8, FAINT, "middle")
    return str(svg)


@dataclass
class _Box:
    label: str
    detail: str
    kind: str
    tooltip: str


def _graph_boxes(graph: Graph) -> tuple[list[_Box], list[tuple[int, int]]]:
    boxes: list[_Box] = []
    edges: list[tuple[int, int]] = []
    at: dict[Value, int] = {}
    users = graph.users()
    results = set(graph.results())
    for item in graph.inputs:
        if item.value in users or item.value in results:
            at[item.value] = len(boxes)
            detail = f"{item.kind} {item.value.type}"
            kind = "state" if item.kind == "state" else "argument"
            boxes.append(_Box(item.name, detail, kind, f"{item.name}: {detail}"))
    constants: dict[Value, Node] = {}
    for node in graph.nodes:
        if _is_constant(node) and node.outputs[0] not in results:
            constants[node.outputs[0]] = node
            continue
        edges += [(at[v], len(boxes)) for v in node.inputs if v not in constants]
        at.update((v, len(boxes)) for v in node.outputs)
        types = ", ".join(str(v.type) for v in node.outputs)
        values = [_number(constants[v]) for v in node.inputs if v in constants]
        label = shorten(" ".join([node.op.name, *values]), 160, 11)
        detail = types if len(types) <= 40 else f"{node.outputs[0].type}, ..."
        boxes.append(_Box(label, detail, _node_kind(node), _node_tooltip(node, types)))
    ends = [(v, "output", f"output {i}") for i, v in enumerate(graph.outputs)]
    ends += [(w.value, f"{graph.inputs[w.input].name}", "written here") for w in graph.writes]
    ends += [(r.value, f"{r.owner}.{r.key}", "slot") for r in graph.rebinds if r.value is not None]
    for value, label, detail in ends:
        edges.append((at[value], len(boxes)))
        boxes.append(_Box(label, detail, "result", f"{detail} {label}: {value.type}"))
    return boxes, edges


def _number(constant: Node) -> str:
    value = constant.attr.get("value", constant.op.name)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_constant(node: Node) -> bool:
    """Whether a node is a number, which is written into the boxes of its readers."""
    return not node.inputs and len(node.outputs) == 1 and node.outputs[0].type.shape == ()


def _node_kind(node: Node) -> str:
    if isinstance(node.op, Elementwise):
        return "elementwise"
    return "random" if node.op.random else "view" if node.op.view else "other"


def _node_tooltip(node: Node, types: str) -> str:
    out = [f"{node.op.name}({', '.join(str(v.type) for v in node.inputs)}) -> {types}"]
    out += [f"{k} = {attribute(v)}" for k, v in node.attrs]
    return "\n".join([*out, node.line] if node.line else out)


# -- the kernels -----------------------------------------------------------------------------------
ROW_WIDTH, SIDE, CARD = 1180, 400, 320
CHIP, CHIP_ROW = 15, 19


def kernels_svg(stages: Stages) -> str:
    """The kernels in the order in which they run: what each reads (left) and writes (right).

    The number at the left is the wave: kernels of one wave run side by side. A kernel's tooltip is
    its loops.
    """
    places = _Places(stages)
    rows: list[tuple[int, Kernel, list[list[_Chip]], list[list[_Chip]]]] = []
    for n, wave in enumerate(stages.schedule.waves):
        for k in wave:
            reads = _wrapped(places.chip(a, False) for a in kernel_reads(k))
            writes = _wrapped(places.chip(a, True) for a in kernel_writes(k))
            rows.append((n, k, reads, writes))
    heights = [max(46, CHIP_ROW * max(len(r), len(w)) + 12) for _, _, r, w in rows]
    commit = stages.schedule.commit
    svg = Svg(ROW_WIDTH, 80 + sum(heights) + 24, f"kernels of {stages.graph.name}")
    moved = sum(
        sum(map(nbytes, kernel_reads(k))) + sum(map(nbytes, kernel_writes(k)))
        for _, k, _, _ in rows
    )
    _heading(
        svg,
        f"{stages.graph.name}: {len(stages.graph.nodes)} nodes in {len(rows)} kernels",
        f"{readable_bytes(moved)} read and written by the kernels; left: reads, right: writes",
        ["argument", "state", "temporary", "result", "loops", "contraction", "other"],
    )
    y = 76.0
    last = -1
    for (n, k, reads, writes), height in zip(rows, heights):
        if n == commit and last != commit:
            svg.line(10, y - 1, ROW_WIDTH - 10, y - 1, "#cf222e", 1, "4 3")
            svg.text(ROW_WIDTH - 10, y - 4, "state is overwritten below", 9, "#cf222e", "end")
        if n != last:
            svg.text(10, y + 17, str(n), 10, FAINT)
        last = n
        _chips(svg, reads, 34 + SIDE, y, height, right=True)
        _card(svg, k, 34 + SIDE + 12, y, height - 6)
        _chips(svg, writes, 34 + SIDE + CARD + 24, y, height, right=False)
        y += height
    return str(svg)


@dataclass
class _Chip:
    label: str
    kind: str
    tooltip: str

    @property
    def width(self) -> float:
        return text_width(self.label, 9) + 10


class _Places:
    """Whose memory an array is in, and what users call it."""

    def __init__(self, stages: Stages) -> None:
        self.home = stages.schedule.home
        self.inputs = {
            a: (i.name, "state" if i.kind == "state" else "argument")
            for a, i in zip(stages.program.inputs, stages.graph.inputs)
        }
        written = {position for _, position in stages.program.writes}
        self.results = {a for i, a in enumerate(stages.program.results) if i not in written}

    def chip(self, a: Array, write: bool) -> _Chip:
        size = readable_bytes(nbytes(a))
        name, kind = self.inputs.get(self.home.get(a, a), (a.name, "temporary"))
        if a in self.results:
            kind = "result"
        what = f"{name}: {a.dtype.name}[{', '.join(map(str, a.shape))}], {size}"
        where = {
            "argument": "an argument", "state": "state of the caller", "temporary": "in the arena",
            "result": "a fresh result",
        }[kind]  # fmt: skip
        if write and a in self.home:
            where = "written in place"
        tip = f"{what}\n{where}" + (f"\n{a.line}" if a.line else "")
        return _Chip(f"{shorten(name, 190, 9)} {size}", kind, tip)


def _wrapped(chips: Iterable[_Chip]) -> list[list[_Chip]]:
    """Chips in lines of at most SIDE pixels."""
    lines: list[list[_Chip]] = []
    room = 0.0
    for c in chips:
        if not lines or room < c.width:
            lines.append([])
            room = SIDE
        lines[-1].append(c)
        room -= c.width + 5
    return lines


def _chips(
    svg: Svg, lines: list[list[_Chip]], edge: float, y: float, height: float, right: bool
) -> None:
    """Draws lines of chips that end (right) or begin at x = edge, in the middle of a row."""
    y += (height - 6 - CHIP_ROW * len(lines)) / 2 + 2
    for line in lines:
        x = edge - sum(c.width + 5 for c in line) + 5 if right else edge
        for c in line:
            fill, outline = COLOURS[c.kind]
            with svg.group(c.tooltip):
                svg.rect(x, y, c.width, CHIP, fill, outline, radius=7)
                svg.text(x + c.width / 2, y + 11, c.label, 9, INK, "middle")
            x += c.width + 5
        y += CHIP_ROW


def _card(svg: Svg, k: Kernel, x: float, y: float, height: float) -> None:
    if isinstance(k, LoopKernel):
        kind = "loops"
        space = " x ".join(map(str, k.outer)) or "one point"
        inner = sum(1 for s in k.stages if s.inner)
        detail = f"for each of {space}" + (f"; {inner} inner loops" if inner else "")
    elif isinstance(k, ContractionKernel):
        kind = "contraction"
        shape = " x ".join(map(str, k.array.shape)) or "one point"
        detail = f"{shape}, summed over {' x '.join(map(str, k.contraction.k))}"
    elif isinstance(k, ChainKernel):
        kind = "contraction"
        detail = f"{len(k.kernels)} kernels for each of {' x '.join(map(str, k.tiles))}"
    else:
        kind = "other"
        detail = " x ".join(map(str, k.arrays[0].shape))
    fill, outline = COLOURS[kind]
    origin = ", ".join(dict.fromkeys(line.replace("\\", "/").rsplit("/")[-1] for line in k.lines))
    work = " ".join(_scalar_ops(k)) or "copy"
    with svg.group(kernel_text(k)):
        svg.rect(x, y, CARD, height, fill, outline, radius=5)
        middle = y + height / 2
        for text, below, size, colour in (
            (f"{k.name}: {detail}", -7, 10, INK), (work, 5, 9, FAINT), (origin, 16, 8, FAINT)
        ):  # fmt: skip
            svg.text(x + 10, middle + below, shorten(text, CARD - 20, size), size, colour)


def _scalar_ops(k: Kernel) -> list[str]:
    """The scalar operations of a kernel's body, each once; index arithmetic left out."""
    ops = {
        e.op: None
        for e in postorder(kernel_exprs(k))
        if e.op not in LEAVES and e.dtype is not INDEX
    }
    if isinstance(k, (ContractionKernel, ChainKernel)):
        return ["multiply-add", *ops]
    if isinstance(k, LoopKernel):
        combines = {r.combine: None for s in k.stages for r in s.reduces}
        combines |= {t.combine: None for s in k.stages for t in s.stores if t.combine}
        return [*(f"{c}-reduce" for c in combines), *ops]
    define = k.arrays[0].define
    return [type(define).__name__.lower(), *ops]


# -- the memory plan -------------------------------------------------------------------------------
def memory_svg(stages: Stages) -> str:
    """Every temporary as a rectangle: time (waves of kernels) rightwards, offset upwards.

    The solid line is the arena's size, the dashed one the lower bound: the largest sum of bytes
    that are live at once, which no placement can beat for this order. The strip below is the live
    bytes of each wave.
    """
    plan = stages.plan
    left, top, wide, high, strip = 86.0, 92.0, 1040.0, 460.0, 70.0
    svg = Svg(left + wide + 30, top + high + strip + 78, f"memory plan of {stages.graph.name}")
    if plan.blocks:
        title = (
            f"an arena of {readable_bytes(plan.peak)} holds {readable_bytes(plan.total)} of buffers"
        )
        subtitle = (
            f"{plan.peak / plan.lower_bound:.3f} x the lower bound "
            f"({readable_bytes(plan.lower_bound)}); {len(plan.offsets)} buffers in "
            f"{len(plan.blocks)} blocks over {plan.waves} waves"
        )
    else:
        title = "no temporary buffers"
        subtitle = "kernels read inputs and write results; nothing is kept in between"
    _heading(svg, f"{stages.graph.name}: {title}", subtitle, [])
    waves, peak = max(plan.waves, 1), max(plan.peak, 1)

    def x_of(wave: float) -> float:
        return left + wide * wave / waves

    def y_of(offset: float) -> float:
        return top + high * (1 - offset / peak)

    svg.rect(left, top, wide, high, "#fcfcfd", "#d0d7de")
    for quarter in range(5):
        y = y_of(peak * quarter / 4)
        svg.line(left - 4, y, left, y)
        svg.text(left - 8, y + 3, readable_bytes(peak * quarter / 4), 9, FAINT, "end")
    for i, b in enumerate(sorted(plan.blocks, key=lambda b: (b.start, b.offset))):
        x, y = x_of(b.start), y_of(b.offset + b.size)
        w, h = x_of(b.end + 1) - x, y_of(b.offset) - y
        names = ", ".join(a.name for a in b.arrays)
        origin = ", ".join(dict.fromkeys(a.line for a in b.arrays if a.line))
        tip = f"{names}: {readable_bytes(b.size)} at {b.offset}, waves {b.start}-{b.end}"
        with svg.group(f"{tip}\n{origin}" if origin else tip):
            svg.rect(x, y, w, max(h, 0.6), BLOCKS[i % len(BLOCKS)], "#57606a" if h > 4 else "none")
            if h >= 11:
                svg.text(x + 3, y + h / 2 + 3, shorten(names, w - 6, 8), 8, INK)
    svg.line(left, y_of(plan.peak), left + wide, y_of(plan.peak), INK, 1.5)
    bound = y_of(plan.lower_bound)
    svg.line(left, bound, left + wide, bound, "#cf222e", 1.5, "6 4")
    _commit_line(svg, stages, x_of(stages.schedule.commit), top, high + strip + 26)
    _live_strip(svg, stages, left, top + high + 26, wide, strip)
    svg.text(left + wide / 2, top + high + strip + 62, "waves of kernels, in order", 10, FAINT,
             "middle")  # fmt: skip
    return str(svg)


def _commit_line(svg: Svg, stages: Stages, x: float, top: float, height: float) -> None:
    if stages.schedule.commit < stages.plan.waves:
        svg.line(x, top - 4, x, top + height, "#cf222e", 1, "2 3")
        svg.text(x - 3, top - 7, "state is overwritten from here on", 9, "#cf222e", "end")


def _live_strip(
    svg: Svg, stages: Stages, left: float, top: float, wide: float, high: float
) -> None:
    plan = stages.plan
    waves, peak = max(plan.waves, 1), max(plan.peak, 1)
    svg.text(left - 8, top + 9, "live", 9, FAINT, "end")
    for n, wave in enumerate(stages.schedule.waves):
        live = sum(b.size for b in plan.blocks if b.start <= n <= b.end)
        h = high * live / peak
        kernels = ", ".join(k.name for k in wave)
        with svg.group(f"wave {n}: {readable_bytes(live)} live\n{kernels}"):
            x = left + wide * n / waves
            svg.rect(x, top + high - h, max(wide / waves - 0.5, 0.5), max(h, 0.5), "#8c959f")
    svg.line(left, top + high, left + wide, top + high)
    step = max(1, waves // 12)
    for n in range(0, waves, step):
        svg.text(left + wide * (n + 0.5) / waves, top + high + 12, str(n), 9, FAINT, "middle")


def _heading(svg: Svg, title: str, subtitle: str, kinds: list[str]) -> None:
    svg.text(20, 26, title, 15, INK, weight="bold")
    svg.text(20, 44, subtitle, 11, FAINT)
    x = 20.0
    for kind in kinds:
        fill, outline = COLOURS[kind]
        svg.rect(x, 53, 11, 11, fill, outline, radius=2)
        svg.text(x + 16, 62, kind, 9, FAINT)
        x += 16 + text_width(kind, 9) + 14
