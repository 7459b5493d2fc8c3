"""Layered layout of a directed acyclic graph: a layer and a place for every box, edges downwards.

After Sugiyama, Tagawa and Toda 1981: layers by longest path, then orders within layers by sweeps
of barycentres, then coordinates pulled to the mean of the neighbours without overlap. Long edges
get no dummy nodes: they pass behind boxes. Deterministic; nothing here draws.
"""

from __future__ import annotations

from collections.abc import Sequence

SWEEPS = 6


def layered(
    widths: Sequence[float], edges: Sequence[tuple[int, int]], gap: float
) -> tuple[list[int], list[float]]:
    """Where boxes go.

    widths: of each box. edges: (from, to), to after from. gap: least distance between
    neighbours. Returns each box's layer (from 0) and the x of its centre (from 0 rightwards).
    """
    n = len(widths)
    above: list[list[int]] = [[] for _ in range(n)]
    below: list[list[int]] = [[] for _ in range(n)]
    for a, b in dict.fromkeys(edges):
        below[a].append(b)
        above[b].append(a)
    layer = _layers(above, below)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for i in range(n):
        rows[layer[i]].append(i)
    place = {i: float(k) for row in rows for k, i in enumerate(row)}
    for sweep in range(SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(key=lambda i: (_mean([place[j] for j in neighbours[i]], place[i]), i))
            for k, i in enumerate(row):
                place[i] = k - len(row) / 2
    x = _coordinates(rows, widths, above, below, gap)
    return layer, x


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _layers(above: list[list[int]], below: list[list[int]]) -> list[int]:
    """Longest path from the sources; then what is only wanted later moves down to just above its
    first reader. Boxes without readers stay right below what they hang on."""
    n = len(above)
    waiting = [len(a) for a in above]
    layer = [0] * n
    ready = [i for i in range(n) if not waiting[i]]
    for i in ready:
        for j in below[i]:
            layer[j] = max(layer[j], layer[i] + 1)
            waiting[j] -= 1
            if not waiting[j]:
                ready.append(j)
    for i in reversed(ready):
        readers = [layer[j] for j in below[i] if below[j]] or [layer[j] for j in below[i]]
        if readers:
            layer[i] = max(layer[i], min(readers) - 1)
    for i in ready:
        if above[i] and not below[i]:
            layer[i] = max(layer[j] for j in above[i]) + 1
    used = {row: k for k, row in enumerate(sorted(set(layer)))}
    return [used[row] for row in layer]


def _coordinates(
    rows: list[list[int]],
    widths: Sequence[float],
    above: list[list[int]],
    below: list[list[int]],
    gap: float,
) -> list[float]:
    x = [0.0] * len(widths)
    for row in rows:
        total = sum(widths[i] + gap for i in row) - gap
        at = -total / 2
        for i in row:
            x[i] = at + widths[i] / 2
            at += widths[i] + gap
    for sweep in range(2 * SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_mean([x[j] for j in (*above[i], *below[i])], x[i]) for i in row]
            _spread(row, wanted, widths, gap, x)
    left = min((x[i] - widths[i] / 2 for i in range(len(x))), default=0.0)
    return [v - left for v in x]


def _spread(
    row: list[int], wanted: list[float], widths: Sequence[float], gap: float, x: list[float]
) -> None:
    """Places a row near the wanted centres, in order, without overlap (merging blocks that
    collide, each block at the mean of what its boxes want)."""
    blocks: list[tuple[float, float, list[int]]] = []  # (sum of wanted starts, width, boxes)
    starts: list[float] = []
    for i, w in zip(row, wanted):
        total, width, boxes = w - widths[i] / 2, widths[i] + gap, [i]
        while blocks and starts[-1] + blocks[-1][1] > total / len(boxes):
            before_total, before_width, before = blocks.pop()
            starts.pop()
            total = before_total + total - before_width * len(boxes)
            width, boxes = before_width + width, before + boxes
        blocks.append((total, width, boxes))
        starts.append(total / len(boxes))
    for start, (_, _, boxes) in zip(starts, blocks):
        at = start
        for i in boxes:
            x[i] = at + widths[i] / 2
            at += widths[i] + gap
