"""Pictures: well-formed, showing all that there is, and nothing on top of something else."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from random_graphs import random_graph

import jitgrad
from jitgrad import jit
from jitgrad.compiler.ir import Graph, Rebind, Write
from jitgrad.compiler.kernels import kernel_reads, kernel_writes
from jitgrad.compiler.layout import layered
from jitgrad.compiler.lower import lower
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.passes.fuse import fuse
from jitgrad.compiler.passes.inline import inline
from jitgrad.compiler.passes.memory import plan_memory
from jitgrad.compiler.passes.merge import merge
from jitgrad.compiler.passes.order import order
from jitgrad.compiler.passes.simplify import simplify
from jitgrad.compiler.passes.stages import stage
from jitgrad.compiler.picture import graph_svg, kernels_svg, memory_svg, readable_bytes
from jitgrad.compiler.stages import Stages
from jitgrad.compiler.svg import Svg, shorten, text_width
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.knobs import knob

F = dtypes.float32
SVG = "{http://www.w3.org/2000/svg}"


def to_stages(graph: Graph) -> Stages:
    graph = simplify(graph)
    program = lower(graph)
    bodies = inline(program)
    schedule = order(stage(merge(fuse(bodies), bodies), bodies, program.results), program)
    plan = plan_memory(schedule, {*program.inputs, *program.results}, {})
    kernels = [k for wave in schedule.waves for k in wave]
    return Stages(graph, program, kernels, schedule, {}, plan)


def mlp_step() -> Graph:
    """Two products with state written in place and a slot, so that every kind of thing is there."""
    g = Graph(name="<step & more>")
    x = g.add_input(TensorType((64, 32), F), "arg", "x")
    w = g.add_input(TensorType((32, 48), F), "state", 'model["a"].weight')
    v = g.add_input(TensorType((48, 16), F), "state", "model.v")
    rate = g.add_input(TensorType((), F), "scalar", "lr")
    h = g.add(OPS["tanh"], g.add(OPS["matmul"], x, w, line="mlp.py:3"), line="mlp.py:3")
    y = g.add(OPS["matmul"], h, v, line="mlp.py:4")
    y = g.add(OPS["softmax"], y, axis=1, line="mlp.py:5")
    scaled = g.add(OPS["mul"], w, g.add(OPS["sigmoid"], rate), line="mlp.py:6")
    g.outputs = [y]
    g.writes = [Write(1, scaled)]
    g.rebinds = [Rebind("model.v", "grad", g.add(OPS["neg"], v))]
    return g


def parse(text: str) -> ET.Element:
    root = ET.fromstring(text)
    assert root.tag == SVG + "svg"
    return root


def tooltips(root: ET.Element) -> list[str]:
    return [t.text or "" for g in root.iter(SVG + "g") for t in g.findall(SVG + "title")]


def boxes(root: ET.Element) -> Iterator[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of the first rectangle of each group."""
    for g in root.iter(SVG + "g"):
        r = g.find(SVG + "rect")
        if r is not None:
            x, y, w, h = (float(r.attrib[k]) for k in ("x", "y", "width", "height"))
            yield x, y, x + w, y + h


def overlaps(rects: list[tuple[float, float, float, float]], slack: float = 0.25) -> int:
    return sum(
        a[0] + slack < b[2] and b[0] + slack < a[2] and a[1] + slack < b[3] and b[1] + slack < a[3]
        for i, a in enumerate(rects)
        for b in rects[:i]
    )


GRAPHS = [mlp_step(), *(random_graph(seed)[0] for seed in range(0, 60, 6))]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_graph_shows_every_node_apart(graph: Graph) -> None:
    root = parse(graph_svg(graph))
    tips = tooltips(root)
    nodes = [n for n in graph.nodes if n.inputs or n.outputs[0].type.shape]
    for node in nodes:
        assert any(t.startswith(f"{node.op.name}(") for t in tips)
    named = [v for r in graph.rebinds if (v := r.value) is not None]
    ends = len(graph.outputs) + len(graph.writes) + len(named)
    used = sum(i.value in graph.users() or i.value in graph.results() for i in graph.inputs)
    assert len(tips) == len(nodes) + ends + used
    found = list(boxes(root))
    assert overlaps(found) == 0
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(x >= 0 and right <= width and bottom <= height for x, _, right, bottom in found)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_kernels_show_reads_and_writes(graph: Graph) -> None:
    stages = to_stages(graph)
    root = parse(kernels_svg(stages))
    chips = sum(len(kernel_reads(k)) + len(kernel_writes(k)) for k in stages.kernels)
    tips = tooltips(root)
    assert len(tips) == chips + len(stages.kernels)
    for k in stages.kernels:
        assert any(k.name in t for t in tips)
    found = list(boxes(root))
    assert overlaps(found) == 0
    assert all(right <= float(root.attrib["width"]) for _, _, right, _ in found)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_memory_rectangles_are_the_plan(graph: Graph) -> None:
    stages = to_stages(graph)
    root = parse(memory_svg(stages))
    tips = tooltips(root)
    assert len(tips) == len(stages.plan.blocks) + stages.plan.waves
    for b in stages.plan.blocks:
        assert any(f"at {b.offset}, waves {b.start}-{b.end}" in t for t in tips)
    # Blocks that are live together never overlap: the picture would show it.
    assert overlaps(list(boxes(root))[: len(stages.plan.blocks)]) == 0


def test_names_and_sizes() -> None:
    stages = to_stages(mlp_step())
    text = kernels_svg(stages)
    assert "&lt;step &amp; more&gt;" in text
    assert "model.v: float32[48, 16], 3.0 KB" in text
    assert "written in place" in text
    assert "mlp.py:3" in text
    assert 'model["a"].weight' in text
    memory = memory_svg(stages)
    assert readable_bytes(stages.plan.peak) in memory


def test_numbers_stand_in_their_readers() -> None:
    g = Graph(name="scaled")
    half = g.add(OPS["full"], shape=(), value=0.5, dtype=F, device="cpu")
    g.outputs = [g.add(OPS["mul"], g.add_input(TensorType((4,), F), "arg", "x"), half)]
    root = parse(graph_svg(g))
    assert len(tooltips(root)) == 3
    assert "mul 0.5" in [t.text for t in root.iter(SVG + "text")]
    g.outputs.append(half)  # a result has a box of its own to hang on
    assert len(tooltips(parse(graph_svg(g)))) == 5


def test_no_temporaries() -> None:
    g = Graph(name="one")
    g.outputs = [g.add(OPS["neg"], g.add_input(TensorType((4,), F), "arg", "x"))]
    text = memory_svg(to_stages(g))
    parse(text)
    assert "no temporary buffers" in text


def test_empty_graph() -> None:
    g = Graph(name="empty")
    for text in (graph_svg(g), kernels_svg(to_stages(g)), memory_svg(to_stages(g))):
        parse(text)


def test_pure() -> None:
    for picture in (kernels_svg, memory_svg):
        assert picture(to_stages(mlp_step())) == picture(to_stages(mlp_step()))
    assert graph_svg(mlp_step()) == graph_svg(mlp_step())


def test_layout_goes_down() -> None:
    edges = [(0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (0, 5), (6, 5)]
    layer, x = layered([30.0] * 7, edges, gap=10)
    assert all(layer[a] < layer[b] for a, b in edges)
    assert layer[6] == layer[5] - 1  # a source stands just above its first reader
    for row in set(layer):
        centres = sorted(x[i] for i in range(7) if layer[i] == row)
        assert all(b - a >= 40 - 1e-6 for a, b in zip(centres, centres[1:], strict=False))


def test_layout_of_a_long_chain() -> None:
    n = 3000
    layer, _ = layered([10.0] * n, [(i, i + 1) for i in range(n - 1)], gap=5)
    assert layer == list(range(n))


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KB"), (150 * 1024, "150 KB"),
     (3 << 20, "3.0 MB"), (5 << 30, "5.0 GB")],
)  # fmt: skip
def test_readable_bytes(n: int, text: str) -> None:
    assert readable_bytes(n) == text


def test_shorten() -> None:
    assert shorten("abcdef", text_width("abcdef", 10), 10) == "abcdef"
    assert shorten("abcdefgh", text_width("abcde", 10) + 0.1, 10) == "abcd…"
    assert shorten("abcdef", 8, 10) == ""


def test_svg_escapes() -> None:
    svg = Svg(10, 10, "a<b")
    with svg.group('x & "y"\nz'):
        svg.text(1, 1, "<&>")
    root = parse(str(svg))
    assert tooltips(root) == ['x & "y"\nz']
    assert root.find(f".//{SVG}text").text == "<&>"  # type: ignore[union-attr]


def test_draw_with_and_without_the_cache(tmp_path: Path) -> None:
    @jit(fallback="error")
    def f(x: jitgrad.Tensor) -> jitgrad.Tensor:
        return (x.exp() @ x).tanh()

    x = jitgrad.ones(8, 8)
    with pytest.raises(RuntimeError, match=r"\[draw\] expected a function that was compiled"):
        f.explain().draw(tmp_path)
    with knob(cache_dir=str(tmp_path / "cache")):
        texts = []
        for k in range(2):  # the second time from the cache, which keeps no stages
            f.clear()
            f(x), f(x)
            assert f.specialisations[0].compiled.report.cached == (k == 1)
            paths = f.explain().draw(tmp_path / "a" / "b")
            assert [p.name for p in paths] == ["graph.svg", "kernels.svg", "memory.svg"]
            texts.append([p.read_text(encoding="utf-8") for p in paths])
    assert texts[0] == texts[1]
    for text in texts[0]:
        parse(text)
