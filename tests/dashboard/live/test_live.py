"""The live hub with a stand-in for the connection: pace, acknowledgement, hidden tabs, bad messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import page_runs
import pytest
from page_store import PageStore
from starlette.websockets import WebSocketDisconnect
from test_live_codec import Client

from dashboard.live import hub as live
from dashboard.live.hub import Hub

SUBSCRIBE = {"m": "subscribe", "id": 1}
ACK = {"m": "ack"}
TIMEOUT_S = 10.0


class Connection:
    """The browser's end: puts messages in, takes messages out."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[str | None] = asyncio.Queue()
        self.outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed_with: int | None = None
        self.client = Client()

    async def accept(self) -> None:
        """Always."""

    async def receive_text(self) -> str:
        text = await self.incoming.get()
        if text is None:
            raise WebSocketDisconnect(1001)
        return text

    async def send_bytes(self, data: bytes) -> None:
        self.outgoing.put_nowait(data)

    async def close(self, code: int) -> None:
        self.closed_with = code

    def say(self, *messages: dict[str, object]) -> None:
        for message in messages:
            self.incoming.put_nowait(json.dumps(message))

    async def hear(self, timeout: float = TIMEOUT_S) -> dict[str, object]:
        return self.client.decode(await asyncio.wait_for(self.outgoing.get(), timeout))

    async def hears_nothing(self, seconds: float = 0.4) -> bool:
        try:
            await self.hear(seconds)
        except TimeoutError:
            return True
        return False


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short intervals, and no heartbeat that a test would have to tell from news."""
    monkeypatch.setattr(live, "DATA_INTERVAL_S", 0.05)
    monkeypatch.setattr(live, "STATUS_INTERVAL_S", 0.01)
    monkeypatch.setattr(live, "HEARTBEAT_S", 60.0)


def converse(talk: Callable[[Connection, Hub, PageStore], Awaitable[None]], *, steps: int = 20) -> Connection:
    """Run a conversation with a hub over a store of so many steps, then hang up."""
    store, connection = PageStore(), Connection()
    page_runs.fill(store, steps=range(steps))
    hub = Hub(store)

    async def run() -> None:
        serving = asyncio.create_task(hub.serve(connection))  # type: ignore[arg-type]
        await talk(connection, hub, store)
        connection.incoming.put_nowait(None)
        await asyncio.wait_for(serving, TIMEOUT_S)

    asyncio.run(run())
    hub.close()
    assert hub.client_count == 0
    return connection


def test_hub_answers_a_subscription_with_data() -> None:
    async def talk(connection: Connection, hub: Hub, store: PageStore) -> None:
        connection.say(SUBSCRIBE)
        header = await connection.hear()
        assert header["newestStep"] == 19
        assert "charts" in header

    converse(talk)


def test_hub_says_nothing_before_a_subscription() -> None:
    async def talk(connection: Connection, hub: Hub, store: PageStore) -> None:
        hub.notify()
        assert await connection.hears_nothing()

    converse(talk)


def test_hub_waits_for_the_acknowledgement_then_sends_the_newest() -> None:
    async def talk(connection: Connection, hub: Hub, store: PageStore) -> None:
        connection.say(SUBSCRIBE)
        await connection.hear()
        for step in range(20, 25):
            page_runs.fill(store, steps=range(step, step + 1))
            hub.notify()
        assert await connection.hears_nothing()
        connection.say(ACK)
        assert (await connection.hear())["newestStep"] == 24

    converse(talk)


def test_hub_pages_on_one_run_share_what_is_read() -> None:
    async def talk(first: Connection, hub: Hub, store: PageStore) -> None:
        second = Connection()
        serving = asyncio.create_task(hub.serve(second))  # type: ignore[arg-type]
        for each in (first, second):
            each.say({**SUBSCRIBE, "run": "demo-run"})
            await each.hear()
        await asyncio.sleep(2 * live.DATA_INTERVAL_S)
        before = store.reads["heatmap"]
        page_runs.fill(store, steps=range(20, 30))
        hub.notify()
        for each in (first, second):
            each.say(ACK)
            assert (await each.hear())["range"] == [0, 30]
        assert store.reads["heatmap"] == before + 1
        second.incoming.put_nowait(None)
        await asyncio.wait_for(serving, TIMEOUT_S)

    converse(talk)


def test_hub_forgets_its_pictures_with_the_last_page() -> None:
    store = PageStore()
    page_runs.fill(store, steps=range(5))
    hub = Hub(store)

    async def look() -> None:
        connection = Connection()
        serving = asyncio.create_task(hub.serve(connection))  # type: ignore[arg-type]
        connection.say(SUBSCRIBE)
        await connection.hear()
        connection.incoming.put_nowait(None)
        await asyncio.wait_for(serving, TIMEOUT_S)

    for _ in range(2):
        asyncio.run(look())
    hub.close()
    assert store.reads["heatmap"] == 2


@pytest.mark.parametrize(
    ("at", "expected"), [(0.0, 0.2), (0.1999, 0.2), (7.31, 7.4), (1e6 + 0.25, 1e6 + 0.4)]
)
def test_next_beat_is_common_to_all_clients(at: float, expected: float) -> None:
    assert live.next_beat(at, 0.2) == pytest.approx(expected)


def test_hub_sends_nothing_to_a_hidden_tab_until_it_is_shown() -> None:
    async def talk(connection: Connection, hub: Hub, store: PageStore) -> None:
        connection.say({"m": "visible", "visible": False}, SUBSCRIBE)
        hub.notify()
        assert await connection.hears_nothing()
        connection.say({"m": "visible", "visible": True})
        await connection.hear()

    converse(talk)


def test_hub_paused_client_hears_of_new_steps_without_data() -> None:
    async def talk(connection: Connection, hub: Hub, store: PageStore) -> None:
        connection.say({**SUBSCRIBE, "paused": True, "first": 0, "end": 10})
        assert "charts" in await connection.hear()
        await asyncio.sleep(0.1)
        page_runs.fill(store, steps=range(20, 30))
        hub.notify()
        connection.say(ACK)
        header = await connection.hear()
        assert (header["newestStep"], "charts" in header) == (29, False)

    converse(talk)


@pytest.mark.parametrize(
    "text",
    ["not json", "{}", '{"m": "subscribe"}', '{"m": "subscribe", "id": 1, "columns": 1000000}', "x" * 70_000],
)
def test_hub_disconnects_a_page_that_breaks_the_protocol(text: str) -> None:
    async def talk(connection: Connection, hub: Hub, store: PageStore) -> None:
        connection.incoming.put_nowait(text)
        while connection.closed_with is None:
            await asyncio.sleep(0.01)

    assert converse(talk).closed_with == 1008


def test_hub_notify_without_pages_does_nothing() -> None:
    hub = Hub(PageStore())
    hub.notify()
    hub.close()
    assert hub.client_count == 0


def test_hub_tells_a_hidden_page_that_notifies_of_events_and_sends_it_no_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "HIDDEN_INTERVAL_S", 0.05)

    async def talk(connection: Connection, hub: Hub, store: PageStore) -> None:
        connection.say(SUBSCRIBE)
        await connection.hear()
        connection.say({"m": "visible", "visible": False, "events": True}, ACK)
        page_runs.add_event(store, page_runs.event(12))
        page_runs.fill(store, steps=range(20, 30))
        hub.notify()
        for _ in range(3):
            header = await connection.hear()
            connection.say(ACK)
            assert "charts" not in header
        assert header["verdict"]["counts"] == (1, 0) or header["verdict"]["counts"] == [1, 0]
        connection.say({"m": "visible", "visible": True}, ACK)
        while "charts" not in header:
            header = await connection.hear()
            connection.say(ACK)
        assert header["range"] == [0, 30]

    converse(talk)
