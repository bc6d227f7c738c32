from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_engines import OpenStore
from store_reference import RUN, SMALL, begin, make_frame, make_layout, stream_key

from dashboard.store.protocol import StepRange, Store
from dashboard.store.pyramid import flags_of
from probe.wire import encode
from probe.wire.layer_values import geometry_of, narrow, reduce_layers

NAN, INF = math.nan, math.inf


@pytest.fixture
def store(open_store: OpenStore, tmp_path) -> Store:
    return open_store(tmp_path / "data")


def cells(picture, row: int) -> list[float]:
    return [None if math.isnan(value) else value for value in picture.values[row].tolist()]


# One layer per row of `groups`: the indices of its parameters, neither contiguous nor all present.
groups = st.lists(st.integers(0, 4), min_size=1, max_size=12)
value = st.one_of(
    st.floats(0, 1e300), st.sampled_from([NAN, INF, 0.0, 1e-300, 1e-45, 3.4e38, 1e308]), st.floats(0, 1)
)


@given(owners=groups, data=st.data())
def test_reduce_layers_any_grouping_agrees_with_plain_python(owners, data):
    names = {f"layer{index}": [] for index in range(6)}
    layout = make_layout(names)
    parameters = [
        make_layout({"x": ["w"]}).parameters[0].__class__(name=f"p{i}", shape=[1], dtype="f", layer=owner)
        for i, owner in enumerate(owners)
    ]
    geometry = geometry_of(type(layout)(layout=0, model="m", layers=layout.layers, parameters=parameters))
    row = data.draw(st.lists(value, min_size=len(owners), max_size=len(owners)))
    missing = data.draw(st.lists(st.booleans(), min_size=len(owners), max_size=len(owners)))
    values = np.array([row])
    flags = flags_of(values)
    flags[0, missing] = 0
    for reduction, slow in {"norm": lambda v: math.hypot(*v), "max": max, "sum": math.fsum}.items():
        with np.errstate(over="ignore"):
            result, result_flags = reduce_layers(reduction, values, flags, geometry)
        for layer in range(6):
            mine = [
                v for v, owner, gone in zip(row, owners, missing, strict=True) if owner == layer and not gone
            ]
            assert result_flags[0, layer] == (
                bool(mine) | 2 * any(map(math.isnan, mine)) | 4 * any(map(math.isinf, mine))
            )
            if mine and all(map(math.isfinite, mine)):
                np.testing.assert_allclose(result[0, layer], as_float32(slow, mine), rtol=1e-6)
            else:
                assert not np.isfinite(result[0, layer])


def as_float32(slow, mine: list[float]) -> float:
    """The reference in float32, finite as long as float64 can hold it."""
    try:
        return float(narrow(np.array([slow(mine)]))[0])
    except OverflowError:
        return math.inf


@pytest.mark.parametrize(
    ("given_value", "kept"),
    [
        (1e39, 3.4028234663852886e38),
        (-1e39, -3.4028234663852886e38),
        (1e-60, 1.401298464324817e-45),
        (0.0, 0.0),
    ],
)
def test_narrow_finite_value_stays_finite_and_nonzero(given_value, kept):
    assert float(narrow(np.array([given_value]))[0]) == kept


def test_heatmap_unknown_run_or_before_layout_is_none(store):
    assert store.heatmap(RUN, 0) is None and store.layout(RUN) is None


def test_heatmap_before_first_frame_has_rows_and_no_columns(store):
    begin(store)
    picture = store.heatmap(RUN, 0)
    assert picture.rows == ("first", "second") and picture.values.shape == (2, 0)


def test_heatmap_layers_in_model_order_with_unfolded_parameters_below(store):
    key = begin(store)
    store.append(key, 0, [make_frame(0, {"grad_norm": [3.0, 4.0, 7.0]})])
    picture = store.heatmap(RUN, 0, unfolded=("first", "unknown"))
    assert picture.rows == ("first", "first.weight", "first.bias", "second")
    assert picture.row_kinds == ("layer", "parameter", "parameter", "layer")
    assert picture.values[:, 0].tolist() == [5.0, 3.0, 4.0, 7.0]
    assert not picture.values.flags.writeable and not picture.flags.flags.writeable


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [
        ("grad_norm", [5.0, 7.0]),
        ("parameter_norm", [5.0, 7.0]),
        ("grad_max_abs", [4.0, 7.0]),
        ("grad_nan_count", [7.0, 7.0]),
        ("grad_inf_count", [7.0, 7.0]),
        ("grad_mean", [None, None]),
        ("grad_std", [None, None]),
    ],
)
def test_heatmap_statistic_has_its_own_layer_value(store, statistic, expected):
    key = begin(store)
    store.append(key, 0, [make_frame(0, {statistic: [3.0, 4.0, 7.0]})])
    picture = store.heatmap(RUN, 0, statistic, unfolded=("first", "second"))
    layers = [row for row, kind in enumerate(picture.row_kinds) if kind == "layer"]
    assert [cells(picture, row)[0] for row in layers] == expected
    assert [cells(picture, row)[0] for row in range(5) if row not in layers] == [3.0, 4.0, 7.0]


def test_heatmap_nan_inf_and_missing_show_as_flags(store):
    key = begin(store)
    frames = [
        make_frame(0, {"grad_norm": [NAN, 4.0, 1.0]}),
        make_frame(1, {"grad_norm": [INF, NAN, 1.0]}),
        make_frame(2, {"grad_norm": [3.0, 0.0, 0.0]}, missing=[False, True, True]),
    ]
    store.append(key, 0, frames)
    picture = store.heatmap(RUN, 0, unfolded=("first",))
    assert picture.flags[:, :3].tolist() == [[3, 7, 1], [3, 5, 1], [1, 3, 0], [1, 1, 0]]
    assert cells(picture, 0) == [None, None, 3.0] and cells(picture, 3) == [1.0, 1.0, None]


def test_heatmap_missing_gradient_does_not_hide_parameter_norm(store):
    key = begin(store)
    store.append(key, 0, [make_frame(0, {"parameter_norm": [1.0, 1.0, 2.0]}, missing=[True] * 3)])
    assert store.heatmap(RUN, 0, "parameter_norm").flags.tolist() == [[1], [1]]


def test_heatmap_count_left_out_when_zero_reads_as_zero(store):
    key = begin(store)
    columns = {"grad_norm": [1.0, 1.0, 1.0]}
    frames = [
        make_frame(0, columns),
        make_frame(1, columns | {"grad_nan_count": [2.0, 1.0, 0.0]}),
        make_frame(3, columns, missing=[False, False, True]),
    ]
    store.append(key, 0, frames)
    picture = store.heatmap(RUN, 0, "grad_nan_count")
    assert cells(picture, 0) == [0.0, 3.0, None, 0.0] and cells(picture, 1) == [0.0, 0.0, None, None]


def test_heatmap_sparse_steps_leave_unmeasured_columns(store):
    key = begin(store)
    store.append(key, 0, [make_frame(step, {"grad_norm": [0, 0, step]}) for step in (5, 8)])
    picture = store.heatmap(RUN, 0)
    assert picture.steps.tolist() == [5, 6, 7, 8]
    assert picture.flags[1].tolist() == [1, 0, 0, 1]


def test_heatmap_range_clips_and_widens_to_whole_columns(store):
    key = begin(store)
    store.append(key, 0, [make_frame(step, {"grad_norm": [0, 0, step]}) for step in range(100)])
    picture = store.heatmap(RUN, 0, steps=StepRange(first=30, end=50), max_columns=4)
    assert picture.steps_per_column == 8 and picture.steps.tolist() == [24, 32, 40, 48]
    assert picture.values[1].tolist() == [31.0, 39.0, 47.0, 55.0]
    assert store.heatmap(RUN, 0, steps=StepRange(first=500)).values.shape == (2, 0)


def test_heatmap_same_layout_in_new_incarnation_replaces_repeated_steps_only(store):
    key = begin(store)
    store.append(key, 0, [make_frame(step, {"grad_norm": [0, 0, 1000 + step]}) for step in range(100)])
    store.commit()
    resumed = begin(store, incarnation=2000)
    store.append(resumed, 0, [make_frame(step, {"grad_norm": [0, 0, step]}) for step in range(40, 60)])
    for _ in range(2):
        picture = store.heatmap(RUN, 0, max_columns=100)
        assert picture.values[1].tolist() == [
            float(step if 40 <= step < 60 else 1000 + step) for step in range(100)
        ]
        pooled = store.heatmap(RUN, 0, steps=StepRange(first=32, end=64), max_columns=2)
        assert pooled.values[1].tolist() == [1039.0, 1063.0]
        store.commit()


def test_heatmap_late_records_of_an_old_incarnation_do_not_replace_newer_ones(store):
    key = begin(store)
    resumed = begin(store, incarnation=2000)
    store.append(resumed, 0, [make_frame(step, {"grad_norm": [0, 0, 1]}) for step in range(50)])
    store.commit()
    store.append(key, 0, [make_frame(step, {"grad_norm": [0, 0, 9]}) for step in range(60)])
    for _ in range(2):
        assert store.heatmap(RUN, 0).values[1].tolist() == [1.0] * 50 + [9.0] * 10
        store.commit()


def test_heatmap_changed_model_keeps_history_of_layers_with_the_same_name(store):
    key = begin(store)
    store.append(key, 0, [make_frame(0, {"grad_norm": [3.0, 4.0, 7.0]})])
    layout = make_layout({"second": ["weight"], "third": ["weight"]}, number=1)
    store.append(stream_key("events"), 2, [encode(layout)])
    store.append(key, 1, [make_frame(1, {"grad_norm": [8.0, 9.0]}, layout=1)])
    assert store.layout(RUN).layout == 1
    for _ in range(2):
        picture = store.heatmap(RUN, 0)
        assert picture.rows == ("second", "third")
        assert cells(picture, 0) == [7.0, 8.0] and cells(picture, 1) == [None, 9.0]
        store.commit()


def test_heatmap_two_models_of_one_step_do_not_mix(store):
    key = begin(store)
    other = make_layout({"second": ["weight"]}, number=1, model="critic")
    store.append(stream_key("events"), 2, [encode(other)])
    frames = [make_frame(0, {"grad_norm": [1, 2, 3]}), make_frame(0, {"grad_norm": [9.0]}, layout=1)]
    store.append(key, 0, frames)
    picture = store.heatmap(RUN, 0)
    assert picture.rows == ("second",) and picture.values.tolist() == [[9.0]]


def test_heatmap_ranks_are_separate(store):
    for rank in (0, 1):
        key = begin(store, rank=rank)
        store.append(key, 0, [make_frame(0, {"grad_norm": [0, 0, 10.0 + rank]})])
    store.commit()
    assert [store.heatmap(RUN, rank).values[1, 0] for rank in (0, 1)] == [10.0, 11.0]
    assert store.heatmap(RUN, 2) is None


def test_layout_is_the_newest_one_with_its_own_number(store):
    begin(store)
    assert store.layout(RUN) == SMALL
    store.append(stream_key("events"), 2, [encode(make_layout({"a": ["w"]}, number=4))])
    assert store.layout(RUN).layout == 4
    begin(store, incarnation=2000)
    assert store.layout(RUN) == SMALL
