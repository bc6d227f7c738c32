"""What is measured at some steps only: parameter and module columns, late frames, unknown additions."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from store_engines import OpenStore
from store_reference import RUN, Reference, begin, make_frame, make_layout, stream_key

from dashboard.store.duck import DuckStore
from dashboard.store.protocol import Store
from dashboard.store.schema import FILE_NAME
from probe.wire import Frame, ModuleColumn, ModuleInfo, encode
from probe.wire.columns import pack_column
from probe.wire.layer_values import reduce_calls
from probe.wire.module_frames import pack_histogram, pack_module_columns, pack_module_rows

NAN, INF = math.nan, math.inf
MODULES = ("", "first", "act", "second")
LAYERS = {"first": ["weight", "bias"], "second": ["weight"]}
PARAMETERS = ("first.weight", "first.bias", "second.weight")


def layout(number: int = 0, modules: tuple[str, ...] = MODULES):
    named = [ModuleInfo(name=name, type="Module") for name in modules]
    return msgspec.structs.replace(make_layout(LAYERS, number=number), modules=named)


def masked(**named: list[float | None]) -> list[ModuleColumn]:
    """Columns in which None is a gap."""
    values = {name: np.array([0.0 if v is None else v for v in row]) for name, row in named.items()}
    gaps = {name: np.array([v is None for v in row]) for name, row in named.items()}
    return pack_module_columns(values, gaps)


def frame(step: int, *, gradients: list[float] | None = None, **fields) -> bytes:
    columns = [] if gradients is None else [pack_column("grad_norm", np.array(gradients))]
    return encode(Frame(step=step, time=float(step), columns=columns, **fields))


@pytest.fixture
def store(open_store: OpenStore, tmp_path) -> Store:
    return open_store(tmp_path / "data")


def picture_of(store: Store, statistic: str, **arguments) -> dict[str, list[float | None]]:
    """Row name -> one value per column; None where nothing was measured."""
    picture = store.heatmap(RUN, 0, statistic, **arguments)
    return {
        name: [float(v) if f else None for v, f in zip(values, flags, strict=True)]
        for name, values, flags in zip(picture.rows, picture.values, picture.flags, strict=True)
    }


def test_module_columns_have_rows_in_model_order_and_gaps_where_nothing_was_measured(store):
    key = begin(store, layout=layout())
    records = [
        frame(0, gradients=[1, 2, 3], module_columns=masked(activation_rms=[1.0, 2.0, None, 4.0])),
        frame(1, gradients=[1, 2, 3]),
        frame(2, module_columns=masked(activation_rms=[5.0, NAN, None, 0.0])),
    ]
    store.append(key, 0, records)
    for _ in range(2):
        found = picture_of(store, "activation_rms")
        assert list(found) == ["", "first", "second"]
        assert found[""] == [1.0, None, 5.0] and found["second"] == [4.0, None, 0.0]
        assert store.heatmap(RUN, 0, "activation_rms").flags[1].tolist() == [1, 0, 3]
        store.commit()


def test_module_called_several_times_in_a_step_has_one_value(store):
    key = begin(store, layout=layout())
    columns = masked(
        activation_rms=[3.0, 1.0, 2.0],
        forward_time_s=[0.25, 0.5, 1.0],
        activation_gradient_norm=[3.0, 4.0, None],
    )
    rows = pack_module_rows(np.array([1, 1, 3]))
    store.append(key, 0, [frame(0, module_columns=columns, module_rows=rows)])
    assert picture_of(store, "activation_rms") == {"first": [3.0], "second": [2.0]}
    assert picture_of(store, "forward_time_s") == {"first": [0.75], "second": [1.0]}
    assert picture_of(store, "activation_gradient_norm") == {"first": [5.0]}


calls = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100), st.booleans()), max_size=12)


@given(items=calls, name=st.sampled_from(["calls", "activation_gradient_norm", "activation_rms"]))
def test_reduce_calls_any_calls_agree_with_plain_python(items, name):
    modules, values, gaps = ([item[part] for item in items] for part in range(3))
    found, missing = reduce_calls(
        name,
        np.array(values, dtype=np.float64),
        np.array(gaps, dtype=np.bool_),
        calls=np.array(modules, dtype=np.intp),
        modules=4,
    )
    how = {"calls": sum, "activation_gradient_norm": lambda x: math.hypot(*x), "activation_rms": max}[name]
    for module in range(4):
        mine = [value for m, value, gap in items if m == module and not gap]
        assert missing[module] == (not mine)
        assert not mine or found[module] == pytest.approx(how(mine), rel=1e-12)


def test_parameter_columns_show_per_parameter_and_per_layer(store):
    key = begin(store, layout=layout())
    columns = masked(
        update_ratio=[0.25, 0.5, None], parameter_mean=[1.0, 2.0, 3.0], second_moment_norm=[3, 4, 5]
    )
    store.append(key, 0, [frame(0, gradients=[1, 2, 3], parameter_columns=columns)])
    found = picture_of(store, "update_ratio", unfolded=("first", "second"))
    assert found["first"] == [0.5] and found["first.weight"] == [0.25]
    assert found["second"] == found["second.weight"] == [None]
    assert picture_of(store, "second_moment_norm")["first"] == [5.0]
    assert "update_ratio" in store.statistic_names(RUN) and "parameter_mean" not in store.statistic_names(RUN)


def test_late_frame_adds_to_its_step_and_doubles_nothing(store):
    key = begin(store, layout=layout())
    for step in range(40):
        store.append(key, step, [frame(step, gradients=[step, 1, 2], scalars={"loss": 1.0 * step})])
    store.commit()
    late = frame(
        3, scalars={"update_ratio": 0.5, "log/x": 7.0}, parameter_columns=masked(update_ratio=[1, 2, 3])
    )
    store.append(key, 40, [late])
    for _ in range(2):
        losses = store.scalars(RUN, 0, ["loss", "update_ratio", "log/x"])
        assert losses[losses["name"] == "loss"]["step"].tolist() == list(range(40))
        assert losses[losses["name"] != "loss"][["step", "mean", "pooled"]].values.tolist() == [
            [3, 7, 1],
            [3, 0.5, 1],
        ]
        assert picture_of(store, "update_ratio")["second"][3] == 3.0
        assert picture_of(store, "grad_norm", unfolded=("first",))["first.weight"] == list(range(40))
        assert store.runs()[0].ranks[0].last_step == 39
        store.commit()
    pooled = store.scalars(RUN, 0, ["loss"], max_points=3)
    assert pooled["pooled"].sum() == 40


def test_step_that_goes_back_for_good_is_the_newest_one(store):
    key = begin(store, layout=layout())
    store.append(key, 0, [frame(9, scalars={"loss": 1.0}), frame(2, scalars={"loss": 1.0})])
    assert store.runs()[0].ranks[0].last_step == 2


def test_layout_that_names_modules_later_continues_the_gradients(store):
    key = begin(store, layout=layout(modules=()))
    store.append(key, 0, [frame(0, gradients=[1, 2, 3])])
    store.append(stream_key("events"), 2, [encode(layout(1))])
    store.append(key, 1, [frame(1, gradients=[1, 2, 4], layout=1, module_columns=masked(calls=[1, 1, 1, 1]))])
    begin(store, layout=layout(modules=()), incarnation=2000)
    assert picture_of(store, "grad_norm")["second"] == [3.0, 4.0]
    assert picture_of(store, "calls")["act"] == [None, 1.0]


BAD_PARTS = {
    "row beyond the modules": {
        "module_columns": masked(calls=[1.0]),
        "module_rows": pack_module_rows(np.array([9])),
    },
    "cut-off rows": {"module_columns": masked(calls=[1.0]), "module_rows": b"\0"},
    "too few module values": {"module_columns": masked(calls=[1.0, 2.0])},
    "too few parameter values": {"parameter_columns": masked(update_ratio=[1.0])},
    "half a number": {"module_columns": [ModuleColumn(name="calls", dtype="f8", data=b"\0" * 31)]},
    "unknown statistics": {
        "parameter_columns": masked(of_the_future=[1.0, 2.0, None]),
        "module_columns": masked(of_the_future=[1.0, None, 3.0, 4.0]),
        "histograms": [pack_histogram("of_the_future", "modules", np.ones((4, 3), dtype=np.int64))],
        "module_states": b"\7\7\7\7",
        "stage": "of the future",
    },
}


@pytest.mark.parametrize("name", sorted(BAD_PARTS))
def test_sampled_part_that_does_not_fit_costs_nothing_else(store, name):
    key = begin(store, layout=layout())
    store.append(key, 0, [frame(0, gradients=[1, 2, 3], scalars={"loss": 1.5}, **BAD_PARTS[name])])
    store.commit()
    assert (store.position(key).stored, store.position(key).dropped) == (1, 0)
    assert picture_of(store, "grad_norm")["second"] == [3.0]
    assert store.scalars(RUN, 0, ["loss"])["mean"].tolist() == [1.5]


def test_file_of_a_release_without_module_tables_is_taken_over(tmp_path):
    first = DuckStore(tmp_path)
    first.append(begin(first, layout=layout()), 0, [make_frame(0, {"grad_norm": [1, 2, 3]})])
    first.close()
    with duckdb.connect(str(tmp_path / FILE_NAME)) as database:
        database.execute("DROP TABLE module_raw")
        database.execute("DROP TABLE module_pooled")
    second = DuckStore(tmp_path)
    assert second.notice is None
    second.append(stream_key(), 1, [frame(1, module_columns=masked(calls=[1, 1, 1, 1]))])
    second.commit()
    assert picture_of(second, "calls")["act"] == [None, 1.0]
    assert picture_of(second, "grad_norm")["second"] == [3.0, None]
    second.close()


# ------------------------------------------------------------------------------------ against a dictionary

number = st.none() | st.floats(0, 1e6, width=32) | st.sampled_from([NAN, INF, 0.0])
step_kind = st.fixed_dictionaries(
    {
        "move": st.sampled_from([1, 1, 1, 5, 40, -30]),
        "repeat": st.integers(1, 30),
        "gradients": st.booleans(),
        "ratios": st.none() | st.lists(number, min_size=3, max_size=3),
        "modules": st.none() | st.lists(number, min_size=4, max_size=4),
        "calls": st.booleans(),
        "commit": st.booleans(),
        "reopen": st.sampled_from([False] * 5 + [True]),
    }
)


def feed(store: Store, item, step: int, seq: int, ratios: Reference, modules: Reference) -> None:
    """Append one frame, and note what it says of every row."""
    fields: dict[str, object] = {}
    if item["ratios"] is not None:
        fields["parameter_columns"] = masked(update_ratio=item["ratios"])
        for name, value in zip(PARAMETERS, item["ratios"], strict=True):
            if any(each is not None for each in item["ratios"]):
                ratios.add(name, step, incarnation=1000, seq=seq, value=value)
    if item["modules"] is not None:
        fields["module_columns"] = masked(activation_rms=item["modules"])
        if item["calls"]:
            fields["module_rows"] = pack_module_rows(np.array([3, 2, 1, 0]))
        order = item["modules"][::-1] if item["calls"] else item["modules"]
        for name, value in zip(MODULES, order, strict=True):
            if any(each is not None for each in order):
                modules.add(name, step, incarnation=1000, seq=seq, value=value)
    gradients = [1.0, 2.0, 3.0] if item["gradients"] else None
    store.append(stream_key(), seq, [frame(step, gradients=gradients, scalars={"lr": 0.1}, **fields)])


def check(store: Store, statistic: str, reference: Reference, limit: int) -> None:
    picture = store.heatmap(RUN, 0, statistic, max_columns=limit, unfolded=("first", "second"))
    for row, (name, kind) in enumerate(zip(picture.rows, picture.row_kinds, strict=True)):
        for column, start in enumerate(picture.steps.tolist() if kind != "layer" else []):
            steps = range(start, start + picture.steps_per_column)
            cell = [reference.values[name, step][3] for step in steps if (name, step) in reference.values]
            mine = [value for value in cell if value is not None]
            finite = [np.float32(value) for value in mine if math.isfinite(value)]
            bits = bool(mine) | 2 * any(map(math.isnan, mine)) | 4 * any(map(math.isinf, mine))
            assert picture.flags[row, column] == bits
            np.testing.assert_equal(picture.values[row, column], max(finite) if finite else np.float32(NAN))
    shown = {name for (name, _), entry in reference.values.items() if entry[3] is not None}
    assert not shown or shown <= set(picture.rows)


# Shrinking would build thousands of databases: the failing example itself is printed.
@settings(
    max_examples=15,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.function_scoped_fixture),
)
@given(items=st.lists(step_kind, min_size=1, max_size=8), limit=st.sampled_from([3, 40, 1000]))
def test_store_any_sampled_stream_reads_like_a_dictionary(open_store, items, limit):
    ratios, modules = Reference(), Reference()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder))
        key = begin(store, layout=layout())
        step = seq = 0
        for item in items:
            for _ in range(item["repeat"]):
                step = max(0, step + item["move"])
                feed(store, item, step, seq, ratios, modules)
                seq += 1
            if item["commit"]:
                store.commit()
            if item["reopen"]:
                store.close()
                store = open_store(Path(folder))
        for _ in range(2):
            check(store, "update_ratio", ratios, limit)
            check(store, "activation_rms", modules, limit)
            store.commit()
        position = store.position(key)
        assert (position.stored, position.dropped, position.next_seq) == (seq, 0, seq)
        store.close()
