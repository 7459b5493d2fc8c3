"""Draws a compilation: the pictures of picture.py as files in a folder.

Imports the pipeline, so it is imported at first use.
"""

from __future__ import annotations

import os
from pathlib import Path

from jitgrad.compiler.ir import Graph
from jitgrad.compiler.options import Options
from jitgrad.compiler.picture import graph_svg, kernels_svg, memory_svg
from jitgrad.compiler.pipeline import stages_of
from jitgrad.compiler.stages import Stages


def draw(
    graph: Graph, options: Options, folder: str | os.PathLike[str], stages: Stages | None = None
) -> list[Path]:
    """Writes graph.svg, kernels.svg and memory.svg, and returns their paths.

    The folder is made when it is not there. stages: of this graph, where they are known; else the
    graph is compiled as far as the pictures need it (no machine code).
    """
    if stages is None:
        _, stages = stages_of(graph, options)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        "graph.svg": graph_svg(stages.graph),
        "kernels.svg": kernels_svg(stages),
        "memory.svg": memory_svg(stages),
    }
    for name, text in pictures.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in pictures]
