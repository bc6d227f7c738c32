"""Histograms in the store, against counts of the same values in plain Python."""

from __future__ import annotations

import bisect
import itertools
import math
import time

import duckdb
import msgspec
import numpy as np
import pytest
from delivery_processes import wait_until
from store_engines import OpenStore
from store_reference import RUN, begin, make_layout, stream_key

from dashboard.store.clickhouse import leftovers
from dashboard.store.duck import DuckStore
from dashboard.store.histograms import KEPT, MAX_LOOKED_AT
from dashboard.store.protocol import StepRange, Store
from dashboard.store.schema import FILE_NAME
from probe.wire import Frame, Histogram, ModuleInfo, encode
from probe.wire.magnitude_bins import BIN_EDGES, BINS, NAN_BIN
from probe.wire.module_frames import pack_histogram, pack_module_rows

MODULES = ("", "first", "act", "second")
LAYERS = {"first": ["weight", "bias"], "second": ["weight"]}
PARAMETERS = ("first.weight", "first.bias", "second.weight")


def layout(number: int = 0, modules: tuple[str, ...] = MODULES):
    named = [ModuleInfo(name=name, type="Module") for name in modules]
    return msgspec.structs.replace(make_layout(LAYERS, number=number), modules=named)


def counted(values: list[float]) -> list[int]:
    """Counts by magnitude, by a search in plain Python."""
    counts = [0] * BINS
    for value in values:
        counts[NAN_BIN if math.isnan(value) else bisect.bisect_right(BIN_EDGES, abs(value))] += 1
    return counts


def values_of(step: int, row: int) -> list[float]:
    """Other values for each step and row, some of them special."""
    draw = np.random.default_rng((step, row))
    ordinary = (draw.standard_normal(20 + row) * 10.0 ** draw.integers(-9, 6)).tolist()
    return [*ordinary, *itertools.islice(itertools.cycle([0.0, math.inf, math.nan, -1e30]), row)]


def packed(name: str, rows: list[list[float]]) -> Histogram:
    kind = "modules" if name == "activation" else "parameters"
    return pack_histogram(name, kind, np.array([counted(values) for values in rows], dtype=np.int64))


def frame(step: int, *names: str, **fields) -> bytes:
    sizes = {"gradient": 3, "parameter": 3, "activation": 4}
    histograms = [packed(name, [values_of(step, row) for row in range(sizes[name])]) for name in names]
    return encode(Frame(step=step, time=float(step), histograms=histograms, **fields))


@pytest.fixture
def store(open_store: OpenStore, tmp_path) -> Store:
    return open_store(tmp_path / "data")


def found(store: Store, subject: str, **arguments) -> dict[str, tuple[int, list[int]]]:
    """Kind -> step and counts."""
    return {
        each.name: (each.step, each.counts.tolist())
        for each in store.histograms(RUN, 0, subject, **arguments)
    }


def test_histograms_of_parameter_layer_and_module_are_those_of_their_values(open_store, tmp_path):
    store = open_store(tmp_path)
    key = begin(store, layout=layout())
    store.append(key, 0, [frame(0, "gradient", "parameter", "activation"), frame(1), frame(2, "gradient")])
    for turn in range(3):
        weight = found(store, "first.weight")
        assert weight == {
            "gradient": (2, counted(values_of(2, 0))),
            "parameter": (0, counted(values_of(0, 0))),
        }
        layer = found(store, "first")
        assert layer["gradient"] == (2, counted(values_of(2, 0) + values_of(2, 1)))
        assert layer["activation"] == (0, counted(values_of(0, 1)))
        assert list(layer) == ["gradient", "parameter", "activation"]
        assert found(store, "act") == {"activation": (0, counted(values_of(0, 2)))}
        assert [each.tensors for each in store.histograms(RUN, 0, "first")] == [2, 2, 1]
        if turn == 0:
            store.commit()
        else:
            store.close()
            store = open_store(tmp_path)
    store.close()


def test_histograms_of_a_range_are_the_newest_in_it(store):
    key = begin(store, layout=layout())
    for number, step in enumerate((0, 50, 100, 150)):
        store.append(key, number, [frame(step, "gradient")])
        if number == 1:
            store.commit()
    for end, newest in ((None, 150), (150, 100), (100, 50), (50, 0)):
        assert found(store, "second", steps=StepRange(end=end))["gradient"] == (
            newest,
            counted(values_of(newest, 2)),
        )
    assert found(store, "second", steps=StepRange(first=51, end=99)) == {}


def test_histograms_of_a_resumed_run_are_the_newest_incarnations(store):
    old = [frame(900 + number, "gradient") for number in range(MAX_LOOKED_AT + 1)]
    store.append(begin(store, layout=layout()), 0, old)
    store.commit()
    store.append(begin(store, layout=layout(), incarnation=2000), 0, [frame(100, "gradient")])
    for _ in range(2):
        assert found(store, "second")["gradient"][0] == 100
        assert found(store, "second", steps=StepRange(first=200))["gradient"][0] == 900 + MAX_LOOKED_AT
        store.commit()


@pytest.mark.parametrize("commits", [True, False])
def test_histograms_beyond_the_newest_are_removed(open_store, tmp_path, commits):
    store = open_store(tmp_path)
    key = begin(store, layout=layout())
    for step in range(KEPT + 9):
        store.append(key, step, [frame(step, "gradient", "parameter")])
        if commits:
            store.commit()
    store.commit()
    assert found(store, "second")["gradient"] == (KEPT + 8, counted(values_of(KEPT + 8, 2)))
    assert found(store, "second", steps=StepRange(end=10))["parameter"][0] == 9
    assert found(store, "second", steps=StepRange(end=9)) == {}


def test_histograms_that_are_removed_leave_no_row(tmp_path):
    store = DuckStore(tmp_path)
    key = begin(store, layout=layout())
    store.append(key, 0, [frame(step, "gradient", "parameter") for step in range(KEPT + 9)])
    store.close()
    with duckdb.connect(str(tmp_path / FILE_NAME), read_only=True) as database:
        rows = database.execute("SELECT step, count(*) FROM histograms GROUP BY step").fetchall()
    assert sorted(rows) == [(step, 2) for step in range(9, KEPT + 9)]


@pytest.mark.parametrize(
    "engine", ["clickhouse", pytest.param("replicas", marks=pytest.mark.faults)], indirect=True
)
def test_histograms_that_are_hidden_by_newer_ones_leave_the_server(open_store, tmp_path, monkeypatch):
    monkeypatch.setattr("dashboard.store.clickhouse.leftovers.FIRST_S", 1e9)
    once, store = DuckStore(tmp_path / "once"), open_store(tmp_path / "data")
    (shard,) = store._places.shards

    def rows() -> list[tuple[int, int, int]]:
        """Start, number, and how many series have it, oldest first."""
        query = """SELECT incarnation, seq, uniqExact(series) FROM histograms GROUP BY incarnation, seq
            ORDER BY incarnation, seq"""
        return shard.database.rows(query)

    def both(number: int, first: int, end: int) -> None:
        for each in (store, once):
            key = begin(each, layout=layout(), incarnation=1000 * (number + 1))
            each.append(key, 0, [frame(step, "gradient", "parameter") for step in range(first, end)])
            each.commit()

    for each in (store, once):  # of another rank, which has few
        key = begin(each, layout=layout(), rank=1, incarnation=500)
        each.append(key, 0, [frame(step, "gradient") for step in range(9)])
    both(0, 0, KEPT), both(1, KEPT, 2 * KEPT)
    before = rows()
    assert len(before) == 9 + 2 * KEPT
    leftovers.remove_histograms(shard.database)
    time.sleep(0.5)
    assert rows() == before, "there are not so many yet"
    both(2, 2 * KEPT, 2 * KEPT + 3)
    shard.database.run("SYSTEM STOP MERGES histograms")
    for _ in range(3):  # sent again: they count once
        shard.database.run("INSERT INTO histograms SELECT * FROM histograms WHERE incarnation >= 2000")
    of_first = range(KEPT)[-(leftovers.SPARE - 3) :]
    newest = [(1000, seq, 2) for seq in of_first] + [(2000, seq, 2) for seq in range(KEPT)]
    wanted = [*((500, seq, 1) for seq in range(9)), *newest, *((3000, seq, 2) for seq in range(3))]
    for _ in range(2):
        leftovers.remove_histograms(shard.database)
        shard.database.run("SYSTEM START MERGES histograms")
        wait_until(lambda: rows() == wanted, "those beyond are gone")
        for rank in (0, 1):
            for steps in (StepRange(), StepRange(end=KEPT + 20), StepRange(end=KEPT)):
                mine, truth = (each.histogram_columns(RUN, rank, "first", steps) for each in (store, once))
                assert columns_of(mine) == columns_of(truth)
                assert bool(truth) == (rank == 1 or steps.end != KEPT)
    once.close()


def columns_of(found: list[object]) -> list[object]:
    return [(each.name, each.tensors, each.steps.tolist(), each.counts.tolist()) for each in found]


def test_histograms_of_calls_add_up_by_module(store):
    key = begin(store, layout=layout())
    calls = [1, 3, 1, 2]
    store.append(key, 0, [frame(0, "activation", module_rows=pack_module_rows(np.array(calls)))])
    assert found(store, "first")["activation"] == (0, counted(values_of(0, 0) + values_of(0, 2)))
    assert found(store, "second")["activation"] == (0, counted(values_of(0, 1)))
    assert found(store, "") == {}


def test_histogram_of_what_was_not_measured_last_is_an_older_one(store):
    key = begin(store, layout=layout())
    store.append(key, 0, [frame(0, "gradient")])
    for step in range(1, MAX_LOOKED_AT + 1):
        empty = packed("gradient", [values_of(step, 0), [], values_of(step, 2)])
        store.append(key, step, [encode(Frame(step=step, time=1.0, histograms=[empty]))])
        if step < MAX_LOOKED_AT:
            assert found(store, "first.bias")["gradient"] == (0, counted(values_of(0, 1)))
            assert found(store, "first")["gradient"] == (step, counted(values_of(step, 0)))
    assert found(store, "first.bias") == {}


def test_histogram_subjects_are_modules_with_their_parameters(store):
    key = begin(store, layout=layout(modules=()))
    assert store.histogram_subjects(RUN) == []
    store.append(key, 0, [frame(0, "gradient")])
    assert store.histogram_subjects(RUN) == ["first", "first.weight", "first.bias", "second", "second.weight"]
    store.append(stream_key("events"), 2, [encode(layout(1))])
    everything = ["", "first", "first.weight", "first.bias", "act", "second", "second.weight"]
    assert store.histogram_subjects(RUN) == everything
    store.append(key, 1, [frame(5, "activation", layout=1)])
    assert found(store, "first") == {
        "gradient": (0, counted(values_of(0, 0) + values_of(0, 1))),
        "activation": (5, counted(values_of(5, 1))),
    }
    assert store.histogram_subjects("unknown") == [] and found(store, "of nobody") == {}


def test_histogram_mark_changes_with_each_new_one_alone(store):
    key = begin(store, layout=layout())
    store.append(key, 0, [frame(0)])
    assert store.histogram_mark(RUN) is None
    store.append(key, 1, [frame(1, "gradient")])
    first = store.histogram_mark(RUN)
    store.append(key, 2, [frame(2)])
    store.commit()
    assert store.histogram_mark(RUN) == first is not None
    store.append(key, 3, [frame(3, "activation")])
    assert store.histogram_mark(RUN) != first


MISFITS = {
    "other bins": pack_histogram("gradient", "parameters", np.ones((3, 12), dtype=np.int64)),
    "too few rows": pack_histogram("gradient", "parameters", np.ones((2, BINS), dtype=np.int64)),
    "unknown name": pack_histogram("of_the_future", "parameters", np.ones((3, BINS), dtype=np.int64)),
    "wrong rows": pack_histogram("activation", "parameters", np.ones((3, BINS), dtype=np.int64)),
    "half a number": Histogram(name="gradient", rows="parameters", bins=BINS, data=b"\0" * 7),
}


@pytest.mark.parametrize("name", sorted(MISFITS))
@pytest.mark.parametrize("rows", [b"", pack_module_rows(np.array([0, 9])), b"\0"])
def test_histogram_that_does_not_fit_costs_nothing_else(store, name, rows):
    key = begin(store, layout=layout())
    bad = Frame(step=0, time=0.0, histograms=[MISFITS[name]], scalars={"loss": 1.5}, module_rows=rows)
    store.append(key, 0, [encode(bad)])
    store.commit()
    assert (store.position(key).stored, store.position(key).dropped) == (1, 0)
    assert store.scalars(RUN, 0, ["loss"])["mean"].tolist() == [1.5]
    assert store.histogram_mark(RUN) is None and found(store, "first") == {}


def test_counts_that_are_left_out_when_zero_are_zero_where_their_companion_was_measured(store):
    from probe.wire.module_frames import pack_module_columns

    key = begin(store, layout=layout())
    ones = {"activation_rms": np.ones(4), "activation_nan_count": np.array([0.0, 7.0, 0.0, 0.0])}
    gaps = {name: np.array([False, False, True, False]) for name in ones}
    clean = pack_module_columns(
        {name: values * (name != "activation_nan_count") for name, values in ones.items()}, gaps
    )
    for step, columns in enumerate([clean, pack_module_columns(ones, gaps), []]):
        store.append(
            key, step, [encode(Frame(step=step, time=0.0, module_columns=columns, scalars={"lr": 1.0}))]
        )
        assert "activation_nan_count" in store.statistic_names(RUN)
    picture = store.heatmap(RUN, 0, "activation_nan_count")
    assert picture.rows == ("", "first", "second")
    assert picture.values[:, :2].tolist() == [[0.0, 0.0], [0.0, 7.0], [0.0, 0.0]]
    assert "activation_gradient_nan_count" not in store.statistic_names(RUN)
    assert store.heatmap(RUN, 0, "activation_inf_count").values[0].tolist()[:2] == [0.0, 0.0]
