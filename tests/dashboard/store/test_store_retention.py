from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_reference import RUN, begin, make_event, make_frame, stream_key

from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange, Store
from dashboard.store.pyramid import join_ranges, uncovered
from probe.wire import encode

RAW = 320


@pytest.fixture(params=["duckdb", pytest.param("clickhouse", marks=pytest.mark.faults)])
def engine(request):
    """On ClickHouse it takes a minute; `test_clickhouse_retention.py` has the same rules in less."""
    return request.param


@pytest.fixture
def store(tmp_path, engine, open_store, monkeypatch):
    if engine == "duckdb":
        monkeypatch.setattr("dashboard.store.duck.RETENTION_EVERY", 1)
    else:
        monkeypatch.setattr("dashboard.store.clickhouse.store.RETENTION_EVERY", 1)
        monkeypatch.setattr("dashboard.store.clickhouse.schema.BLOCK_STEPS", 64)
        monkeypatch.setattr("dashboard.store.clickhouse.retention.QUIET_S", 0)
    return open_store(tmp_path / "data", raw_steps=RAW)


def feed(store: Store, key, first: int, end: int, *, offset: float = 0.0, first_seq: int = 0) -> int:
    """Append and commit steps in portions of 100; their values are `offset + step`."""
    for start in range(first, end, 100):
        records = [
            make_frame(step, {"grad_norm": [0.0, 0.0, offset + step]}, scalars={"loss": offset + step})
            for step in range(start, min(end, start + 100))
        ]
        first_seq = store.append(key, first_seq, records)
        store.commit()
    return first_seq


def raw_rows(store: Store) -> list[int]:
    """Steps that are stored one by one, of the layer rows; the scalars must agree."""
    kinds = ("layer", "parameter", "scalar")
    if isinstance(store, DuckStore):
        queries = [
            f"SELECT DISTINCT step FROM {kind}_raw WHERE NOT superseded ORDER BY step" for kind in kinds
        ]
        found = [[row[0] for row in store._root.execute(query).fetchall()] for query in queries]
    else:
        both = "SELECT DISTINCT step FROM (SELECT step FROM {0}_raw UNION ALL SELECT step FROM {0}_kept) AS x"
        found = [
            sorted(row[0] for row in store._places.shards[0].database.rows(both.format(kind)))
            for kind in kinds
        ]
    assert found[0] == found[1] == found[2]
    return found[0]


def test_retention_keeps_the_newest_steps_and_those_around_an_event(store):
    key = begin(store)
    store.append(stream_key("events"), 2, [encode(make_event(1, step=1000))])
    feed(store, key, 0, 3000)
    steps = raw_rows(store)
    assert set(range(2999 - RAW, 3000)) <= set(steps) and set(range(800, 1201)) <= set(steps)
    assert min(steps) >= 784 and len(steps) < RAW * 2 + 200 + 432


def test_retention_of_another_ranks_event_keeps_nothing(store):
    key = begin(store)
    store.append(stream_key("events"), 2, [encode(make_event(1, step=1000, rank=1))])
    feed(store, key, 0, 3000)
    assert min(raw_rows(store)) > 2000


def test_retention_pooled_views_stay_exact(store):
    key = begin(store)
    feed(store, key, 0, 3000)
    assert min(raw_rows(store)) > 2000
    frame = store.scalars(RUN, 0, ["loss"], max_points=200)
    assert frame["step"].tolist() == list(range(0, 3000, 16)) and frame["pooled"].sum() == 3000
    assert frame["max"].tolist() == [float(min(step + 15, 2999)) for step in range(0, 3000, 16)]
    picture = store.heatmap(RUN, 0, max_columns=50)
    assert picture.values[1].tolist() == [float(min(step + 63, 2999)) for step in range(0, 3000, 64)]


def test_retention_old_range_is_pooled_however_many_points_are_asked_for(store):
    key = begin(store)
    feed(store, key, 0, 3000)
    old = StepRange(first=160, end=320)
    assert store.scalars(RUN, 0, ["loss"], old)["pooled"].tolist() == [16] * 10
    assert store.heatmap(RUN, 0, steps=old).steps_per_column == 16
    newest = StepRange(first=2900)
    assert store.heatmap(RUN, 0, steps=newest).steps_per_column == 1


def test_retention_range_around_an_event_is_read_step_by_step(store):
    key = begin(store)
    store.append(stream_key("events"), 2, [encode(make_event(1, step=1000))])
    feed(store, key, 0, 3000)
    around = StepRange(first=900, end=1100)
    picture = store.heatmap(RUN, 0, steps=around)
    assert picture.steps_per_column == 1 and picture.values[1].tolist() == list(range(900, 1100))
    assert store.heatmap(RUN, 0, steps=around, max_columns=100).values[1].tolist() == list(
        range(901, 1100, 2)
    )
    wider = StepRange(first=700, end=1100)
    assert store.heatmap(RUN, 0, steps=wider).steps_per_column == 16


def test_retention_resumed_run_shows_its_old_steps_one_by_one(store):
    key = begin(store)
    feed(store, key, 0, 3000)
    resumed = begin(store, incarnation=2000)
    feed(store, resumed, 504, 804, offset=5000.0)
    steps = StepRange(first=504, end=804)
    picture = store.heatmap(RUN, 0, steps=steps)
    assert picture.steps_per_column == 1
    assert picture.values[1].tolist() == [5000.0 + step for step in range(504, 804)]
    frame = store.scalars(RUN, 0, ["loss"], steps)
    assert frame["pooled"].tolist() == [1] * 300 and frame["min"].min() == 5504.0


def test_retention_resumed_run_counts_each_old_step_once_however_often_it_commits(store):
    key = begin(store)
    feed(store, key, 0, 3000)
    resumed, sequence = begin(store, incarnation=2000), 0
    for step in range(496, 512):
        before = store.scalars(RUN, 0, ["loss"], StepRange(first=480, end=528))
        sequence = store.append(resumed, sequence, [make_frame(step, scalars={"loss": math.nan})])
        pending = store.scalars(RUN, 0, ["loss"], StepRange(first=480, end=528), max_points=3)
        store.commit()
        after = store.scalars(RUN, 0, ["loss"], StepRange(first=480, end=528), max_points=3)
        assert after["pooled"].tolist() == pending["pooled"].tolist() == [16, 16 + sequence, 16]
        assert after["nan"].tolist() == [0, sequence, 0] and len(before) >= 1


def test_retention_after_a_resumed_run_has_passed_removes_what_it_rewrote(store):
    key = begin(store)
    feed(store, key, 0, 2000)
    resumed = begin(store, incarnation=2000)
    feed(store, resumed, 504, 3200, offset=5000.0)
    assert min(raw_rows(store)) > 2000
    if isinstance(store, DuckStore):
        residue = "SELECT count(*) FROM scalar_pooled WHERE level = 0"
        assert store._root.execute(residue).fetchone() == (0,)
    picture = store.heatmap(RUN, 0, max_columns=50)
    assert picture.values[1, -1] == 8199.0 and np.nanmin(picture.values[1]) == 63.0


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6).map(
    lambda items: sorted((first, first + length) for first, length in items)
)


@given(ranges, st.integers(0, 80), st.integers(0, 40))
def test_uncovered_any_ranges_agree_with_sets_of_steps(items, first, length):
    joined = join_ranges(items)
    covered = {step for low, high in items for step in range(low, high)}
    assert {step for low, high in joined for step in range(low, high)} == covered
    rest = [step for low, high in uncovered(joined, first, first + length) for step in range(low, high)]
    assert rest == [step for step in range(first, first + length) if step not in covered]
