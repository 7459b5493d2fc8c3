"""A connection of the server, which closes where the headers of a request are long in coming.

Owns that time limit; uvicorn has one only between an answer and the next request's first byte. The
limit on bodies is app.py's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


def connections(seconds: float) -> type[asyncio.Protocol]:
    """The class of connections on which the headers of a request may take so long to arrive. Where
    they have begun, 408 says so before the connection closes."""
    body = b'{"error":"the headers took more than %g s to arrive"}' % seconds
    late = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
    late += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    base: Any = AutoHTTPProtocol

    class Connection(base):
        timer: asyncio.TimerHandle | None = None
        begun = False  # whether a part of the headers is here

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            waits = self.cycle is None or self.cycle.response_complete
            self.begun = waits
            if not waits:
                self._unwatch()
            elif self.timer is None:
                self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

        def _watch(self) -> None:
            self.timer = self.loop.call_later(seconds, self._close)

        def _unwatch(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _close(self) -> None:
            if not self.transport.is_closing():
                if self.begun:
                    self.transport.write(late)
                self.transport.close()

    return Connection
