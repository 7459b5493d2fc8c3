"""torch.cuda.CUDAGraph and graph: work on a device is captured once and replayed.

Memory of what is captured belongs to the graph (runtime/cuda/capture.py): tensors made inside stay
where they are, and each replay writes them anew. What the host decides is decided once: numbers,
sizes, branches. Random draws, reads of values and copies of memory that is not pinned are refused.
"""

from __future__ import annotations

import gc
from typing import Any

from jitgrad.cuda.streams import Stream, current_stream
from jitgrad.runtime import cuda


class CUDAGraph:
    """A graph of captured work. Raises RuntimeError where there is no device.

    keep_graph: accepted; the driver's graph is ready when the capture ends.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        cuda.device.require("cuda.CUDAGraph")
        self._capture: Any = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Work on the current stream, which is not the default one, is captured from here on.

        pool: of `graph_pool_handle`, or another graph's `pool()`: graphs of one pool share memory,
        so they are replayed in the order in which they were captured, and one at a time.
        """
        if self._capture is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        stream = current_stream()
        device = cuda.device.device(stream.device_index)
        number = None if pool is None else pool[1]
        self._capture = cuda.capture.Capture(device, stream.cuda_stream, number)

    def capture_end(self) -> None:
        """The capture ends; the graph can be replayed."""
        if self._capture is None or self._capture.handle is not None:
            raise RuntimeError("[cuda.CUDAGraph] expected capture_begin before capture_end")
        self._capture.end()

    def replay(self) -> None:
        """Does the captured work again, on the current stream. Raises what a kernel's check of an
        index found, after the work."""
        if self._capture is None or self._capture.handle is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        index = self._capture.device.index
        self._capture.replay(cuda.device.current_stream(index))

    def reset(self) -> None:
        """Gives the graph and its memory back, once nobody uses it; tensors keep theirs."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None

    def pool(self) -> tuple[int, int]:
        """The handle of the graph's memory."""
        if self._capture is None:
            raise RuntimeError("[cuda.CUDAGraph] expected capture_begin before pool")
        return 0, self._capture.pool


class graph:
    """Captures the work of a block: `with cuda.graph(g): y = f(x)`.

    stream: on which it is captured; if None, one that the device has for it.
    """

    def __init__(
        self, cuda_graph: CUDAGraph, pool: Any = None, stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:  # fmt: skip
        self.cuda_graph, self.pool = cuda_graph, pool
        if stream is None:
            device = cuda.device.device(None, "cuda.graph")
            stream = Stream(device.index, handle=device.capturing)
        self.capture_stream = stream
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        cuda.capture.refuse_second(self.capture_stream.device_index)
        gc.collect()  # what dies must not die within the capture
        cuda.device.device(self.capture_stream.device_index).synchronize()
        self.capture_stream.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self.capture_stream.__exit__()
            raise

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self.cuda_graph.capture_end()
        except cuda.driver.CudaError:
            if kind is None:  # else the block's own error says more
                raise
        finally:
            self.capture_stream.__exit__()


def graph_pool_handle() -> tuple[int, int]:
    """A handle of memory that graphs are to share."""
    return 0, cuda.capture.new_pool()


def is_current_stream_capturing() -> bool:
    """Whether work of this thread on the current device is captured."""
    return cuda.device.initialized() and (
        cuda.capture.current(cuda.device.current()) is not None
    )  # fmt: skip
