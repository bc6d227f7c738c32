"""The TCP connections of the page: a request has to arrive in time, and there are only so many connections.

uvicorn waits for ever for the rest of a request's head, and for any number of connections. A subclass of its
own protocol, whichever is installed, sets a clock and a size for the head; bodies are the middleware's.
Runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..descriptors import most_connections

MAX_CONNECTIONS: Final = 512
"""A browser opens six and a WebSocket. For one more, that is closed which has waited longest for the
head of a request; where none waits, itself."""
_PART: Final = 0.5
"""Of the files that may be open."""
HEAD_S: Final = 10.0
"""From the first byte of a request, or the connection, to the end of its head."""
MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request's line and headers."""

_Protocol: Any = AutoHTTPProtocol


class PageConnection(_Protocol):  # type: ignore[misc]
    """One connection; see the module's docstring."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clock: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self.since = 0.0
        """When it was made, by the loop's clock."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take a connection, or close it where there are too many."""
        self.since = self.loop.time()
        most = most_connections(MAX_CONNECTIONS, part=_PART)
        if len(self.connections) >= most and not self._make_room():
            transport.abort()
            return
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hand bytes on, unless the head of a request has become too long."""
        before = self.cycle
        if self._is_waiting():
            self._head_bytes += len(data)
            self._wait_for_head()
        super().data_received(data)
        if self.cycle is not before:
            self._head_bytes = 0
            self._stop_clock()
        elif self._is_waiting() and self._head_bytes > MAX_HEAD_BYTES:
            self._give_up()

    def on_response_complete(self) -> None:
        """The next request may follow on this connection; uvicorn waits 5 s for its first byte."""
        super().on_response_complete()
        self._head_bytes = 0

    def handle_websocket_upgrade(self, *args: Any) -> None:
        """The connection belongs to another protocol from here on."""
        self._stop_clock()
        super().handle_websocket_upgrade(*args)

    def _make_room(self) -> bool:
        others = (one for one in self.connections if isinstance(one, PageConnection) and one._is_waiting())
        oldest = min(others, key=lambda one: one.since, default=None)
        if oldest is None:
            return False
        # The event that it is lost comes later; until then it would be counted, and chosen again.
        self.connections.discard(oldest)
        oldest._give_up()
        return True

    def _is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _wait_for_head(self) -> None:
        if self._clock is None:
            self._clock = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _give_up(self) -> None:
        self._stop_clock()
        if not self.transport.is_closing():
            self.transport.abort()
