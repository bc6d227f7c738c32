"""Pages without a browser: WebSocket clients that acknowledge each message, on an event loop of their own."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

WIDTHS = (600, 900, 1400)


class PageClients(threading.Thread):
    """So many pages; one whose server goes comes again.

    Args:
        page: returns address and token of the server as it is now.
        pages: how many.
        on_header: called with each message's header, on the clients' thread.
        wish: more of what they subscribe to.
    """

    def __init__(
        self,
        page: Callable[[], tuple[str, str]],
        pages: int,
        on_header: Callable[[Any], None] | None = None,
        **wish: object,
    ) -> None:
        super().__init__(daemon=True)
        self._wish = wish
        self._page, self._pages, self._on_header = page, pages, on_header
        self.messages = self.bytes = self.reconnects = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        asyncio.run(self._hold())

    async def _hold(self) -> None:
        tasks = [asyncio.create_task(self._look(number)) for number in range(self._pages)]
        while not self.stopping.is_set():
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, number: int) -> None:
        while True:
            try:
                await self._converse(WIDTHS[number % len(WIDTHS)])
            except (OSError, WebSocketException):
                self.reconnects += 1
                await asyncio.sleep(0.5)

    async def _converse(self, width: int) -> None:
        page, token = self._page()
        headers = {"x-nanscope-token": token}
        async with connect(
            page.replace("http:", "ws:") + "live",
            additional_headers=headers,
            origin=page.rstrip("/"),  # type: ignore[arg-type]
            max_size=None,
        ) as connection:
            wish = {"m": "subscribe", "id": 1, "points": width, "columns": width, **self._wish}
            await connection.send(msgspec.json.encode(wish).decode())
            async for message in connection:
                self.messages += 1
                self.bytes += len(message)
                if self._on_header is not None and isinstance(message, bytes):
                    (length,) = struct.unpack_from("<I", message)
                    self._on_header(msgspec.json.decode(message[4 : 4 + length]))
                await connection.send('{"m":"ack"}')

    def stop(self) -> None:
        """End all."""
        self.stopping.set()
        self.join(20)
