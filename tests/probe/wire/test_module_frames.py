"""Module columns, rows and histograms survive the wire; a store that does not know them takes the frame."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from observed_steps import Watched
from torch import nn

from probe import wire
from probe.errors import WireError
from probe.wire import Frame, Layout, ModuleInfo
from probe.wire.module_frames import (
    MODULE_COLUMNS,
    pack_histogram,
    pack_module_columns,
    pack_module_rows,
    unpack_histogram,
    unpack_module_column,
    unpack_module_rows,
)


@given(hnp.arrays(np.float64, st.integers(0, 30), elements=st.floats(allow_nan=True, width=32)), st.randoms())
def test_module_columns_come_back_as_they_were(values: np.ndarray, rng: object) -> None:
    missing = np.array([rng.random() < 0.3 for _ in values], dtype=np.bool_)  # type: ignore[attr-defined]
    (*packed,) = pack_module_columns({"activation_rms": values}, {"activation_rms": missing})
    if missing.all():
        assert packed == []
        return
    frame = wire.decode_record(wire.encode(Frame(step=1, time=0.0, module_columns=packed)))
    assert isinstance(frame, Frame)
    found, gaps = unpack_module_column(frame.module_columns[0], len(values))
    assert np.array_equal(gaps, missing)
    assert np.array_equal(found[~gaps], values[~missing], equal_nan=True)


def test_counts_without_a_hit_are_left_out() -> None:
    nothing = {"activation_nan_count": np.zeros(3), "activation_rms": np.zeros(3)}
    assert [column.name for column in pack_module_columns(nothing, {})] == ["activation_rms"]


def test_observed_step_fits_its_table_and_comes_back() -> None:
    found = Watched(nn.Sequential(nn.Linear(2, 3), nn.ReLU())).step(torch.ones(4, 2))
    columns = pack_module_columns(found.columns, found.missing)
    assert {column.name for column in columns} <= set(MODULE_COLUMNS)
    by_name = {column.name: column for column in columns}
    values, gaps = unpack_module_column(by_name["activation_rms"], 3)
    assert values == pytest.approx(found.columns["activation_rms"])
    assert not gaps.any()


def test_rows_of_single_calls_come_back() -> None:
    rows = np.array([0, 2, 2, 1])
    frame = Frame(step=0, time=0.0, module_rows=pack_module_rows(rows))
    assert np.array_equal(unpack_module_rows(frame, 3), rows)
    assert np.array_equal(unpack_module_rows(Frame(step=0, time=0.0), 2), [0, 1])
    with pytest.raises(WireError, match="module 2"):
        unpack_module_rows(frame, 2)
    with pytest.raises(WireError, match="multiple of 4"):
        unpack_module_rows(Frame(step=0, time=0.0, module_rows=b"abc"), 2)


def test_histograms_come_back_and_stay_within_their_width() -> None:
    counts = np.array([[1, 2, 3], [0, 2**40, 5]])
    found = unpack_histogram(pack_histogram("activation", "modules", counts))
    assert np.array_equal(found, np.minimum(counts, 2**32 - 1))


def test_columns_that_do_not_fit_are_refused() -> None:
    (column,) = pack_module_columns({"calls": np.ones(9)}, {"calls": np.arange(9) == 0})
    with pytest.raises(WireError, match="9 values for 8 rows"):
        unpack_module_column(column, 8)
    short = wire.ModuleColumn(name="calls", dtype="f4", data=column.data, missing=b"\x80")
    with pytest.raises(WireError, match="covers 8 of 9"):
        unpack_module_column(short, 9)


def test_layout_with_modules_comes_back() -> None:
    layout = Layout(
        layout=0, model="Net", parameters=[], layers=[], modules=[ModuleInfo(name="a", type="Linear")]
    )
    assert wire.decode_record(wire.encode(layout)) == layout
