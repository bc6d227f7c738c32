"""Several servers as one store: a run is whole on one, and a server that is away holds up its own alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import page_runs
import pytest
from clickhouse_server import ClickHouseServer, shards, what_is_missing

from dashboard.errors import DashboardError
from dashboard.store.clickhouse.connection import parse_address, parse_addresses
from dashboard.store.clickhouse.sharded import ShardedStore
from dashboard.store.clickhouse.store import ClickStore
from dashboard.store.engines import open_store
from probe.wire import encode

needs_server = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))
RUNS = tuple(f"run-{number}" for number in range(6))
TIMEOUT_S = 60


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ClickHouseServer]]:
    with shards(tmp_path) as found:
        yield found


@pytest.fixture
def store(servers: list[ClickHouseServer]) -> Iterator[ShardedStore]:
    places = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    store = open_store(
        Path("unused"),
        f"clickhouse://{servers[0].user}@{places}/runs",
        environment={"NANSCOPE_STORE_PASSWORD": servers[0].password},
    )
    assert isinstance(store, ShardedStore)
    yield store
    with contextlib.suppress(DashboardError):
        store.close()


def durable(store: ShardedStore, run: str, steps: range) -> None:
    """Commit until all steps of a run are durable."""
    deadline = time.monotonic() + TIMEOUT_S
    while store.position(page_runs.key("metrics", run=run)).next_seq < steps.stop:
        assert time.monotonic() < deadline
        store.commit()
        time.sleep(0.05)


@needs_server
def test_run_is_whole_on_one_server_and_all_are_listed(
    servers: list[ClickHouseServer], store: ShardedStore
) -> None:
    for run in RUNS:
        page_runs.fill(store, steps=range(20), run=run)
        durable(store, run, range(20))
    assert {one.run for one in store.runs()} == set(RUNS)
    assert {store.shard_of(run) for run in RUNS} == {0, 1}
    for number, server in enumerate(servers):
        alone = ClickStore(server.url("runs"), password=server.password)
        assert {one.run for one in alone.runs()} == {run for run in RUNS if store.shard_of(run) == number}
        alone.close()
    with store.view():
        for run in RUNS:
            assert store.scalars(run, 0, ["loss"])["step"].tolist() == list(range(20))
            assert store.runs()
    store.mark_run(RUNS[0], starred=True)
    store.mark_run(RUNS[1], note="this one")
    assert store.marks()[RUNS[0]].starred and store.marks()[RUNS[1]].note == "this one"
    store.remove_run(RUNS[0])
    assert {one.run for one in store.runs()} == set(RUNS[1:])


@needs_server
def test_server_that_is_away_holds_up_its_own_runs_alone(
    servers: list[ClickHouseServer], store: ShardedStore
) -> None:
    mine = {number: next(run for run in RUNS if store.shard_of(run) == number) for number in (0, 1)}
    for run in mine.values():
        page_runs.fill(store, steps=range(20), run=run)
        durable(store, run, range(20))
    servers[0].kill()
    for run in mine.values():
        made = (page_runs.frame(step, page_runs.layout(), time=step / 10) for step in range(20, 30))
        store.append(page_runs.key("metrics", run=run), 20, [encode(frame) for frame in made])
    deadline = time.monotonic() + TIMEOUT_S
    moved: dict[str, int] = {}
    while mine[1] not in moved:
        assert time.monotonic() < deadline
        moved |= {key.run: seq for key, seq in store.commit().items()}
        time.sleep(0.05)
    assert moved == {mine[1]: 30}
    assert store.notice is not None and str(servers[0].port) in store.notice
    assert servers[0].password not in store.notice
    assert [one.run for one in store.runs() if one.run == mine[1]] == [mine[1]]
    with pytest.raises(DashboardError, match=r"does not answer|refused"):
        store.scalars(mine[0], 0, ["loss"])
    servers[0].start()
    while mine[0] not in moved:
        assert time.monotonic() < deadline
        moved |= {key.run: seq for key, seq in store.commit().items()}
        time.sleep(0.05)
    assert moved[mine[0]] == 30
    assert store.scalars(mine[0], 0, ["loss"])["step"].tolist() == list(range(30))


def test_addresses_are_told_apart() -> None:
    addresses = parse_addresses("clickhouse://u%40x@one:9001,two,[::1]:9002/runs")
    assert [(each.host, each.port) for each in addresses] == [("one", 9001), ("two", 9000), ("::1", 9002)]
    assert {(each.user, each.database) for each in addresses} == {("u@x", "runs")}
    assert [parse_address(str(each)) for each in addresses] == addresses
    assert parse_address("clickhouses://host").is_secure
    assert str(parse_address("clickhouse://host")) == "clickhouse://default@host:9000/nanscope"


@pytest.mark.parametrize(
    "url",
    [
        *("", "clickhouse:", "http://host/x", "clickhouse://", "clickhouse://host:port/x"),
        *("clickhouse://host/a;drop", "clickhouse://host/x?y=1", "clickhouse://host:1,/x"),
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(DashboardError, match="--store"):
        parse_addresses(url)


def test_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(DashboardError, match="NANSCOPE_STORE_PASSWORD") as refused:
        parse_addresses("clickhouse://user:hush@host/x")
    assert "hush" not in str(refused.value)
