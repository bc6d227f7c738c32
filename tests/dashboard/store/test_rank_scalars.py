"""All ranks read at once: the same as rank by rank, and as plain loops over what arrived."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from store_engines import OpenStore
from store_reference import RUN, SMALL, begin, column_width, make_frame, stream_key

from dashboard.store.duck import DuckStore
from dashboard.store.protocol import RankScalars, StepRange, Store
from dashboard.store.tensors import has_repeated
from probe.wire import RunStart, decode_record, encode

MEASURED, NAN, INF = 1, 2, 4


@pytest.fixture
def store(open_store: OpenStore, tmp_path: Path) -> Store:
    return open_store(tmp_path)


def start(
    store: Store, rank: int, *, host: str = "", world: int = 1, incarnation: int = 1000, run: str = RUN
) -> None:
    record = RunStart(run=run, rank=rank, incarnation=incarnation, host=host, world_size=world)
    key = stream_key("events", rank=rank, incarnation=incarnation, run=run)
    store.append(key, 0, [encode(record), encode(SMALL)])


def feed(
    store: Store,
    rank: int,
    values: dict[int, float],
    *,
    incarnation: int = 1000,
    is_committed: bool = True,
) -> None:
    key = stream_key(rank=rank, incarnation=incarnation)
    frames = [make_frame(step, scalars={"x": value}) for step, value in values.items()]
    store.append(key, store.position(key).next_seq, frames)
    if is_committed:
        store.commit()


def walk(seed: int, steps: range) -> dict[int, float]:
    draw = np.random.default_rng(seed)
    values = dict(zip(steps, draw.uniform(0.5, 2.0, len(steps)).tolist(), strict=True))
    chosen = draw.choice(list(steps), 3, replace=False).tolist()
    values.update(zip(chosen, (math.nan, math.inf, -math.inf), strict=True))
    return values


def expected(
    ranks: list[dict[int, float]], first: int, last: int, columns: int
) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """(first steps, mean, largest, flags) by loops; the range is widened to whole columns."""
    width = column_width(first, last, columns)
    starts = [column * width for column in range(first // width, last // width + 1)]
    mean, largest = (np.full((len(ranks), len(starts)), np.nan) for _ in "ab")
    flags = np.zeros((len(ranks), len(starts)), np.uint8)
    for row, values in enumerate(ranks):
        for column, low in enumerate(starts):
            inside = [values[step] for step in range(low, low + width) if step in values]
            finite = [value for value in inside if math.isfinite(value)]
            flags[row, column] = (
                MEASURED * bool(inside)
                + NAN * any(map(math.isnan, inside))
                + INF * any(map(math.isinf, inside))
            )
            if finite:
                mean[row, column] = math.fsum(finite) / len(finite)
                largest[row, column] = max(finite)
    return starts, mean, largest, flags


def assert_is(found: RankScalars, ranks: list[dict[int, float]], first: int, last: int, columns: int) -> None:
    starts, mean, largest, flags = expected(ranks, first, last, columns)
    assert found.steps.tolist() == starts
    series = found.series["x"]
    np.testing.assert_allclose(series.mean, mean, rtol=1e-12)
    np.testing.assert_array_equal(series.largest, largest)
    np.testing.assert_array_equal(series.flags, flags)


@pytest.mark.parametrize(
    "columns", [2000, 60, 1, *(pytest.param(columns, marks=pytest.mark.faults) for columns in (400, 7))]
)
@pytest.mark.parametrize("is_committed", [True, False])
def test_rank_scalars_pool_as_loops_do(store: Store, columns: int, is_committed: bool) -> None:
    ranks = [walk(rank, range(1200 - 3 * rank)) for rank in range(5)]
    for rank, values in enumerate(ranks):
        start(store, rank)
        old = {step: value for step, value in values.items() if step < 1100}
        feed(store, rank, old)
        feed(store, rank, {step: value for step, value in values.items() if step >= 1100})
        # Again, other values for steps that are stored, and not committed: the newest count.
        again = dict.fromkeys(range(700, 720), float(rank))
        values |= again
        feed(store, rank, again, is_committed=is_committed)
    assert_is(store.rank_scalars(RUN, ["x"], max_columns=columns), ranks, 0, 1199, columns)
    part = store.rank_scalars(RUN, ["x"], StepRange(first=100, end=1000), columns)
    assert_is(part, ranks, 100, 999, columns)


def test_rank_scalars_are_those_of_each_rank(store: Store) -> None:
    for rank in range(3):
        start(store, rank)
        feed(store, rank, walk(rank, range(500)))
    found = store.rank_scalars(RUN, ["x"], max_columns=50)
    for rank in range(3):
        single = store.scalars(RUN, rank, ["x"], max_points=50)
        np.testing.assert_allclose(found.series["x"].mean[rank], single["mean"], rtol=1e-12)
        np.testing.assert_array_equal(found.series["x"].largest[rank], single["max"])


def test_rank_scalars_where_raw_rows_are_gone_come_from_the_pyramid(tmp_path: Path) -> None:
    store = DuckStore(tmp_path, raw_steps=200)
    ranks = [walk(rank, range(3000)) for rank in range(3)]
    for rank, values in enumerate(ranks):
        start(store, rank)
        for low in range(0, 3000, 50):
            feed(store, rank, {step: values[step] for step in range(low, low + 50)})
    found = store.rank_scalars(RUN, ["x"], max_columns=3000)
    assert found.steps_per_column == 16
    starts, mean, largest, flags = expected(ranks, 0, 2999, 188)
    assert found.steps.tolist() == starts
    np.testing.assert_allclose(found.series["x"].mean, mean, rtol=1e-9)
    np.testing.assert_array_equal(found.series["x"].largest, largest)
    np.testing.assert_array_equal(found.series["x"].flags, flags)
    store.close()


def test_rank_scalars_ranks_of_another_pace_keep_their_own_steps(store: Store) -> None:
    fast, slow, dead = walk(0, range(4000)), walk(1, range(900)), walk(2, range(37))
    for rank, values in enumerate((fast, slow, dead)):
        start(store, rank)
        feed(store, rank, values)
    assert_is(store.rank_scalars(RUN, ["x"], max_columns=40), [fast, slow, dead], 0, 3999, 40)


def test_rank_scalars_newest_incarnation_counts(store: Store) -> None:
    for rank in range(2):
        start(store, rank)
        feed(store, rank, dict.fromkeys(range(40), 1.0))
        start(store, rank, incarnation=2000, host="new")
        feed(store, rank, dict.fromkeys(range(20, 30), 2.0), incarnation=2000)
    found = store.rank_scalars(RUN, ["x"], max_columns=100)
    wanted = [1.0] * 20 + [2.0] * 10 + [1.0] * 10
    assert found.series["x"].mean.tolist() == [wanted, wanted]
    assert found.hosts == ("new", "new")


def test_rank_scalars_late_record_of_an_older_start_changes_nothing(store: Store) -> None:
    start(store, 0)
    start(store, 0, incarnation=2000)
    feed(store, 0, {5: 2.0}, incarnation=2000)
    feed(store, 0, dict.fromkeys(range(3), 1.0))
    key = stream_key(rank=0)
    store.append(key, store.position(key).next_seq, [make_frame(5, scalars={"x": 1.0})])
    found = store.rank_scalars(RUN, ["x"])
    assert found.series["x"].mean[0].tolist() == pytest.approx([1, 1, 1, math.nan, math.nan, 2], nan_ok=True)


def test_rank_scalars_missing_rank_has_a_row_without_values(store: Store) -> None:
    start(store, 0, host="node0", world=3)
    start(store, 2, host="node1", world=3)
    feed(store, 0, {0: 1.0, 1: 1.5})
    feed(store, 2, {1: 2.5})
    found = store.rank_scalars(RUN, ["x", "nothing"])
    assert (found.ranks, found.hosts) == ((0, 1, 2), ("node0", "", "node1"))
    assert found.present == (True, False, True)
    assert found.series["x"].flags.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert not found.series["nothing"].flags.any()


def test_rank_scalars_world_beyond_the_limit_lists_known_ranks_only(store: Store) -> None:
    start(store, 0, world=1_000_000)
    start(store, 999_999, world=1_000_000)
    assert store.rank_scalars(RUN, ["x"]).ranks == (0, 999_999)


def test_rank_scalars_before_the_first_step_and_of_no_run(store: Store) -> None:
    assert store.rank_scalars("nowhere", ["x"]).ranks == ()
    start(store, 0)
    start(store, 1)
    found = store.rank_scalars(RUN, ["x"])
    assert (found.ranks, found.series["x"].mean.shape, len(found.steps)) == ((0, 1), (2, 0), 0)


def test_rank_scalars_stage_is_that_of_the_newest_gradient_and_survives_a_restart(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(tmp_path)
    start(store, 0)
    start(store, 1)
    begin(store, rank=2)
    key = stream_key(rank=1)
    frame = decode_record(make_frame(0, scalars={"grad_norm": 1.0}))
    store.append(key, 0, [encode(msgspec.structs.replace(frame, stage="reduced"))])
    store.append(key, 1, [make_frame(0, scalars={"log/x": 1.0})])
    feed(store, 0, {0: 1.0})
    store.commit()
    assert store.rank_scalars(RUN, ["x"]).stages == (None, "reduced", None)
    store.close()
    again = open_store(tmp_path)
    assert again.rank_scalars(RUN, ["x"]).stages == (None, "reduced", None)
    again.close()


def test_rank_scalars_look_through_what_is_not_committed_once_for_all_ranks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    isin = np.isin
    monkeypatch.setattr(np, "isin", lambda *given: looked.append(given) or isin(*given))
    counts = []
    for rank in range(24):
        start(store, rank)
        feed(store, rank, {0: 1.0 + rank, 1: math.nan}, is_committed=False)
        looked.clear()
        found = store.rank_scalars(RUN, ["x"], max_columns=10)
        counts.append(len(looked))
        assert found.series["x"].largest[:, 0].tolist() == [1.0 + each for each in range(rank + 1)]
    assert counts[-1] == counts[0]


@pytest.mark.parametrize("apart", [1, 10**6, 2**40])
@pytest.mark.parametrize("numbers", [[3, 4, 5], [7, 2**62, 2**62 + 1]])
def test_repeated_rows_are_seen_wherever_they_are(numbers: list[int], apart: int) -> None:
    series, step = np.repeat(numbers, 50), np.tile(np.arange(50) * apart, 3)
    assert not has_repeated({"series": series, "step": step})
    for chosen in (0, 77, 149):
        again = {"series": np.r_[series, series[chosen]], "step": np.r_[step, step[chosen]]}
        assert has_repeated(again)
    assert not has_repeated({"series": series[:0], "step": step[:0]})
