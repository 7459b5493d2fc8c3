"""Report: what the compiler did with a graph, for people and for tests that count."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Report:
    """What the compiler did, for people and for tests that count.

    nodes: recorded / left after simplification. kernels: after fusion. launches: rows; waves:
    barriers. bytes_before: read and written if every node ran by itself; bytes_after: by the
    kernels. peak, lower_bound, total: of the memory plan, bytes. kept: bytes that stay between
    calls, made of constants. milliseconds: by step.
    cached: whether the graph was compiled before (by this process or, on disk, by another).
    """

    nodes: int = 0
    nodes_simplified: int = 0
    kernels: int = 0
    launches: int = 0
    waves: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    peak: int = 0
    lower_bound: int = 0
    total: int = 0
    kept: int = 0
    milliseconds: dict[str, float] = field(default_factory=dict)
    cached: bool = False

    @property
    def compile_ms(self) -> float:
        return sum(self.milliseconds.values())
