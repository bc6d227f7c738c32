"""Live hub: tells every open page what is new, over one binary WebSocket each.

Only the newest picture is ever sent, the client acknowledges before the next one, and a hidden tab gets
nothing. `Hub.notify` comes from the collector's thread; everything else runs on the server's event loop,
except reading the store, which happens on the hub's own reader threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..errors import DashboardError
from ..store.protocol import Store
from .message import ClientView
from .pictures import Pictures
from .view import Subscription

_log = logging.getLogger(__name__)

DATA_INTERVAL_S: Final = 1.0
"""Lines and heatmap at most this often; the newest points of the tracks come with the status."""
PACE: Final = 9.0
LONGEST_INTERVAL_S: Final = 4.0
"""All ranks of a run may take long to read: they are read again after `PACE` times as long, or after this."""
STATUS_INTERVAL_S: Final = 0.2
"""State, tiles and events at most this often."""
HIDDEN_INTERVAL_S: Final = 2.0
"""The same to a hidden tab that notifies of events."""
HEARTBEAT_S: Final = 2.0
"""With nothing new, the page still hears from us this often, so that it can tell silence from a lost link."""
MAX_CLIENT_MESSAGE: Final = 64 * 1024
READER_THREADS: Final = 2
MAX_CLIENTS: Final = 256
"""Pages at a time; one more is told to come back later."""
MESSAGES_S: Final = 200
"""Messages of one page in a second, on average; it waits before more are read. A drag sends 60."""
BURST_MESSAGES: Final = 400


class Acknowledge(msgspec.Struct, frozen=True, kw_only=True, tag="ack", tag_field="m"):
    """The client has drawn the last message."""


class Visible(msgspec.Struct, frozen=True, kw_only=True, tag="visible", tag_field="m"):
    """The tab was shown or hidden."""

    visible: bool
    events: bool = False
    """Hidden, it has to hear of events all the same."""


_decoder = msgspec.json.Decoder(Subscription | Acknowledge | Visible)


class Hub:
    """All connected pages. `notify` is thread-safe, `serve` runs once per connection on the event loop."""

    def __init__(
        self,
        store: Store,
        *,
        notices: Callable[[], list[str]] = list,
        storage: Callable[[], str] = str,
        on_look: Callable[[str, int], None] = lambda run, rank: None,
    ) -> None:
        """Make a hub without clients.

        Args:
            store: What pages look at.
            notices: What they must be told besides, asked for with every new status on a reader thread.
            storage: How much room all runs take, one line; asked for likewise.
            on_look: Called with the run and the rank of each new picture, on a reader thread.
        """
        self._pictures = Pictures(store, notices=notices, storage=storage, on_look=on_look)
        self._clients: set[_Client] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="nanscope-live")

    @property
    def client_count(self) -> int:
        """Pages connected now."""
        return len(self._clients)

    def notify(self) -> None:
        """Say that the store has something new; any thread, never blocks."""
        loop = self._loop
        if loop is not None:
            # The loop may close between the check and the call: then nobody is left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake_all)

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one page until it goes away."""
        self._loop = asyncio.get_running_loop()
        await websocket.accept()
        if len(self._clients) >= MAX_CLIENTS:
            await websocket.close(code=1013)
            return
        client = _Client(websocket, ClientView(self._pictures), self._readers)
        self._clients.add(client)
        try:
            await client.run()
        finally:
            self._clients.discard(client)
            if not self._clients:
                self._pictures.clear()

    def close(self) -> None:
        """Stop the reader threads. Idempotent; after the server has stopped."""
        self._readers.shutdown(wait=True)

    def _wake_all(self) -> None:
        for client in self._clients:
            client.wake(is_news=True)


def next_beat(at: float, interval: float) -> float:
    """Return the first whole number of intervals after a moment.

    All clients keep the same beat: what is sent to them at one moment is worked out once.
    """
    return (at // interval + 1) * interval


def ranks_interval(took_s: float) -> float:
    """Return how often a page gets data that take so long, in whole seconds: pages keep a common beat."""
    return min(LONGEST_INTERVAL_S, max(DATA_INTERVAL_S, float(math.ceil(took_s * PACE))))


class _Client:
    """One connection: a task that reads what the page says and a loop that sends what is due."""

    def __init__(self, websocket: WebSocket, view: ClientView, readers: ThreadPoolExecutor) -> None:
        self._websocket = websocket
        self._view = view
        self._readers = readers
        self._wake = asyncio.Event()
        self._wish: Subscription | None = None
        self._is_visible = True
        self._wants_events = False
        self._awaits_ack = False
        self._has_news = True
        self._data_is_due = True
        self._status_at = 0.0
        self._data_at = 0.0
        self._data_interval_s = DATA_INTERVAL_S
        self._problem = ""
        """Why the last picture could not be drawn."""

    def wake(self, *, is_news: bool = False) -> None:
        """Look again at what is due; event loop only. One that knows of news has set its clock already."""
        is_known = is_news and (self._has_news or self._awaits_ack)
        self._has_news = self._has_news or is_news
        if not is_known:
            self._wake.set()

    async def run(self) -> None:
        """Send until the page leaves; a page that breaks the protocol is disconnected."""
        listener = asyncio.create_task(self._listen())
        try:
            while not listener.done():
                await self._send_due()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._pause())
                self._wake.clear()
        except (WebSocketDisconnect, RuntimeError) as error:
            # Starlette raises RuntimeError for a send after the close that the listener has yet to see.
            _log.debug("page left while being written to: %s", error)
        finally:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener

    async def _listen(self) -> None:
        allowance, counted_at = float(BURST_MESSAGES), time.monotonic()
        try:
            while True:
                now = time.monotonic()
                allowance = min(allowance + (now - counted_at) * MESSAGES_S, BURST_MESSAGES) - 1
                counted_at = now
                if allowance < 0:
                    await asyncio.sleep(-allowance / MESSAGES_S)
                text = await self._websocket.receive_text()
                if len(text) > MAX_CLIENT_MESSAGE:
                    raise msgspec.ValidationError("message too long")
                self._hear(_decoder.decode(text))
        except WebSocketDisconnect:
            pass
        except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError) as error:
            _log.warning("the page sent an unknown message: %s", error)
            with contextlib.suppress(RuntimeError):
                await self._websocket.close(code=1008)
        finally:
            self._wake.set()

    def _hear(self, message: Subscription | Acknowledge | Visible) -> None:
        if isinstance(message, Subscription):
            self._wish = message
            self._data_is_due = True
            self._data_at = 0.0
            self._status_at = 0.0
        elif isinstance(message, Acknowledge):
            self._awaits_ack = False
        else:
            self._is_visible, self._wants_events = message.visible, message.events
            self._has_news = True
        self._wake.set()

    def _pause(self) -> float:
        """Seconds until the next thing is due by the clock, at most the heartbeat."""
        is_told = self._is_visible or self._wants_events
        if self._awaits_ack or not is_told or self._wish is None:
            return HEARTBEAT_S
        now = time.monotonic()
        if not self._is_visible:
            return max(0.0, self._status_at + HIDDEN_INTERVAL_S - now)
        waits = [self._status_at + HEARTBEAT_S - now]
        if self._has_news:
            waits.append(next_beat(self._status_at, STATUS_INTERVAL_S) - now)
        if self._data_is_due:
            data_at = next_beat(self._data_at, self._data_interval_s)
            waits.append(max(data_at, next_beat(self._status_at, STATUS_INTERVAL_S)) - now)
        return max(0.0, min(waits))

    async def _send_due(self) -> None:
        wish = self._wish
        if wish is None or self._pause() > 0:
            return
        now = time.monotonic()
        if self._has_news and not wish.paused:
            self._data_is_due = True
        is_due = self._data_is_due and now >= next_beat(self._data_at, self._data_interval_s)
        with_data = self._is_visible and is_due
        self._has_news = False
        self._status_at = now
        if with_data:
            self._data_is_due = False
            self._data_at = now
        loop = asyncio.get_running_loop()
        try:
            message = await loop.run_in_executor(
                self._readers, lambda: self._view.message(wish, with_data=with_data, asked_at=now)
            )
        except DashboardError as error:
            if self._problem != str(error):
                _log.warning("a page waits for its next picture: %s", error)
            self._problem = str(error)
            self._has_news, self._data_is_due = True, self._data_is_due or with_data
            return
        self._problem = ""
        if with_data:
            took_s = time.monotonic() - now
            self._data_interval_s = ranks_interval(took_s) if wish.ranks else DATA_INTERVAL_S
        self._awaits_ack = True
        await self._websocket.send_bytes(message)
