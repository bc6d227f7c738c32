"""Old blocks are dropped from ClickHouse: what reads show before and after, again, restarted, and cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, what_is_missing
from store_engines import OpenStore
from store_reference import RUN, begin, make_event, make_frame, make_layout, stream_key

from dashboard.store.protocol import StepRange, Store
from probe.wire import HostSample, RunEnd, StreamKey, encode

pytestmark = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))

BLOCK, STEPS, RAW = 128, 1000, 100
DROPPED = 896
"""So many steps are in whole blocks, all of them `RAW` steps old but the last."""
EVENT = 400
HOST = StreamKey(run=RUN, writer="host-box", stream="host")
NEAR = StepRange(first=EVENT - 10, end=EVENT + 10)
FAR = StepRange(first=16, end=160)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.store.clickhouse.schema.BLOCK_STEPS", BLOCK)
    monkeypatch.setattr("dashboard.store.clickhouse.retention.QUIET_S", 0)
    monkeypatch.setattr("dashboard.store.clickhouse.retention.EVENT_STEPS", 40)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClickHouseServer]:
    """One of its own, that may be restarted."""
    started = ClickHouseServer(tmp_path / "clickhouse")
    started.start()
    yield started
    started.stop()


def clock() -> float:
    """A moment after what is fed: its ranks are running."""
    return 2.0


def opened(server: ClickHouseServer, folder: Path, request: pytest.FixtureRequest) -> Store:
    opener = OpenStore(server)
    request.addfinalizer(opener.close)
    store = opener(folder, clock=clock)
    key = begin(store)
    store.append(stream_key("events"), 2, [encode(make_event(1, step=EVENT))])
    feed(store, key, 0, STEPS)
    return store


@pytest.fixture
def store(clickhouse: ClickHouseServer, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return opened(clickhouse, tmp_path, request)


def feed(
    store: Store, key: object, first: int, end: int, *, offset: float = 0.0, layout: int = 0, seq: int = 0
) -> None:
    records = [
        make_frame(
            step, {"grad_norm": [0.0, 0.0, offset + step]}, scalars={"loss": offset + step}, layout=layout
        )
        for step in range(first, end)
    ]
    store.append(key, seq, records)
    store.commit()


def remove_old(store: Store, raw_steps: int = RAW) -> None:
    (shard,) = store._places.shards
    shard.writer.retention._raw_steps = raw_steps
    store._remove_old_rows(shard)


def pooled(store: Store) -> list[object]:
    """Reads of the whole run that need no raw row below the floor."""
    frame = store.scalars(RUN, 0, ["loss"], max_points=60)
    picture = store.heatmap(RUN, 0, max_columns=60)
    return [frame.to_dict("list"), picture.values.tolist(), picture.steps]


def near(store: Store) -> list[object]:
    frame, picture = store.scalars(RUN, 0, ["loss"], NEAR), store.heatmap(RUN, 0, steps=NEAR)
    return [frame.to_dict("list"), picture.values.tolist(), picture.steps_per_column]


def blocks(store: Store) -> list[int]:
    """Which blocks have raw rows of scalars and of layers."""
    found = store._places.shards[0].database.rows(
        "SELECT DISTINCT table, partition FROM system.parts WHERE active AND database = currentDatabase()"
        " AND table IN ('scalar_raw', 'layer_raw')"
    )
    of = {
        table: sorted(int(part.strip(b"()").split(b",")[1]) for name, part in found if name == table)
        for table in (b"scalar_raw", b"layer_raw")
    }
    assert of[b"scalar_raw"] == of[b"layer_raw"]
    return of[b"scalar_raw"]


def test_reads_are_the_same_but_far_from_events_pooled(store: Store) -> None:
    before, close, fine = pooled(store), near(store), store.scalars(RUN, 0, ["loss"], FAR)
    assert blocks(store) == list(range(8))
    remove_old(store)
    assert blocks(store) == [7]
    assert str(pooled(store)) == str(before) and str(near(store)) == str(close)
    frame = store.scalars(RUN, 0, ["loss"], FAR)
    assert len(fine) == 144 and frame["pooled"].tolist() == [16] * 9
    assert frame["max"].tolist() == [float(step + 15) for step in range(16, 160, 16)]
    newest = store.scalars(RUN, 0, ["loss"], StepRange(first=DROPPED))
    assert newest["pooled"].tolist() == [1] * (STEPS - DROPPED)


def test_again_and_by_another_process_changes_nothing(
    store: Store, clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    remove_old(store)
    before, close = pooled(store), near(store)
    other = OpenStore(clickhouse)(tmp_path)
    remove_old(other)
    remove_old(store)
    for each in (store, other):
        assert str(pooled(each)) == str(before) and str(near(each)) == str(close)
    other.close()


@pytest.mark.parametrize("calls", range(5))
def test_cut_off_anywhere_reads_stay_and_the_next_round_ends_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    before, close = pooled(store), near(store)
    retention = store._places.shards[0].writer.retention
    steps = [("run", retention._database.run), ("run_rows", retention._database.run_rows)]
    left = [calls * 3]

    def limited(work: Callable[..., None]) -> Callable[..., None]:
        def once(*arguments: object) -> None:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            work(*arguments)

        return once

    with monkeypatch.context() as patch:
        for name, work in steps:
            patch.setattr(retention._database, name, limited(work))
        with pytest.raises(KeyboardInterrupt):
            remove_old(store)
    store._progress = {}
    assert str(pooled(store)) == str(before) and str(near(store)) == str(close)
    remove_old(store)
    assert blocks(store) == [7]
    assert str(pooled(store)) == str(before) and str(near(store)) == str(close)


def test_event_later_than_the_drop_keeps_what_there_is(store: Store) -> None:
    remove_old(store)
    store.append(stream_key("events"), 3, [encode(make_event(2, step=80))])
    store.commit()
    remove_old(store)
    assert store.scalars(RUN, 0, ["loss"], FAR)["pooled"].tolist() == [16] * 9
    assert len(store.events(RUN)) == 2


def test_server_that_is_restarted_has_dropped_rows_for_nobody(
    server: ClickHouseServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = opened(server, tmp_path, request)
    for table in ("scalar_raw", "layer_raw", "parameter_raw"):
        server.ask(f"OPTIMIZE TABLE {store._places.shards[0].database.address.database}.{table} FINAL")
    remove_old(store)
    before, close = pooled(store), near(store)
    server.kill()
    server.start()
    # As if it had all blocks again, of which it has dropped some; another process reads.
    database = store._places.shards[0].database
    for step in (20, 45):
        database.run(
            f"INSERT INTO scalar_raw SELECT run, timeline, series, {step}, incarnation, seq, time, -7"
            " FROM scalar_raw LIMIT 1"
        )
    assert str(pooled(store)) == str(before) and str(near(store)) == str(close)
    resumed = begin(store, incarnation=2000)
    store.append(resumed, 0, [make_frame(step, scalars={"loss": 5000.0}) for step in (40, 41)])
    for _ in range(2):
        frame = store.scalars(RUN, 0, ["loss"], StepRange(first=0, end=64), max_points=4)
        assert frame["pooled"].tolist() == [16, 16, 18, 16]
        assert frame["min"].tolist() == [0.0, 16.0, 32.0, 48.0]
        store.commit()
    remove_old(store)
    assert str(near(store)) == str(close)


def test_resumed_run_that_writes_around_an_event_is_shown_and_kept(store: Store) -> None:
    remove_old(store)
    resumed = begin(store, incarnation=2000)
    feed(store, resumed, EVENT - 5, EVENT + 5, offset=5000.0)
    wanted = [
        5000.0 + step if abs(step - EVENT + 0.5) < 5 else step for step in range(EVENT - 10, EVENT + 10)
    ]
    assert store.scalars(RUN, 0, ["loss"], NEAR)["mean"].tolist() == wanted
    remove_old(store)  # a round that has nothing new to remove
    assert blocks(store) == [7]
    assert store.scalars(RUN, 0, ["loss"], NEAR)["mean"].tolist() == wanted
    assert store.heatmap(RUN, 0, steps=NEAR).values[1].tolist() == wanted


def test_rank_that_is_behind_keeps_the_blocks_of_all(store: Store) -> None:
    slow = begin(store, rank=1)
    feed(store, slow, 0, 300)
    remove_old(store)
    assert blocks(store) == list(range(1, 8))


@pytest.mark.parametrize("how", ["it has ended", "its process was killed", "it was heard of long ago"])
def test_rank_that_has_stopped_keeps_no_block(
    store: Store, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = begin(store, rank=1)
    feed(store, stopped, 0, 300)
    said = {
        "it has ended": (stream_key("events", rank=1), 2, RunEnd(time=3.0, step=299, outcome="exception")),
        "its process was killed": (HOST, 0, HostSample(time=3.0, rank=1, incarnation=1000, state="killed")),
    }
    if how in said:
        key, seq, record = said[how]
        store.append(key, seq, [encode(record)])
        store.commit()
    else:
        monkeypatch.setattr(store, "_clock", lambda: 5000.0)
    before = [store.scalars(RUN, rank, ["loss"], max_points=15).to_dict("list") for rank in (0, 1)]
    remove_old(store)
    assert blocks(store) == [7]
    after = [store.scalars(RUN, rank, ["loss"], max_points=15).to_dict("list") for rank in (0, 1)]
    assert str(after) == str(before)
    tail = store.scalars(RUN, 1, ["loss"], StepRange(first=288), max_points=60)
    assert tail["mean"].tolist() == [float(step) for step in range(288, 300)]


def test_rank_whose_records_come_after_the_others_were_trimmed_is_trimmed_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the journals of a run that has ended are read one after the other."""
    remove_old(store)
    late = begin(store, rank=1)
    feed(store, late, 0, STEPS)
    remove_old(store)
    assert blocks(store) == list(range(8))
    monkeypatch.setattr(store, "_clock", lambda: 5000.0)
    remove_old(store)
    assert blocks(store) == [7]
    frame = store.scalars(RUN, 1, ["loss"], FAR)
    assert frame["max"].tolist() == [float(step + 15) for step in range(16, 160, 16)]


def test_newest_steps_of_a_layout_that_has_ended_are_not_lost(
    clickhouse: ClickHouseServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    opener = OpenStore(clickhouse)
    request.addfinalizer(opener.close)
    store = opener(tmp_path)
    key = begin(store)
    feed(store, key, 0, 105, offset=5000.0)
    other = make_layout({"first": ["weight", "bias"], "second": ["weight"], "third": []}, number=1)
    store.append(stream_key("events"), 2, [encode(other)])
    feed(store, key, 105, STEPS, layout=1, seq=105)
    remove_old(store)
    values = store.heatmap(RUN, 0, max_columns=60, steps=StepRange(first=0, end=128)).values[1]
    assert values.tolist() == [5015.0, 5031.0, 5047.0, 5063.0, 5079.0, 5095.0, 5104.0, 127.0]


def test_run_that_goes_on_from_old_steps_is_left_alone_until_it_is_beyond_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_old(store)
    resumed = begin(store, incarnation=2000)
    feed(store, resumed, 40, 1200, offset=5000.0)
    before, old = pooled(store), store.scalars(RUN, 0, ["loss"], StepRange(first=40, end=64))
    assert old["mean"].tolist() == [5000.0 + step for step in range(40, 64)]
    monkeypatch.setattr("dashboard.store.clickhouse.retention.QUIET_S", 1000)
    remove_old(store)
    assert blocks(store) == list(range(10))
    monkeypatch.setattr("dashboard.store.clickhouse.retention.QUIET_S", 0)
    remove_old(store)
    assert blocks(store) == [8, 9]
    assert str(pooled(store)) == str(before)
    assert store.scalars(RUN, 0, ["loss"], NEAR)["mean"].tolist() == list(range(5390, 5410))


def test_other_layout_that_writes_old_steps_keeps_them_until_the_next_round(store: Store) -> None:
    remove_old(store)
    other = make_layout({"first": ["weight", "bias"], "second": ["weight"], "third": []}, number=1)
    resumed = begin(store, incarnation=2000, layout=other)
    feed(store, resumed, 200, 260, offset=5000.0, layout=1)
    remove_old(store)
    assert blocks(store) == [1, 2, 7]
    newest = StepRange(first=256, end=272)
    assert store.heatmap(RUN, 0, steps=newest).values[1].tolist() == [5259.0]
    feed(store, resumed, 1000, 1300, layout=1, seq=60)
    remove_old(store)
    assert blocks(store) == [9, 10]
    assert store.heatmap(RUN, 0, steps=newest).values[1].tolist() == [5259.0]
