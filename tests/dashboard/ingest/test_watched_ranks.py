"""Which ranks count as watched, and for how long."""

from __future__ import annotations

from pathlib import Path

from clickhouse_server import ClickHouseServer
from page_clients import PageClients
from store_reference import RUN, begin
from test_collector import Peer

from dashboard.ingest.watched_ranks import MOST_RANKS, WATCHED_S, WatchedRanks
from dashboard.serving.server import Server
from probe.wire import Position, StreamKey, Watch


def test_a_rank_is_watched_for_a_while_after_a_page_has_shown_it() -> None:
    now = [0.0]
    watched = WatchedRanks(lambda: now[0])
    assert watched.of("a") == frozenset()
    watched.note("a", 7)
    now[0] = WATCHED_S / 2
    watched.note("a", 9)
    assert watched.of("a") == {7, 9} and watched.of("b") == frozenset()
    now[0] = WATCHED_S + 1
    assert watched.of("a") == {9}
    watched.note("a", 9)
    now[0] = 2 * WATCHED_S
    assert watched.of("a") == {9}
    now[0] = 3 * WATCHED_S
    assert watched.of("a") == frozenset()


def test_of_too_many_the_one_that_was_looked_at_longest_ago_goes() -> None:
    watched = WatchedRanks(lambda: 0.0)
    for rank in range(MOST_RANKS):
        watched.note("a", rank)
    watched.note("a", 0)
    watched.note("a", 1000)
    assert watched.of("a") == {0, 1000, *range(2, MOST_RANKS)}


def test_what_was_looked_at_elsewhere_is_watched_and_is_not_what_was_looked_at_here() -> None:
    now = [1000.0]
    watched = WatchedRanks(lambda: now[0])
    watched.note("a", 1)
    watched.note_elsewhere("a", 2, 100.0)
    watched.note_elsewhere("a", 1, 100.0)
    assert watched.of("a") == {1, 2} and watched.here(60.0) == [("a", 1)]
    now[0] += 30
    assert watched.of("a") == {1} and watched.here(20.0) == []


def test_helper_of_one_dashboard_is_asked_for_what_a_page_of_another_shows(
    clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    database = "looks_of_helpers"
    environment = {
        "NANSCOPE_STORE": clickhouse.url(database),
        "NANSCOPE_STORE_PASSWORD": clickhouse.password,
        "XDG_STATE_HOME": str(tmp_path),
    }
    servers = [
        Server(port=0, ingest="tcp://127.0.0.1:0", data=tmp_path / name, spool=tmp_path / "spool",
               environment=environment)
        for name in ("one", "other")
    ]  # fmt: skip
    for server in servers:
        server.start()
    begin(servers[0].store, rank=5)
    servers[0].store.commit()
    token = servers[0].address.partition("token=")[2]
    pages = PageClients(lambda: (servers[0].page, token), 1, run=RUN, rank=5)
    helper = Peer(servers[1].ingest)
    try:
        secret = bytes.fromhex(servers[1]._credentials.secret)
        helper.shake_hands(secret, known=secret, takes_watch=True)
        helper.say(Position(key=StreamKey(run=RUN, writer="5-1", stream="metrics")))
        pages.start()
        while not isinstance(heard := helper.hear(), Watch):
            pass
        assert heard == Watch(run=RUN, ranks=[5])
    finally:
        pages.stop()
        helper.close()
        for server in servers:
            server.stop()
        clickhouse.ask(f"DROP DATABASE IF EXISTS {database}")
