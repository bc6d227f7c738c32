"""The whole store against a dictionary: random streams, commits, restarts and reads."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from store_engines import OpenStore
from store_reference import RUN, SMALL, Reference, begin, column_width, make_frame, stream_key

from dashboard.store.protocol import StepRange, Store

number = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e308, -1e308, 1e-300])
)
ALL_STEPS = 1_000_000
"""More than a stream here can have: that old rows are removed is the subject of other tests."""
norm = st.one_of(st.floats(0, 1e6, width=32), st.sampled_from([math.nan, math.inf, 0.0]))
frame = st.fixed_dictionaries(
    {
        "incarnation": st.sampled_from([1000, 2000]),
        "move": st.sampled_from([1, 1, 1, 1, 2, 15, 250, -20, 0]),
        "repeat": st.integers(1, 40),
        "loss": number,
        "rare": st.booleans(),
        "norms": st.lists(norm, min_size=3, max_size=3),
        "missing": st.lists(st.booleans(), min_size=3, max_size=3),
        "commit": st.booleans(),
        "reopen": st.sampled_from([False] * 7 + [True]),
    }
)
LONG = [
    {
        "incarnation": incarnation,
        "move": 250,
        "repeat": repeat,
        "loss": 1.0,
        "rare": False,
        "norms": [1.0, 2.0, 3.0],
        "missing": [False, True, True],
        "commit": False,
        "reopen": False,
    }
    for incarnation, repeat in ((1000, 40), (2000, 31), (2000, 39))
]
"""27,500 steps: a store would remove some of their rows."""
view = st.fixed_dictionaries(
    {
        "first": st.none() | st.integers(0, 2000),
        "end": st.none() | st.integers(0, 2000),
        "limit": st.sampled_from([1, 2, 7, 50, 1000]),
    }
)


def play(open_store: OpenStore, folder: Path, items, scalars: Reference, tensors: Reference) -> Store:
    """Feed the frames to a new store, which removes no old rows, and to the references."""
    store = open_store(folder, raw_steps=ALL_STEPS)
    for incarnation in (1000, 2000):
        begin(store, incarnation=incarnation)
    step, seqs = 0, {1000: 0, 2000: 0}
    for item in items:
        incarnation = item["incarnation"]
        for index in range(item["repeat"]):
            step = max(0, step + item["move"])
            seq = seqs[incarnation]
            seqs[incarnation] += 1
            named = {"loss": item["loss"] + index} | ({"rare": float(step)} if item["rare"] else {})
            values = [value + index for value in item["norms"]]
            record = make_frame(step, {"grad_norm": values}, scalars=named, missing=item["missing"])
            store.append(stream_key(incarnation=incarnation), seq, [record])
            for name, value in named.items():
                scalars.add(name, step, incarnation=incarnation, seq=seq, value=value, time=float(step))
            measured = zip(SMALL.parameters, values, item["missing"], strict=True)
            for parameter, value, missing in measured:
                tensors.add(
                    parameter.name, step, incarnation=incarnation, seq=seq, value=None if missing else value
                )
        if item["commit"]:
            store.commit()
        if item["reopen"]:
            store.close()
            store = open_store(folder, raw_steps=ALL_STEPS)
    return store


def check_scalars(store: Store, reference: Reference, look) -> None:
    steps = StepRange(first=look["first"], end=look["end"])
    found = store.scalars(RUN, 0, ["rare", "loss", "unknown"], steps, max_points=look["limit"])
    for name in ("loss", "rare"):
        expected = reference.points(name, look["first"], look["end"], look["limit"])
        mine = found[found["name"] == name].drop(columns="name").to_numpy(np.float64)
        assert len(mine) == len(expected) <= look["limit"]
        if expected:
            check_points(mine, np.array(expected))


def check_points(mine: np.ndarray, expected: np.ndarray) -> None:
    """Rows of (step, time, min, mean, max, ...); values that cancel leave a mean its rounding error."""
    mean = 3
    others = [column for column in range(mine.shape[1]) if column != mean]
    np.testing.assert_allclose(mine[:, others], expected[:, others], rtol=1e-9, atol=1e-300)
    largest = np.nan_to_num(np.abs(expected[:, [2, 4]]).max(axis=1))
    for found, wanted, size in zip(mine[:, mean], expected[:, mean], largest, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-300 + 1e-13 * size)


def check_parameters(store: Store, reference: Reference, look) -> None:
    steps = StepRange(first=look["first"], end=look["end"])
    picture = store.heatmap(RUN, 0, "grad_norm", steps, look["limit"], unfolded=("first", "second"))
    low = max(min(reference.steps), look["first"] or 0)
    high = min(max(reference.steps), math.inf if look["end"] is None else look["end"] - 1)
    if low > high:
        assert picture.values.shape == (5, 0)
        return
    width = column_width(low, high, look["limit"])
    assert picture.steps_per_column == width
    assert picture.steps.tolist() == list(range(low // width * width, high + 1, width))
    for row, kind in enumerate(picture.row_kinds):
        if kind == "parameter":
            for column, start in enumerate(picture.steps.tolist()):
                cell = [reference.shown(picture.rows[row], s) for s in range(start, start + width)]
                mine = [entry[3] for entry in cell if entry is not None and entry[3] is not None]
                check_cell(picture, row, column, mine)


def check_cell(picture, row: int, column: int, mine: list[float]) -> None:
    finite = [float(np.float32(value)) for value in mine if math.isfinite(value)]
    bits = bool(mine) | 2 * any(map(math.isnan, mine)) | 4 * any(map(math.isinf, mine))
    assert picture.flags[row, column] == bits
    np.testing.assert_equal(picture.values[row, column], np.float32(max(finite) if finite else math.nan))


# Shrinking would build thousands of databases: the failing example itself is printed.
@settings(
    max_examples=15,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.function_scoped_fixture),
)
@example(items=LONG, looks=[{"first": None, "end": 600, "limit": 50}])
@given(items=st.lists(frame, min_size=1, max_size=12), looks=st.lists(view, min_size=1, max_size=4))
def test_store_any_stream_reads_like_a_dictionary_before_and_after_commit(open_store, items, looks):
    scalars, tensors = Reference(), Reference()
    with tempfile.TemporaryDirectory() as folder:
        store = play(open_store, Path(folder), items, scalars, tensors)
        for _ in range(2):
            for look in looks:
                check_scalars(store, scalars, look)
                check_parameters(store, tensors, look)
            store.commit()
        store.close()
