"""A run is deleted from the store: nothing of it is left, nothing of the others is touched."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from store_engines import OpenStore
from store_reference import RUN, begin, make_event, make_frame, stream_key

from dashboard.store.duck import DuckStore
from dashboard.store.protocol import Store
from dashboard.store.schema import FILE_NAME, TABLES
from probe.wire import StreamKey, encode


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
