"""Dashboards that share a database tell each other which ranks their pages show."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, shards, url_of, what_is_missing
from delivery_processes import wait_until

from dashboard.ingest import watched_ranks
from dashboard.ingest.watched_ranks import WatchedRanks
from dashboard.store.clickhouse import leftovers
from dashboard.store.clickhouse import looks as sharing
from dashboard.store.clickhouse.schema import number_of
from dashboard.store.clickhouse.store import ClickStore

pytestmark = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))
_numbers = itertools.count()


class Dashboards:
    """Stores of one database, each with what its own pages show."""

    def __init__(self, servers: Sequence[ClickHouseServer]) -> None:
        self.servers, self.database = servers, f"looks_{os.getpid()}_{next(_numbers)}"
        self._stores: list[ClickStore] = []

    def open(self) -> WatchedRanks:
        watched = WatchedRanks()
        store = ClickStore(url_of(self.servers, self.database), password=self.servers[0].password)
        self._stores.append(store)
        store.share_looks(watched)
        return watched

    def close(self) -> None:
        for store in self._stores:
            store.close()
        for server in self.servers:
            server.ask(f"DROP DATABASE IF EXISTS {self.database}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "EVERY_S", 0.1)


@pytest.fixture(params=[1, 2], ids=["one server", "two servers"])
def dashboards(clickhouse: ClickHouseServer, request: pytest.FixtureRequest) -> Iterator[Dashboards]:
    others = [request.getfixturevalue("second_clickhouse")] if request.param == 2 else []
    made = Dashboards([clickhouse, *others])
    yield made
    made.close()


def test_a_rank_that_one_dashboard_shows_is_watched_by_all(dashboards: Dashboards) -> None:
    one, other, third = (dashboards.open() for _ in range(3))
    one.note("a", 7)
    other.note("a", 9)
    other.note("b", 1023)
    for watched in (one, other, third):
        wait_until(lambda seen=watched: seen.of("a") == {7, 9} and seen.of("b") == {1023}, "it is not told")
    assert third.here(60) == [] and one.here(60) == [("a", 7)]


def test_a_rank_that_nobody_shows_any_more_is_forgotten_by_all(
    dashboards: Dashboards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is told is not told on: else two dashboards would keep a rank alive for each other."""
    monkeypatch.setattr(watched_ranks, "WATCHED_S", 4.0)
    monkeypatch.setattr(sharing, "RENEWED_S", 3.0)
    monkeypatch.setattr(sharing, "KEPT_S", 4)
    one, other = dashboards.open(), dashboards.open()
    one.note("a", 7)
    wait_until(lambda: other.of("a") == {7}, "it is not told")
    wait_until(lambda: not one.of("a") and not other.of("a"), "it is never forgotten")


def test_a_dashboard_that_begins_later_is_told_and_old_rows_are_not_read(dashboards: Dashboards) -> None:
    one = dashboards.open()
    one.note("a", 7)
    wait_until(lambda: rows_of(dashboards) == [("a", 7)], "it is not written")
    home = dashboards.servers[number_of("run", "a") % len(dashboards.servers)]
    insert = f"INSERT INTO {dashboards.database}.looks (run, rank, at) VALUES"
    home.ask(insert, [("a", 3, int(home.ask("SELECT toUInt32(now()) - 130")[0][0]))])
    late = dashboards.open()
    wait_until(lambda: late.of("a") == {7}, "it is not told")
    assert sorted(rows_of(dashboards)) == [("a", 3), ("a", 7)]


def test_ranks_of_long_ago_leave_the_table_once_they_are_many(
    dashboards: Dashboards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "FIRST_S", 0.0)
    monkeypatch.setattr(leftovers, "EVERY_S", 0.2)
    monkeypatch.setattr(leftovers, "MOST_LOOKS", 100)
    one, other = dashboards.open(), dashboards.open()
    one.note("a", 7)
    wait_until(lambda: ("a", 7) in rows_of(dashboards), "it is not written")
    homes = {name: dashboards.servers[number_of("run", name) % len(dashboards.servers)] for name in "abc"}
    insert = f"INSERT INTO {dashboards.database}.looks (run, rank, at) VALUES"

    def put(run: str, ranks: range) -> None:
        old = int(homes[run].ask("SELECT toUInt32(now()) - 130")[0][0])
        homes[run].ask(insert, [(run, rank, old) for rank in ranks])

    put("b", range(100))
    time.sleep(1.0)
    assert sorted(rows_of(dashboards)) == [("a", 7), *(("b", rank) for rank in range(100))]
    put("b", range(100, 150))
    wait_until(lambda: rows_of(dashboards) == [("a", 7)], "they are still there")
    assert one.of("a") == other.of("a") == {7} and other.of("b") == frozenset()


def test_a_server_that_is_away_is_no_matter_for_runs_of_the_other(tmp_path: Path) -> None:
    with shards(tmp_path, 2) as servers:
        dashboards = Dashboards(servers)
        one, other = dashboards.open(), dashboards.open()
        here = next(name for name in map(str, range(99)) if number_of("run", name) % 2 == 0)
        there = next(name for name in map(str, range(99)) if number_of("run", name) % 2 == 1)
        servers[1].kill()
        one.note(there, 3)
        one.note(here, 4)
        wait_until(lambda: other.of(here) == {4}, "it is not told")
        assert other.of(there) == frozenset()
        servers[1].start()
        one.note(there, 3)
        wait_until(lambda: other.of(there) == {3}, "it is not told once the server is back")
        dashboards.close()


def rows_of(dashboards: Dashboards) -> list[tuple[str, int]]:
    query = f"SELECT run, rank FROM {dashboards.database}.looks"
    return [row for server in dashboards.servers for row in server.ask(query)]
