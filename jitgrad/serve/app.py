"""The HTTP application: the protocol's paths, limits, health, metrics.

Owns what a body may be (size, time) and which status a request gets; parsing is protocol.py's,
waiting batching.py's. 2xx: answered. 4xx: the client's mistake, with a reason ({"error": ...}).
503: not accepted, come again (`Retry-After`). 500: the model failed, or ended two workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from jitgrad import version
from jitgrad.serve.batching import Batcher, Limits, Overloaded
from jitgrad.serve.protocol import (
    EXTENSIONS,
    HEADER,
    BadRequest,
    parse_request,
    write_answer,
)
from jitgrad.serve.workers import ModelError, Worker, WorkerDied


@dataclass
class Settings:
    """name: the model's, in paths. max_body: bytes. body_s: how long a body may take to arrive."""

    name: str
    limits: Limits
    max_body: int = 64 << 20
    body_s: float = 30.0


class _Metrics:
    def __init__(self, workers: list[Worker]) -> None:
        self.registry = r = CollectorRegistry()
        self.requests = Counter(
            "jitgrad_requests", "Inference requests, by status", ["status"], registry=r
        )
        self.seconds = Histogram(
            "jitgrad_request_seconds", "From the request's arrival to its answer", registry=r
        )
        self.rows = Histogram(
            "jitgrad_batch_rows", "Rows of each call", registry=r,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        )  # fmt: skip
        self.calls = Histogram("jitgrad_call_seconds", "Each call of the model", registry=r)
        self.queue = Gauge("jitgrad_queue_requests", "Requests that wait", registry=r)
        starts = Gauge("jitgrad_worker_starts", "Worker processes started", registry=r)
        starts.set_function(lambda: sum(w.starts for w in workers))

    def observe(self, rows: int, seconds: float) -> None:
        self.rows.observe(rows)
        self.calls.observe(seconds)


def make_app(workers: list[Worker], settings: Settings) -> Starlette:
    """The ASGI application for a model that these workers hold."""
    return _Server(workers, settings).app


class _Server:
    def __init__(self, workers: list[Worker], settings: Settings) -> None:
        self.workers, self.settings = workers, settings
        self.metrics = _Metrics(workers)
        self.batcher: Batcher | None = None
        model = f"/v2/models/{settings.name}"
        routes = [
            Route("/v2", self.about_server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route("/metrics", self.scrape),
        ]
        for path in (model, f"{model}/versions/1"):
            routes += [
                Route(path, self.about_model),
                Route(f"{path}/ready", self.ready),
                Route(f"{path}/infer", self.infer, methods=["POST"]),
            ]
        self.app = Starlette(
            routes=routes, lifespan=self.lifespan,
            exception_handlers={404: self.unknown, 405: self.unknown, Exception: self.failed},
        )  # fmt: skip

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.batcher = Batcher(self.workers, self.settings.limits, self.metrics.observe)
        self.batcher.start()
        try:
            yield
        finally:
            batcher, self.batcher = self.batcher, None  # not ready from here on
            await batcher.stop()

    # -- what and how -------------------------------------------------------------------------
    async def about_server(self, request: Request) -> Response:
        return JSONResponse(
            {"name": "jitgrad", "version": str(version.jitgrad), "extensions": EXTENSIONS}
        )

    async def about_model(self, request: Request) -> Response:
        worker = self.workers[0]
        return JSONResponse({
            "name": self.settings.name, "versions": ["1"], "platform": "jitgrad",
            "inputs": [p.describe() for p in worker.inputs],
            "outputs": [p.describe() for p in worker.outputs],
        })  # fmt: skip

    async def live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        ready = self.batcher is not None
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def scrape(self, request: Request) -> Response:
        if self.batcher is not None:
            self.metrics.queue.set(len(self.batcher.queue))
        return PlainTextResponse(
            generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST
        )

    async def unknown(self, request: Request, error: Any) -> Response:
        served = f"/v2/models/{self.settings.name}/infer"
        return JSONResponse(
            {"error": f"{error.detail}: {request.method} {request.url.path[:200]}; the model is "
                      f"at POST {served}"},
            error.status_code,
        )  # fmt: skip

    async def failed(self, request: Request, error: Exception) -> Response:
        """What nothing here foresaw; the server's log has its traceback."""
        return JSONResponse({"error": f"the server failed: {type(error).__name__}"}, 500)

    # -- inference ----------------------------------------------------------------------------
    async def infer(self, request: Request) -> Response:
        began = time.monotonic()
        status = 500
        try:
            response = await self._infer(request)
            status = response.status_code
            return response
        finally:
            self.metrics.requests.labels(str(status)).inc()
            self.metrics.seconds.observe(time.monotonic() - began)

    async def _infer(self, request: Request) -> Response:
        worker = self.workers[0]
        try:
            body = await self._body(request)
            parsed = parse_request(body, request.headers.get(HEADER), worker.inputs, worker.outputs)
            if self.batcher is None:
                raise Overloaded("stopping")
            results = await self.batcher.submit(parsed.inputs)
        except BadRequest as error:
            return JSONResponse({"error": str(error)}, error.status)
        except Overloaded as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
        except ModelError as error:
            return JSONResponse({"error": str(error)}, 400 if error.client else 500)
        except WorkerDied as error:
            return JSONResponse({"error": f"{error}, twice with this request"}, 500)
        named = {p.name: y for p, y in zip(worker.outputs, results, strict=True)}
        answer, length = write_answer(self.settings.name, parsed, named, worker.outputs)
        if length is None:
            return Response(answer, media_type="application/json")
        headers = {HEADER: str(length)}
        return Response(answer, media_type="application/octet-stream", headers=headers)

    async def _body(self, request: Request) -> bytes:
        most = self.settings.max_body
        too_large = BadRequest(f"expected a body of at most {most} bytes", 413)
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise BadRequest(f"expected a body as it is; got Content-Encoding: {coding[:50]}", 415)
        stated = request.headers.get("content-length", "0")
        if stated.isdigit() and int(stated) > most:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.settings.body_s):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise too_large
                    parts.append(part)
        except TimeoutError:
            text = f"the body took more than {self.settings.body_s:g} s to arrive"
            raise BadRequest(text, 408) from None
        except ClientDisconnect:
            raise BadRequest("the connection was closed before the body was whole") from None
        return b"".join(parts)
