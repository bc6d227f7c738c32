"""Several servers as one store: ranks lie on them in turns; one that is away holds up its own ranks alone."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_whole_norms as norms
from clickhouse_server import ClickHouseServer, shards, url_of, what_is_missing
from msgspec.structs import replace
from shared_streams import Streams, differences, everything
from store_reference import RUN, begin, make_event, make_frame, stream_key

from dashboard.errors import DashboardError
from dashboard.store.clickhouse.connection import parse_address, parse_shards
from dashboard.store.clickhouse.following import Following
from dashboard.store.clickhouse.shards import Shard
from dashboard.store.clickhouse.store import ClickStore
from dashboard.store.duck import DuckStore
from dashboard.store.engines import open_store as open_served
from dashboard.store.protocol import StepNote, Store
from probe.wire import HostSample, StreamKey, encode

needs_server = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))
SOON_S = 60.0
RANKS = range(4)
HOST = StreamKey(run=RUN, writer="host-box", stream="events")


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "not true in time"
        time.sleep(0.02)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ClickHouseServer]]:
    """Two that may be killed."""
    with shards(tmp_path) as found:
        yield found


@pytest.fixture
def opened(servers: list[ClickHouseServer]) -> Iterator[Callable[[], ClickStore]]:
    """Opens a store on both."""
    stores: list[ClickStore] = []

    def opening() -> ClickStore:
        stores.append(ClickStore(url_of(servers, "runs"), password=servers[0].password))
        return stores[-1]

    yield opening
    for store in stores:
        with contextlib.suppress(DashboardError):
            store.close()


def feed(store: Store, rank: int, steps: range, *, run: str = RUN, is_first: bool = True) -> StreamKey:
    key = begin(store, rank=rank, run=run) if is_first else stream_key(rank=rank, run=run)
    frames = [make_frame(s, {"grad_norm": [s, 1, 2]}, scalars={"loss": float(s + rank)}) for s in steps]
    store.append(key, steps.start, frames)
    return key


def committed(store: Store, *keys: StreamKey) -> None:
    """Commit until all that was given of these streams is durable."""
    streams = store._catalog.streams  # type: ignore[attr-defined]
    soon(
        lambda: store.commit() == {} and all(streams[key].durable[0] == streams[key].next_seq for key in keys)
    )


def losses(store: Store, rank: int, *, run: str = RUN) -> list[float]:
    return store.scalars(run, rank, ["loss"])["mean"].tolist()


def count(server: ClickHouseServer, table: str, what: str = "count()") -> int:
    return int(server.ask(f"SELECT {what} FROM runs.{table}")[0][0])


def home(store: ClickStore, rank: int, run: str = RUN) -> int:
    return store._places.of_rank(run, rank).number


@needs_server
def test_ranks_lie_in_turns_and_reads_are_those_of_one_file(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore], tmp_path: Path
) -> None:
    once, store = DuckStore(tmp_path, clock=lambda: 0.0), opened()
    store._clock = lambda: 0.0
    for each in (once, store):
        Streams(0, steps=140).ship_all(each)
        each.write_note(RUN, StepNote(id="n", step=3, text="halved", time=1.0))
        each.mark_run(RUN, note="this one", starred=True)
    assert {home(store, rank) for rank in RANKS} == {0, 1} and home(store, 0) == home(store, 2)
    truth = everything(once)
    fresh = opened()
    fresh._clock = lambda: 0.0
    for each in (store, fresh):
        assert differences(everything(each), truth) == []
        assert each.marks() == once.marks() and each.notes(RUN) == once.notes(RUN)
        with each.view():
            assert differences(everything(each), truth) == []
    for table, of_each in (("scalar_raw", 1), ("layer_pooled", 1), ("histograms", 1), ("frames", 2)):
        assert [count(server, table, "uniq(timeline)") for server in servers] == [of_each] * 2, table
    once.close()


@needs_server
def test_server_that_is_away_holds_up_its_own_ranks_alone(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore]
) -> None:
    store = opened()
    keys = {rank: feed(store, rank, range(20)) for rank in RANKS}
    committed(store, *keys.values())
    store.append(stream_key("events", rank=1), 2, [encode(make_event(1, rank=1))])
    committed(store, stream_key("events", rank=1))
    other = opened()
    away = home(store, 1)
    here = [rank for rank in RANKS if home(store, rank) != away]
    servers[away].kill()
    for rank in RANKS:
        feed(store, rank, range(20, 30), is_first=False)
    moved: dict[StreamKey, int] = {}
    soon(lambda: moved.update(store.commit()) or {keys[rank] for rank in here} <= moved.keys())
    assert {key: moved.get(key) for key in keys.values()} == {
        keys[rank]: 30 if rank in here else None for rank in RANKS
    }
    assert store.notice is not None and str(servers[away].port) in store.notice
    assert store.next_seqs(keys.values()) == {keys[rank]: 30 for rank in here}, "its own are left out"
    assert servers[0].password not in store.notice
    with store.view():
        assert [one.run for one in store.runs()] == [RUN]
        assert [each.rank for each in store.runs()[0].ranks] == list(RANKS)
        for rank in here:
            assert losses(store, rank) == [float(step + rank) for step in range(30)]
            assert store.heatmap(RUN, rank) is not None
        found = store.rank_scalars(RUN, ["loss"])
        assert found.ranks == tuple(RANKS)
        for rank in here:
            assert found.series["loss"].mean[rank].tolist() == [float(step + rank) for step in range(30)]
    soon(lambda: other.notice is not None)
    assert other.events(RUN) == [] and other.runs()[0].event_counts["critical"] == 0
    with pytest.raises(DashboardError, match=r"does not answer|refused"):
        losses(store, 1)
    with pytest.raises(DashboardError, match=r"does not answer|refused"):
        store.remove_run(RUN)
    assert [one.run for one in store.runs()] == [RUN]
    servers[away].start()
    committed(store, *keys.values())
    soon(lambda: store.notice is None)
    for rank in RANKS:
        assert losses(store, rank) == [float(step + rank) for step in range(30)]
    soon(lambda: other.notice is None)
    assert other.events(RUN) == [make_event(1, rank=1)] and other.runs()[0].event_counts["critical"] == 1
    assert store.rank_scalars(RUN, ["loss"]).series["loss"].mean[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


@needs_server
def test_commit_that_one_server_fails_is_written_there_later(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore]
) -> None:
    """Commits of the other one go on meanwhile."""
    store = opened()
    store._end_following()
    keys = {rank: feed(store, rank, range(20)) for rank in (0, 1)}
    first = next(rank for rank in keys if home(store, rank) == 0)
    servers[0].kill()
    assert keys[1 - first] in store.commit()
    feed(store, 1 - first, range(20, 40), is_first=False)
    assert store.commit() == {keys[1 - first]: 40}
    servers[0].start()
    store._take_back(store._places.shards[0])
    assert keys[first] in store.commit()
    for each in (store, opened()):
        assert losses(each, first) == [float(step + first) for step in range(20)]
        assert losses(each, 1 - first) == [float(step + 1 - first) for step in range(40)]


@needs_server
def test_event_of_which_helpers_speak_elsewhere_is_one(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore]
) -> None:
    """A helper says more of what a rank has begun; its own stream may lie on the other server."""
    store = opened()
    helpers = [replace(HOST, writer=f"host-{number}") for number in range(6)]
    assert {store._part_of(key) for key in helpers} == {0, 1}
    begin(store)
    store.append(stream_key("events"), 2, [encode(make_event(1, severity="info"))])
    store.commit()
    for number, key in enumerate(helpers):
        store.append(key, 0, [encode(make_event(1, severity="critical", message=f"{number}"))])
        sample = HostSample(time=2.0, rank=0, incarnation=1000, state="running")
        store.append(replace(key, stream="host"), 0, [encode(sample)])
        store.commit()
    assert sorted(count(server, "events") for server in servers) != [0, 7]
    for each in (store, opened()):
        (event,) = each.events(RUN)
        assert event.message == "5" and each.run_of_event(event.id) == RUN
        (run,) = each.runs()
        assert (run.event_counts["critical"], run.event_counts["info"]) == (1, 0)


@needs_server
@pytest.mark.parametrize("is_even", [True, False])
def test_events_are_counted_on_the_servers_but_those_that_others_speak_of(
    servers: list[ClickHouseServer],
    opened: Callable[[], ClickStore],
    monkeypatch: pytest.MonkeyPatch,
    is_even: bool,
) -> None:
    store, chance = opened(), random.Random(4)
    writers = {(run, rank): stream_key("events", run=run, rank=rank) for run in "abc" for rank in RANKS}
    helpers = {(run, n): replace(HOST, run=run, writer=f"host-{n}") for run in "abc" for n in range(3)}
    for run, rank in writers:
        feed(store, rank, range(2), run=run)
    severities: dict[tuple[str, int], str] = {}
    sent: Counter[StreamKey] = Counter(dict.fromkeys(writers.values(), 2))
    others = set()
    for _ in range(6):
        for key in (*writers.values(), *helpers.values()):
            rank = int(key.writer[0]) if key in writers.values() else chance.choice(RANKS)
            mine = [100 * rank + number for number in chance.sample(range(60), 8)]
            for number in mine if key in writers.values() else mine[:1]:
                severity = severities[key.run, number] = chance.choice(["critical", "warning", "info"])
                event = make_event(number + 1000 * ord(key.run), run=key.run, rank=rank, severity=severity)
                sent[key] = store.append(key, sent[key], [encode(event)])
                others |= {(key.run, number)} if key in helpers.values() else set()
            store.commit()
    store.remove_run("c")
    wanted = Counter((run, severity) for (run, _), severity in severities.items() if run != "c")
    asked, rows = threading.current_thread(), list[int]()

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def once(*arguments: Any) -> Any:
            found = work(*arguments)
            rows.extend([len(found)] if threading.current_thread() is asked else [])
            return found

        return once

    fresh = opened()
    assert fresh._places.is_even
    fresh._places.is_even = is_even
    for shard in fresh._places.shards:
        monkeypatch.setattr(shard.database, "rows", counted(shard.database.rows))
    for each in (store, fresh):
        rows.clear()
        found = Counter(
            {(run.run, name): count for run in each.runs() for name, count in run.event_counts.items()}
        )
        assert found == wanted and wanted.total() > 300
    assert (sum(rows) < wanted.total() / 2) == is_even


@needs_server
def test_deleted_run_leaves_every_server_though_the_deletion_was_cut_off(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore]
) -> None:
    store, other = opened(), opened()
    committed(store, *(feed(store, rank, range(20), run=run) for run in ("a", "b") for rank in RANKS))
    soon(lambda: {one.run for one in other.runs()} == {"a", "b"})
    version = time.time_ns()
    servers[1].ask("INSERT INTO runs.gone_runs (run, version) VALUES", [("a", version)])
    for each in (store, other):
        soon(lambda each=each: [one.run for one in each.runs()] == ["b"])
    soon(lambda: all(count(server, "gone_runs", "max(version)") == version for server in servers))
    soon(lambda: [count(server, "scalar_raw", "uniq(run)") for server in servers] == [1, 1])
    servers[0].ask("ALTER TABLE runs.gone_runs DROP PARTITION tuple()")
    fresh = opened()
    assert [one.run for one in fresh.runs()] == ["b"] and losses(fresh, 3, run="b") == losses(
        store, 3, run="b"
    )
    assert count(servers[0], "gone_runs", "max(version)") == version
    fresh.remove_run("b")
    assert [count(server, "scalar_raw") for server in servers] == [0, 0] and fresh.runs() == []
    soon(lambda: [count(server, "series") + count(server, "streams") for server in servers] == [0, 0])
    key = replace(stream_key(rank=3, run="b"), writer="3-2000")
    assert fresh.position(key).next_seq == 0


@needs_server
def test_runs_that_are_whole_on_one_server_are_found_and_go_on_there(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore]
) -> None:
    """As an earlier release wrote them, and as they are where a server is added."""
    alone = ClickStore(servers[0].url("runs"), password=servers[0].password)
    keys = [feed(alone, rank, range(40)) for rank in RANKS]
    committed(alone, *keys)
    alone.close()
    store = opened()
    assert [store.position(key).next_seq for key in keys] == [40] * 4
    assert {home(store, rank) for rank in RANKS} == {0}
    more = [feed(store, rank, range(40, 60), is_first=False) for rank in RANKS]
    new = [feed(store, rank, range(20)) for rank in (4, 5)]
    committed(store, *more, *new)
    assert {home(store, rank) for rank in (4, 5)} == {0, 1}
    for each in (store, opened()):
        for rank in RANKS:
            assert losses(each, rank) == [float(step + rank) for step in range(60)]
        assert losses(each, 5) == [float(step + 5) for step in range(20)]
        assert each.rank_scalars(RUN, ["loss"]).series["loss"].mean[:, 0].tolist() == [0.0, 1, 2, 3, 4, 5]
    assert count(servers[1], "scalar_raw", "uniq(timeline)") == 1


@needs_server
def test_servers_in_another_order_are_refused(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore]
) -> None:
    opened()
    with pytest.raises(DashboardError, match="keep their order"):
        ClickStore(url_of(servers[::-1], "runs"), password=servers[0].password)


@needs_server
def test_process_that_begins_while_a_server_is_away_takes_what_is_not_on_it(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore]
) -> None:
    before = opened()
    keys = [feed(before, rank, range(20)) for rank in RANKS] + [feed(before, 0, range(20), run="gone")]
    committed(before, *keys)
    away = home(before, 1)
    other = servers[1 - away]
    servers[away].kill()
    soon(lambda: before.notice is not None or before.commit())
    late = opened()
    here = [rank for rank in RANKS if home(late, rank) != away]
    assert late.notice is not None and [rank.rank for rank in late.runs()[0].ranks] == here
    more = [feed(late, rank, range(20, 40), is_first=False) for rank in here]
    committed(late, *more)
    other.ask("INSERT INTO runs.gone_runs (run, version) VALUES", [("gone", time.time_ns())])
    soon(lambda: [one.run for one in late.runs()] == [RUN])
    servers[away].start()
    soon(lambda: late.notice is None)
    soon(lambda: len(late.runs()[0].ranks) == len(RANKS))
    for rank in RANKS:
        assert losses(late, rank) == [float(s + rank) for s in range(40 if rank in here else 20)]
    soon(lambda: count(servers[away], "gone_runs") == 1)
    assert [one.run for one in late.runs()] == [RUN]


@needs_server
@pytest.mark.parametrize("asked", ["_newly_gone", "_follow"])
def test_process_begins_though_a_server_goes_while_it_does(
    servers: list[ClickHouseServer],
    opened: Callable[[], ClickStore],
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
) -> None:
    before = opened()
    committed(before, *[feed(before, rank, range(20)) for rank in RANKS])
    away, ask = home(before, 1), getattr(Following, asked)
    here = [rank for rank in RANKS if home(before, rank) != away]
    main, killed = threading.current_thread(), list[None]()

    def killed_first(store: ClickStore, shard: Shard, *rest: Any) -> Any:
        if threading.current_thread() is main and shard.number == away and not killed:
            killed.append(servers[away].kill())
        return ask(store, shard, *rest)

    monkeypatch.setattr(Following, asked, killed_first)
    late = opened()
    assert late.notice is not None and [losses(late, rank) for rank in here] == [
        [float(step + rank) for step in range(20)] for rank in here
    ]
    monkeypatch.undo()
    servers[away].start()
    soon(lambda: late.notice is None)
    soon(lambda: len(late.runs()[0].ranks) == len(RANKS))
    assert losses(late, 1) == [float(step + 1) for step in range(20)]


@needs_server
def test_process_waits_for_all_servers_where_ranks_may_lie_anywhere(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore]
) -> None:
    alone = ClickStore(servers[0].url("runs"), password=servers[0].password)
    committed(alone, feed(alone, 1, range(20)))
    alone.close()
    opened().close()
    servers[0].kill()
    with pytest.raises(DashboardError, match="does not answer"):
        opened()
    servers[0].start()
    assert losses(opened(), 1) == [float(step + 1) for step in range(20)]


@needs_server
def test_whole_norm_is_made_when_the_server_of_a_part_is_back(
    servers: list[ClickHouseServer], opened: Callable[[], ClickStore]
) -> None:
    store = opened()
    for rank in range(2):
        norms.start(store, rank, range(2))
    for rank in range(2):
        norms.feed(store, rank, {0: 9.0, 1: 16.0})
    assert norms.whole(store) == norms.whole(store, 1) == pytest.approx({0: 18**0.5, 1: 32**0.5})
    norms.feed(store, 0, {2: 2.0})
    first, second = servers[home(store, 0)], stream_key(rank=1, incarnation=1000 * norms.SECOND)
    first.kill()
    store.append(second, 2, [make_frame(2, scalars={"grad_square_part": 2.0}, time=1005.0)])
    soon(lambda: second in store.commit())
    first.start()
    soon(lambda: store.commit() == {} and store.notice is None)
    soon(lambda: store.commit() == {} and norms.whole(store).get(2) == 2.0)


@needs_server
def test_served_store_takes_several_servers(servers: list[ClickHouseServer]) -> None:
    environment = {"NANSCOPE_STORE_PASSWORD": servers[0].password}
    store = open_served(Path("unused"), url_of(servers, "runs"), environment=environment)
    assert store.runs() == [] and store.notice is None and store.generation() == 0
    store.close()


def test_addresses_are_told_apart() -> None:
    shards = parse_shards("clickhouse://u%40x@one:9001,two|three:9003,[::1]:9002/runs")
    assert [[each.host for each in replicas] for replicas in shards] == [["one"], ["two", "three"], ["::1"]]
    addresses = [each for replicas in shards for each in replicas]
    assert [(each.host, each.port) for each in addresses] == [
        ("one", 9001),
        ("two", 9000),
        ("three", 9003),
        ("::1", 9002),
    ]
    assert {(each.user, each.database) for each in addresses} == {("u@x", "runs")}
    assert [parse_address(str(each)) for each in addresses] == addresses
    assert parse_address("clickhouses://host").is_secure
    assert str(parse_address("clickhouse://host")) == "clickhouse://default@host:9000/nanscope"


@pytest.mark.parametrize(
    "url",
    [
        *("", "clickhouse:", "http://host/x", "clickhouse://", "clickhouse://host:port/x"),
        *("clickhouse://host/a;drop", "clickhouse://host/x?y=1", "clickhouse://host:1,/x"),
        *("clickhouse://host:1|/x", "clickhouse://host:1|host:1/x", "clickhouse://host,host:9000/x"),
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(DashboardError, match="--store"):
        parse_shards(url)


def test_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(DashboardError, match="NANSCOPE_STORE_PASSWORD") as refused:
        parse_shards("clickhouse://user:hush@host/x")
    assert "hush" not in str(refused.value)
