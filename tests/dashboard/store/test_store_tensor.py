"""Statistics and histograms of one tensor in the store, against the values that went in."""

from __future__ import annotations

import duckdb
import msgspec
import numpy as np
import pytest
from store_engines import OpenStore
from store_reference import RUN, begin, make_layout

from dashboard.store.histograms import KEPT
from dashboard.store.protocol import StepRange, Store, TensorTrack
from dashboard.store.tensors import objects, replace_columns
from probe.wire import Frame, ModuleInfo, encode
from probe.wire.columns import pack_column
from probe.wire.magnitude_bins import BINS
from probe.wire.module_frames import pack_histogram, pack_module_columns

MODULES = ("", "first", "act", "second")
LAYERS = {"first": ["weight", "bias"], "second": ["weight"]}


def layout(number: int = 0):
    named = [ModuleInfo(name=name, type="Module") for name in MODULES]
    return msgspec.structs.replace(make_layout(LAYERS, number=number), modules=named)


def norms(step: int) -> np.ndarray:
    return np.random.default_rng(step).lognormal(size=3)


def frame(step: int, **fields) -> bytes:
    """Gradient norms at each step, update ratios at every 10th, outputs at every 5th."""
    sampled = {"update_ratio": norms(step) / 100} if step % 10 == 0 else {}
    observed = {"activation_rms": np.arange(4.0) + step} if step % 5 == 0 else {}
    made = Frame(
        step=step,
        time=float(step),
        columns=[pack_column("grad_norm", norms(step))],
        parameter_columns=pack_module_columns(sampled, {}),
        module_columns=pack_module_columns(observed, {}),
    )
    return encode(msgspec.structs.replace(made, **fields))


@pytest.fixture
def store(open_store: OpenStore, tmp_path) -> Store:
    return open_store(tmp_path / "data")


def by_name(store: Store, subject: str, **arguments) -> dict[tuple[str, str], TensorTrack]:
    return {(each.kind, each.name): each for each in store.tensor_tracks(RUN, 0, subject, **arguments)}


def test_tensor_tracks_of_a_parameter_are_the_values_that_were_sent(store):
    store.append(begin(store, layout=layout()), 0, [frame(step) for step in range(40)])
    for _ in range(2):
        found = by_name(store, "first.bias")
        norm = found["parameter", "grad_norm"]
        assert norm.steps_per_column == 1 and norm.steps.tolist() == list(range(40))
        assert norm.values == pytest.approx([norms(step)[1] for step in range(40)])
        ratio = found["parameter", "update_ratio"]
        measured = ratio.flags > 0
        assert ratio.steps[measured].tolist() == [0, 10, 20, 30]
        assert ratio.values[measured] == pytest.approx([norms(step)[1] / 100 for step in (0, 10, 20, 30)])
        # No gradient had a NaN: that is known, and not nothing.
        assert found["parameter", "grad_nan_count"].values.tolist() == [0.0] * 40
        assert not any(kind == "module" for kind, _ in found)
        store.commit()


def test_tensor_tracks_of_a_layer_have_its_norm_and_its_modules_output(store):
    store.append(begin(store, layout=layout()), 0, [frame(step) for step in range(20)])
    found = by_name(store, "first")
    norm = found["layer", "grad_norm"]
    assert norm.values == pytest.approx([np.sqrt(np.sum(norms(step)[:2] ** 2)) for step in range(20)])
    output = found["module", "activation_rms"]
    assert output.steps[output.flags > 0].tolist() == [0, 5, 10, 15]
    assert output.values[output.flags > 0].tolist() == [1.0, 6.0, 11.0, 16.0]
    assert set(by_name(store, "act")) == {
        ("module", "activation_rms"),
        ("module", "activation_nan_count"),
        ("module", "activation_inf_count"),
    }
    assert store.tensor_tracks(RUN, 0, "nobody") == []
    assert store.tensor_tracks("other", 0, "first") == []


def test_tensor_tracks_pool_to_the_columns_asked_for_and_keep_bad_steps(store):
    bad = norms(17)
    bad[0] = np.nan
    frames = [frame(step) for step in range(100)]
    frames[17] = frame(17, columns=[pack_column("grad_norm", bad)])
    store.append(begin(store, layout=layout()), 0, frames)
    store.commit()
    norm = by_name(store, "first.weight", max_columns=20)["parameter", "grad_norm"]
    assert norm.steps_per_column == 8 and len(norm.steps) == 13
    column = 17 // 8
    assert norm.flags[column] == 3 and (np.delete(norm.flags, column) == 1).all()
    largest = max(norms(step)[0] for step in range(16, 24) if step != 17)
    assert norm.values[column] == pytest.approx(largest)
    part = by_name(store, "first.weight", steps=StepRange(first=90, end=95))["parameter", "grad_norm"]
    assert part.steps.tolist() == [90, 91, 92, 93, 94]


def test_tensor_tracks_leave_out_steps_without_a_gradient(store):
    missing = np.packbits([False, True, False]).tobytes()
    store.append(begin(store, layout=layout()), 0, [frame(0), frame(1, missing=missing), frame(2)])
    norm = by_name(store, "first.bias")["parameter", "grad_norm"]
    assert norm.steps[norm.flags > 0].tolist() == [0, 2]


def counts(step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, 50, size=(3, BINS))


def histogram_frame(step: int) -> bytes:
    return frame(step, histograms=[pack_histogram("gradient", "parameters", counts(step))])


@pytest.mark.parametrize("commits", [True, False])
def test_histogram_columns_are_all_that_are_stored_oldest_first(store, commits):
    key = begin(store, layout=layout())
    steps = range(0, (KEPT + 3) * 10, 10)
    for number, step in enumerate(steps):
        store.append(key, number, [histogram_frame(step)])
        if commits and number % 20 == 0:
            store.commit()
    (found,) = store.histogram_columns(RUN, 0, "first")
    assert (found.name, found.tensors) == ("gradient", 2)
    assert found.steps.tolist() == list(steps)[-KEPT:]
    assert found.counts.tolist() == [counts(step)[:2].sum(axis=0).tolist() for step in found.steps]
    assert found.newest.step == steps[-1]
    assert found.newest.counts.tolist() == counts(steps[-1])[:2].sum(axis=0).tolist()
    (part,) = store.histogram_columns(RUN, 0, "second.weight", StepRange(first=300, end=331))
    assert part.steps.tolist() == [300, 310, 320, 330]
    assert part.counts[0].tolist() == counts(300)[2].tolist()


def test_histogram_columns_after_a_restart_follow_those_before_it(store):
    store.append(begin(store, layout=layout()), 0, [histogram_frame(step) for step in (0, 10, 20)])
    store.commit()
    store.append(
        begin(store, layout=layout(), incarnation=2000), 0, [histogram_frame(step) for step in (10, 20)]
    )
    (found,) = store.histogram_columns(RUN, 0, "second")
    assert found.steps.tolist() == [0, 10, 20, 10, 20]


def test_histogram_columns_without_any_are_none(store):
    store.append(begin(store, layout=layout()), 0, [frame(0)])
    assert store.histogram_columns(RUN, 0, "first") == []
    assert store.histogram_columns(RUN, 0, "nobody") == []


def test_gradient_stage_is_that_of_the_newest_gradients_and_survives_a_restart(open_store, tmp_path):
    store = open_store(tmp_path)
    key = begin(store, layout=layout())
    assert store.gradient_stage(RUN, 0) == store.gradient_stage("other", 0) == ""
    store.append(key, 0, [frame(0, stage="scaled"), frame(1, stage="unscaled"), frame(2, columns=[])])
    assert store.gradient_stage(RUN, 0) == "unscaled"
    store.close()
    store = open_store(tmp_path)
    assert store.gradient_stage(RUN, 0) == "unscaled"
    store.close()


@pytest.mark.parametrize("count", [0, 1, 8, 9])
def test_rows_few_or_many_take_the_place_of_those_with_their_keys(count: int) -> None:
    database = duckdb.connect()
    database.execute("CREATE TABLE found (name VARCHAR, step BIGINT, value FLOAT, seen BOOLEAN, data BLOB)")
    for data, value in ((b"", np.nan), (b"\x00\xff", -np.inf)):
        columns = {
            "name": objects(["it's"] * count),
            "step": np.arange(count) + 2**62,
            "value": np.full(count, value, np.float32),
            "seen": np.full(count, data != b""),
            "data": objects([data] * count),
        }
        replace_columns(database, "found", columns, keys=["name", "step"])
        rows = database.execute("FROM found ORDER BY step").fetchall()
        expected = [("it's", 2**62 + at, value, data != b"", data) for at in range(count)]
        assert str(rows) == str(expected)  # of NaN too
    database.close()
