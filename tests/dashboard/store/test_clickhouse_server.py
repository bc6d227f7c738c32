"""The ClickHouse that tests run: it answers, wants its password, and keeps what it has acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import CLUSTER, ClickHouseServer, shards, what_is_missing

pytestmark = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClickHouseServer]:
    """One of its own, that may be killed."""
    started = ClickHouseServer(tmp_path / "clickhouse")
    started.start()
    yield started
    started.stop()


def test_clickhouse_answers(clickhouse: ClickHouseServer) -> None:
    assert clickhouse.ask("SELECT 1") == [(1,)]
    assert clickhouse.url("mine") == f"clickhouse://tester@127.0.0.1:{clickhouse.port}/mine"


def test_clickhouse_refuses_a_wrong_password(clickhouse: ClickHouseServer) -> None:
    from clickhouse_driver.errors import ServerException

    with pytest.raises(ServerException, match=r"Wrong password|password is incorrect"):
        clickhouse.ask("SELECT 1", password="wrong")


def test_clickhouse_keeps_an_acknowledged_row_through_a_kill(server: ClickHouseServer) -> None:
    from clickhouse_driver.errors import NetworkError

    server.ask("CREATE DATABASE mine")
    server.ask("CREATE TABLE mine.t (a UInt64) ENGINE = MergeTree ORDER BY a")
    server.ask("INSERT INTO mine.t (a) VALUES", [(7,)])
    port = server.port
    server.kill()
    with pytest.raises(NetworkError):
        server.ask("SELECT 1")
    server.start()
    assert server.port == port
    assert server.ask("SELECT a FROM mine.t") == [(7,)]


def test_clickhouse_shards_ask_each_other(tmp_path: Path) -> None:
    with shards(tmp_path) as servers:
        for number, server in enumerate(servers):
            server.ask("CREATE TABLE default.t (a UInt64) ENGINE = MergeTree ORDER BY a")
            server.ask("INSERT INTO default.t (a) VALUES", [(number,)])
        assert len(servers) == 2
        for server in servers:
            server.ask(f"CREATE TABLE default.all (a UInt64) ENGINE = Distributed({CLUSTER}, default, t)")
            assert sorted(server.ask("SELECT a FROM default.all")) == [(0,), (1,)]


def test_clickhouse_that_cannot_listen_says_so(tmp_path: Path, clickhouse: ClickHouseServer) -> None:
    second = ClickHouseServer(tmp_path, port=clickhouse.port)
    with pytest.raises(AssertionError, match="does not start"):
        second.start()
    second.stop()
