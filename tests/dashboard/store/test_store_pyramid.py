from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.store.pyramid import (
    LEVELS,
    MEASURED,
    SAW_INF,
    SAW_NAN,
    choose_grid,
    closing,
    cover,
    flags_of,
    pool_rows,
)

values = st.one_of(
    st.floats(width=32), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 3.4e38, -3.4e38])
)


@given(
    first=st.integers(0, 2**61),
    length=st.integers(0, 2**61),
    limit=st.integers(1, 3000),
    finest=st.sampled_from([1, 16]),
)
def test_grid_any_range_is_finest_aligned_one_that_fits(first, length, limit, finest):
    grid = choose_grid(first, first + length, max_columns=limit, finest=finest)
    assert 1 <= grid.columns <= limit
    assert grid.first <= first < grid.first + grid.width
    assert grid.end - grid.width <= first + length < grid.end
    assert grid.first % grid.width == 0 and grid.width % grid.level == 0 and grid.level in LEVELS
    finer = grid.width // 2
    assert grid.width == finest or (first + length) // finer - first // finer + 1 > limit


@given(
    first=st.integers(0, 9000),
    length=st.integers(0, 9000),
    limit=st.integers(1, 200),
    committed=st.integers(0, 12000),
    dirty=st.lists(st.integers(0, 20000), max_size=5),
)
def test_cover_any_state_reads_every_step_once_and_only_settled_buckets(
    first, length, limit, committed, dirty
):
    grid = choose_grid(first, first + length, max_columns=limit)
    unsettled = np.array(sorted(set(dirty)), dtype=np.int64)
    pieces = sorted(cover(grid, next_step=committed, unsettled=unsettled), key=lambda piece: piece.first)
    assert [piece.first for piece in pieces] == [grid.first, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == grid.end
    for piece in pieces:
        assert piece.first % piece.level == 0 and piece.end % piece.level == 0
        if piece.level > 1:
            assert piece.end <= committed
            assert not any(piece.first <= step < piece.end for step in dirty)


def test_cover_settled_range_reads_at_most_sixteen_rows_per_column():
    grid = choose_grid(0, 1_000_000, max_columns=1000)
    pieces = cover(grid, next_step=1_000_001, unsettled=np.empty(0, np.int64))
    assert sum((piece.end - piece.first) // piece.level for piece in pieces) <= grid.columns * 16 + 16 * 5


@given(before=st.integers(0, 3000), moved=st.integers(0, 3000), touched=st.lists(st.integers(0, 6000)))
def test_closing_any_move_names_each_closed_bucket_that_is_new_or_touched(before, moved, touched):
    after = before + moved
    ranges = closing(16, before=before, after=after, touched=np.array(touched, dtype=np.int64))
    named = [bucket for first, end in ranges for bucket in range(first // 16, end // 16)]
    again = {step // 16 for step in touched if step < before // 16 * 16}
    assert named == sorted(again | set(range(before // 16, after // 16)))


def test_closing_distant_step_does_not_enumerate_buckets():
    ranges = closing(16, before=0, after=2**62, touched=np.array([2**62 - 1], dtype=np.int64))
    assert ranges == [(0, 2**62)]


@given(st.lists(st.tuples(st.integers(0, 4), values, st.booleans()), min_size=1, max_size=40))
def test_pool_rows_any_values_agree_with_plain_python(items):
    items = sorted(items, key=lambda item: item[0])
    raw = np.array([[value] for _, value, _ in items], dtype=np.float32)
    flags = flags_of(raw)
    flags[[not measured for _, _, measured in items]] = 0
    group, pooled, pooled_flags = pool_rows(np.array([g for g, _, _ in items]), raw, flags)
    assert group.tolist() == sorted({g for g, _, _ in items})
    for index, key in enumerate(group.tolist()):
        mine = [float(np.float32(v)) for g, v, measured in items if g == key and measured]
        finite = [v for v in mine if math.isfinite(v)]
        expected = max(finite) if finite else math.nan
        assert pooled[index, 0] == expected or (math.isnan(expected) and math.isnan(pooled[index, 0]))
        bits = (
            MEASURED * bool(mine)
            | SAW_NAN * any(map(math.isnan, mine))
            | SAW_INF * any(map(math.isinf, mine))
        )
        assert pooled_flags[index, 0] == bits


@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=16, max_size=64))
def test_pool_rows_twice_equals_pooling_once(rows):
    raw = np.array(rows, dtype=np.float32)
    steps = np.arange(len(rows))
    once = pool_rows(steps // 16, raw, flags_of(raw))
    group, half, half_flags = pool_rows(steps // 4, raw, flags_of(raw))
    twice = pool_rows(group // 4, half, half_flags)
    for left, right in zip(once, twice, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("edge", [0, 15, 16, 31])
@pytest.mark.parametrize(("bad", "bit"), [(math.nan, SAW_NAN), (math.inf, SAW_INF), (-math.inf, SAW_INF)])
def test_pool_rows_bad_value_at_bucket_edge_marks_only_its_bucket(edge, bad, bit):
    raw = np.ones((32, 1), dtype=np.float32)
    raw[edge] = bad
    _, pooled, flags = pool_rows(np.arange(32) // 16, raw, flags_of(raw))
    assert pooled[:, 0].tolist() == [1.0, 1.0]
    assert flags[:, 0].tolist() == [MEASURED | (bit if edge // 16 == bucket else 0) for bucket in range(2)]


def test_pool_rows_without_flags_is_the_maximum():
    raw = np.array([[1.0, -5.0], [3.0, -4.0], [2.0, -9.0]], dtype=np.float32)
    group, pooled, flags = pool_rows(np.array([0, 0, 7]), raw, None)
    assert group.tolist() == [0, 7] and pooled.tolist() == [[3.0, -4.0], [2.0, -9.0]] and flags is None
