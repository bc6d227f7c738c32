"""A run is deleted from the store: nothing of it is left, nothing of the others is touched."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import duckdb
import msgspec
import numpy as np
import pytest
import test_store_histograms as histograms
from clickhouse_server import ClickHouseServer, what_is_missing
from store_engines import TWO_SERVERS_TOO, OpenStore
from store_reference import RUN, begin, make_event, make_frame, stream_key

from dashboard.store.clickhouse import leftovers
from dashboard.store.clickhouse import schema as clickhouse_schema
from dashboard.store.clickhouse.connection import Connections
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepNote, Store
from dashboard.store.schema import FILE_NAME, TABLES
from probe.wire import Document, Gap, HostSample, StreamKey, encode

STORES = TWO_SERVERS_TOO


@pytest.fixture
def store(open_store: OpenStore, tmp_path) -> Store:
    return open_store(tmp_path / "data")


def fill(store: Store, run: str, *, steps: int = 5, value: float = 1.0) -> StreamKey:
    key = begin(store, run=run)
    store.append(key, 0, [make_frame(step, scalars={"loss": value + step}) for step in range(steps)])
    return key


def loss_of(store: Store, run: str) -> list[float]:
    return store.scalars(run, 0, ["loss"])["mean"].tolist()


@pytest.mark.parametrize("is_committed", [True, False])
def test_removed_run_is_gone_and_the_others_are_not(store, is_committed):
    fill(store, "a", value=1.0), fill(store, "b", value=7.0)
    if is_committed:
        store.commit()
    store.remove_run("a")
    assert [run.run for run in store.runs()] == ["b"]
    assert store.positions("a") == [] and loss_of(store, "a") == [] and store.events("a") == []
    assert loss_of(store, "b") == [7.0, 8.0, 9.0, 10.0, 11.0]


def test_what_waits_of_another_run_is_committed_after_a_removal(store):
    fill(store, "a"), fill(store, "b", value=7.0)
    store.append(stream_key("events", run="b"), 2, [encode(make_event(1, run="b", step=3))])
    store.remove_run("a")
    store.commit()
    assert store.position(stream_key("events", run="b")).next_seq == 3
    assert [event.step for event in store.events("b")] == [3] and loss_of(store, "b")[0] == 7.0


def test_removed_run_leaves_no_row_in_any_table(tmp_path):
    store = DuckStore(tmp_path)
    fill(store, "a", steps=300)
    store.append(stream_key("events", run="a"), 2, [encode(make_event(1, run="a", step=3))])
    store.commit()
    store.remove_run("a")
    store.close()
    with duckdb.connect(str(tmp_path / FILE_NAME)) as database:
        left = {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES}
    assert left == dict.fromkeys(TABLES, 0) | {"meta": 1}


def test_runs_that_begin_after_a_removal_get_numbers_of_their_own(store):
    fill(store, "a"), fill(store, "b", value=7.0)
    store.remove_run("a")
    fill(store, "c", value=20.0)
    store.commit()
    assert loss_of(store, "b")[0] == 7.0 and loss_of(store, "c")[0] == 20.0


def test_removal_survives_a_restart(open_store, tmp_path):
    store = open_store(tmp_path)
    fill(store, "a"), fill(store, "b", value=7.0)
    store.remove_run("a")
    store.close()
    store = open_store(tmp_path)
    assert [run.run for run in store.runs()] == ["b"] and loss_of(store, "b")[0] == 7.0
    store.close()


def test_late_records_of_a_removed_writer_are_thrown_away(store):
    key = fill(store, "a")
    store.remove_run("a")
    assert store.append(key, 5, [make_frame(5)]) == 6
    assert store.skip(key, 6, 9, "evicted") == 9
    store.commit()
    assert store.runs() == []


def test_new_incarnation_of_a_removed_run_is_taken(store):
    fill(store, RUN)
    store.remove_run(RUN)
    key = begin(store, incarnation=2000)
    store.append(key, 0, [make_frame(0, scalars={"loss": 3.0})])
    assert loss_of(store, RUN) == [3.0]


def test_run_that_was_taken_again_is_whole_for_who_opens_the_store_later(open_store, tmp_path):
    store = open_store(tmp_path)
    fill(store, RUN, steps=40)
    store.remove_run(RUN)
    keys = [begin(store, incarnation=2000, rank=rank) for rank in range(2)]
    for key in keys:
        store.append(key, 0, [make_frame(step, scalars={"loss": 3.0 + step}) for step in range(20)])
    store.commit()
    store.close()
    for _ in range(2):
        store = open_store(tmp_path)
        for rank in range(2):
            assert store.scalars(RUN, rank, ["loss"])["mean"].tolist() == [3.0 + n for n in range(20)]
        assert [store.position(key).next_seq for key in keys] == [20, 20]
        store.close()


def test_what_a_removed_writer_sends_again_from_the_start_after_a_restart_is_taken_once(open_store, tmp_path):
    """A helper that still has it asks where its stream continues, and nobody knows of it any more."""
    store = open_store(tmp_path)
    key = fill(store, RUN, steps=40)
    store.commit()
    store.remove_run(RUN)
    store.close()
    store = open_store(tmp_path)
    assert store.runs() == [] and store.position(key).next_seq == 0
    fill(store, RUN, steps=7, value=2.0)
    store.commit()
    store.close()
    store = open_store(tmp_path)
    assert store.position(key).next_seq == 7 and loss_of(store, RUN) == [2.0 + n for n in range(7)]
    store.close()


def test_removal_of_an_unknown_run_changes_nothing(store):
    fill(store, "b")
    store.remove_run("nosuch")
    assert [run.run for run in store.runs()] == ["b"]


def test_room_of_removed_runs_is_used_again(tmp_path):
    store = DuckStore(tmp_path)
    sizes = []
    for run in "abcdef":
        key = begin(store, run=run)
        for first in range(0, 4_000, 1000):
            columns = {f"c{number}": np.random.default_rng(first + number).random(2) for number in range(20)}
            store.append(key, first, [make_frame(first + step, columns) for step in range(1000)])
            store.commit()
        store.remove_run(run)
        sizes.append((tmp_path / FILE_NAME).stat().st_size)
    store.close()
    assert sizes[-1] < 1.5 * sizes[0]


# ---------------------------------------------------------------------------------- what stays on the servers

SERVERS = pytest.mark.parametrize(
    "engine",
    ["clickhouse", "two servers", pytest.param("replicas", marks=pytest.mark.faults)],
    indirect=True,
)
RANKS = range(3)


def fill_everything(store: Store, run: str, *, steps: int = 60) -> None:
    """Something of all that a run may have, of several ranks."""
    for rank in RANKS:
        key = begin(store, run=run, rank=rank, layout=histograms.layout())
        frames = [
            make_frame(step, {"grad_norm": [1.0, 2.0, step]}, scalars={"loss": step}) for step in range(steps)
        ]
        store.append(key, 0, [*frames, histograms.frame(steps, "gradient", "activation")])
        words = stream_key("events", run=run, rank=rank)
        event = msgspec.structs.replace(make_event(rank, run=run, step=3), rank=rank)
        gap = Gap(stream="metrics", first_seq=70, end_seq=80, reason="evicted", time=1.0)
        document = Document(kind="plan", key="p", time=1.0, body=b"{}")
        store.append(words, 2, [encode(each) for each in (event, gap, document)])
    host = StreamKey(run=run, writer="host-box", stream="host")
    sample = HostSample(time=2.0, rank=0, incarnation=1000, state="running")
    store.append(host, 0, [encode(sample)])
    store.write_note(run, StepNote(id="n", step=3, text="halved", time=1.0))
    store.mark_run(run, note="this one", starred=True)
    store.commit()
    assert store.position(host).next_seq == 1


def servers_of(store: Store) -> list[Connections]:
    """Each server alone, replicas too."""
    databases = [shard.database for shard in store._places.shards]
    return [one for each in databases for one in getattr(each, "_each", [each])]


def rows_of(store: Store, run: str) -> dict[str, int]:
    """Tables -> rows of a run on all servers, where there are any; its tombstone is none."""
    found: Counter[str] = Counter()
    for server in servers_of(store):
        for table in clickhouse_schema.TABLES.keys() - {"meta", "gone_runs"}:
            name = clickhouse_schema.number_of("run", run) if table in clickhouse_schema.OF_RUNS else run
            query = f"SELECT count() FROM {table} FINAL WHERE run = %(run)s"
            found[table] += server.rows(query, {"run": name})[0][0]
    return {table: count for table, count in found.items() if count}


def soon(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left over is looked for all the time."""
    for name, value in (("FIRST_S", 0.0), ("EVERY_S", 0.2), ("GRACE_S", 0)):
        monkeypatch.setattr(f"dashboard.store.clickhouse.leftovers.{name}", value)


@SERVERS
def test_removed_run_leaves_no_row_on_any_server(open_store, tmp_path):
    store = open_store(tmp_path)
    fill_everything(store, "a"), fill_everything(store, "b")
    before, shown = rows_of(store, "b"), loss_of(store, "b")
    assert before.keys() == rows_of(store, "a").keys()
    whole = {name for name in clickhouse_schema.TABLES if "kept" not in name and name != "floors"}
    assert before.keys() >= whole - {"meta", "gone_runs", "looks", "module_raw", "module_pooled"}
    store.remove_run("a")
    soon(lambda: rows_of(store, "a") == {}, "nothing is left of it")
    assert rows_of(store, "b") == before and loss_of(store, "b") == shown == list(range(60))
    store.close()
    store = open_store(tmp_path)
    assert [run.run for run in store.runs()] == ["b"] and loss_of(store, "b") == shown
    assert len(store.events("b")) == len(RANKS) and [one.text for one in store.notes("b")] == ["halved"]


@SERVERS
@pytest.mark.parametrize("calls", [0, 4, 11, 15])
def test_removal_that_is_cut_off_is_finished_by_another_process(
    open_store, tmp_path, monkeypatch, quick, calls
):
    store = open_store(tmp_path)
    store._end_following()
    fill_everything(store, "a"), fill_everything(store, "b")
    before, left = rows_of(store, "b"), [calls]
    with monkeypatch.context() as patch:
        for shard in store._places.shards:
            patch.setattr(shard.database, "run", cut_off_after(left, shard.database.run))
        with pytest.raises(KeyboardInterrupt):
            store.remove_run("a")
    assert rows_of(store, "a") != {}
    other = open_store(tmp_path)
    soon(lambda: rows_of(other, "a") == {}, "another process has ended it")
    assert [run.run for run in other.runs()] == ["b"] and rows_of(other, "b") == before
    assert loss_of(other, "b") == list(range(60))


def cut_off_after(left: list[int], work: Callable[..., None]) -> Callable[..., None]:
    def once(*arguments: object) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        work(*arguments)

    return once


@pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))
def test_server_that_is_killed_after_a_removal_has_nothing_of_the_run_later(tmp_path, quick):
    server = ClickHouseServer(tmp_path / "server")
    server.start()
    opener = OpenStore(server)
    try:
        store = opener(tmp_path)
        store._end_following()
        fill_everything(store, "a"), fill_everything(store, "b")
        for table in ("frames", "scalar_raw", "series", "streams"):
            store._places.shards[0].database.run(f"OPTIMIZE TABLE {table} FINAL")
        before = rows_of(store, "b")
        store.remove_run("a")
        for _ in range(2):
            server.kill()
            server.start()
            fresh = opener(tmp_path)
            soon(lambda fresh=fresh: rows_of(fresh, "a") == {}, "nothing is left of it")
            assert rows_of(fresh, "b") == before and loss_of(fresh, "b") == list(range(60))
        opener.close()
    finally:
        server.stop()


@SERVERS
def test_names_that_come_late_to_a_removed_run_go_and_those_of_its_next_start_stay(
    open_store, tmp_path, quick
):
    store = open_store(tmp_path)
    fill_everything(store, "a")
    store.remove_run("a")
    soon(lambda: rows_of(store, "a") == {}, "nothing is left of it")
    for shard in store._places.shards:
        ((gone_at,),) = shard.database.rows("SELECT max(version) FROM gone_runs WHERE run = 'a'")
        rows = [("a", 1, 2, "scalar", "late", gone_at), ("a", 1, 3, "scalar", "new", gone_at + 1)]
        names = ("run", "timeline", "series", "kind", "name", "version")
        shard.database.run_rows("series", names, rows)
    wanted = {"series": len(servers_of(store))}
    soon(lambda: rows_of(store, "a") == wanted, "the late one is gone")
    (name,) = {row for server in servers_of(store) for row in server.rows("SELECT name FROM series")}
    assert name == (b"new",)


@pytest.mark.parametrize("engine", ["clickhouse"], indirect=True)
def test_start_that_commits_while_another_process_hears_of_the_removal_is_whole(
    open_store, tmp_path, monkeypatch
):
    store = open_store(tmp_path)
    fill(store, RUN, steps=40)
    store.remove_run(RUN)
    (shard,) = store._places.shards
    save, gone = shard.writer._save_events, leftovers.gone_runs(shard.database)

    def save_later(pending: object) -> None:
        leftovers.remove_deleted(shard.database, gone)
        save(pending)

    monkeypatch.setattr(shard.writer, "_save_events", save_later)
    key = begin(store, incarnation=2000)
    store.append(key, 0, [make_frame(step, scalars={"loss": 3.0 + step}) for step in range(20)])
    store.commit()
    assert gone.keys() == {RUN} and loss_of(store, RUN) == [3.0 + step for step in range(20)]


@SERVERS
def test_partitions_of_a_removed_run_that_are_there_again_are_dropped_again(open_store, tmp_path, quick):
    """As on 18.16 after a restart, of parts that had been merged shortly before the removal."""
    store = open_store(tmp_path)
    fill_everything(store, "a")
    store.remove_run("a")
    soon(lambda: rows_of(store, "a") == {}, "nothing is left of it")
    number = clickhouse_schema.number_of("run", "a")
    for shard in store._places.shards:
        names = ("run", "timeline", "step", "incarnation", "seq")
        shard.database.run_rows("frames", names, [(number, 1, 2, 1000, 4)])
    soon(lambda: rows_of(store, "a") == {}, "it is dropped again")


def test_what_is_trimmed_of_a_removed_run_is_every_table_but_three():
    trimmed = {*clickhouse_schema.OF_RUNS, *leftovers.NAMED}
    assert clickhouse_schema.TABLES.keys() - trimmed == {"meta", "gone_runs", "looks"}
    assert all("run String" in clickhouse_schema.TABLES[name][0] for name in leftovers.NAMED)
