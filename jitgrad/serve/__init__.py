"""Serving a model over HTTP: the Open Inference Protocol, version 2 (extra `serve`).

Owns `serve`, which runs until it is told to stop. `jitgrad serve m.jgx` is its command line.
Starlette is the framework, uvicorn the server, prometheus_client writes the metrics.

    POST /v2/models/NAME/infer        an inference; JSON, or binary tensors
    GET  /v2/models/NAME              names, datatypes and shapes of inputs and outputs
    GET  /v2/health/live, /v2/health/ready, /v2/models/NAME/ready, /v2, /metrics
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitgrad.serve.batching import Limits
from jitgrad.serve.workers import Worker

__all__ = ["serve"]


def serve(
    path: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str | None = None,
    workers: int = 1,
    threads: int | None = None,
    max_batch: int = 1,
    max_delay_ms: float = 2.0,
    max_queue: int = 1024,
    max_body: int = 64 << 20,
    body_timeout_s: float = 30.0,
    call_timeout_s: float | None = None,
    grace_s: float = 30.0,
    log_level: str = "info",
) -> None:
    """Serves a `.jgx` file or a native library until SIGTERM or Ctrl-C.

    Then it takes no new connections, answers what it accepted, and ends, within `grace_s` seconds.

    Args:
        path: of the model. name: what it is called in paths; default: the file's stem.
        workers: processes that run the model. threads: of each; default: all processors, shared.
        max_batch: rows of requests that are joined to one call; 1 joins none. Only models whose
            first axis is free (`dynamic_shapes=`) join, and their rows must not depend on each
            other.
        max_delay_ms: how long a request waits for others to join it.
        max_queue: requests that may wait; one more gets 503.
        max_body: bytes of a request (413). body_timeout_s: for its headers to arrive, and
            then for the body (408).
        call_timeout_s: a call that takes longer ends its worker.

    Raises ValueError for numbers out of range, ArtifactError (as ModelError) for a file that cannot
    be served, ImportError without the extra.
    """
    import uvicorn

    from jitgrad.serve.app import Settings, make_app
    from jitgrad.serve.connection import connections

    for label, value, low in [
        ("workers", workers, 1), ("max_batch", max_batch, 1), ("max_queue", max_queue, 1),
        ("max_body", max_body, 1), ("max_delay_ms", max_delay_ms, 0), ("grace_s", grace_s, 0),
        ("body_timeout_s", body_timeout_s, 0), ("threads", 1 if threads is None else threads, 1),
    ]:  # fmt: skip
        if value < low:
            raise ValueError(f"[serve] expected {label} of at least {low}; got {value}")
    if not 0 <= port < 2**16:
        raise ValueError(f"[serve] expected a port from 0 to 65535; got {port}")
    label = name or re.sub(r"[^\w.-]", "_", Path(path).stem.removeprefix("lib"))
    if not re.fullmatch(r"[\w.-]+", label):
        raise ValueError(f"[serve] expected a name of letters, digits, _, . and -; got {name!r}")
    if threads is None:
        threads = max(1, (os.cpu_count() or 1) // workers)
    made: list[Worker] = []
    try:
        for _ in range(workers):
            made.append(Worker(path, threads, call_timeout_s))
        limits = Limits(max_batch, max_delay_ms / 1e3, max_queue)
        app = make_app(made, Settings(label, limits, max_body, body_timeout_s))
        with _ended_by_signals():
            uvicorn.run(
                app, host=host, port=port, log_level=log_level,
                timeout_graceful_shutdown=int(grace_s), http=connections(body_timeout_s), ws="none",
            )  # fmt: skip
    finally:
        for worker in made:
            worker.close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more, when all is done: that is no failure."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
